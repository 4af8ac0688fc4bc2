//! Commands of `headworks ctl` about the sockets on which clients connect: `listeners`, `add-listener`, `remove-listener`.

use clap::Subcommand;
use headworks_control::answers::{Listener, ListenerChange};
use headworks_control::{Method, Params, methods};
use serde_json::Value;

use crate::columns::aligned;
use crate::ctl::{here, read, sent};
use crate::serve::owner_by_numbers;

#[derive(Subcommand)]
pub enum ListenerCommand {
    /// Lists the sockets on which clients connect, and the exports that each offers
    Listeners,
    /// Opens a further socket for clients
    AddListener {
        /// Keys as for `headworks serve --listen`: unix=PATH or address=IP:PORT, then tenant, exports=a-*+b, name, mode, owner, tls,
        /// tls-certificates, tls-verify-peer
        #[arg(value_name = "KEY=VALUE,...")]
        listener: String,
    },
    /// Closes a socket for clients; those that are connected stay
    RemoveListener {
        /// Name of the listener
        listener: String,
    },
}

impl ListenerCommand {
    /// Returns the method and its parameters.
    pub fn request(&self) -> Result<(Method, Params), String> {
        Ok(match self {
            Self::Listeners => sent(&methods::Listeners {}),
            Self::AddListener { listener } => sent(&added(listener)?),
            Self::RemoveListener { listener } => {
                sent(&methods::RemoveListener { listener: listener.clone() })
            }
        })
    }

    /// Formats the answer as text.
    pub fn show(&self, answer: &Value) -> Result<String, String> {
        let done = || read::<ListenerChange>(answer);
        Ok(match self {
            Self::Listeners => table(&read::<Vec<Listener>>(answer)?),
            Self::AddListener { .. } => {
                let ListenerChange { listener, address } = done()?;
                format!("{listener}: listens at {address}\n")
            }
            Self::RemoveListener { .. } => format!("{}: removed\n", done()?.listener),
        })
    }
}

/// The request that adds a listener. Names of users are looked up here, where the server's sandbox does not hold.
pub fn added(words: &str) -> Result<methods::AddListener, String> {
    let by_numbers = |word: &str| match word.strip_prefix("owner=") {
        Some(owner) => Ok(format!("owner={}", owner_by_numbers(owner)?)),
        None => Ok(word.to_owned()),
    };
    let words = words.split(',').map(by_numbers).collect::<Result<Vec<_>, String>>()?;
    Ok(methods::AddListener { listener: words.join(","), cwd: here() })
}

/// Formats the list of listeners; columns are as wide as their content.
fn table(listeners: &[Listener]) -> String {
    const HEAD: [&str; 6] = ["NAME", "KIND", "ADDRESS", "TLS", "CLIENTS", "EXPORTS"];
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(listeners.iter().map(|row| {
        let exports = if row.exports.is_empty() { "-".to_owned() } else { row.exports.join(" ") };
        let verified = if row.verifies_clients { ", verified" } else { "" };
        let tls = format!("{}{verified}", row.tls);
        let clients = row.connections.to_string();
        [row.name.clone(), row.kind.clone(), row.address.clone(), tls, clients, exports]
    }));
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn table_has_one_row_per_listener() {
        let rows = json!([
            { "name": "acme", "kind": "nbd", "address": "/run/a", "tenant": "acme", "exports": ["db", "web"],
              "connections": 2, "tls": "off", "verifies_clients": false },
            { "name": "tcp", "kind": "nbd", "address": "[::]:10809", "tenant": null, "exports": [],
              "connections": 0, "tls": "require", "verifies_clients": true },
        ]);
        let text = table(&crate::ctl::read::<Vec<Listener>>(&rows).unwrap());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "NAME  KIND  ADDRESS     TLS                CLIENTS  EXPORTS");
        assert_eq!(lines[1], "acme  nbd   /run/a      off                2        db web");
        assert_eq!(lines[2], "tcp   nbd   [::]:10809  require, verified  0        -");
    }
}
