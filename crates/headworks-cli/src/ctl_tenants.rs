//! Commands of `headworks ctl` about tenants: `tenants`, `add-tenant`, `remove-tenant`.

use clap::Subcommand;
use headworks::display_size;
use serde_json::{Value, json};

use crate::ctl::{list, plain};

#[derive(Subcommand)]
pub enum TenantCommand {
    /// Lists the tenants, one row each
    Tenants,
    /// Adds a tenant; exports join it with `tenant=NAME` or `set exports/NAME/tenant`
    AddTenant {
        /// Name and values, as for `headworks serve --tenant`: acme,weight=400
        #[arg(value_name = "NAME[,KEY=VALUE...]")]
        tenant: String,
    },
    /// Removes a tenant that has no exports
    RemoveTenant {
        /// Tenant name
        tenant: String,
    },
}

impl TenantCommand {
    /// Returns the JSON-RPC method and its parameters.
    pub fn request(&self) -> (&'static str, Value) {
        match self {
            Self::Tenants => ("tenants", json!({})),
            Self::AddTenant { tenant } => ("add-tenant", json!({ "tenant": tenant })),
            Self::RemoveTenant { tenant } => ("remove-tenant", json!({ "tenant": tenant })),
        }
    }

    /// Formats the answer as text.
    pub fn show(&self, result: &Value) -> String {
        let tenant = plain(&result["tenant"]);
        match self {
            Self::Tenants => table(result),
            Self::AddTenant { .. } => format!("{tenant}: added\n"),
            Self::RemoveTenant { .. } => format!("{tenant}: removed\n"),
        }
    }
}

/// Formats the list of tenants; columns are as wide as their content.
fn table(tenants: &Value) -> String {
    const HEAD: [&str; 8] =
        ["NAME", "WEIGHT", "IOPRIO-MAX", "EXPORTS", "CLIENTS", "READ", "WRITTEN", "DIRTY"];
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(list(tenants).iter().map(|row| {
        let word = |name: &str| match &row[name] {
            Value::Null => "-".to_owned(),
            value => plain(value),
        };
        let size = |name: &str| row[name].as_u64().map_or_else(|| "-".to_owned(), display_size);
        [
            word("name"),
            word("weight"),
            word("ioprio_max"),
            word("exports"),
            word("clients"),
            size("read_bytes"),
            size("written_bytes"),
            size("dirty"),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let line = |row: &[String; HEAD.len()]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_one_row_per_tenant() {
        let row = json!({ "name": "acme", "weight": 400, "ioprio_max": null, "exports": 2,
            "clients": 3, "read_bytes": 4096, "written_bytes": 0, "dirty": 1 << 20 });
        let text = table(&json!([row]));
        let lines: Vec<&str> = text.lines().collect();
        let head = "NAME  WEIGHT  IOPRIO-MAX  EXPORTS  CLIENTS  READ   WRITTEN  DIRTY";
        assert_eq!(lines[0], head);
        assert_eq!(lines[1], "acme  400     -           2        3        4 KiB  0 bytes  1 MiB");
    }
}
