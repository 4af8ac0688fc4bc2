//! `headworks ctl listeners`: a table of the sockets on which clients connect.

use headworks_control::answers::Listener;

use crate::columns::aligned;

/// Formats the list of listeners; columns are as wide as their content.
pub fn table(listeners: &[Listener]) -> String {
    const HEAD: [&str; 5] = ["NAME", "ADDRESS", "TLS", "CLIENTS", "EXPORTS"];
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(listeners.iter().map(|row| {
        let exports = if row.exports.is_empty() { "-".to_owned() } else { row.exports.join(" ") };
        let verified = if row.verifies_clients { ", verified" } else { "" };
        let tls = format!("{}{verified}", row.tls);
        [row.name.clone(), row.address.clone(), tls, row.connections.to_string(), exports]
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
            { "name": "acme", "address": "/run/a", "tenant": "acme", "exports": ["db", "web"],
              "connections": 2, "tls": "off", "verifies_clients": false },
            { "name": "tcp", "address": "[::]:10809", "tenant": null, "exports": [],
              "connections": 0, "tls": "require", "verifies_clients": true },
        ]);
        let text = table(&crate::ctl::read::<Vec<Listener>>(&rows).unwrap());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "NAME  ADDRESS     TLS                CLIENTS  EXPORTS");
        assert_eq!(lines[1], "acme  /run/a      off                2        db web");
        assert_eq!(lines[2], "tcp   [::]:10809  require, verified  0        -");
    }
}
