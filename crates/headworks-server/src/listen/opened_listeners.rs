//! Opens the listening sockets of a server: those of a server that hands over, or new ones.
//!
//! ```text
//!   options --open--> clients: for the shard that accepts       control, metrics: for their threads
//!                 `--> ListenerSet, with second descriptors of all of them
//! ```

use std::net::TcpListener;
use std::sync::Arc;

use headworks_core::ConfigError;

use crate::listen::Listener;
use crate::listen::inherited::InheritedSocket;
use crate::listen::listener_set::{Acceptors, ListenerEntry, ListenerSet, named};
use crate::observe::metrics;
use crate::options::ServerOptions;
use crate::successor::handover::{HandedListener, ListenerRole, Takeover};

/// The sockets of a server that starts.
pub(crate) struct OpenedListeners {
    pub clients: Vec<(ListenerEntry, Listener)>,
    pub control: Option<Listener>,
    pub metrics: Option<TcpListener>,
    pub set: ListenerSet,
}

impl OpenedListeners {
    /// Opens the sockets, or takes those of the server that is replaced. `acceptors` has the configurations that were read.
    ///
    /// # Errors
    /// An address cannot be used.
    pub fn open(options: &ServerOptions, acceptors: &mut Acceptors) -> Result<Self, ConfigError> {
        let standing = options.process.takeover.as_ref().map(Takeover::standing);
        let old = |role, address: Option<String>| standing?.take_listener(role, &address?);
        let left = standing.map(|standing| Arc::clone(&standing.left)).unwrap_or_default();
        let set = ListenerSet::default();
        let (mut clients, mut entries) = (Vec::new(), Vec::new());
        let own = options.listen.iter().map(|address| (address, None, &options.tls));
        let sections = options.access.listeners.iter();
        let sections = sections.map(|spec| (&spec.address, Some(spec), &spec.tls));
        for (number, (address, spec, tls)) in (0..).zip(own.chain(sections)) {
            let owner = spec.and_then(|spec| spec.owner);
            let listener = match old(ListenerRole::Clients, address.key()) {
                Some(old) => Listener::take_over(old, &left)
                    .and_then(|listener| listener.dress(address, owner).map(|()| listener)),
                None => Listener::bind(address, owner),
            };
            let listener = listener.map_err(|error| named(spec, error))?;
            set.keep(&listener, ListenerRole::Clients, address.key())?;
            let acceptor = acceptors.get(tls).map_err(|error| named(spec, error))?;
            let entry = ListenerEntry::new(number, &listener, address, spec, acceptor);
            clients.push((entry.clone(), listener));
            entries.push(entry);
        }
        set.set(entries);
        let path = options.control.as_ref().map(|path| path.to_string_lossy().into_owned());
        let control = match (&options.process.control, &options.control) {
            (Some(given), _) => Some((Listener::adopt("control", given)?, None)),
            (None, Some(own)) => Some(match old(ListenerRole::Control, path.clone()) {
                Some(old) => (Listener::take_over(old, &left)?, path),
                None => (Listener::bind_unix("control", own, 0o600)?, path),
            }),
            (None, None) => None,
        };
        let control = control
            .map(|(listener, address)| {
                set.keep(&listener, ListenerRole::Control, address).map(|()| listener)
            })
            .transpose()?;
        let address = options.metrics.map(|address| address.to_string());
        let metrics = match (&options.process.metrics, options.metrics) {
            (Some(given), _) => Some((metrics::adopt(given)?, None)),
            (None, Some(own)) => Some(match old(ListenerRole::Metrics, address.clone()) {
                Some(old) => {
                    let given = InheritedSocket::new(old.socket);
                    let given = given.map_err(|error| ConfigError::new("metrics", error))?;
                    (metrics::adopt(&given)?, address)
                }
                None => (metrics::bind(own)?, address),
            }),
            (None, None) => None,
        };
        let metrics = metrics.map(|(listener, address)| {
            let copy = listener.try_clone().map_err(|error| {
                ConfigError::new("metrics", format!("cannot duplicate a socket: {error}"))
            })?;
            let (role, file, socket) = (ListenerRole::Metrics, None, copy.into());
            let handed = address.map(|address| HandedListener { role, address, file, socket });
            set.handed().extend(handed);
            Ok(listener)
        });
        Ok(Self { clients, control, metrics: metrics.transpose()?, set })
    }
}
