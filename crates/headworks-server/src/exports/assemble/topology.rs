//! The shards' configuration: which device and volume lives on which shard.

use headworks_core::options::DEVICES_MAX;
use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    CacheOptions, DeviceConfig, QueueOptions, ShardConfig, ShardId, SpareSlots, TenantConfig,
    VolumeConfig, WriteMode,
};

use super::Assembly;
use super::export_spec::EXPORTS_MAX;
use super::tenant_spec::find_tenant;
use crate::options::{BIOS_MAX, ServerOptions};

/// Makes the configuration of all shards; caches are added for each shard later.
pub(crate) fn topology(assembly: &Assembly, options: &ServerOptions) -> ShardConfig {
    let shards = options.shards;
    let owner = |device: usize| ShardId(device as u16 % shards);
    let devices = assembly
        .devices
        .iter()
        .enumerate()
        .map(|(device, (queue, _))| DeviceConfig { owner: owner(device), queue: *queue });
    let volumes = assembly.volumes.iter().enumerate().map(|(index, &(device, options_of))| {
        let home = if options.spread { owner(index) } else { owner(device.0.into()) };
        let mut volume = VolumeConfig { home, device, options: options_of };
        if options.cache == 0 {
            volume.options.mode = WriteMode::None;
        }
        volume.options.block_size = assembly.origins[index]
            .caching
            .smallest_block(volume.options.mode, volume.options.block_size);
        volume
    });
    ShardConfig {
        id: ShardId(0),
        shards,
        bios_max: BIOS_MAX + options.foreign_bios(),
        devices: devices.collect(),
        volumes: volumes.collect(),
        exports: assembly
            .exports
            .iter()
            .map(|export| {
                let (tenant, of_tenant) = find_tenant(export.spec.share.tenant, &options.tenants);
                export.spec.share.config(tenant, &of_tenant)
            })
            .collect(),
        tenants: options
            .tenants
            .iter()
            .map(|tenant| TenantConfig { weight: tenant.options.weight, ..TenantConfig::default() })
            .collect(),
        cache: CacheOptions::default(),
        dirty: DirtyOptions::default(),
        spare: if is_live(assembly, options) { spare(assembly) } else { SpareSlots::default() },
    }
}

/// Returns true if devices and volumes may be added while the server runs: by its users, or as bases of overlays.
fn is_live(assembly: &Assembly, options: &ServerOptions) -> bool {
    options.live || assembly.origins.iter().any(|origin| origin.base.is_some())
}

/// Reserves [`DEVICES_MAX`] devices and [`EXPORTS_MAX`] exports in all, and tags for the devices.
fn spare(assembly: &Assembly) -> SpareSlots {
    let left = |most: usize, there: usize| most.saturating_sub(there) as u16;
    let devices = left(DEVICES_MAX, assembly.devices.len());
    SpareSlots {
        devices,
        volumes: left(EXPORTS_MAX, assembly.volumes.len()),
        exports: left(EXPORTS_MAX, assembly.exports.len()),
        tags: u32::from(devices) * QueueOptions::default().nr_requests,
    }
}
