//! All methods of the control socket: names, parameters and answers.
//!
//! A struct here is the request of a method, with its parameters. The order is that of the manual page.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::answers;
use crate::param::{Assignments, Folder, LookBack, Names, Param, RequestOp, Size, TimeLimit, Word};
use crate::rpc::{Params, RpcFault};
use crate::shape::{Kind, Shape};

/// Values by path: numbers and strings. The elevator's state, at `DEVICE/queue/iosched/state`, is an object, see
/// [`answers::ElevatorState`].
pub type Values = BTreeMap<String, Value>;

/// A request: the parameters of a method.
pub trait Request: Sized {
    /// The method.
    const METHOD: Method;
    /// What it is answered.
    type Answer: serde::Serialize + serde::de::DeserializeOwned;

    /// Reads the parameters of a client.
    ///
    /// # Errors
    /// A parameter that the method does not take, is missing, or has another type.
    fn read(params: &Params) -> Result<Self, RpcFault>;

    /// The parameters for a server.
    fn write(&self) -> Params;
}

/// A parameter of a method.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Name of the key in `params`.
    pub name: &'static str,
    /// What it takes, and whether it may be left out.
    pub kind: &'static str,
    /// Meaning of the value.
    pub about: &'static str,
}

macro_rules! methods {
    ($(
        $(#[doc = $about:literal])* $name:literal $method:ident {
            $($(#[doc = $doc:literal])* $field:ident: $type:ty,)*
        } -> $answer:ty;
    )*) => {
        /// A method of the control socket.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Method { $($(#[doc = $about])* $method,)* }

        impl Method {
            /// All methods, in the order of the manual page.
            pub const ALL: &'static [Self] = &[$(Self::$method),*];

            /// Name as requests have it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$method => $name),* }
            }

            /// What it does, in sentences.
            #[must_use]
            pub fn about(self) -> &'static str {
                match self { $(Self::$method => concat!($($about),*)),* }
            }

            /// The parameters that it takes.
            #[must_use]
            pub fn parameters(self) -> &'static [Parameter] {
                match self { $(Self::$method => const { &[$(Parameter {
                    name: stringify!($field),
                    kind: <$type as Param>::KIND,
                    about: concat!($($doc),*),
                }),*] }),* }
            }

            /// Kind of its answer.
            #[must_use]
            pub fn answer(self) -> Kind {
                match self { $(Self::$method => <$answer as Shape>::KIND),* }
            }
        }

        $(
            $(#[doc = $about])*
            #[derive(Clone, Debug, Default, PartialEq)]
            pub struct $method { $($(#[doc = $doc])* pub $field: $type,)* }

            impl Request for $method {
                const METHOD: Method = Method::$method;
                type Answer = $answer;

                fn read(params: &Params) -> Result<Self, RpcFault> {
                    Self::METHOD.check(params)?;
                    Ok(Self { $($field: {
                        let name = stringify!($field);
                        Param::read(name, params.get(name))?
                    },)* })
                }

                fn write(&self) -> Params {
                    let values: Vec<(&str, Option<Value>)> =
                        vec![$((stringify!($field), self.$field.write())),*];
                    let given = |(name, value): (&str, Option<Value>)| Some((name.to_owned(), value?));
                    values.into_iter().filter_map(given).collect()
                }
            }
        )*
    };
}

methods! {
    /// Reads a value, or all values below a path.
    "get" Get {
        /// path; without it everything
        path: Option<String>,
    } -> Values;

    /// Sets one value, or several: all are checked first, and if one is wrong none is set. A path may be a pattern with * and ?.
    "set" Set {
        /// path of the value, with value
        path: Option<String>,
        /// the new value
        value: Option<Word>,
        /// objects with path and value, 1024 at most
        values: Option<Assignments>,
    } -> Values;

    /// Counters of devices, exports, connections, the page cache, dirty data and request buffers since the start.
    "stats" Stats {} -> answers::Stats;

    /// Counters as in /proc/diskstats.
    "diskstats" Diskstats {} -> Vec<answers::DiskRow>;

    /// Latency of requests, divided by stage, as histograms.
    "histograms" Histograms {
        /// one export; without it all
        export: Option<String>,
    } -> answers::Histograms;

    /// Says where the slow requests of the last minute spent their time.
    "why" Why {
        /// one export; without it the one whose slow requests were slowest
        export: Option<String>,
        /// only these: read, write, flush, trim, zero, prefetch or block_status
        op: RequestOp,
        /// time to look at, 1 to 60
        seconds: LookBack,
    } -> answers::Why;

    /// Lists the connected clients.
    "connections" Connections {} -> Vec<answers::Connection>;

    /// Lists the listening sockets and what they offer.
    "listeners" Listeners {} -> Vec<answers::Listener>;

    /// Lists the exports, with those that are absent.
    "exports" Exports {} -> Vec<answers::Export>;

    /// Lists the tenants.
    "tenants" Tenants {} -> Vec<answers::Tenant>;

    /// Adds a tenant, which divides every device with the others by weight.
    "add-tenant" AddTenant {
        /// name and keys, as for serve --tenant: acme,weight=400
        tenant: String,
    } -> answers::TenantChange;

    /// Removes a tenant that has no exports.
    "remove-tenant" RemoveTenant {
        /// name of the tenant
        tenant: String,
    } -> answers::TenantChange;

    /// Adds a socket for clients, which offers the exports that it names.
    "add-listener" AddListener {
        /// keys as for serve --listen: unix=/run/acme.sock,tenant=acme; an owner by numbers
        listener: String,
        /// directory of relative paths
        cwd: Folder,
    } -> answers::ListenerChange;

    /// Closes a socket for clients; those that are connected stay.
    "remove-listener" RemoveListener {
        /// name of the listener
        listener: String,
    } -> answers::ListenerChange;

    /// Adds an export; clients can open it when the answer comes.
    "add" Add {
        /// [NAME=]SPEC, as for serve
        spec: String,
        /// refuse writes
        read_only: bool,
        /// directory of relative paths
        cwd: Folder,
    } -> answers::Added;

    /// Hides an export, writes it out, flushes, and closes its image.
    "remove" Remove {
        /// name of the export
        export: String,
        /// disconnect its clients
        force: bool,
        /// as force, and give it up if its device does not answer: the removal ends when that does
        abandon: bool,
    } -> answers::Removed;

    /// Grows an image and its export.
    "resize" Resize {
        /// name of the export
        export: String,
        /// bytes, 20G, or +5G to grow by; without it the present size of the file or disk
        size: Size,
    } -> answers::Resized;

    /// Writes out and flushes what is dirty now; clients continue.
    "drain" Drain {
        /// one export; without it all
        export: Option<String>,
        /// seconds after which it fails with ETIMEDOUT and names the exports that are not written out, at most 3600
        timeout: TimeLimit,
    } -> answers::Drained;

    /// Lets what changes the images of exports wait, writes everything out and flushes: until thaw, or the time limit, the images are of one point in time.
    "freeze" Freeze {
        /// names of exports; * and ? make a pattern
        exports: Names,
        /// seconds after which it ends by itself, at most 3600
        timeout: TimeLimit,
    } -> answers::Frozen;

    /// Ends a freeze. ETIMEDOUT if it had ended by itself.
    "thaw" Thaw {
        /// names of exports; * and ? make a pattern
        exports: Names,
    } -> answers::Thawed;

    /// Keeps what an overlay is now as a file of its own, which is the base of a new overlay from then on. Writes wait for a flush meanwhile.
    "snapshot" Snapshot {
        /// name of the export
        export: String,
        /// name of the file that keeps the present state; relative to the directory of the overlay
        file: String,
    } -> answers::Snapshotted;

    /// Cuts the power of a powercut: disk: the server ends as by kill -9, most often before its answer.
    "cut" Cut {
        /// name of the export
        export: String,
    } -> answers::PowerCut;

    /// Refuses new clients of exports; present ones go on. It lasts until accept-clients, or the end of the process.
    "refuse-clients" RefuseClients {
        /// names of exports; * and ? make a pattern
        exports: Names,
    } -> answers::ClientsChange;

    /// Ends a refusal of new clients.
    "accept-clients" AcceptClients {
        /// names of exports; * and ? make a pattern
        exports: Names,
    } -> answers::ClientsChange;

    /// Lists acknowledged ranges that could not be written.
    "failed" Failed {
        /// name of the export
        export: String,
    } -> answers::FailedRanges;

    /// Destroys data: discards those ranges, so that flushes succeed again.
    "discard-failed" DiscardFailed {
        /// name of the export
        export: String,
        /// without true it only reports
        confirm: bool,
    } -> answers::Discarded;

    /// Compares the running server with its configuration files.
    "diff" Diff {
        /// with true the text is in a file that is read with the configuration, and the server is compared with it from then on
        save: bool,
    } -> answers::Diff;

    /// Loads the configuration and the certificates again.
    "reload" Reload {} -> answers::Reloaded;

    /// Replaces the server by a new process of the same command line, without disconnecting clients.
    "upgrade" Upgrade {} -> answers::Upgraded;

    /// Sets the level of the log, or reads it.
    "log-level" LogLevel {
        /// error, warn, info, debug or trace
        level: Option<String>,
    } -> answers::LogLevel;
}

impl Method {
    /// The method of a name.
    ///
    /// # Errors
    /// There is none; the sentence has all names.
    pub fn find(name: &str) -> Result<Self, RpcFault> {
        let found = Self::ALL.iter().find(|method| method.name() == name);
        found.copied().ok_or_else(|| unknown(name))
    }

    /// Whether its answer comes within a time of the server's own. A change waits for commands in flight up to their time limit, a
    /// write-out as long as the device takes.
    #[must_use]
    pub fn is_prompt(self) -> bool {
        !matches!(
            self,
            Self::Set
                | Self::Add
                | Self::Remove
                | Self::Resize
                | Self::Drain
                | Self::Freeze
                | Self::Snapshot
                | Self::Reload
        )
    }

    /// Refuses a parameter that the method does not take.
    fn check(self, params: &Params) -> Result<(), RpcFault> {
        let (name, accepted) = (self.name(), self.parameters());
        match params.keys().find(|key| !accepted.iter().any(|one| one.name == **key)) {
            None => Ok(()),
            Some(key) if accepted.is_empty() => {
                Err(RpcFault::params(format!("{name} takes no parameters, and no `{key}`")))
            }
            Some(key) => {
                let names: Vec<&str> = accepted.iter().map(|one| one.name).collect();
                let names = names.join(" and ");
                Err(RpcFault::params(format!("{name} takes no `{key}`; it takes {names}")))
            }
        }
    }
}

fn unknown(name: &str) -> RpcFault {
    if name == "acknowledge" {
        return RpcFault::method(
            "there is no method `acknowledge`; `discard-failed` discards the blocks of an export that could not be written",
        );
    }
    let names: Vec<&str> = Method::ALL.iter().map(|method| method.name()).collect();
    let [names @ .., last] = names.as_slice() else { unreachable!("there are methods") };
    let names = names.join(", ");
    RpcFault::method(format!("there is no method `{name}`; there are {names} and {last}"))
}

impl Set {
    /// What it sets: the paths and their values, in their order.
    ///
    /// # Errors
    /// It has neither a path with a value nor a list of them, or both.
    pub fn assignments(self) -> Result<Vec<(String, String)>, RpcFault> {
        match (self.values, &self.path, &self.value) {
            (Some(values), None, None) => Ok(values.0),
            (Some(_), ..) => Err(Assignments::refusal()),
            (None, ..) => Ok(vec![Assignments::one(self.path, self.value)?]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn params(value: &Value) -> &Params {
        value.as_object().unwrap()
    }

    #[test]
    fn request_is_read_as_it_was_written() {
        let add =
            Add { spec: "a=mem:size=1M".into(), read_only: true, cwd: Folder(Some("/".into())) };
        assert_eq!(Add::read(&add.write()), Ok(add));
        let drain = Drain { export: None, timeout: TimeLimit(Some(1.5)) };
        assert_eq!(drain.write(), *params(&json!({ "timeout": 1.5 })));
        assert_eq!(Drain::read(&drain.write()), Ok(drain));
        let set =
            Set { values: Some(Assignments(vec![("a".into(), "1".into())])), ..Set::default() };
        let read = Set::read(&set.write()).unwrap();
        assert_eq!(read.assignments().unwrap(), [("a".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn wrong_parameters_are_refused_with_what_would_be_right() {
        let refused = |value: Value| Resize::read(params(&value)).unwrap_err().into_message();
        assert_eq!(refused(json!({})), "export is missing");
        assert_eq!(refused(json!({ "export": 1 })), "export is a string");
        assert_eq!(refused(json!({ "export": "a", "size": -1 })), "size: -1 is no size");
        assert!(refused(json!({ "sice": 1 })).ends_with("it takes export and size"));
        let both = json!({ "path": "a", "value": 1, "values": [{ "path": "a", "value": 1 }] });
        assert!(Set::read(params(&both)).unwrap().assignments().is_err());
    }
}
