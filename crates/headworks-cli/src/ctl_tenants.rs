//! Commands of `headworks ctl` about tenants: `tenants`, `add-tenant`, `remove-tenant`.

use clap::Subcommand;
use headworks::display_size;
use headworks_control::answers::{Tenant, TenantChange};
use headworks_control::{Method, Params, methods};
use headworks_server::latency_target_word;
use serde_json::Value;

use crate::columns::aligned;
use crate::ctl::{read, sent};
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
    /// Returns the method and its parameters.
    pub fn request(&self) -> (Method, Params) {
        match self {
            Self::Tenants => sent(&methods::Tenants {}),
            Self::AddTenant { tenant } => sent(&methods::AddTenant { tenant: tenant.clone() }),
            Self::RemoveTenant { tenant } => {
                sent(&methods::RemoveTenant { tenant: tenant.clone() })
            }
        }
    }

    /// Formats the answer as text.
    pub fn show(&self, answer: &Value) -> Result<String, String> {
        let tenant = || Ok::<_, String>(read::<TenantChange>(answer)?.tenant);
        Ok(match self {
            Self::Tenants => table(&read::<Vec<Tenant>>(answer)?),
            Self::AddTenant { .. } => format!("{}: added\n", tenant()?),
            Self::RemoveTenant { .. } => format!("{}: removed\n", tenant()?),
        })
    }
}

/// A size in a table of 80 columns: `343.2M`.
fn short_size(bytes: u64) -> String {
    display_size(bytes).replace(" bytes", "").replace([' ', 'i', 'B'], "")
}

/// The time in which requests of a row waited for its limits.
pub fn limited(seconds: f64) -> String {
    if seconds > 0.0 { micros(seconds * 1e6) } else { "-".to_owned() }
}

/// The latency target of a row.
pub fn target(us: Option<u32>) -> String {
    us.map_or_else(|| "-".to_owned(), latency_target_word)
}

/// Formats the list of tenants; columns are as wide as their content.
fn table(tenants: &[Tenant]) -> String {
    const HEAD: [&str; 9] =
        ["NAME", "WEIGHT", "EXPORTS", "CLIENTS", "READ", "WRITTEN", "DIRTY", "LIMITED", "TARGET"];
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(tenants.iter().map(|row| {
        [
            row.name.clone(),
            row.weight.to_string(),
            row.exports.to_string(),
            row.clients.to_string(),
            short_size(row.read_bytes),
            short_size(row.written_bytes),
            short_size(row.dirty),
            limited(row.limited_seconds),
            target(row.latency_target_us),
        ]
    }));
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn table(rows: &Value) -> String {
        super::table(&read::<Vec<Tenant>>(rows).unwrap())
    }

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
