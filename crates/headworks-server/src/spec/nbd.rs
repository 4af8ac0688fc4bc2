//! `nbd:`: the keys of a device behind an NBD server.

use std::fmt::Display;
use std::sync::Arc;

use headworks::Device;
use headworks_control::answers;
use headworks_core::{ConfigError, QueueOptions, VolumeOptions};
use headworks_house::Identity;
use headworks_nbd::client::{Export, Uri};
use headworks_nbd::device::{
    NbdDevice, RemoteOptions, RemoteReport, RemoteState, RemoteStatus, queue_options,
    volume_options,
};

use super::BaseDevice;
use super::keys::Keys;
use crate::spec::units::{parse_size, parse_switch, parse_time};

/// Keys of the device, in the order in which they are listed.
pub const KEYS: [&str; 8] = [
    "uri",
    "connections",
    "reconnect",
    "reconnect-writes",
    "timeout",
    "stable",
    "keep",
    "read-only",
];

/// The filesystem of identities that are not of files.
const REMOTE: u64 = u64::MAX;

/// A remote that was just opened.
pub struct OpenedRemote {
    /// The device behind the remote's server.
    pub device: Box<dyn Device>,
    /// Options of its queue.
    pub queue: QueueOptions,
    /// Size, block size and access.
    pub options: VolumeOptions,
    /// What other threads know of it.
    pub link: RemoteLink,
}

/// What threads other than the device's know of a remote.
#[derive(Clone, Debug)]
pub struct RemoteLink {
    /// The remote's name, a URI.
    pub uri: String,
    /// State of its connections.
    pub status: Arc<RemoteStatus>,
    /// The export as it was opened.
    pub export: Export,
}

impl RemoteLink {
    /// The remote and the state of its connections, in words.
    pub fn told(&self, report: &RemoteReport) -> String {
        let (uri, reason) = (&self.uri, &report.reason);
        let count = |count: u64, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        };
        let state = match report.state {
            RemoteState::Up => count(report.connections.into(), "connection"),
            RemoteState::Down => {
                let attempts = count(report.attempts.into(), "attempt");
                format!("no connection after {attempts}: {reason}")
            }
            RemoteState::Barred => format!("not used any more: {reason}"),
        };
        let reconnects = match report.reconnects {
            0 => String::new(),
            times => format!(", {}", count(times, "reconnection")),
        };
        format!("{uri}: {state}{reconnects}")
    }

    /// The same for clients of the control socket.
    pub fn answer(&self, report: &RemoteReport) -> answers::Remote {
        answers::Remote {
            uri: self.uri.clone(),
            state: report.state.name().to_owned(),
            connections: report.connections,
            reconnects: report.reconnects,
            losses: report.losses,
            told: self.told(report),
        }
    }
}

/// An export of an NBD server as a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address of the server, and the export.
    pub uri: Uri,
    /// Connections and what happens when they are lost.
    pub options: RemoteOptions,
    /// Nothing is written to the remote.
    pub read_only: bool,
}

impl Remote {
    /// Refuses a URI in place of a specification, with what it means here.
    pub(super) fn check_form(text: &str) -> Result<(), ConfigError> {
        match text.starts_with("//") {
            true => {
                let message = format!("a server's export is written nbd:uri=nbd:{text}");
                Err(ConfigError::new("nbd", message))
            }
            false => Ok(()),
        }
    }

    pub(super) fn parse(keys: Keys<'_>) -> Result<BaseDevice, ConfigError> {
        let example = "nbd:uri=nbd://HOST/EXPORT or nbd:uri=nbd+unix:///EXPORT?socket=PATH";
        let uri = keys.get("uri").ok_or_else(|| {
            ConfigError::new("uri", format!("a server's export needs one: {example}"))
        })?;
        let uri = uri.parse::<Uri>();
        let usual = RemoteOptions::default();
        let options = RemoteOptions {
            connections: keys.parse("connections", parse_connections)?.unwrap_or(usual.connections),
            reconnect_ns: keys.parse("reconnect", parse_time)?.unwrap_or(usual.reconnect_ns),
            fail_writes: keys.parse("reconnect-writes", parse_writes)?.unwrap_or(false),
            timeout_ns: keys.parse("timeout", parse_timeout)?.unwrap_or(usual.timeout_ns),
            stable: keys.parse("stable", parse_switch)?.unwrap_or(false),
            keep: keys.parse("keep", parse_keep)?.unwrap_or(usual.keep),
            ..usual
        };
        Ok(BaseDevice::Nbd(Box::new(Self {
            uri: uri.map_err(|error| ConfigError::new("uri", error.to_string()))?,
            options,
            read_only: keys.parse("read-only", parse_switch)?.unwrap_or(false),
        })))
    }

    /// Connects to the server, within 10 s. With `served`, the export as a running server knows it, the device connects later: that
    /// server may have the only connection that the remote permits.
    ///
    /// # Errors
    /// A sentence that names the URI and the reason.
    pub fn open(&self, write: bool, served: Option<Export>) -> Result<OpenedRemote, ConfigError> {
        let wrong = |error: &dyn Display| ConfigError::new("uri", format!("{}: {error}", self.uri));
        let seed = self.identity().inode;
        let opened = match served {
            Some(export) => NbdDevice::take_over(&self.uri, self.options, seed, export.clone())
                .map(|device| (device, export)),
            None => NbdDevice::open(&self.uri, self.options, seed),
        };
        let (device, export) = opened.map_err(|error| wrong(&error))?;
        let options = volume_options(&export).map_err(|error| wrong(&error.message))?;
        if options.size == 0 {
            return Err(wrong(&"the export is empty"));
        }
        if options.read_only && write {
            let message = format!("{}: the server serves it read-only; add read-only=on", self.uri);
            return Err(ConfigError::new("read-only", message));
        }
        let options = VolumeOptions { read_only: !write, ..options };
        let queue = queue_options(&export);
        let link = RemoteLink { uri: self.uri.to_string(), status: device.status(), export };
        Ok(OpenedRemote { device: Box::new(device), queue, options, link })
    }

    /// The same for every export of this server under this name; equal ones are one volume.
    #[must_use]
    pub fn identity(&self) -> Identity {
        // FNV-1a: the same in every process, which finds by it what another one left.
        let key = format!("{}\0{}", self.uri.target, self.uri.export);
        let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let inode = key.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        Identity::named(REMOTE, inode)
    }

    /// Default name of an export.
    pub(super) fn short_name(&self) -> String {
        match self.uri.export.as_str() {
            "" => "nbd".to_owned(),
            name => name.to_owned(),
        }
    }
}

fn parse_connections(word: &str) -> Result<u8, String> {
    let most = RemoteOptions::CONNECTIONS_MAX;
    let number = word.parse().ok().filter(|number| (1..=most).contains(number));
    number.ok_or_else(|| format!("`{word}` is not a number from 1 to {most}"))
}

fn parse_keep(word: &str) -> Result<u32, String> {
    let bytes = parse_size(word)?;
    let range = 1 << 20..=1 << 30;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes == 0 || range.contains(&bytes) => Ok(bytes),
        _ => Err(format!("`{word}` is neither 0 nor within 1M..=1G; 32M is the default")),
    }
}

fn parse_writes(word: &str) -> Result<bool, String> {
    match word {
        "fail" => Ok(true),
        "resend" => Ok(false),
        _ => Err(format!("`{word}` is neither resend nor fail")),
    }
}

fn parse_timeout(word: &str) -> Result<u64, String> {
    match parse_time(word)? {
        0 => Err("0 leaves no time for an answer; 30s is the default".to_owned()),
        ns => Ok(ns),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Spec;
    use super::*;

    fn remote(text: &str) -> Remote {
        match Spec::parse(text).unwrap().base {
            BaseDevice::Nbd(remote) => *remote,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_parse_with_their_defaults() {
        let usual = remote("nbd:uri=nbd://host/a");
        assert_eq!(usual.options, RemoteOptions::default());
        assert!(!usual.read_only && usual.uri.export == "a");
        let all = "nbd:uri=nbd+unix:///x?socket=/a,,b,connections=2,reconnect=0,\
                   reconnect-writes=fail,timeout=5s,stable=yes,keep=64M,read-only=on";
        let all = remote(all);
        assert_eq!(all.uri.target.to_string(), "unix socket \"/a,b\"");
        let options = RemoteOptions {
            connections: 2,
            reconnect_ns: 0,
            fail_writes: true,
            timeout_ns: 5_000_000_000,
            stable: true,
            keep: 64 << 20,
            ..RemoteOptions::default()
        };
        assert!(all.read_only);
        assert_eq!(all.options, options);
        let wrapped = Spec::parse("delay:read=1ms,of=nbd:uri=nbd://h").unwrap();
        assert_eq!((wrapped.wrappers.len(), wrapped.short_name().as_str()), (1, "nbd"));
    }

    #[test]
    fn mistakes_say_what_is_right() {
        for (text, part) in [
            ("nbd:", "nbd:uri=nbd://HOST/EXPORT"),
            ("nbd://host/x", "nbd:uri=nbd://host/x"),
            ("nbd:uri=http://x", "nbd://HOST:PORT/EXPORT"),
            ("nbd:uri=nbd://h,connections=9", "from 1 to 8"),
            ("nbd:uri=nbd://h,reconnect-writes=no", "neither resend nor fail"),
            ("nbd:uri=nbd://h,keep=4k", "32M is the default"),
            ("nbd:uri=nbd://h,keep=4G", "within 1M..=1G"),
            ("nbd:uri=nbd://h,timeout=0", "30s is the default"),
            ("nbd:uri=nbd://h,size=1G", "has no key `size`"),
        ] {
            let error = Spec::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn identity_is_of_server_and_export_alone() {
        let one = remote("nbd:uri=nbd://host/a").identity();
        assert_eq!(remote("nbd:uri=nbd://host:10809/a,stable=yes").identity(), one);
        assert_ne!(remote("nbd:uri=nbd://host/b").identity(), one);
        assert_ne!(remote("nbd:uri=nbd+unix:///a?socket=/s").identity(), one);
    }

    #[test]
    fn absent_server_is_refused_with_its_uri() {
        let error =
            remote("nbd:uri=nbd+unix:///x?socket=/nonexistent").open(true, None).err().unwrap();
        let error = error.to_string();
        assert!(error.contains("nbd+unix:///x?socket=/nonexistent: cannot connect"), "{error}");
    }
}
