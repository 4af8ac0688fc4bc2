//! `[[listen]]` tables: a socket for clients, and the exports that it offers.
//!
//! ```toml
//! [[listen]]
//! name = "acme"                     # for messages; without one its address
//! unix = "/run/headworks/acme.sock" # or address = "0.0.0.0:10809"
//! mode = "0660"
//! owner = "acme:acme"
//! exports = ["shared"]              # names, with * and ?
//! tenant = "acme"                   # and the exports of this tenant; with neither every export
//! tls = "require"                   # also tls-certificates, tls-verify-peer
//!
//! [[listen]]
//! kind = "vhost-user"               # a disk of a virtual machine: one export, a unix socket
//! unix = "/run/headworks/vm1.sock"
//! exports = ["vm1"]
//!
//! [[listen]]
//! kind = "fuse"                     # files for programs: a directory in which each export is one
//! path = "/mnt/exports"
//! ```
//!
//! Without a value of its own a listener has that of the server.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use headworks_core::ConfigError;
use headworks_nbd::tls::{TlsMode, TlsOptions};
use toml::de::DeTable;

use super::problem::{Origin, Problem};
use super::read::{Reader, Setting, Value, disabled, entries, merge_settings, unknown};
use crate::exports::access::{ListenerKind, ListenerSpec};
use crate::listen::{Address, FileOwner};
use crate::spec::tenant::TenantName;
use crate::spec::units::parse_switch;

/// Most names and patterns of one list: as many as a server has exports.
pub(super) const PATTERNS_MAX: usize = 1024;

/// Longest name in bytes; a unix socket's path, which is the default, has at most 107.
const NAME_MAX: usize = 128;

/// Separates names of a list on the command line, where a comma separates keys.
const SEPARATOR: char = '+';

/// Keys with one value each.
const KEYS: [&str; 11] = [
    "kind",
    "path",
    "unix",
    "address",
    "mode",
    "owner",
    "tenant",
    "tls",
    "tls-certificates",
    "tls-verify-peer",
    "enabled",
];

/// Keys that a directory of files does not have.
const NOT_OF_FILES: [&str; 8] =
    ["unix", "address", "mode", "owner", "tenant", "tls", "tls-certificates", "tls-verify-peer"];

/// Values of listeners that say nothing of them.
pub struct ListenDefaults<'a> {
    /// Mode bits of the file of a unix socket.
    pub mode: u32,
    /// Policy for clients without TLS.
    pub tls: TlsMode,
    /// Directory of certificates, also of a server without TLS.
    pub certificates: Option<PathBuf>,
    /// Clients must present certificates.
    pub verify_peer: bool,
    /// Looks the ids of `user`, `user:group` or `:group` up.
    pub owner: &'a dyn Fn(&str) -> Result<FileOwner, String>,
}

/// A listener as it is written in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenSection {
    /// Name of the listener.
    pub name: String,
    /// Values by their keys.
    pub settings: Vec<Setting>,
    /// Names and patterns of the exports that it offers.
    pub exports: Vec<String>,
    /// Origin of the section.
    pub origin: Origin,
}

impl ListenSection {
    /// Makes the section for `key=value,...` of a command line, with `+` between the names of a list.
    ///
    /// # Errors
    /// The text is invalid.
    pub fn from_words(text: &str, origin: &Origin) -> Result<Self, ConfigError> {
        let wrong = |message: String| ConfigError::new("listen", message);
        let (mut name, mut exports, mut settings) = (None, Vec::new(), Vec::<Setting>::new());
        let mut given: Vec<&str> = Vec::new();
        for word in text.split(',') {
            let Some((key, value)) = word.split_once('=') else {
                let message = format!("`{word}` is not key=value, as in unix=/run/acme.sock");
                return Err(wrong(message));
            };
            if given.contains(&key) {
                return Err(wrong(format!("{key} is given twice")));
            }
            given.push(key);
            match key {
                "name" => name = Some(value.to_owned()),
                "exports" => exports = value.split(SEPARATOR).map(str::to_owned).collect(),
                _ if KEYS.contains(&key) => {
                    let (name, value) = (key.to_owned(), Value::Word(value.to_owned()));
                    settings.push(Setting { name, value, origin: origin.clone() });
                }
                _ => return Err(wrong(unknown(key, "a listener", &all_keys()))),
            }
        }
        let name = name.or_else(|| default_name(&settings));
        let name = name.ok_or_else(|| wrong(needs_address("it")))?;
        check_name(&name).map_err(wrong)?;
        settings.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self { name, settings, exports, origin: origin.clone() })
    }

    /// Makes the section of a disk of virtual machines for the `EXPORT=PATH` of a command line. The last `=` separates them: a path
    /// seldom has one, an export's name may.
    ///
    /// # Errors
    /// The text is invalid.
    pub fn of_disk(text: &str, origin: &Origin) -> Result<Self, ConfigError> {
        let wrong = |message: String| ConfigError::new("vhost-user", message);
        let words =
            text.rsplit_once('=').filter(|(export, path)| !export.is_empty() && !path.is_empty());
        let (export, path) = words.ok_or_else(|| {
            wrong(format!("`{text}` is not EXPORT=PATH, as in vm1=/run/vm1.sock"))
        })?;
        let set = |name: &str, word: &str| Setting {
            name: name.to_owned(),
            value: Value::Word(word.to_owned()),
            origin: origin.clone(),
        };
        let settings = vec![set("kind", ListenerKind::VhostUser.word()), set("unix", path)];
        check_name(path).map_err(wrong)?;
        let (name, exports) = (path.to_owned(), vec![export.to_owned()]);
        Ok(Self { name, settings, exports, origin: origin.clone() })
    }

    /// Makes the section of a directory of files for the `DIR` of a command line.
    ///
    /// # Errors
    /// The text is invalid.
    pub fn of_directory(path: &str, origin: &Origin) -> Result<Self, ConfigError> {
        check_name(path).map_err(|what| ConfigError::new("fuse", what))?;
        let set = |name: &str, word: &str| Setting {
            name: name.to_owned(),
            value: Value::Word(word.to_owned()),
            origin: origin.clone(),
        };
        let settings = vec![set("kind", ListenerKind::Fuse.word()), set("path", path)];
        Ok(Self { name: path.to_owned(), settings, exports: Vec::new(), origin: origin.clone() })
    }

    /// What [`ListenSection::from_words`] reads, but for the name.
    #[must_use]
    pub fn words(&self) -> String {
        let exports = self.exports.join(&SEPARATOR.to_string());
        let exports = (!exports.is_empty()).then(|| format!("exports={exports}"));
        let settings = self.settings.iter();
        let words = settings.map(|setting| format!("{}={}", setting.name, setting.word()));
        words.chain(exports).collect::<Vec<_>>().join(",")
    }

    /// Makes a section that takes a listener of an earlier file away.
    #[must_use]
    pub fn disabled(name: &str, origin: &Origin) -> Self {
        let (name, exports) = (name.to_owned(), Vec::new());
        Self { name, settings: disabled(origin), exports, origin: origin.clone() }
    }

    /// Makes a relative path of its socket or directory start at `folder`.
    pub(crate) fn set_folder(&mut self, folder: &std::path::Path) {
        let is_path = |name: &str| ["unix", "path"].contains(&name);
        for setting in self.settings.iter_mut().filter(|setting| is_path(&setting.name)) {
            let path = folder.join(setting.word());
            setting.value = Value::Word(path.to_string_lossy().into_owned());
        }
    }

    /// Gives the file of a unix socket a mode if it has none.
    pub(crate) fn set_default_mode(&mut self, mode: u32) {
        if self.get("unix").is_some() && self.get("mode").is_none() {
            let (name, value) = ("mode".to_owned(), Value::Word(format!("{mode:o}")));
            self.settings.push(Setting { name, value, origin: self.origin.clone() });
            self.settings.sort_by(|one, other| one.name.cmp(&other.name));
        }
    }

    /// The same values with one origin.
    #[must_use]
    pub fn with_origin(mut self, origin: &Origin) -> Self {
        self.settings.iter_mut().for_each(|setting| setting.origin = origin.clone());
        self.origin = origin.clone();
        self
    }

    /// Replaces what `later` says; names of exports are kept if it names none.
    pub(super) fn merge(&mut self, later: Self) {
        if later.is_enabled() == Ok(false) {
            *self = later;
            return;
        }
        // One place to listen replaces the other.
        let is_place = |setting: &Setting| ["unix", "address", "path"].contains(&&*setting.name);
        merge_settings(&mut self.settings, later.settings, |old, new| {
            old.name == new.name || is_place(old) && is_place(new)
        });
        if !later.exports.is_empty() {
            self.exports = later.exports;
        }
        self.origin = later.origin;
    }

    /// Whether the listener exists.
    ///
    /// # Errors
    /// The value of `enabled` is no switch.
    pub fn is_enabled(&self) -> Result<bool, Problem> {
        self.switch("enabled").map(|on| on.unwrap_or(true))
    }

    fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }

    fn switch(&self, name: &str) -> Result<Option<bool>, Problem> {
        let Some(setting) = self.get(name) else { return Ok(None) };
        parse_switch(setting.word()).map(Some).map_err(|error| self.wrong(setting, &error))
    }

    fn wrong(&self, setting: &Setting, what: &str) -> Problem {
        let Setting { name, origin, .. } = setting;
        Problem::new(origin, format!("listener {}: {name}: {what}", self.name))
    }

    /// The listener that the section defines.
    ///
    /// # Errors
    /// The first mistake, with its position.
    pub fn plan(&self, defaults: &ListenDefaults<'_>) -> Result<ListenerSpec, Problem> {
        let tenant = self.get("tenant").map(|setting| {
            let name = TenantName::parse(setting.word());
            let name = name.and_then(|name| name.check().map(|()| name));
            name.map_err(|error| self.wrong(setting, &error))
        });
        let owner = self.get("owner").map(|setting| {
            (defaults.owner)(setting.word()).map_err(|error| self.wrong(setting, &error))
        });
        let kind = self.kind()?;
        match kind {
            ListenerKind::Nbd => self.refuse(&["path"], "it is for kind = fuse")?,
            ListenerKind::VhostUser => self.check_disk()?,
            ListenerKind::Fuse => {
                self.refuse(&NOT_OF_FILES, "it is not for kind = fuse, which has a path")?
            }
        }
        let tls = match kind {
            ListenerKind::Nbd => self.tls(defaults)?,
            ListenerKind::VhostUser | ListenerKind::Fuse => TlsOptions::default(),
        };
        Ok(ListenerSpec {
            name: self.name.clone(),
            kind,
            address: match kind {
                ListenerKind::Fuse => self.directory()?,
                _ => self.address(defaults)?,
            },
            owner: owner.transpose()?,
            exports: self.exports.clone(),
            tenant: tenant.transpose()?,
            tls,
        })
    }

    fn kind(&self) -> Result<ListenerKind, Problem> {
        let Some(setting) = self.get("kind") else { return Ok(ListenerKind::Nbd) };
        let word = setting.word();
        let what = || self.wrong(setting, &format!("`{word}` is not nbd, vhost-user or fuse"));
        ListenerKind::parse(word).ok_or_else(what)
    }

    /// Refuses what a disk of a virtual machine cannot have: it is one export, and its front end passes descriptors by its socket.
    fn check_disk(&self) -> Result<(), Problem> {
        let no_use = ["path", "address", "tenant", "tls", "tls-certificates", "tls-verify-peer"];
        let what = "it is not for kind = vhost-user, which has a unix socket and one export";
        self.refuse(&no_use, what)?;
        match &self.exports[..] {
            [name] if !name.contains(['*', '?']) => Ok(()),
            _ => {
                let what = format!(
                    "listener {}: exports: kind = vhost-user needs the name of one export",
                    self.name
                );
                Err(Problem::new(&self.origin, what))
            }
        }
    }

    /// Refuses keys that its kind does not have.
    fn refuse(&self, keys: &[&str], what: &str) -> Result<(), Problem> {
        let found = keys.iter().find_map(|key| self.get(key));
        found.map_or(Ok(()), |setting| Err(self.wrong(setting, what)))
    }

    /// The directory of a FUSE listener.
    fn directory(&self) -> Result<Address, Problem> {
        let word = self.get("path").map_or("", Setting::word);
        if word.is_empty() {
            let what = format!("listener {}: kind = fuse needs path, a directory", self.name);
            return Err(Problem::new(&self.origin, what));
        }
        let path = std::path::absolute(word).unwrap_or_else(|_| PathBuf::from(word));
        Ok(Address::Directory(path))
    }

    fn address(&self, defaults: &ListenDefaults<'_>) -> Result<Address, Problem> {
        let (unix, address) = match (self.get("unix"), self.get("address")) {
            (Some(_), Some(address)) => {
                return Err(self.wrong(address, "a listener has this or unix, not both"));
            }
            (None, None) => {
                let what = needs_address(&format!("listener {}", self.name));
                return Err(Problem::new(&self.origin, what));
            }
            found => found,
        };
        if let Some(setting) = address {
            let of_file = ["mode", "owner"].into_iter().find_map(|key| self.get(key));
            if let Some(of_file) = of_file {
                return Err(self.wrong(of_file, "it is for the file of a unix socket"));
            }
            let example = "is no address and port such as 0.0.0.0:10809 or [::]:10809";
            let parsed = setting.word().parse::<SocketAddr>();
            let wrong = |_| self.wrong(setting, &format!("`{}` {example}", setting.word()));
            return parsed.map(Address::Tcp).map_err(wrong);
        }
        let path = unix.map_or("", Setting::word);
        if let Some(setting) = unix.filter(|_| path.is_empty() || path == "-") {
            return Err(self.wrong(setting, "a listener needs the path of its socket"));
        }
        let mode = self.get("mode").map(|setting| {
            let mode = u32::from_str_radix(setting.word(), 8).ok().filter(|mode| *mode <= 0o777);
            let what = format!("`{}` is not an octal mode such as 0660", setting.word());
            mode.ok_or_else(|| self.wrong(setting, &what))
        });
        let mode = mode.transpose()?.unwrap_or(defaults.mode);
        let path = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
        Ok(Address::Unix { path, mode })
    }

    fn tls(&self, defaults: &ListenDefaults<'_>) -> Result<TlsOptions, Problem> {
        let mode = self.get("tls").map(|setting| {
            let parsed = setting.word().parse::<TlsMode>();
            parsed.map_err(|error| self.wrong(setting, &error.message))
        });
        let mode = mode.transpose()?.unwrap_or(defaults.tls);
        let (own, verifies) = (self.get("tls-certificates"), self.switch("tls-verify-peer")?);
        if mode == TlsMode::Off {
            let without =
                own.or_else(|| self.get("tls-verify-peer").filter(|_| verifies == Some(true)));
            return match without {
                Some(setting) => {
                    Err(self.wrong(setting, "it has no effect without tls on or require"))
                }
                None => Ok(TlsOptions::default()),
            };
        }
        let absolute =
            |path: &str| std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
        let certificates = own.map(|setting| absolute(setting.word()));
        let certificates = certificates.or_else(|| defaults.certificates.clone());
        if certificates.is_none() {
            let what = format!(
                "listener {}: TLS needs tls-certificates, the directory of server-cert.pem and server-key.pem",
                self.name
            );
            return Err(Problem::new(&self.origin, what));
        }
        let verify_peer = verifies.unwrap_or(defaults.verify_peer);
        Ok(TlsOptions { mode, certificates, verify_peer })
    }
}

fn needs_address(what: &str) -> String {
    format!(
        "{what} needs unix, the path of a socket, or address, as in 127.0.0.1:10809; with kind = fuse path, a directory"
    )
}

/// All keys of a listener.
fn all_keys() -> Vec<&'static str> {
    ["name", "exports"].into_iter().chain(KEYS).collect()
}

fn default_name(settings: &[Setting]) -> Option<String> {
    let place = |name: &str| settings.iter().find(|setting| setting.name == name);
    place("unix")
        .or_else(|| place("address"))
        .or_else(|| place("path"))
        .map(|setting| setting.word().to_owned())
}

fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control) {
        return Err(format!(
            "a listener's name has at most {NAME_MAX} bytes and no control characters"
        ));
    }
    Ok(())
}

/// Reads a list of names and patterns.
pub(super) fn read_patterns(
    reader: &mut Reader<'_>,
    key: &str,
    value: &toml::Spanned<toml::de::DeValue<'_>>,
) -> Vec<String> {
    let words = reader.words(key, value).map(|value| value.words().to_vec());
    let words = words.unwrap_or_default();
    if words.len() > PATTERNS_MAX {
        reader.wrong(&value.span(), format!("{key}: more than {PATTERNS_MAX} names"));
        return Vec::new();
    }
    words
}

/// Reads a `[[listen]]` table.
pub fn read(
    reader: &mut Reader<'_>,
    table: &DeTable<'_>,
    span: &Range<usize>,
) -> Option<ListenSection> {
    let (mut name, mut settings, mut exports) = (None, Vec::new(), Vec::new());
    for (key, key_span, value) in entries(table) {
        match key {
            "name" => name = reader.word(key, value).map(|word| (word, value.span())),
            "exports" => exports = read_patterns(reader, key, value),
            _ if KEYS.contains(&key) => settings.extend(reader.setting((key, key_span, value))),
            _ => reader.unknown((key, &key_span), "a [[listen]]", &all_keys()),
        }
    }
    let name = name.or_else(|| Some((default_name(&settings)?, span.clone())));
    let Some((name, name_span)) = name else {
        if !table.contains_key("name") {
            reader.wrong(span, needs_address("a [[listen]]"));
        }
        return None;
    };
    if let Err(error) = check_name(&name) {
        reader.wrong(&name_span, error);
        return None;
    }
    settings.sort_by(|one: &Setting, other| one.name.cmp(&other.name));
    Some(ListenSection { name, settings, exports, origin: reader.origin(&name_span) })
}

#[cfg(test)]
mod tests {
    use super::super::ConfigFile;
    use super::*;

    fn defaults() -> ListenDefaults<'static> {
        ListenDefaults {
            mode: 0o600,
            tls: TlsMode::Off,
            certificates: Some("/etc/pki".into()),
            verify_peer: true,
            owner: &|word| match word {
                "acme" => Ok(FileOwner { user: Some(7), group: Some(8) }),
                _ => Err(format!("there is no user `{word}`")),
            },
        }
    }

    fn planned(text: &str) -> Result<Vec<ListenerSpec>, String> {
        let file = ConfigFile::parse("f", text).map_err(|problems| problems.to_string())?;
        let access = file.plan_access(&defaults()).map_err(|problems| problems.to_string())?;
        Ok(access.listeners)
    }

    fn words(text: &str) -> Result<ListenerSpec, String> {
        let section = ListenSection::from_words(text, &Origin::CommandLine);
        let section = section.map_err(|error| error.to_string())?;
        section.plan(&defaults()).map_err(|problem| problem.what)
    }

    #[test]
    fn listener_has_its_values_or_those_of_the_server() {
        let text = "[[listen]]\nname = 'acme'\nunix = '/run/acme.sock'\nmode = '0660'\n\
                    owner = 'acme'\nexports = ['acme-*', 'shared']\ntenant = 'acme'\n\
                    [[listen]]\naddress = '[::]:10809'\ntls = 'require'\n";
        let all = planned(text).unwrap();
        let [acme, tcp] = &all[..] else { panic!("{all:?}") };
        assert_eq!(acme.address, Address::Unix { path: "/run/acme.sock".into(), mode: 0o660 });
        assert_eq!(acme.owner, Some(FileOwner { user: Some(7), group: Some(8) }));
        assert_eq!(acme.exports, ["acme-*", "shared"]);
        assert_eq!(acme.tenant.unwrap().as_str(), "acme");
        assert_eq!(acme.tls, TlsOptions::default());
        assert_eq!((tcp.name.as_str(), tcp.offers_all()), ("[::]:10809", true));
        let certificates = Some(PathBuf::from("/etc/pki"));
        let tls = TlsOptions { mode: TlsMode::Require, certificates, verify_peer: true };
        assert_eq!(tcp.tls, tls);
    }

    #[test]
    fn disk_of_virtual_machines_is_one_export_behind_a_unix_socket() {
        let text = "[[listen]]\nkind = 'vhost-user'\nunix = '/run/a.sock'\nexports = ['a']\n";
        let [file] = &planned(text).unwrap()[..] else { panic!("one listener") };
        assert_eq!((file.kind, file.disk()), (ListenerKind::VhostUser, Some("a")));
        let long = words("kind=vhost-user,unix=/run/a.sock,exports=a").unwrap();
        let short = ListenSection::of_disk("a=/run/a.sock", &Origin::CommandLine).unwrap();
        assert_eq!((&short.plan(&defaults()).unwrap(), &long), (file, file));
        let other = ListenerSpec { exports: vec!["b".into()], ..long.clone() };
        let nbd = ListenerSpec { kind: ListenerKind::Nbd, ..long.clone() };
        assert!(long.can_become(&long) && !long.can_become(&other) && !nbd.can_become(&long));
        assert!(nbd.can_become(&ListenerSpec { exports: vec![], ..nbd.clone() }));
        for (said, more) in [
            ("needs the name of one export", ""),
            ("needs the name of one export", ",exports=a+b"),
            ("needs the name of one export", ",exports=a-*"),
            ("tls: it is not for kind = vhost-user", ",exports=a,tls=on"),
            ("tenant: it is not for kind", ",exports=a,tenant=t"),
        ] {
            let error = words(&format!("kind=vhost-user,unix=/run/a.sock{more}")).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert!(words("kind=ublk,unix=/a").unwrap_err().contains("is not nbd, vhost-user or fuse"));
    }

    #[test]
    fn directory_of_files_has_a_path_and_exports_alone() {
        let one = words("kind=fuse,path=/mnt/exports,exports=a-*+b").unwrap();
        assert_eq!((one.kind, one.disk()), (ListenerKind::Fuse, None));
        assert_eq!(one.address, Address::Directory("/mnt/exports".into()));
        assert_eq!((one.name.as_str(), one.exports.len()), ("/mnt/exports", 2));
        let short = ListenSection::of_directory("/mnt/exports", &Origin::CommandLine).unwrap();
        assert!(short.plan(&defaults()).unwrap().offers_all());
        let all = planned("[[listen]]\nkind = 'fuse'\npath = '/mnt/exports'\n").unwrap();
        assert_eq!(all[0].address, one.address);
        for (text, what) in [
            ("kind=fuse,unix=/a", "unix: it is not for kind = fuse"),
            ("kind=fuse,path=/a,tenant=acme", "tenant: it is not for kind = fuse"),
            ("kind=fuse,name=x", "kind = fuse needs path"),
            ("kind=fuse,name=x,path=", "kind = fuse needs path"),
            ("unix=/a,path=/b", "path: it is for kind = fuse"),
            ("kind=vhost-user,unix=/a,exports=b,path=/c", "path: it is not for kind = vhost-user"),
        ] {
            let error = words(text).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
        for text in ["a", "=b", "a="] {
            let error = ListenSection::of_disk(text, &Origin::CommandLine).unwrap_err();
            assert!(error.to_string().contains("is not EXPORT=PATH"), "{error}");
        }
    }

    #[test]
    fn command_line_says_the_same_as_a_file() {
        let spec = words("unix=/run/a.sock,mode=0660,tenant=acme,exports=a-*+shared").unwrap();
        let text = "[[listen]]\nunix = '/run/a.sock'\nmode = 660\ntenant = 'acme'\n\
                    exports = ['a-*', 'shared']\n";
        assert_eq!(planned(text).unwrap(), [spec]);
        assert_eq!(words("name=x,address=127.0.0.1:1").unwrap().name, "x");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("tenant=acme", "needs unix"),
            ("unix", "is not key=value"),
            ("unix=/a,unix=/b", "given twice"),
            ("unix=/a,tennant=b", "the nearest is `tenant`"),
            ("unix=/a,address=127.0.0.1:1", "this or unix, not both"),
            ("address=localhost:1", "is no address and port"),
            ("address=127.0.0.1:1,mode=600", "file of a unix socket"),
            ("address=127.0.0.1:1,owner=acme", "file of a unix socket"),
            ("unix=/a,mode=999", "not an octal mode"),
            ("unix=/a,mode=7777", "not an octal mode"),
            ("unix=/a,owner=nobody-here", "there is no user"),
            ("unix=/a,tenant=a b", "no name of a tenant"),
            ("unix=/a,tenant=none", "the word for no tenant"),
            ("unix=/a,tls=maybe", "none of off, on, require"),
            ("unix=/a,tls-certificates=/p", "no effect without tls"),
            ("unix=/a,tls-verify-peer=on", "no effect without tls"),
            ("unix=-", "needs the path"),
            ("name=,unix=/a", "at most 128 bytes"),
        ] {
            let error = words(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        let twins = "[[listen]]\nname = 'a'\nunix = '/a'\n[[listen]]\nname = 'b'\nunix = '/a'\n";
        assert!(planned(twins).unwrap_err().contains("both listen at /a"));
        let named = "[[listen]]\nname = 'a'\nunix = '/a'\n[[listen]]\nname = 'a'\nunix = '/b'\n";
        assert!(planned(named).unwrap_err().contains("two listeners are named `a`"));
        assert!(planned("[[listen]]\nname = 'a'\n").unwrap_err().contains("needs unix"));
    }

    #[test]
    fn later_file_changes_and_takes_away() {
        let file = |text: &str| ConfigFile::parse("f", text).unwrap();
        let first = "[[listen]]\nname = 'a'\nunix = '/a'\nexports = ['x']\n\
                     [[listen]]\nname = 'b'\nunix = '/b'\n";
        let later = "[[listen]]\nname = 'a'\naddress = '127.0.0.1:7'\n\
                     [[listen]]\nname = 'b'\nenabled = false\n";
        let merged = file(first).merged(file(later));
        let access = merged.plan_access(&defaults()).unwrap();
        let [one] = &access.listeners[..] else { panic!("{access:?}") };
        assert_eq!(one.address, Address::Tcp("127.0.0.1:7".parse().unwrap()));
        assert_eq!(one.exports, ["x"]);
    }
}
