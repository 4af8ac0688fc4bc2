//! The methods of the control socket: checks their parameters and passes them to their owner.
//!
//! `Queries` reads, `Settings` changes values, `changes` adds, removes and resizes exports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use headworks_core::writeback::DirtyOptions;
use headworks_core::{DeviceId, ExportId, Op, ShardConfig, VolumeId};

use super::exports::{Export, Exports};
use super::inventory::Inventory;
use super::queries::Queries;
use super::settings::Settings;
use super::shards::ShardLink;
use super::tree::{DeviceNode, ExportNode, Tree, TreeCell};
use crate::change::configured::ConfiguredTunables;
use crate::change::reload_request::{ReloadHook, ReloadOutcome};
use crate::change::{self, LiveChanges, RemovalWay, live_listeners};
use crate::config::ConfigFile;
use crate::exports::assemble::tenant_spec::find_tenant;
use crate::exports::assemble::{Assembly, ExportSource, ExportSpec, cache_shares};
use crate::listen::listener_set::ListenerSet;
use crate::observe::latency::request_name;
use crate::observe::latency::slow::SlowFilter;
use crate::options::ServerOptions;
use crate::reactor::shared::ServerShared;
use crate::spec::log_level::{LOG_LEVELS, LogLevel};
use crate::successor::handover::{AnswerGuard, Takeover, UpgradeHook};
use headworks_control::methods::{self, Method, Request};
use headworks_control::{Params, RpcFault, RpcResult, answers, reply};

/// How often devices of exports that were given up are asked; nothing is asked while there is none.
const AGAIN: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });

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
            let remote = origins.clone().find_map(|origin| origin.remote.clone());
            let model = origins.into_iter().find_map(|origin| origin.model.clone());
            let (id, owner) = (DeviceId(index as u16), device.owner);
            DeviceNode { id, owner, volumes: Arc::clone(&own), remote, model }
        });
        let exports = assembly.exports.iter().enumerate().map(|(index, export)| {
            let volume = &config.volumes[usize::from(export.volume.0)];
            ExportNode {
                id: ExportId(index as u16),
                name: export.spec.name.clone(),
                volume: export.volume,
                device: volume.device,
                home: volume.home,
                range: export.range,
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
        let changes = changes.with_client_limits(options.connection_limits());
        let changes = changes.with_mounts(options.process.mounts.clone());
        let changes = changes.with_tenants(options.tenants.clone());
        let changes = changes.with_configuration(options.process.config.clone(), tunables, exports);
        let inherited = options.process.takeover.as_ref().map_or("", Takeover::changes);
        // The program has read it before.
        let changes = changes.with_inherited(
            ConfigFile::read_changes(inherited).unwrap_or_default(),
            (&options.access, &options.tls),
        );
        let changes = match &options.process.loaded {
            Some(loaded) => changes.with_loaded(loaded.clone()),
            None => changes,
        };
        let (upgrade, reload) = (options.process.upgrade.clone(), options.process.reload.clone());
        Self { log_level: options.process.log_level.clone(), upgrade, reload, changes, ..service }
    }

    /// Sets the listeners that the server starts with.
    pub fn with_listeners(self, listeners: Arc<ListenerSet>) -> Self {
        Self { changes: self.changes.with_listeners(listeners), ..self }
    }

    /// Lets a thread end removals of exports that were given up, while there are any; it ends with the service.
    pub fn attend(self: &Arc<Self>) {
        let service = Arc::downgrade(self);
        self.changes.abandoned().on_first(move || {
            let service = Weak::clone(&service);
            let end = move || {
                loop {
                    std::thread::sleep(AGAIN);
                    let Some(service) = service.upgrade() else { return };
                    if service.changes.abandoned().end(&service.changes).unwrap_or(true) {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("headworks-abandoned".into());
            if let Err(error) = thread.spawn(end) {
                tracing::warn!("what was given up stays open until the server stops: {error}");
            }
        });
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
        if let Err(fault) = methods::Upgrade::read(params) {
            return (Err(fault), None);
        }
        let Some(hook) = &self.upgrade else {
            let message = "this program cannot replace itself while it serves";
            return (Err(RpcFault::refused("ENOTSUP", message)), None);
        };
        let (result, guard) = hook.ask();
        let millis = |time: std::time::Duration| time.as_millis() as u64;
        let result = result
            .map_err(|refusal| RpcFault::refused(refusal.errno, refusal.message))
            .and_then(|done| {
                let (ms, paused_ms) = (millis(done.took), millis(done.paused));
                reply(&answers::Upgraded { pid: done.pid, ms, paused_ms })
            });
        (result, Some(guard))
    }

    /// Carries out the method `reload`. Problems of the files are part of its result.
    fn reload(&self) -> Result<answers::Reloaded, RpcFault> {
        let Some(hook) = &self.reload else {
            let message = "this program has no configuration to load again";
            return Err(RpcFault::refused("ENOTSUP", message));
        };
        let outcome = hook.ask().map_err(|busy| RpcFault::refused("EBUSY", busy))?;
        let ReloadOutcome { problems, changed, refused, failed, restart, overridden } = outcome;
        let reloaded = problems.is_empty();
        Ok(answers::Reloaded { reloaded, problems, changed, refused, failed, restart, overridden })
    }

    /// Carries out a method of the control socket.
    ///
    /// # Errors
    /// The error that the client is sent.
    pub fn call(&self, method: &str, params: &Params) -> RpcResult {
        let (queries, changes) = (&self.queries, &self.changes);
        match Method::find(method)? {
            Method::Get => carry_out(params, |asked: methods::Get| {
                queries.get(asked.path.as_deref().unwrap_or_default())
            }),
            Method::Set => carry_out(params, |asked: methods::Set| {
                self.settings.set_all(&asked.assignments()?)
            }),
            Method::Stats => carry_out(params, |_: methods::Stats| queries.stats()),
            Method::Diskstats => carry_out(params, |_: methods::Diskstats| queries.diskstats()),
            Method::Histograms => carry_out(params, |asked: methods::Histograms| {
                queries.histograms(asked.export.as_deref())
            }),
            Method::Why => carry_out(params, |asked: methods::Why| {
                queries.why(asked.export.as_deref(), slow_filter(&asked))
            }),
            Method::Connections => {
                carry_out(params, |_: methods::Connections| queries.connections())
            }
            Method::Listeners => carry_out(params, |_: methods::Listeners| {
                Ok(change::listeners::listeners(changes, &queries.clients_by_listener()?))
            }),
            Method::Exports => carry_out(params, |_: methods::Exports| {
                let in_flight = queries.in_flight(&queries.tree().current())?;
                change::exports::exports(changes, &queries.node_counts()?, &in_flight)
            }),
            Method::Tenants => carry_out(params, |_: methods::Tenants| {
                change::tenants::tenants(changes, &queries.latencies()?, &queries.node_counts()?)
            }),
            Method::AddTenant => carry_out(params, |asked: methods::AddTenant| {
                change::tenants::add_tenant_by_words(changes, &asked.tenant)
            }),
            Method::RemoveTenant => carry_out(params, |asked: methods::RemoveTenant| {
                change::tenants::remove_tenant(changes, &asked.tenant)
            }),
            Method::AddListener => carry_out(params, |asked| live_listeners::add(changes, &asked)),
            Method::RemoveListener => carry_out(params, |asked: methods::RemoveListener| {
                live_listeners::remove(changes, &asked.listener)
            }),
            Method::Add => carry_out(params, |asked| change::add::add_by_words(changes, &asked)),
            Method::Remove => carry_out(params, |asked: methods::Remove| {
                change::remove::remove(changes, &asked.export, RemovalWay::asked(&asked))
            }),
            Method::Resize => {
                carry_out(params, |asked| change::resize::resize_by_words(changes, &asked))
            }
            Method::Drain => carry_out(params, |asked| change::drain::drain(changes, &asked)),
            Method::Freeze => carry_out(params, |asked| change::freeze::freeze(changes, &asked)),
            Method::Thaw => carry_out(params, |asked: methods::Thaw| {
                change::freeze::thaw(changes, &asked.exports)
            }),
            Method::Snapshot => {
                carry_out(params, |asked| change::snapshot::snapshot(changes, &asked))
            }
            Method::Cut => {
                carry_out(params, |asked: methods::Cut| change::cut::cut(changes, &asked.export))
            }
            Method::RefuseClients => carry_out(params, |asked: methods::RefuseClients| {
                change::clients::refuse_clients(changes, &asked.exports, true)
            }),
            Method::AcceptClients => carry_out(params, |asked: methods::AcceptClients| {
                change::clients::refuse_clients(changes, &asked.exports, false)
            }),
            Method::Failed => {
                carry_out(params, |asked: methods::Failed| queries.failed(&asked.export))
            }
            Method::DiscardFailed => carry_out(params, |asked: methods::DiscardFailed| {
                queries.discard_failed(&asked.export, asked.confirm)
            }),
            Method::Diff => {
                carry_out(params, |asked: methods::Diff| change::diff::diff(changes, &asked))
            }
            Method::Reload => carry_out(params, |_: methods::Reload| self.reload()),
            // It is carried out by the client's thread, which holds the guard.
            Method::Upgrade => self.upgrade(params).0,
            Method::LogLevel => carry_out(params, |asked: methods::LogLevel| {
                log_level(self.log_level.as_ref(), asked.level.as_deref())
            }),
        }
    }
}

/// Which requests `why` considers.
fn slow_filter(asked: &methods::Why) -> SlowFilter {
    let all = SlowFilter::default();
    let op = Op::ALL.into_iter().find(|op| Some(request_name(*op)) == asked.op.0.as_deref());
    SlowFilter { op, seconds: asked.seconds.0.unwrap_or(all.seconds) }
}

/// Reads the parameters of a method, carries it out, and writes its answer.
fn carry_out<R: Request>(
    params: &Params,
    method: impl FnOnce(R) -> Result<R::Answer, RpcFault>,
) -> RpcResult {
    reply(&method(R::read(params)?)?)
}

/// The method `log-level`: sets the level if one is given, and shows the level in force.
pub(super) fn log_level(
    switch: Option<&LogLevel>,
    wanted: Option<&str>,
) -> Result<answers::LogLevel, RpcFault> {
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
    Ok(answers::LogLevel { level: switch.switch(level.transpose()?).to_owned() })
}
