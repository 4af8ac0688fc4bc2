//! The methods of the control socket: checks their parameters and passes them to their owner.
//!
//! `Queries` reads, `Settings` changes values, `LiveChanges` adds, removes and resizes exports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use headworks_core::writeback::DirtyOptions;
use headworks_core::{DeviceId, ExportId, ShardConfig, VolumeId};
use serde_json::{Value, json};

use super::changes::LiveChanges;
use super::exports::{Export, Exports};
use super::inventory::Inventory;
use super::methods;
use super::params::{optional_text, slow_filter, text, values};
use super::queries::Queries;
use super::rpc::{Params, RpcFault, RpcResult};
use super::settings::Settings;
use super::shards::ShardLink;
use super::tree::{DeviceNode, ExportNode, Tree, TreeCell};
use crate::assemble::tenant_spec::find_tenant;
use crate::assemble::{Assembly, ExportSource, ExportSpec, cache_shares};
use crate::config::ConfigFile;
use crate::handover::{AnswerGuard, Takeover, UpgradeHook};
use crate::listener_set::ListenerSet;
use crate::loaded::ConfiguredTunables;
use crate::log_level::{LOG_LEVELS, LogLevel};
use crate::options::ServerOptions;
use crate::reload_request::{ReloadHook, ReloadOutcome};
use crate::shared::ServerShared;

/// The service behind the control socket, shared by all of its clients.
pub struct ControlService {
    tree: Arc<TreeCell>,
    queries: Queries,
    settings: Arc<Settings>,
    changes: LiveChanges,
    log_level: Option<LogLevel>,
    upgrade: Option<UpgradeHook>,
    reload: Option<ReloadHook>,
    /// New clients wait for the process that takes over.
    is_handing_over: AtomicBool,
}

impl ControlService {
    /// The service of a server with these devices, volumes and exports.
    pub fn for_server(
        assembly: &Assembly,
        config: &ShardConfig,
        options: &ServerOptions,
        shared: &Arc<ServerShared>,
    ) -> Self {
        let devices = config.devices.iter().enumerate().map(|(index, device)| {
            let volumes = config.volumes.iter().enumerate();
            let own = volumes.filter(|(_, volume)| usize::from(volume.device.0) == index);
            let own: Arc<[_]> = own.map(|(volume, _)| VolumeId(volume as u16)).collect();
            let origins = own.iter().map(|volume| &assembly.origins[usize::from(volume.0)]);
            let remote = origins.filter_map(|origin| origin.remote.clone()).next();
            DeviceNode { id: DeviceId(index as u16), owner: device.owner, volumes: own, remote }
        });
        let exports = assembly.exports.iter().enumerate().map(|(index, export)| {
            let volume = &config.volumes[usize::from(export.volume.0)];
            ExportNode {
                id: ExportId(index as u16),
                name: export.spec.name.clone(),
                volume: export.volume,
                device: volume.device,
                home: volume.home,
                mode: volume.options.mode,
                on_error: volume.options.on_error,
                read_only: !export.spec.writes() || volume.options.read_only,
                volatile: config.devices[usize::from(volume.device.0)].queue.write_cache
                    && !volume.options.read_only,
            }
        });
        let records = assembly.exports.iter().map(|export| {
            let (tenant, _) = find_tenant(export.spec.share.tenant, &options.tenants);
            let volume = &config.volumes[usize::from(export.volume.0)];
            Export::new(&export.spec, tenant, (export.volume, &volume.options))
        });
        let exports_now = Arc::new(Exports::new(records));
        let tree = Tree {
            devices: devices.collect(),
            bases: Vec::new(),
            exports: exports.collect(),
            tenants: Vec::new(),
            caching: cache_shares::caching_shards(config, options.cache),
            absent: assembly.absent.clone(),
        };
        let inventory = Inventory::new(
            exports_now,
            assembly,
            config,
            options.spread,
            tree.caching.clone(),
            options.queue.clone(),
        );
        let shards = ShardLink::new(Arc::clone(shared), config.shards);
        let service = Self::new(shards, tree, options.dirty, inventory);
        service.settings.start_tenants(&options.tenants, options.cache);
        service.settings.begin_with(options.limits);
        let tunables = ConfiguredTunables {
            queue: options.queue.clone(),
            devices: assembly.named.iter().flatten().cloned().collect(),
            dirty: options.dirty,
            limits: options.limits,
        };
        let served = assembly.exports.iter().map(|export| &export.spec);
        let absent = assembly.absent.iter().map(|absent| &absent.spec);
        // What ctl added is in no file.
        let in_file = |spec: &&ExportSpec| spec.source != ExportSource::Control;
        let exports = served.chain(absent).filter(in_file).cloned().collect();
        let changes = service.changes.with_missing(options.missing);
        let changes = changes.with_tenants(options.tenants.clone());
        let changes = changes.with_configuration(options.config.clone(), tunables, exports);
        let inherited = options.takeover.as_ref().map_or("", Takeover::changes);
        // The program has read it before.
        let changes =
            changes.with_inherited(ConfigFile::read_changes(inherited).unwrap_or_default());
        let changes = match &options.loaded {
            Some(loaded) => changes.with_loaded(loaded.clone()),
            None => changes,
        };
        let (upgrade, reload) = (options.upgrade.clone(), options.reload.clone());
        Self { log_level: options.log_level.clone(), upgrade, reload, changes, ..service }
    }

    /// Sets the listeners that the server starts with.
    pub fn with_listeners(self, listeners: Arc<ListenerSet>) -> Self {
        Self { changes: self.changes.with_listeners(listeners), ..self }
    }

    /// A service for the shards behind `shards`.
    pub(super) fn new(
        shards: ShardLink,
        tree: Tree,
        dirty: DirtyOptions,
        inventory: Inventory,
    ) -> Self {
        let (shards, tree) = (Arc::new(shards), Arc::new(TreeCell::new(tree)));
        let exports = Arc::clone(&inventory.exports);
        let settings = Settings::new(Arc::clone(&shards), Arc::clone(&tree), exports, dirty);
        let settings = Arc::new(settings);
        let queries = Queries::new(Arc::clone(&shards), Arc::clone(&tree), Arc::clone(&settings));
        let changes = LiveChanges::new(shards, Arc::clone(&tree), Arc::clone(&settings), inventory);
        Self {
            tree,
            queries,
            settings,
            changes,
            log_level: None,
            upgrade: None,
            reload: None,
            is_handing_over: AtomicBool::new(false),
        }
    }

    /// Lets new clients wait for the process that takes over, or serves them again.
    pub fn set_handing_over(&self, is_handing_over: bool) {
        // Relaxed: a flag for one thread, which looks at it often enough.
        self.is_handing_over.store(is_handing_over, Ordering::Relaxed);
    }

    /// Whether new clients are served here.
    pub fn accepts_clients(&self) -> bool {
        // Relaxed: pairs with `set_handing_over`.
        !self.is_handing_over.load(Ordering::Relaxed)
    }

    /// The current tree of devices and exports.
    pub fn tree(&self) -> Arc<Tree> {
        self.tree.current()
    }

    /// The owner of statistics and other reads.
    pub fn queries(&self) -> &Queries {
        &self.queries
    }

    /// The owner of changes of exports.
    pub fn changes(&self) -> &LiveChanges {
        &self.changes
    }

    /// Carries out the method `upgrade`. After it the process may exit, so the client's thread holds the guard until it has sent
    /// the answer.
    pub fn upgrade(&self, params: &Params) -> (RpcResult, Option<AnswerGuard>) {
        if let Err(fault) = methods::check("upgrade", params) {
            return (Err(fault), None);
        }
        let Some(hook) = &self.upgrade else {
            let message = "this program cannot replace itself while it serves";
            return (Err(RpcFault::refused("ENOTSUP", message)), None);
        };
        let (result, guard) = hook.ask();
        let millis = |time: std::time::Duration| time.as_millis() as u64;
        let result = result
            .map(|done| {
                json!({ "pid": done.pid, "ms": millis(done.took), "paused_ms": millis(done.paused) })
            })
            .map_err(|refusal| RpcFault::refused(refusal.errno, refusal.message));
        (result, Some(guard))
    }

    /// Carries out the method `reload`. Problems of the files are part of its result.
    fn reload(&self) -> RpcResult {
        let Some(hook) = &self.reload else {
            let message = "this program has no configuration to load again";
            return Err(RpcFault::refused("ENOTSUP", message));
        };
        let outcome = hook.ask().map_err(|busy| RpcFault::refused("EBUSY", busy))?;
        let ReloadOutcome { problems, changed, refused, failed, restart } = outcome;
        let reloaded = problems.is_empty();
        Ok(
            json!({ "reloaded": reloaded, "problems": problems, "changed": changed, "refused": refused,
            "failed": failed, "restart": restart }),
        )
    }

    /// Carries out a method of the control socket.
    ///
    /// # Errors
    /// The error that the client is sent.
    pub fn call(&self, method: &str, params: &Params) -> RpcResult {
        methods::check(method, params)?;
        match method {
            "get" => self.queries.get(optional_text(params, "path")?.unwrap_or_default()),
            "set" => self.settings.set_all(&values(params)?),
            "stats" => self.queries.stats(),
            "diskstats" => self.queries.diskstats(),
            "connections" => self.queries.connections(),
            "listeners" => Ok(self.changes.listeners(&self.queries.clients_by_listener()?)),
            "discard-failed" => {
                let confirm = match params.get("confirm") {
                    None => false,
                    Some(Value::Bool(confirm)) => *confirm,
                    Some(_) => return Err(RpcFault::params("confirm must be true or false")),
                };
                self.queries.discard_failed(text(params, "export")?, confirm)
            }
            "histograms" => self.queries.histograms(optional_text(params, "export")?),
            "why" => self.queries.why(optional_text(params, "export")?, slow_filter(params)?),
            "failed" => self.queries.failed(text(params, "export")?),
            "diff" => self.changes.diff(),
            "exports" => self.changes.exports(&self.queries.node_counts()?),
            "tenants" => {
                self.changes.tenants(&self.queries.latencies()?, &self.queries.node_counts()?)
            }
            "add-tenant" => self.changes.add_tenant_by_words(params),
            "remove-tenant" => self.changes.remove_tenant_by_words(params),
            "add" => self.changes.add_by_words(params),
            "remove" => self.changes.remove_by_words(params),
            "resize" => self.changes.resize_by_words(params),
            "drain" => self.changes.drain(params),
            "freeze" => self.changes.freeze(params),
            "refuse-clients" => self.changes.refuse_clients(params, true),
            "accept-clients" => self.changes.refuse_clients(params, false),
            "snapshot" => self.changes.snapshot(params),
            "cut" => self.changes.cut(params),
            "thaw" => self.changes.thaw(params),
            "reload" => self.reload(),
            // `upgrade` is carried out by the client's thread, see `upgrade` above.
            "log-level" => log_level(self.log_level.as_ref(), optional_text(params, "level")?),
            other => Err(methods::unknown(other)),
        }
    }
}

/// The method `log-level`: sets the level if one is given, and shows the level in force.
pub(super) fn log_level(switch: Option<&LogLevel>, wanted: Option<&str>) -> RpcResult {
    let Some(switch) = switch else {
        return Err(RpcFault::refused(
            "ENOTSUP",
            "the log level of this program cannot be changed",
        ));
    };
    let level = wanted.map(|wanted| {
        let found = LOG_LEVELS.into_iter().find(|level| *level == wanted);
        found.ok_or_else(|| {
            let accepted = LOG_LEVELS.join(", ");
            let message = format!("`{wanted}` is no level; there are {accepted}");
            RpcFault::refused("EINVAL", message).accepts(accepted)
        })
    });
    Ok(json!({ "level": switch.switch(level.transpose()?) }))
}
