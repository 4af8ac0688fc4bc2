//! Commands of `headworks ctl` about tenants: `tenants`, `add-tenant`, `remove-tenant`.
//!
//! `add-tenant` with a disk or a socket is three requests: the tenant, its export, its listener. If one is refused, what the earlier ones
//! made is taken away again, but for a new image, which is left where it is.

use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Args, FromArgMatches, Subcommand};
use headworks::house::display_size;
use headworks_control::answers::{Tenant, TenantChange};
use headworks_control::{Method, Params, methods};
use headworks_server::{TenantOptions, is_remote_base, latency_target_word, parse_size};
use serde_json::Value;

use crate::columns::aligned;
use crate::ctl::listeners;
use crate::ctl::{call, here, read, sent};
use crate::observe::micros;

#[derive(Subcommand)]
pub enum TenantCommand {
    /// Lists the tenants, one row each
    Tenants,
    /// Adds a tenant; exports join it with `tenant=NAME` or `set exports/NAME/tenant`
    ///
    /// With --disk or --base it gets an export of its name, too, and with --socket a socket that offers its exports alone.
    AddTenant {
        /// Name and values, as for `headworks serve --tenant`: acme,weight=400
        #[arg(value_name = "NAME[,KEY=VALUE...]")]
        tenant: String,
        #[command(flatten)]
        keys: TenantKeys,
        #[command(flatten)]
        disk: TenantDisk,
    },
    /// Removes a tenant that has no exports
    RemoveTenant {
        /// Tenant name
        tenant: String,
    },
}

/// The values of a tenant as options: `--weight 400`, and limits such as `--bps-write 50M`.
#[derive(Default)]
pub struct TenantKeys(Vec<(&'static str, String)>);

impl Args for TenantKeys {
    fn augment_args(command: clap::Command) -> clap::Command {
        TenantOptions::keys().fold(command, |command, (key, help)| {
            let help = if help.is_empty() { "a limit".to_owned() } else { capital(help) };
            command.arg(Arg::new(key).long(key).value_name("VALUE").help(help))
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for TenantKeys {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |(key, _)| Some((key, matches.get_one::<String>(key)?.clone()));
        Ok(Self(TenantOptions::keys().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A sentence's first letter.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().collect::<String>() + letters.as_str()
    })
}

/// What a new tenant has beside its share.
#[derive(Args, Default)]
pub struct TenantDisk {
    /// Its disk: an image, which is made if it is not there; with --base an overlay, NAME.hwo beside the base if no path is given
    #[arg(long, value_name = "PATH")]
    disk: Option<PathBuf>,
    /// Base of the disk: an image, or nbd:uri=URI or rbd:image=POOL/IMAGE@SNAPSHOT
    #[arg(long, value_name = "BASE")]
    base: Option<PathBuf>,
    /// Size of a new disk; of an overlay the base's if none is given
    #[arg(long, value_name = "SIZE", value_parser = |word: &str| parse_size(word).map(|_| word.to_owned()))]
    size: Option<String>,
    /// A socket that offers its exports alone; keys of a listener may follow: /run/acme.sock,mode=660,owner=:acme
    #[arg(long, value_name = "PATH[,KEY=VALUE...]")]
    socket: Option<String>,
}

/// A path in a specification.
fn spec_path(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

impl TenantDisk {
    /// The specification of the export of a tenant; none without a disk.
    fn spec(&self, tenant: &str) -> Option<String> {
        let size = self.size.as_ref().map_or_else(String::new, |size| format!(",size={size}"));
        let Some(base) = &self.base else {
            let disk = spec_path(self.disk.as_ref()?);
            return Some(format!("{tenant}=file:path={disk}{size},tenant={tenant}"));
        };
        let folder = base.parent().filter(|_| !is_remote_base(base));
        let beside = folder.map(|folder| folder.join(format!("{tenant}.hwo")));
        let disk = self.disk.clone().or(beside).unwrap_or_else(|| format!("{tenant}.hwo").into());
        let is_beside = folder.is_some() && folder == disk.parent();
        let backing = if is_beside { "" } else { ",backing=allow" };
        let (disk, base) = (spec_path(&disk), spec_path(base));
        Some(format!("{tenant}=overlay:path={disk},base={base}{size}{backing},tenant={tenant}"))
    }

    /// Adds export and listener; what was added is taken away again after an error.
    fn complete(&self, socket: &Path, tenant: &str) -> Result<String, String> {
        let spec = self.spec(tenant);
        let mut text = String::new();
        let remove_tenant = || call(socket, &methods::RemoveTenant { tenant: tenant.to_owned() });
        if let Some(spec) = &spec {
            let add = methods::Add { spec: spec.clone(), read_only: false, cwd: here() };
            match call(socket, &add) {
                Ok(added) => {
                    text += &format!("{}: added\n", added.export);
                    added.notes.iter().for_each(|note| text += &format!("note: {note}\n"));
                }
                Err(error) => {
                    // The refusal is what the user has to know.
                    let _ = remove_tenant();
                    return Err(error);
                }
            }
        }
        let Some(words) = &self.socket else { return Ok(text) };
        let words = format!("name={tenant},tenant={tenant},unix={words}");
        let added = listeners::added(&words).and_then(|listener| call(socket, &listener));
        match added {
            Ok(added) => Ok(text + &format!("{tenant}: listens at {}\n", added.address)),
            Err(error) => {
                if spec.is_some() {
                    let _ = call(
                        socket,
                        &methods::Remove { export: tenant.to_owned(), force: true, abandon: false },
                    );
                }
                let _ = remove_tenant();
                Err(error)
            }
        }
    }
}

impl TenantCommand {
    /// Returns the method and its parameters.
    pub fn request(&self) -> (Method, Params) {
        match self {
            Self::Tenants => sent(&methods::Tenants {}),
            Self::AddTenant { tenant, keys, .. } => {
                let keys = keys.0.iter().map(|(key, value)| format!(",{key}={value}"));
                let tenant = tenant.clone() + &keys.collect::<String>();
                sent(&methods::AddTenant { tenant })
            }
            Self::RemoveTenant { tenant } => {
                sent(&methods::RemoveTenant { tenant: tenant.clone() })
            }
        }
    }

    /// Does what follows the first request; returns what to tell of it.
    pub fn complete(&self, socket: &Path) -> Result<String, String> {
        let Self::AddTenant { tenant, disk, .. } = self else { return Ok(String::new()) };
        let name = tenant.split(',').next().unwrap_or_default();
        disk.complete(socket, name)
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
    fn disk_of_a_tenant_is_an_image_or_an_overlay_beside_its_base() {
        let spec = |disk: Option<&str>, base: Option<&str>, size: Option<&str>| {
            let (disk, base) = (disk.map(PathBuf::from), base.map(PathBuf::from));
            TenantDisk { disk, base, size: size.map(str::to_owned), socket: None }.spec("t1")
        };
        assert_eq!(spec(None, None, None), None);
        let raw = spec(Some("/a,b.img"), None, Some("1G")).unwrap();
        assert_eq!(raw, "t1=file:path=/a,,b.img,size=1G,tenant=t1");
        let beside = spec(None, Some("/srv/g.img"), Some("20G")).unwrap();
        assert_eq!(beside, "t1=overlay:path=/srv/t1.hwo,base=/srv/g.img,size=20G,tenant=t1");
        let here = spec(None, Some("g.img"), None).unwrap();
        assert_eq!(here, "t1=overlay:path=t1.hwo,base=g.img,tenant=t1");
        let apart = spec(Some("/vm/x.hwo"), Some("/srv/g.img"), None).unwrap();
        assert_eq!(apart, "t1=overlay:path=/vm/x.hwo,base=/srv/g.img,backing=allow,tenant=t1");
        let remote = spec(None, Some("nbd:uri=nbd://h/g"), None).unwrap();
        assert!(remote.contains("path=t1.hwo,base=nbd:uri=nbd://h/g,backing=allow"), "{remote}");
    }

    #[test]
    fn values_of_a_tenant_are_options_too() {
        let line = "headworks ctl /x add-tenant t1,dirty=8M --weight 200 --bps-write 50M";
        let matches = crate::command().try_get_matches_from(line.split(' ')).unwrap();
        let (_, ctl) = matches.subcommand().unwrap();
        let command = TenantCommand::from_arg_matches(ctl).unwrap();
        let (_, params) = command.request();
        assert_eq!(params["tenant"], "t1,dirty=8M,weight=200,bps-write=50M");
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
