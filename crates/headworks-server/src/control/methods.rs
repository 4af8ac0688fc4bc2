//! The methods of the control socket: their names, parameters and results, in one table.
//!
//! `check` refuses a request by this table before the service carries it out, and `headworks man --control` makes
//! headworks-control(7) of it, so the page has exactly what is accepted. That answers have the fields of the table is tested against
//! a running server (`tests/interop/control_methods.py`).

use super::rpc::{Params, RpcFault};

/// A method of the control socket.
#[derive(Clone, Copy, Debug)]
pub struct ControlMethod {
    /// Name as requests have it.
    pub name: &'static str,
    /// What it does, in sentences.
    pub about: &'static str,
    /// Accepted parameters: name, type and meaning.
    pub parameters: &'static [ControlParameter],
    /// Form of the result, with its article: an object, or a list of objects.
    pub result: &'static str,
    /// Fields of the result, or of each object of a list: name and meaning. Empty where names depend on the request.
    pub fields: &'static [(&'static str, &'static str)],
}

/// A parameter of a method.
#[derive(Clone, Copy, Debug)]
pub struct ControlParameter {
    /// Name of the key in `params`.
    pub name: &'static str,
    /// JSON type, and whether it may be left out.
    pub kind: &'static str,
    /// Meaning of the value.
    pub about: &'static str,
}

const fn parameter(
    name: &'static str,
    kind: &'static str,
    about: &'static str,
) -> ControlParameter {
    ControlParameter { name, kind, about }
}

const EXPORT: ControlParameter = parameter("export", "string", "name of the export");
const EXPORT_LIST: ControlParameter =
    parameter("exports", "list of strings", "names of exports; * and ? make a pattern");
const NAME_LIST: (&str, &str) = ("exports", "list of their names");
const TENANT_NAME: (&str, &str) = ("tenant", "name of the tenant");
const EXPORT_NAME: (&str, &str) = ("export", "name of the export");
const AN_OBJECT: &str = "an object";
const A_LIST: &str = "a list of objects";

/// All methods of the control socket, in the order of the manual page.
pub const CONTROL_METHODS: &[ControlMethod] = &[
    ControlMethod {
        name: "get",
        about: "Reads a value, or all values below a path.",
        parameters: &[parameter("path", "string, may be missing", "path; without it everything")],
        result: "an object with each path and its value, a number or a string",
        fields: &[],
    },
    ControlMethod {
        name: "set",
        about: "Sets one value, or several: all are checked first, and if one is wrong none is set. A path may be a pattern with * and ?.",
        parameters: &[
            parameter("path", "string, with value", "path of the value"),
            parameter("value", "string, number or boolean, with path", "the new value"),
            parameter(
                "values",
                "list, instead of path and value",
                "objects with path and value, 1024 at most",
            ),
        ],
        result: "an object with each path that was set and its value now",
        fields: &[],
    },
    ControlMethod {
        name: "stats",
        about: "Counters of devices, exports, connections, the page cache, dirty data and request buffers since the start.",
        parameters: &[],
        result: AN_OBJECT,
        fields: &[
            (
                "devices",
                "object by device: queue, scheduler, tags, costs of commands, device_state",
            ),
            ("exports", "object by export: options, and counters of each kind of request"),
            ("connections", "list: counters of each connection"),
            ("seconds", "time since the start"),
            ("turns", "list: turns of the threads by number of requests in them"),
            ("cache", "object: hits, misses, sizes in bytes; null without a page cache"),
            ("dirty", "object: dirty data, limits, pauses of writers; null without a page cache"),
            ("buffers", "object: size, use and waits of the request buffers"),
        ],
    },
    ControlMethod {
        name: "diskstats",
        about: "Counters as in /proc/diskstats.",
        parameters: &[],
        result: A_LIST,
        fields: &[
            ("major", "always 0"),
            ("minor", "number of the export"),
            ("name", "name of the export"),
            ("fields", "object: the seventeen fields by their names in the kernel's documentation"),
        ],
    },
    ControlMethod {
        name: "histograms",
        about: "Latency of requests, divided by stage, as histograms.",
        parameters: &[parameter("export", "string, may be missing", "one export; without it all")],
        result: "an object",
        fields: &[
            ("export", "its name; without the parameter exports, an object by export"),
            ("ops", "object by kind of request: count, bytes, sum_us, stages"),
        ],
    },
    ControlMethod {
        name: "why",
        about: "Says where the slow requests of the last minute spent their time.",
        parameters: &[
            parameter(
                "export",
                "string, may be missing",
                "one export; without it the one whose slow requests were slowest",
            ),
            parameter("op", "string, may be missing", "only read, write or other"),
            parameter("seconds", "number, may be missing", "time to look at, 1 to 60"),
        ],
        result: AN_OBJECT,
        fields: &[
            EXPORT_NAME,
            ("sentence", "the answer in words"),
            ("hints", "list of strings: what may help"),
            ("notes", "list of strings"),
            ("slow", "boolean: there are slow requests"),
            ("op", "the kind of requests that was asked for, or null"),
            (
                "by_whom",
                "object, or null: exports that held what they waited for: resource, device, holders, guilty",
            ),
            ("seconds", "length of the time looked at"),
            ("requests", "number of requests in it"),
            ("considered", "number of slow requests that were analysed"),
            ("above_us", "requests that took longer are slow"),
            ("shares", "object: part of the slow requests' time by stage, 0 to 1"),
            ("stages", "object by stage: requests, p50_us, p99_us"),
            ("worst", "list: the slowest requests with the time of each stage"),
            ("device_state", "live or stuck"),
            ("latency_target", "object, or null without a target"),
            ("held_for_target", "object, or null: whose target held this export back"),
            ("served_meanwhile", "what bfq served meanwhile, or null"),
        ],
    },
    ControlMethod {
        name: "connections",
        about: "Lists the connected clients.",
        parameters: &[],
        result: A_LIST,
        fields: &[
            ("id", "number of the connection, as paths have it"),
            ("peer", "address or process of the client"),
            ("listener", "name of the socket that it came through"),
            ("shard", "number of its thread"),
            ("export", "name of its export, null before it chose one"),
            ("ioprio", "its I/O priority, or null"),
            ("in_flight", "number of its requests in flight"),
            ("latency", "object, or null: times of its requests"),
        ],
    },
    ControlMethod {
        name: "listeners",
        about: "Lists the listening sockets and what they offer.",
        parameters: &[],
        result: A_LIST,
        fields: &[
            ("name", "name of the listener"),
            ("address", "path or address"),
            ("tenant", "its tenant, or null"),
            ("tls", "off, on or require"),
            ("verifies_clients", "boolean: clients need a certificate"),
            ("exports", "list of names that it offers"),
            ("connections", "number of clients"),
        ],
    },
    ControlMethod {
        name: "exports",
        about: "Lists the exports, with those that are absent.",
        parameters: &[],
        result: A_LIST,
        fields: &[
            ("name", "name of the export"),
            ("size", "bytes"),
            ("device", "name of its device"),
            ("device_state", "live or stuck"),
            ("cache", "write mode"),
            ("read_only", "boolean"),
            ("tenant", "name, or null"),
            ("weight", "share of the device"),
            ("ioprio", "I/O priority of its clients"),
            ("clients", "number of clients"),
            ("dirty", "bytes in the cache that are not written yet"),
            ("failed", "bytes whose write-out failed"),
            ("limited_seconds", "time for which requests waited for limits"),
            ("latency_target_us", "its target, or null"),
            ("target_missed", "requests that took longer than the target"),
            (
                "state",
                "serving, refusing, frozen, draining, suspect, disconnected, deleted or absent",
            ),
            ("reason", "why it is absent, or null"),
            (
                "remote",
                "of an nbd: device, else null: uri; state up, down or barred; connections; reconnects; losses of acknowledged writes; told, a sentence",
            ),
        ],
    },
    ControlMethod {
        name: "tenants",
        about: "Lists the tenants.",
        parameters: &[],
        result: A_LIST,
        fields: &[
            ("name", "name of the tenant"),
            ("weight", "share of every device"),
            ("ioprio_max", "highest I/O priority of its clients, or null"),
            ("exports", "number of exports"),
            ("clients", "number of clients"),
            ("dirty", "bytes in the cache that are not written yet"),
            ("cached", "bytes in the cache"),
            ("read_bytes", "bytes read since the start"),
            ("written_bytes", "bytes written since the start"),
            ("limited_seconds", "time for which requests waited for limits"),
            ("latency_target_us", "its target, or null"),
            ("target_requests", "requests that count for the target"),
            ("target_missed", "those that took longer"),
            ("target_held", "bytes by which its target shrinks others in the device now"),
        ],
    },
    ControlMethod {
        name: "add-tenant",
        about: "Adds a tenant, which divides every device with the others by weight.",
        parameters: &[parameter(
            "tenant",
            "string",
            "name and keys, as for serve --tenant: acme,weight=400",
        )],
        result: AN_OBJECT,
        fields: &[TENANT_NAME],
    },
    ControlMethod {
        name: "remove-tenant",
        about: "Removes a tenant that has no exports.",
        parameters: &[parameter("tenant", "string", "name of the tenant")],
        result: AN_OBJECT,
        fields: &[TENANT_NAME],
    },
    ControlMethod {
        name: "add",
        about: "Adds an export; clients can open it when the answer comes.",
        parameters: &[
            parameter("spec", "string", "[NAME=]SPEC, as for serve"),
            parameter("read_only", "boolean, false if missing", "refuse writes"),
            parameter("cwd", "string, may be missing", "directory of relative paths"),
        ],
        result: AN_OBJECT,
        fields: &[EXPORT_NAME, ("notes", "list of strings")],
    },
    ControlMethod {
        name: "remove",
        about: "Hides an export, writes it out, flushes, and closes its image.",
        parameters: &[
            EXPORT,
            parameter("force", "boolean, false if missing", "disconnect its clients"),
        ],
        result: AN_OBJECT,
        fields: &[
            EXPORT_NAME,
            ("clients", "number of clients that were disconnected"),
            ("closed", "boolean: the image is closed, no other export has it"),
        ],
    },
    ControlMethod {
        name: "resize",
        about: "Grows an image and its export.",
        parameters: &[
            EXPORT,
            parameter(
                "size",
                "string or number, may be missing",
                "bytes, 20G, or +5G to grow by; without it the present size of the file or disk",
            ),
        ],
        result: AN_OBJECT,
        fields: &[EXPORT_NAME, ("before", "bytes before"), ("size", "bytes now")],
    },
    ControlMethod {
        name: "drain",
        about: "Writes out and flushes what is dirty now; clients continue.",
        parameters: &[
            parameter("export", "string, may be missing", "one export; without it all"),
            parameter(
                "timeout",
                "number, 60 if missing",
                "seconds after which it fails with ETIMEDOUT and names the exports that are not written out, at most 3600",
            ),
        ],
        result: AN_OBJECT,
        fields: &[
            ("bytes", "bytes written out"),
            ("seconds", "time that it took"),
            ("exports", "list of objects with export and bytes"),
        ],
    },
    ControlMethod {
        name: "freeze",
        about: "Lets what changes the images of exports wait, writes everything out and flushes: until thaw, or the time limit, the images are of one point in time.",
        parameters: &[
            EXPORT_LIST,
            parameter(
                "timeout",
                "number, 60 if missing",
                "seconds after which it ends by itself, at most 3600",
            ),
        ],
        result: AN_OBJECT,
        fields: &[
            NAME_LIST,
            ("bytes", "bytes written out"),
            ("seconds", "time that it took"),
            ("timeout", "seconds after which it ends by itself"),
        ],
    },
    ControlMethod {
        name: "thaw",
        about: "Ends a freeze. ETIMEDOUT if it had ended by itself.",
        parameters: &[EXPORT_LIST],
        result: AN_OBJECT,
        fields: &[NAME_LIST, ("seconds", "time for which they were frozen")],
    },
    ControlMethod {
        name: "snapshot",
        about: "Keeps what an overlay is now as a file of its own, which is the base of a new overlay from then on. Writes wait for a flush meanwhile.",
        parameters: &[
            EXPORT,
            parameter(
                "file",
                "string",
                "name of the file that keeps the present state; relative to the directory of the overlay",
            ),
        ],
        result: AN_OBJECT,
        fields: &[
            EXPORT_NAME,
            ("file", "path of the file"),
            ("bytes", "bytes written out"),
            ("seconds", "time for which writes waited, at most"),
        ],
    },
    ControlMethod {
        name: "cut",
        about: "Cuts the power of a powercut: disk: the server ends as by kill -9, most often before its answer.",
        parameters: &[EXPORT],
        result: AN_OBJECT,
        fields: &[EXPORT_NAME],
    },
    ControlMethod {
        name: "refuse-clients",
        about: "Refuses new clients of exports; present ones go on. It lasts until accept-clients, or the end of the process.",
        parameters: &[EXPORT_LIST],
        result: AN_OBJECT,
        fields: &[NAME_LIST, ("clients", "number of their present clients")],
    },
    ControlMethod {
        name: "accept-clients",
        about: "Ends a refusal of new clients.",
        parameters: &[EXPORT_LIST],
        result: AN_OBJECT,
        fields: &[NAME_LIST, ("clients", "number of their present clients")],
    },
    ControlMethod {
        name: "failed",
        about: "Lists acknowledged ranges that could not be written.",
        parameters: &[EXPORT],
        result: AN_OBJECT,
        fields: &[EXPORT_NAME, ("ranges", "list of objects with offset and length")],
    },
    ControlMethod {
        name: "discard-failed",
        about: "Destroys data: discards those ranges, so that flushes succeed again.",
        parameters: &[
            EXPORT,
            parameter("confirm", "boolean, false if missing", "without true it only reports"),
        ],
        result: AN_OBJECT,
        fields: &[
            EXPORT_NAME,
            ("failed_bytes", "bytes that are lost, or would be"),
            ("unflushed", "acknowledged writes that were not flushed"),
            ("was_suspect", "boolean: flushes failed"),
            ("discarded", "boolean: false without confirm, or if there was nothing"),
        ],
    },
    ControlMethod {
        name: "diff",
        about: "Compares the running server with its configuration files.",
        parameters: &[],
        result: AN_OBJECT,
        fields: &[
            ("changes", "list: what differs"),
            ("unsaved", "list: what cannot be said in a file"),
            ("text", "a drop-in file that says the changes"),
            ("config", "the configuration file, or null"),
        ],
    },
    ControlMethod {
        name: "reload",
        about: "Loads the configuration and the certificates again.",
        parameters: &[],
        result: AN_OBJECT,
        fields: &[
            ("reloaded", "boolean: false if the files have errors, and nothing was loaded"),
            ("problems", "list of strings: errors of the files"),
            ("changed", "list of strings: what was changed"),
            ("refused", "list of strings: what could not be changed"),
            ("failed", "list of strings: what could not be opened"),
            ("restart", "list of strings: what takes effect after a restart"),
        ],
    },
    ControlMethod {
        name: "upgrade",
        about: "Replaces the server by a new process of the same command line, without disconnecting clients.",
        parameters: &[],
        result: AN_OBJECT,
        fields: &[
            ("pid", "the new process"),
            ("ms", "time that it took"),
            ("paused_ms", "time for which nothing was served"),
        ],
    },
    ControlMethod {
        name: "log-level",
        about: "Sets the level of the log, or reads it.",
        parameters: &[parameter(
            "level",
            "string, may be missing",
            "error, warn, info, debug or trace",
        )],
        result: AN_OBJECT,
        fields: &[("level", "the level now")],
    },
];

/// Refuses a method or a parameter that is not in the table.
pub(super) fn check(name: &str, params: &Params) -> Result<(), RpcFault> {
    let Some(method) = CONTROL_METHODS.iter().find(|method| method.name == name) else {
        return Err(unknown(name));
    };
    let accepted = method.parameters;
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

/// The fault for a method that does not exist.
pub(super) fn unknown(name: &str) -> RpcFault {
    if name == "acknowledge" {
        return RpcFault::method(
            "there is no method `acknowledge`; `discard-failed` discards the blocks of an export that could not be written",
        );
    }
    let names: Vec<&str> = CONTROL_METHODS.iter().map(|method| method.name).collect();
    let [names @ .., last] = names.as_slice() else { unreachable!("there are methods") };
    let names = names.join(", ");
    RpcFault::method(format!("there is no method `{name}`; there are {names} and {last}"))
}
