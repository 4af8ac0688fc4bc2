//! Commands of `headworks ctl` about tenants: `tenants`, `add-tenant`, `remove-tenant`.

use clap::Subcommand;
use headworks::display_size;
use headworks_server::latency_target_word;
use serde_json::{Value, json};

use crate::columns::aligned;
use crate::ctl::{list, plain};
use crate::observe::micros;

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

/// A size in a table of 80 columns: `343.2M`.
fn short_size(bytes: u64) -> String {
    display_size(bytes).replace(" bytes", "").replace([' ', 'i', 'B'], "")
}

/// The time in which requests of a row waited for its limits.
pub fn limited(row: &Value) -> String {
    match row["limited_seconds"].as_f64() {
        Some(seconds) if seconds > 0.0 => micros(seconds * 1e6),
        _ => "-".to_owned(),
    }
}

/// The latency target of a row.
pub fn target(row: &Value) -> String {
    let us = row["latency_target_us"].as_u64().and_then(|us| u32::try_from(us).ok());
    us.map_or_else(|| "-".to_owned(), latency_target_word)
}

/// Formats the list of tenants; columns are as wide as their content.
fn table(tenants: &Value) -> String {
    const HEAD: [&str; 9] =
        ["NAME", "WEIGHT", "EXPORTS", "CLIENTS", "READ", "WRITTEN", "DIRTY", "LIMITED", "TARGET"];
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(list(tenants).iter().map(|row| {
        let word = |name: &str| match &row[name] {
            Value::Null => "-".to_owned(),
            value => plain(value),
        };
        let size = |name: &str| row[name].as_u64().map_or_else(|| "-".to_owned(), short_size);
        [
            word("name"),
            word("weight"),
            word("exports"),
            word("clients"),
            size("read_bytes"),
            size("written_bytes"),
            size("dirty"),
            limited(row),
            target(row),
        ]
    }));
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_has_one_row_per_tenant() {
        let row = json!({ "name": "acme", "weight": 400, "ioprio_max": null, "exports": 2,
            "clients": 3, "read_bytes": 4096, "written_bytes": 0, "dirty": 359_871_284_u64,
            "limited_seconds": 12.34, "latency_target_us": 250 });
        let free = json!({ "name": "a", "limited_seconds": 0.0, "latency_target_us": null });
        let text = table(&json!([row, free]));
        let lines: Vec<&str> = text.lines().collect();
        let head = "NAME  WEIGHT  EXPORTS  CLIENTS  READ  WRITTEN  DIRTY   LIMITED  TARGET";
        assert_eq!(lines[0], head);
        let row = "acme  400     2        3        4K    0        343.2M  12.3s    250us";
        assert_eq!(lines[1], row);
        assert!(lines[2].ends_with(" -        -"), "{text}");
    }

    #[test]
    fn table_of_large_numbers_fits_eighty_columns() {
        let row = json!({ "name": "customer-1", "weight": 10000, "exports": 1024, "clients": 4096,
            "read_bytes": 1_127_000_000_000_u64, "written_bytes": 1_099_511_627_000_u64,
            "dirty": 1_070_000_000, "limited_seconds": 86_400.5, "latency_target_us": 1_500 });
        let text = table(&json!([row]));
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
