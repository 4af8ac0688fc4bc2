//! `headworks ctl listeners`: a table of the sockets on which clients connect.

use serde_json::Value;

use crate::columns::aligned;
use crate::ctl::{list, plain};

/// Formats the list of listeners; columns are as wide as their content.
pub fn table(listeners: &Value) -> String {
    const HEAD: [&str; 5] = ["NAME", "ADDRESS", "TLS", "CLIENTS", "EXPORTS"];
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(list(listeners).iter().map(|row| {
        let exports: Vec<String> = list(&row["exports"]).iter().map(plain).collect();
        let exports = if exports.is_empty() { "-".to_owned() } else { exports.join(" ") };
        let verified = if row["verifies_clients"] == true { ", verified" } else { "" };
        let tls = plain(&row["tls"]) + verified;
        [plain(&row["name"]), plain(&row["address"]), tls, plain(&row["connections"]), exports]
    }));
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn table_has_one_row_per_listener() {
        let text = table(&json!([
            { "name": "acme", "address": "/run/a", "tenant": "acme", "exports": ["db", "web"],
              "connections": 2, "tls": "off", "verifies_clients": false },
            { "name": "tcp", "address": "[::]:10809", "tenant": null, "exports": [],
              "connections": 0, "tls": "require", "verifies_clients": true },
        ]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "NAME  ADDRESS     TLS                CLIENTS  EXPORTS");
        assert_eq!(lines[1], "acme  /run/a      off                2        db web");
        assert_eq!(lines[2], "tcp   [::]:10809  require, verified  0        -");
    }
}
