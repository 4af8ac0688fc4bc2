//! The plan of a server: exports and options derived from the arguments without opening anything.

use headworks_core::limits::Limits;
use headworks_core::{ConfigError, WriteMode};
use headworks_server::config::{ConfigFile, Origin, Problem, Problems, dirty_options};
use headworks_server::{ClientLimits, ExportSpec, MissingImage, ServerOptions, parse_limits};

use super::ServeArgs;
use super::address::{absolute, named_addresses, unix_mode};
use super::layers::{EffectiveOptions, blame, problem_of};
use super::listen::{plan_access, uses_tls};
use super::memory;
use super::peer_words::plugin_answer;
use super::tls::tls_options;

/// Derives exports and server options; checks all that can be checked without opening anything.
pub fn plan(effective: &EffectiveOptions) -> Result<(Vec<ExportSpec>, ServerOptions), Problems> {
    let EffectiveOptions { options, config, .. } = effective;
    if let Some(answer) = plugin_answer(&options.exports) {
        return Err(Problems(vec![Problem::new(&Origin::CommandLine, answer)]));
    }
    let one = |problem: Problem| Problems(vec![problem]);
    // All of them before any is reported.
    let specs = config.plan(options.size, options.read_only);
    let server = server_options(options, config).map_err(one);
    let (tenants, access) = (config.plan_tenants(), plan_access(&options.listening, config));
    let wrong = [
        specs.as_ref().err(),
        server.as_ref().err(),
        tenants.as_ref().err(),
        access.as_ref().err(),
    ];
    let wrong: Vec<Problem> = wrong.into_iter().flatten().flat_map(|all| all.0.clone()).collect();
    Problems(wrong).or(())?;
    let (specs, mut server) = (specs?, server?);
    (server.tenants, server.access) = (tenants?, access?);
    let own = named_addresses(&options.listening);
    let twin = server
        .access
        .listeners
        .iter()
        .find(|spec| own.iter().any(|address| address.key() == spec.address.key()));
    if let Some(spec) = twin {
        let place = spec.address.key().unwrap_or_default();
        let section = config.listeners.iter().find(|section| section.name == spec.name);
        let origin = section.map_or(&Origin::CommandLine, |section| &section.origin);
        let message = format!(
            "listener {}: the server's unix or port has the address {place}, too, and offers every export there; change one",
            spec.name
        );
        return Err(one(Problem::new(origin, message)));
    }
    let blamed = |error| one(blame(config, &error));
    server.tls = tls_options(&options.listening, uses_tls(&server.access)).map_err(blamed)?;
    // A file may be filled later, and what ctl has removed and saved leaves none.
    if specs.is_empty() && options.config.is_none() && config.exports.is_empty() {
        let message = "nothing to serve; name an image, or a configuration file with an [[export]] (--config)";
        return Err(one(Problem::new(&Origin::CommandLine, message)));
    }
    headworks_server::check_exports(&specs)
        .map_err(|(index, error)| one(problem_of(config, &specs, (Some(index), error))))?;
    let cached = |spec: &&ExportSpec| spec.share.mode.is_some_and(|mode| mode != WriteMode::None);
    if let Some(spec) = specs.iter().find(cached).filter(|_| server.cache == 0) {
        let message = format!(
            "export `{}` needs a cache, but --cache is 0; set --cache, or cache=none for the export",
            spec.name
        );
        return Err(blamed(ConfigError::new("cache", message)));
    }
    Ok((specs, server))
}

fn server_options(options: &ServeArgs, config: &ConfigFile) -> Result<ServerOptions, Problem> {
    let blamed = |error| blame(config, &error);
    unix_mode(&options.listening).map_err(blamed)?;
    let (cache, auto_cache) = memory::cache_size(options.cache);
    let server = ServerOptions {
        control: options.listening.control.as_ref().map(absolute),
        metrics: options.listening.metrics,
        shards: options.threads.shards,
        spread: options.threads.spread,
        cpus: options.threads.cpus.clone(),
        engine: options.threads.engine.parse().map_err(blamed)?,
        poll_ns: options.threads.poll_us.saturating_mul(1000),
        buffers: options.buffers as usize,
        clients: ClientLimits {
            connections: options.clients.connections,
            requests: options.clients.requests,
            handshake_ns: options.clients.handshake_timeout,
            stall_ns: options.clients.stall_timeout,
        },
        record: options.record.clone(),
        cache,
        auto_cache,
        limits: limits(limit_words(options, config)).map_err(blamed)?,
        dirty: dirty_options(&config.vm)?,
        stop_ns: options.stop_timeout,
        // The control socket and a reload can change the exports.
        live: options.listening.control.is_some() || options.config.is_some(),
        missing: match options.strict {
            true => MissingImage::Refuse,
            false => MissingImage::Absent,
        },
        queue: config.queue_of(None).iter().map(|tuned| (tuned.tunable, tuned.value)).collect(),
        ..ServerOptions::default()
    };
    server.validate().map_err(blamed)?;
    Ok(server)
}

/// The words of `--limit` that count: those of the merged sources, which may have changes of a replaced process.
fn limit_words<'a>(options: &'a ServeArgs, config: &'a ConfigFile) -> &'a [String] {
    let setting = config.server.iter().find(|setting| setting.name == "limit");
    setting.map_or(&options.clients.limit, |setting| setting.value.words())
}

/// Limits of the whole server.
pub(super) fn limits(words: &[String]) -> Result<Limits, ConfigError> {
    let mut limits = Limits::default();
    let wrong = |message| ConfigError::new("limit", message);
    parse_limits(&mut limits, &words.join(",")).map_err(wrong)?;
    Ok(limits)
}
