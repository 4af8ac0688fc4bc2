//! From the words to what is to be served and how, without opening anything.

use headworks::core::{ConfigError, PlugNesting, QueueOptions, WriteMode};
use headworks::server::ServerOptions;
use headworks::server::assemble::{self, ExportSpec};

use super::Options;
use super::address::absolute;
use super::tls::tls_options;

/// What the command line says, checked as far as that goes without opening anything.
pub(super) fn plan(options: &Options) -> Result<(Vec<ExportSpec>, ServerOptions), ConfigError> {
    let specs = options.exports.iter().map(|text| export_spec(text, options));
    let specs: Vec<ExportSpec> = specs.collect::<Result<_, _>>()?;
    assemble::check(&specs)?;
    options.queue.apply(&mut QueueOptions::default())?;
    unix_mode(options)?;
    let server = ServerOptions {
        listen: Vec::new(),
        control: options.control.as_ref().map(absolute),
        control_given: None,
        log_level: None,
        metrics: options.metrics,
        shards: options.shards,
        spread: options.spread,
        cpus: options.cpus.clone(),
        engine: options.engine.parse()?,
        poll_ns: options.poll_us.saturating_mul(1000),
        buffers: options.buffers as usize,
        connections: options.connections,
        requests: options.requests,
        handshake_ns: options.handshake_timeout,
        stall_ns: options.stall_timeout,
        record: options.record.clone(),
        plug_nesting: PlugNesting::default(),
        cache: options.cache,
        dirty: options.queue.dirty()?,
        stop_ns: options.stop_timeout,
        // Whoever can reach the server can change what it serves.
        live: options.control.is_some(),
        queue: options.queue.named()?,
        tls: tls_options(options)?,
    };
    let cached = |spec: &&ExportSpec| spec.share.mode.is_some_and(|mode| mode != WriteMode::None);
    if let Some(spec) = specs.iter().find(cached).filter(|_| options.cache == 0) {
        let message = format!("export `{}` wants one, but --cache 0 is none", spec.name);
        return Err(ConfigError::new("cache", message));
    }
    server.validate()?;
    Ok((specs, server))
}
pub(super) fn unix_mode(options: &Options) -> Result<u32, ConfigError> {
    let mode = u32::from_str_radix(&options.unix_mode, 8).ok();
    mode.filter(|mode| *mode <= 0o777).ok_or_else(|| {
        let message = format!("`{}` is no octal mode such as 660", options.unix_mode);
        ConfigError::new("unix-mode", message)
    })
}

fn export_spec(text: &str, options: &Options) -> Result<ExportSpec, ConfigError> {
    let mut spec = ExportSpec::parse(text, options.exports.len() == 1)?;
    if let Some(size) = options.size {
        spec.spec.set_default_size(size);
    }
    Ok(ExportSpec { read_only: options.read_only, ..spec })
}
