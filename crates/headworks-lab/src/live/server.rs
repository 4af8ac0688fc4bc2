//! A server in this process, with its sockets in a temporary folder.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use headworks_core::prng::Prng;
use headworks_core::writeback::DirtyOptions;
use headworks_core::{ConfigError, DeviceId, QueueOptions, Shard};
use headworks_nbd::client::{Target, Uri};
use headworks_server::{
    Address, Assembly, ExportSpec, PrepareShard, ProcessContext, Server, ServerOptions, Spec,
};
use serde_json::{Value, json};

use crate::baseline::foreground::Throttling;
use crate::baseline::{TagPolicy, WakeOptions};

/// A private folder, removed with its contents when dropped.
pub struct TempFolder(PathBuf);

impl TempFolder {
    /// Creates a folder that only its owner can enter.
    pub fn make() -> Result<Self, ConfigError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Relaxed: only uniqueness matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("headworks-lab.{}.{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(|error| at(&path, &error))?;
        Ok(Self(path))
    }

    /// The path of a file in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a file without runs of zeros, so that no filesystem and no device stores holes.
    pub fn image(&self, name: &str, size: u64) -> Result<PathBuf, ConfigError> {
        let path = self.path(name);
        let mut prng = Prng::new(1);
        let block: Vec<u8> = (0..1 << 17).flat_map(|_| prng.next().to_le_bytes()).collect();
        let fill = || {
            let mut file = fs::File::create(&path)?;
            for _ in 0..size.div_ceil(block.len() as u64) {
                file.write_all(&block)?;
            }
            file.set_len(size)?;
            file.sync_all()
        };
        fill().map_err(|error| at(&path, &error))?;
        Ok(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn at(path: &Path, error: &std::io::Error) -> ConfigError {
    ConfigError::new("live", format!("{}: {error}", path.display()))
}

/// Options of a server.
pub struct LiveServerOptions<'a> {
    /// Names and specifications, as on the command line of `headworks serve`.
    pub exports: &'a [(&'a str, String)],
    /// Changes the queue options of each device.
    pub queue: &'a dyn Fn(QueueOptions) -> QueueOptions,
    /// Tag policy of every device.
    pub policy: TagPolicy,
    /// Bytes of buffers; `None` for the default.
    pub buffers: Option<usize>,
    /// Bytes of the page cache; 0 for none.
    pub cache: u64,
    /// Dirty limits and writer throttling.
    pub dirty: DirtyOptions,
    /// How writers are slowed; `dirty.policy` goes with it.
    pub throttle: Throttling,
}

impl<'a> LiveServerOptions<'a> {
    /// Options of a server without a cache.
    pub fn new(
        exports: &'a [(&'a str, String)],
        queue: &'a dyn Fn(QueueOptions) -> QueueOptions,
    ) -> Self {
        Self {
            exports,
            queue,
            policy: TagPolicy::Fair,
            buffers: None,
            cache: 0,
            dirty: DirtyOptions::default(),
            throttle: Throttling::Ioless,
        }
    }
}

/// A server that runs in this process.
pub struct LiveServer {
    server: Option<Server>,
    nbd: PathBuf,
    control: PathBuf,
    _folder: TempFolder,
}

impl LiveServer {
    /// Starts the server.
    ///
    /// # Errors
    /// An export that cannot be served.
    pub fn start(options: &LiveServerOptions<'_>) -> Result<Self, ConfigError> {
        let folder = TempFolder::make()?;
        let (nbd, control) = (folder.path("nbd"), folder.path("ctl"));
        let specs: Vec<ExportSpec> = options
            .exports
            .iter()
            .map(|(name, text)| {
                let (spec, share) = Spec::parse_export(text)?;
                Ok(ExportSpec { share, ..ExportSpec::new((*name).into(), spec, false) })
            })
            .collect::<Result<_, ConfigError>>()?;
        let mut assembly = Assembly::new(&specs)?;
        for (queue, _) in &mut assembly.devices {
            *queue = (options.queue)(*queue);
            queue.validate()?;
        }
        let defaults = ServerOptions::default();
        let (policy, devices) = (options.policy, assembly.devices.len() as u16);
        let throttle = options.throttle;
        let prepare = move |shard: &mut Shard| {
            throttle.install(shard);
            let devices = (0..devices).map(DeviceId);
            devices.for_each(|id| policy.install(shard, id, WakeOptions::default()));
        };
        let server = ServerOptions {
            process: ProcessContext {
                prepare_shard: PrepareShard::new(prepare),
                ..ProcessContext::default()
            },
            listen: vec![Address::Unix { path: nbd.clone(), mode: 0o600 }],
            control: Some(control.clone()),
            buffers: options.buffers.unwrap_or(defaults.buffers),
            cache: options.cache,
            dirty: options.dirty,
            ..defaults
        };
        let server = Some(Server::start(assembly, &server, || {})?);
        Ok(Self { server, nbd, control, _folder: folder })
    }

    /// The URI of an export.
    pub fn uri(&self, export: &str) -> Uri {
        Uri { target: Target::Unix(self.nbd.clone()), export: export.into(), tls: None }
    }

    /// The result of the control request `stats`.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn stats(&self) -> Result<Value, ConfigError> {
        let ask = || {
            let mut stream = UnixStream::connect(&self.control)?;
            let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "stats", "params": {} });
            stream.write_all(format!("{request}\n").as_bytes())?;
            let mut line = String::new();
            BufReader::new(stream).read_line(&mut line)?;
            let mut answer: Value = serde_json::from_str(&line)?;
            Ok(answer["result"].take())
        };
        ask().map_err(|error: std::io::Error| at(&self.control, &error))
    }

    /// Stops the server.
    ///
    /// # Errors
    /// The server failed, or its last flush did.
    pub fn end(mut self) -> Result<(), ConfigError> {
        match self.server.take() {
            Some(server) => stop(server).map_err(|error| ConfigError::new("live", error)),
            None => Ok(()),
        }
    }
}

impl Drop for LiveServer {
    fn drop(&mut self) {
        // An error on drop follows another one that is reported.
        let _ = self.server.take().map(stop);
    }
}

fn stop(server: Server) -> Result<(), String> {
    server.stop();
    server.join()
}
