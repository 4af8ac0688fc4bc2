//! What clients are told of an export: size, flags, block sizes and description.
//!
//! Rule: a client is told no path, base or URI, neither of an export that is served nor of one that is absent, unless the export says
//! `describe=on`. The log and the control socket have the whole description and reason.

use headworks_core::limits::Limits;
use headworks_core::{
    ExportConfig, ExportId, ShardConfig, ShardId, TenantId, VolumeConfig, WriteMode,
};

use super::tenant_spec::{TenantSpec, find_tenant};
use super::{AbsentExport, AssembledExport, Assembly, ExportSpec};
use crate::clients::nbd::connection::ExportBinding;
use crate::spec::tenant::{TenantName, TenantOptions};
use headworks_nbd::wire::STRING_BYTES_MAX;
use headworks_nbd::{BlockSizes, ExportInfo, TransmissionFlags};

/// An export as the shards know it.
#[derive(Clone)]
pub struct ServedExport {
    /// Description, size and flags for clients.
    pub info: ExportInfo,
    /// Volume and class of requests.
    pub binding: ExportBinding,
    /// Home shard of the volume.
    pub shard: ShardId,
    /// What the core had of its options when it was added.
    pub config: ExportConfig,
    /// Name of the tenant, by which listeners offer its exports.
    pub owner: Option<TenantName>,
    /// Smallest block of the volume in bytes, without its cache.
    pub block_size: u32,
    /// Size of the volume in bytes, of which the export may serve a range.
    pub volume_size: u64,
    /// Limits at the time it was added.
    pub limits: Limits,
    /// Serial number in the order of adding.
    pub serial: u64,
}

/// The exports that a server starts with, by [`ExportId`].
pub(crate) fn served_exports(
    assembly: &Assembly,
    config: &ShardConfig,
    tenants: &[TenantSpec],
) -> Vec<ServedExport> {
    let served = assembly.exports.iter().enumerate().map(|(index, export)| {
        let volume = &config.volumes[usize::from(export.volume.0)];
        let tenant = find_tenant(export.spec.share.tenant, tenants);
        let (id, size) = (ExportId(index as u16), volume.options.size);
        served(export, (id, tenant), volume, size, index as u64)
    });
    served.collect()
}

/// Makes a served export; its volume may have grown to `size` since it was opened.
pub(crate) fn served(
    export: &AssembledExport,
    (id, (tenant, options)): (ExportId, (TenantId, TenantOptions)),
    volume: &VolumeConfig,
    size: u64,
    serial: u64,
) -> ServedExport {
    let read_only = !export.spec.writes() || volume.options.read_only;
    let is_cached = volume.options.mode != WriteMode::None;
    ServedExport {
        info: ExportInfo {
            name: export.spec.name.clone(),
            description: description(
                export.spec.share.describe.then_some(&export.description),
                volume.options.mode,
            ),
            size: export.range.size(size),
            flags: transmission_flags(read_only, volume.options.mode),
            block_sizes: BlockSizes {
                // The cache reads the rest of a partly written block.
                min: if is_cached { 1 } else { volume.options.block_size },
                preferred: volume.options.block_size.max(4096),
                ..BlockSizes::default()
            },
            unavailable: None,
            refuses_clients: false,
        },
        binding: ExportBinding {
            volume: export.volume,
            export: id,
            device: volume.device,
            ioprio: options.limit(export.spec.share.ioprio),
            range: export.range,
        },
        shard: volume.home,
        config: export.spec.share.config(tenant, &options),
        owner: owner_of(&export.spec),
        block_size: volume.options.block_size,
        volume_size: size,
        limits: export.spec.share.limits,
        serial,
    }
}

/// The tenant that an export names, if it names one.
fn owner_of(spec: &ExportSpec) -> Option<TenantName> {
    spec.share.tenant.filter(|name| !name.is_none())
}

/// An export whose image is missing, as a shard knows it.
#[derive(Clone, Debug)]
pub struct UnavailableExport {
    /// Name and reason for clients.
    pub info: ExportInfo,
    /// Name of its tenant.
    pub owner: Option<TenantName>,
}

/// What clients are told of exports whose images are missing.
pub(crate) fn unavailable(absent: &[AbsentExport]) -> Vec<UnavailableExport> {
    let info = |absent: &AbsentExport| ExportInfo {
        name: absent.spec.name.clone(),
        unavailable: Some(match absent.spec.share.describe {
            true => absent.reason.clone(),
            false => String::new(),
        }),
        ..ExportInfo::default()
    };
    let known = |absent| UnavailableExport { info: info(absent), owner: owner_of(&absent.spec) };
    absent.iter().map(known).collect()
}

/// Warning of the mode `unsafe`.
const UNSAFE: &str = "UNSAFE: flushes and FUA promise nothing";

/// The description for clients, who are told `what` it is or nothing, with a warning in the mode `unsafe`.
fn description(what: Option<&str>, mode: WriteMode) -> String {
    match (what, mode) {
        (Some(what), WriteMode::Unsafe) => fitting(what, &format!(", {UNSAFE}")),
        (Some(what), _) => fitting(what, ""),
        (None, WriteMode::Unsafe) => UNSAFE.to_owned(),
        (None, _) => String::new(),
    }
}

/// Shortens a description to the protocol's limit. The beginning is cut: a path may be very long, and the important
/// words come last.
fn fitting(what: &str, after: &str) -> String {
    // Leaves room for a longer size later.
    let most = STRING_BYTES_MAX - SIZE_BYTES_MAX - after.len();
    let cut = (what.len().saturating_sub(most)..).find(|at| what.is_char_boundary(*at));
    let (dots, rest) = match cut.unwrap_or(0) {
        0 => ("", what),
        cut => ("...", &what[cut..]),
    };
    format!("{dots}{rest}{after}")
}

/// Room for dots, and for a size that is shown longer after a resize.
const SIZE_BYTES_MAX: usize = 32;

/// Multi-conn holds for every device: a flush covers all writes that any connection has completed. In the mode `unsafe`
/// flushes promise nothing, and it is not set.
fn transmission_flags(read_only: bool, mode: WriteMode) -> TransmissionFlags {
    use TransmissionFlags as Flags;
    let mut always =
        Flags::HAS_FLAGS.with(Flags::SEND_FLUSH).with(Flags::SEND_DF).with(Flags::SEND_CACHE);
    if mode != WriteMode::Unsafe {
        always = always.with(Flags::CAN_MULTI_CONN);
    }
    if read_only {
        return always.with(Flags::READ_ONLY);
    }
    always
        .with(Flags::SEND_FUA)
        .with(Flags::SEND_TRIM)
        .with(Flags::SEND_WRITE_ZEROES)
        .with(Flags::SEND_FAST_ZERO)
}

#[cfg(test)]
mod tests {
    use headworks_core::VolumeId;

    use super::*;
    use crate::exports::assemble::assembled;
    use crate::exports::export_range::ExportRange;

    #[test]
    fn clients_are_told_no_paths_unless_the_export_says_so() {
        let what = "/srv/o.hwo (direct I/O) over nbd://store/golden";
        let told = |keys: &str, mode| {
            let spec = ExportSpec::parse(&format!("a=file:path=/srv/o.hwo{keys}"), false).unwrap();
            let export = assembled(&spec, (VolumeId(0), ExportRange::default()), what, 1 << 20);
            let mut volume = VolumeConfig::default();
            volume.options.mode = mode;
            let tenant = (TenantId::default(), TenantOptions::default());
            let served = served(&export, (ExportId(0), tenant), &volume, 1 << 20, 0);
            let reason = "its image /srv/o.hwo does not exist".to_owned();
            let absent = unavailable(&[AbsentExport { spec, reason }]).remove(0);
            (served.info.description, absent.info.unavailable.unwrap())
        };
        let nothing = (String::new(), String::new());
        assert_eq!(told("", WriteMode::Writeback), nothing);
        assert_eq!(told(",describe=off", WriteMode::None), nothing);
        assert_eq!(told("", WriteMode::Unsafe).0, UNSAFE);
        let (description, reason) = told(",describe=on", WriteMode::Writeback);
        assert!(description.starts_with(what) && reason.contains("/srv/o.hwo"));
    }

    #[test]
    fn long_description_is_cut_to_protocol_limit() {
        let sentence = |len: usize| format!("/{} (direct I/O), 1 GiB", "\u{e9}".repeat(len / 2));
        assert_eq!(description(Some(&sentence(1000)), WriteMode::None), sentence(1000));
        for len in (3900..4300).chain([9000]) {
            for (mode, end) in [(WriteMode::None, ", 1 GiB"), (WriteMode::Unsafe, "nothing")] {
                let shown = description(Some(&sentence(len)), mode);
                assert!(shown.len() + 16 <= STRING_BYTES_MAX && shown.ends_with(end), "{len}");
                assert!(shown.contains("(direct I/O), 1 GiB"), "{len}");
                let is_cut = !shown.starts_with(&sentence(len));
                assert!(!is_cut || shown.len() > STRING_BYTES_MAX - 40, "no more than must be");
                assert_eq!(shown.starts_with("..."), is_cut);
            }
        }
    }
}
