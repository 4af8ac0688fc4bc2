//! The configuration file: TOML with the options of `headworks serve`, exports and tunables.
//!
//! ```text
//!   [server]                 options of `serve` by their long names, kept as words here
//!   [server.queue]           tunables of every queue, by the names of sysfs       [server.vm]    of write-back
//!   [[device]]               name, [device.queue]: a queue of its own, shared by the exports that name it
//!   [[export]]               an export, see `export`
//!   [[tenant]]               a tenant, see `tenant`
//!   [[listen]]               a socket that offers some exports, see `listen`
//!   [[template]]             a tenant, an export and a socket for each of many names, see `template`
//! ```
//!
//! ```text
//!   text -> read -> ConfigFile -+-> merge: drop-ins, environment, command line; a later one wins
//!                               +-> check, plan: exports        +-> write: an equivalent file
//! ```
//!
//! Every value has an origin, so that errors name its line and a dump its source. All problems of a file are reported
//! at once. This module only converts text to values and back.

mod export;
mod listen;
mod overridden;
mod problem;
#[cfg(test)]
mod property_tests;
mod read;
mod template;
mod tenant;
#[cfg(test)]
mod tests;
mod tunables;
mod write;

use headworks_core::ConfigError;
use headworks_core::QueueOptions;
use headworks_core::options::{TENANTS_MAX, Tunable};
use headworks_core::writeback::{DirtyOptions, DirtyTunable};
use toml::de::DeTable;

use crate::exports::access::{AccessSpec, LISTENERS_MAX};
use crate::exports::assemble::TenantSpec;
use crate::exports::assemble::{ExportSpec, NamedDevice, shown_name};
use crate::spec::tenant::{TenantName, no_tenant};
use tunables::{apply_queue, read_dirty, read_queue};

pub use export::{ExportSection, LayerSection};
pub use listen::{ListenDefaults, ListenSection};
pub use problem::{Origin, Position, Problem, Problems};
pub(crate) use read::{Reader, entries};
pub use read::{Setting, Value, unknown};
pub use tenant::TenantSection;
pub use tunables::{
    DirtySettings, QueueSettings, Tuned, dirty_options, is_probed, is_settable, other_way,
    parse_dirty, tune_dirty, tune_queue,
};
pub(crate) use write::size_word;

/// Longest text of a configuration in bytes.
pub const TEXT_MAX: usize = 1 << 20;

/// A named device with its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSection {
    /// Name that exports refer to.
    pub name: String,
    /// Tunables of the device's queue.
    pub queue: QueueSettings,
    /// Origin of the section.
    pub origin: Origin,
}

/// A configuration, from one source or merged from several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigFile {
    /// Options of the server in the order of their names.
    pub server: Vec<Setting>,
    /// Tunables of every queue.
    pub queue: QueueSettings,
    /// Tunables of write-back of the server.
    pub vm: DirtySettings,
    /// Named devices with queues of their own.
    pub devices: Vec<DeviceSection>,
    /// Tenants in the order of their numbers.
    pub tenants: Vec<TenantSection>,
    /// Listeners that offer exports of their own.
    pub listeners: Vec<ListenSection>,
    /// Exports in order; the first is the default.
    pub exports: Vec<ExportSection>,
}

impl ConfigFile {
    /// Parses the text of a file; `name` appears in errors.
    ///
    /// # Errors
    /// All problems of the file.
    pub fn parse(name: &str, text: &str) -> Result<Self, Problems> {
        let (file, problems) = Self::read(name, text);
        problems.or(file)
    }

    /// Parses the text of a file; returns the configuration and its problems.
    #[must_use]
    pub fn read(name: &str, text: &str) -> (Self, Problems) {
        let mut file = Self::default();
        if text.len() > TEXT_MAX {
            let mut reader = Reader::new(name, "");
            let message = format!("a configuration has at most {TEXT_MAX} bytes");
            reader.wrong(&(0..0), message);
            return (file, reader.problems);
        }
        let mut reader = Reader::new(name, text);
        match DeTable::parse(text) {
            Ok(table) => file.fill(&mut reader, table.get_ref()),
            Err(error) => {
                let span = error.span().unwrap_or(0..0);
                reader.wrong(&span, format!("this is not TOML: {}", one_line(error.message())));
            }
        }
        (file, reader.problems)
    }

    fn fill(&mut self, reader: &mut Reader<'_>, table: &DeTable<'_>) {
        for (key, span, value) in entries(table) {
            match key {
                "server" => {
                    if let Some(table) = reader.table(value, "server") {
                        self.read_server(reader, table);
                    }
                }
                "device" | "export" | "tenant" | "listen" => {
                    for (table, span) in reader.tables(value, key) {
                        self.read_section(reader, key, table, &span);
                    }
                }
                "template" => {
                    for (table, span) in reader.tables(value, key) {
                        self.read_template(reader, table, &span);
                    }
                }
                _ => {
                    let known = ["server", "device", "listen", "tenant", "export", "template"];
                    reader.unknown((key, &span), "a file", &known);
                }
            }
        }
        self.find_twins(reader);
    }

    /// Reads one `[[device]]`, `[[export]]`, `[[tenant]]` or `[[listen]]`.
    fn read_section(
        &mut self,
        reader: &mut Reader<'_>,
        section: &str,
        table: &DeTable<'_>,
        span: &std::ops::Range<usize>,
    ) {
        match section {
            "device" => self.devices.extend(read_device(reader, table, span)),
            "export" => self.exports.extend(export::read(reader, table, span)),
            "tenant" => self.tenants.extend(tenant::read(reader, table, span)),
            _ => self.listeners.extend(listen::read(reader, table, span)),
        }
    }

    /// Reads the sections of a template, up to the first name with a problem: the others would have the same.
    fn read_template(
        &mut self,
        reader: &mut Reader<'_>,
        table: &DeTable<'_>,
        span: &std::ops::Range<usize>,
    ) {
        let before = reader.problems.0.len();
        let names = template::expand(reader, table, span);
        for (section, table) in names.iter().flatten() {
            self.read_section(reader, section, table, span);
            if reader.problems.0.len() > before {
                return;
            }
        }
    }

    fn read_server(&mut self, reader: &mut Reader<'_>, table: &DeTable<'_>) {
        for (key, span, value) in entries(table) {
            match key {
                "queue" => {
                    if let Some(table) = reader.table(value, "server.queue") {
                        self.queue = read_queue(reader, "server.queue", table);
                    }
                }
                "vm" => {
                    if let Some(table) = reader.table(value, "server.vm") {
                        self.vm = read_dirty(reader, table);
                    }
                }
                _ if value.get_ref().is_table() => {
                    reader.unknown((key, &span), "server", &["queue", "vm"]);
                }
                _ => {
                    if let Some(value) = reader.words(key, value) {
                        let origin = reader.origin(&span);
                        self.server.push(Setting { name: key.to_owned(), value, origin });
                    }
                }
            }
        }
    }

    fn find_twins(&self, reader: &mut Reader<'_>) {
        let devices = self.devices.iter().map(|device| (&device.name, &device.origin));
        let exports = self.exports.iter().map(|export| (&export.name, &export.origin));
        let tenants = self.tenants.iter().map(|tenant| (&tenant.name, &tenant.origin));
        let listeners = self.listeners.iter().map(|listener| (&listener.name, &listener.origin));
        for (what, all) in [
            ("devices", devices.collect::<Vec<_>>()),
            ("tenants", tenants.collect()),
            ("listeners", listeners.collect()),
            ("exports", exports.collect()),
        ] {
            let mut first = std::collections::BTreeMap::new();
            for (name, origin) in all {
                if let Some(other) = first.insert(name, origin) {
                    let message = format!("two {what} are named `{name}`; the other is in {other}");
                    reader.problems.0.push(Problem::new(origin, message));
                }
            }
        }
    }

    /// The same values with one origin, for a file that is written anew.
    #[must_use]
    pub fn with_origin(mut self, origin: &Origin) -> Self {
        self.server.iter_mut().for_each(|setting| setting.origin = origin.clone());
        self.queue.iter_mut().for_each(|tuned| tuned.origin = origin.clone());
        self.vm.iter_mut().for_each(|tuned| tuned.origin = origin.clone());
        for device in &mut self.devices {
            device.origin = origin.clone();
            device.queue.iter_mut().for_each(|tuned| tuned.origin = origin.clone());
        }
        self.tenants = self.tenants.into_iter().map(|tenant| tenant.with_origin(origin)).collect();
        self.listeners = self.listeners.into_iter().map(|one| one.with_origin(origin)).collect();
        self.exports = self.exports.into_iter().map(|export| export.with_origin(origin)).collect();
        self
    }

    /// Reads what `headworks ctl` changed, as [`Takeover::changes`](crate::Takeover::changes) has it.
    ///
    /// # Errors
    /// It is no configuration.
    pub fn read_changes(text: &str) -> Result<Self, Problems> {
        let (mut file, problems) = Self::read("the running server's changes", text);
        file.exports.iter_mut().for_each(|export| export.origin = Origin::Control);
        file.tenants.iter_mut().for_each(|tenant| tenant.origin = Origin::Control);
        file.listeners.iter_mut().for_each(|listener| listener.origin = Origin::Control);
        problems.or(file)
    }

    /// Merges two configurations; `later` wins. Sections of the same name are combined: a later export replaces an
    /// earlier one, a later device adds to it.
    #[must_use]
    pub fn merged(mut self, later: Self) -> Self {
        for setting in later.server {
            self.server.retain(|old| old.name != setting.name);
            self.server.push(setting);
        }
        self.server.sort_by(|one, other| one.name.cmp(&other.name));
        later.queue.into_iter().for_each(|tuned| tune_queue(&mut self.queue, tuned));
        later.vm.into_iter().for_each(|tuned| tune_dirty(&mut self.vm, tuned));
        for device in later.devices {
            match self.devices.iter_mut().find(|old| old.name == device.name) {
                Some(old) => {
                    device.queue.into_iter().for_each(|tuned| tune_queue(&mut old.queue, tuned));
                }
                None => self.devices.push(device),
            }
        }
        for tenant in later.tenants {
            match self.tenants.iter_mut().find(|old| old.name == tenant.name) {
                Some(old) => old.merge(tenant),
                None => self.tenants.push(tenant),
            }
        }
        for listener in later.listeners {
            match self.listeners.iter_mut().find(|old| old.name == listener.name) {
                Some(old) => old.merge(listener),
                None => self.listeners.push(listener),
            }
        }
        for export in later.exports {
            match self.exports.iter_mut().find(|old| old.name == export.name) {
                Some(old) => *old = export,
                None => self.exports.push(export),
            }
        }
        self
    }

    /// Makes the exports to open: with `size` where an export gives none, read-only if `read_only`.
    ///
    /// # Errors
    /// All problems of exports and devices.
    pub fn plan(&self, size: Option<u64>, read_only: bool) -> Result<Vec<ExportSpec>, Problems> {
        let (specs, problems) = self.plan_rest(size, read_only);
        problems.or(specs)
    }

    /// The same beside the problems: exports whose images are known, without their options that are wrong.
    #[must_use]
    pub fn plan_rest(&self, size: Option<u64>, read_only: bool) -> (Vec<ExportSpec>, Problems) {
        let mut problems = Problems::default();
        let mut specs = Vec::new();
        for export in &self.exports {
            match export.is_enabled() {
                Ok(true) => {}
                Ok(false) => continue,
                Err(problem) => {
                    problems.0.push(problem);
                    continue;
                }
            }
            if let Some(mut spec) = export.plan_rest(size, read_only, &mut problems.0) {
                spec.device = self.named(export);
                spec.share.tenant = self.tenant_of(export, &spec, &mut problems);
                specs.push(spec);
            }
        }
        for device in std::iter::once(None).chain(self.devices.iter().map(Some)) {
            tunables::check(device.map_or(&self.queue, |device| &device.queue), &mut problems);
        }
        self.check_devices(&specs, &mut problems);
        (specs, problems)
    }

    /// The tenants that the configuration defines.
    ///
    /// # Errors
    /// All problems of tenants.
    pub fn plan_tenants(&self) -> Result<Vec<TenantSpec>, Problems> {
        let mut problems = Problems::default();
        let mut specs = Vec::new();
        for tenant in &self.tenants {
            match tenant.is_enabled().and_then(|on| on.then(|| tenant.plan()).transpose()) {
                Ok(spec) => specs.extend(spec),
                Err(problem) => problems.0.push(problem),
            }
        }
        if let Some(tenant) = self.tenants.get(TENANTS_MAX).filter(|_| specs.len() > TENANTS_MAX) {
            let message = format!("a server has at most {TENANTS_MAX} tenants");
            problems.0.push(Problem::new(&tenant.origin, message));
        }
        problems.or(specs)
    }

    /// The listeners that the configuration defines, and the certificates that exports need.
    ///
    /// # Errors
    /// All problems of listeners, and lists that are too long together.
    pub fn plan_access(&self, defaults: &ListenDefaults<'_>) -> Result<AccessSpec, Problems> {
        let mut problems = Problems::default();
        let mut access = AccessSpec::default();
        let mut places = std::collections::BTreeMap::new();
        for section in &self.listeners {
            let planned = section.is_enabled();
            let planned = planned.and_then(|on| on.then(|| section.plan(defaults)).transpose());
            let spec = match planned {
                Ok(Some(spec)) => spec,
                Ok(None) => continue,
                Err(problem) => {
                    problems.0.push(problem);
                    continue;
                }
            };
            let place = spec.address.key().unwrap_or_default();
            if let Some(other) = places.insert(place.clone(), &section.name) {
                let what =
                    format!("listeners `{other}` and `{}` both listen at {place}", spec.name);
                problems.0.push(Problem::new(&section.origin, what));
            }
            access.listeners.push(spec);
        }
        if let Some(listener) = self.listeners.get(LISTENERS_MAX) {
            let message = format!("a server has at most {LISTENERS_MAX} listeners");
            problems.0.push(Problem::new(&listener.origin, message));
        }
        let tenants = self.tenants.iter().filter(|tenant| tenant.is_enabled() != Ok(false));
        let tenants = tenants.filter(|tenant| !tenant.certificates.is_empty());
        // A name that is none is reported elsewhere.
        access.tenants = tenants
            .filter_map(|one| Some((TenantName::parse(&one.name).ok()?, one.certificates.clone())))
            .collect();
        let exports = self.exports.iter().filter(|export| !export.certificates.is_empty());
        access.exports = exports.map(|one| (one.name.clone(), one.certificates.clone())).collect();
        let too_long = access.check().err();
        problems.0.extend(too_long.map(|what| Problem::new(&Origin::CommandLine, what)));
        problems.or(access)
    }

    /// The tenant of an export: the one that it names, or the one that names it.
    fn tenant_of(
        &self,
        export: &ExportSection,
        spec: &ExportSpec,
        problems: &mut Problems,
    ) -> Option<TenantName> {
        let is_there = |tenant: &&TenantSection| tenant.is_enabled() != Ok(false);
        let tenants = || self.tenants.iter().filter(is_there);
        if let Some(name) = spec.share.tenant {
            if name.is_none() {
                return None;
            }
            if !tenants().any(|tenant| tenant.name == name.as_str()) {
                let known = tenants().map(|tenant| tenant.name.as_str());
                let origin = export.get("tenant").map_or(&export.origin, |said| &said.origin);
                let what = format!("export `{}`: {}", export.name, no_tenant(name.as_str(), known));
                problems.0.push(Problem::new(origin, what));
            }
            return Some(name);
        }
        let mut owners = tenants().filter(|tenant| tenant.owns(shown_name(&export.name)));
        let owner = owners.next()?;
        if let Some(other) = owners.next() {
            let (name, one, other) = (shown_name(&export.name), &owner.name, &other.name);
            let message = format!(
                "export `{name}` is listed by the tenants `{one}` and `{other}`; say which with tenant = \"{one}\" in the export"
            );
            problems.0.push(Problem::new(&export.origin, message));
        }
        TenantName::parse(&owner.name).ok()
    }

    /// The device that an export names, with all tunables of its queue.
    fn named(&self, export: &ExportSection) -> Option<NamedDevice> {
        let name = export.device()?.to_owned();
        let queue = self.queue_of(Some(&name));
        let pairs = queue.into_iter().map(|tuned| (tuned.tunable, tuned.value));
        Some(NamedDevice { name, queue: pairs.collect() })
    }

    fn check_devices(&self, specs: &[ExportSpec], problems: &mut Problems) {
        let names: Vec<&str> = self.devices.iter().map(|device| device.name.as_str()).collect();
        for export in &self.exports {
            let Some(setting) = export.get("device") else { continue };
            let name = setting.word();
            let message = match (names.contains(&name), names.is_empty()) {
                (true, _) => continue,
                (false, true) => format!("there is no [[device]] with the name `{name}`"),
                (false, false) => unknown(name, "the list of [[device]]", &names),
            };
            problems.0.push(Problem::new(&setting.origin, message));
        }
        for device in &self.devices {
            let same = |spec: &&ExportSpec| {
                spec.device.as_ref().is_some_and(|named| named.name == device.name)
            };
            let sharing: Vec<&ExportSpec> = specs.iter().filter(same).collect();
            let Some((first, others)) = sharing.split_first() else { continue };
            if others.iter().all(|other| export::same_image(first, other)) {
                continue;
            }
            let alone = |export: &&ExportSection| {
                export.device() == Some(device.name.as_str()) && !export.may_share()
            };
            for export in self.exports.iter().filter(alone) {
                let message = format!(
                    "export `{}` cannot share the device `{}`: only images that nothing is wrapped around can",
                    export.name, device.name
                );
                problems.0.push(Problem::new(&export.origin, message));
            }
        }
    }

    /// Warnings about values that may be mistakes.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let used = |device: &&DeviceSection| {
            let name = device.name.as_str();
            !self.exports.iter().any(|export| export.device() == Some(name))
        };
        let unused = self.devices.iter().filter(used);
        unused.map(|device| format!("device `{}` has no exports", device.name)).collect()
    }

    /// Applies tunables to a queue's options: those of a file for all queues, then those of the named device, then
    /// those of the command line and the environment.
    ///
    /// # Errors
    /// A value is out of range.
    pub fn apply_queue(
        &self,
        device: Option<&str>,
        options: &mut QueueOptions,
    ) -> Result<(), ConfigError> {
        apply_queue(&self.queue_of(device), options)
    }

    /// Tunables of a queue in order; see [`ConfigFile::apply_queue`].
    #[must_use]
    pub fn queue_of(&self, device: Option<&str>) -> QueueSettings {
        let named = self.devices.iter().find(|known| Some(known.name.as_str()) == device);
        let (mut said, own) = (self.queue.clone(), named.map_or(&[][..], |device| &device.queue));
        for tuned in own {
            let told = |all: &&Tuned<Tunable>| {
                all.tunable == tuned.tunable && all.origin >= Origin::Environment
            };
            if !self.queue.iter().any(|all| told(&all)) {
                tune_queue(&mut said, tuned.clone());
            }
        }
        said
    }

    /// The configuration with defaults for all tunables that are not set; those that are found by asking the device have none.
    #[must_use]
    pub fn with_defaults(mut self) -> Self {
        let settable = Tunable::ALL.into_iter().filter(|of| is_settable(*of) && !is_probed(*of));
        let usual = QueueOptions::default();
        for tunable in settable {
            if !self.queue.iter().any(|tuned| tuned.tunable == tunable) {
                let value = tunable.get(&usual);
                self.queue.push(Tuned { tunable, value, origin: Origin::Default });
            }
        }
        let mut effective = DirtyOptions::default();
        for tuned in &self.vm {
            // Values out of range were reported before.
            let _ = tuned.tunable.set(&mut effective, tuned.value);
        }
        for tunable in DirtyTunable::ALL {
            let value = tunable.get(&effective);
            let counts = tunable.check(value).is_ok() && !self.is_said_otherwise(tunable);
            if counts && !self.vm.iter().any(|tuned| tuned.tunable == tunable) {
                self.vm.push(Tuned { tunable, value, origin: Origin::Default });
            }
        }
        for index in 0..self.devices.len() {
            let of_all = self.queue_of(Some(&self.devices[index].name));
            let own = &mut self.devices[index].queue;
            for tuned in own {
                if let Some(said) = of_all.iter().find(|said| said.tunable == tuned.tunable) {
                    *tuned = said.clone();
                }
            }
        }
        self
    }

    /// Whether a ratio is ignored because bytes are set.
    fn is_said_otherwise(&self, tunable: DirtyTunable) -> bool {
        let bytes = match tunable {
            DirtyTunable::Ratio => DirtyTunable::Bytes,
            DirtyTunable::BackgroundRatio => DirtyTunable::BackgroundBytes,
            _ => return false,
        };
        self.vm.iter().any(|tuned| tuned.tunable == bytes)
    }
}

fn read_device(
    reader: &mut Reader<'_>,
    table: &DeTable<'_>,
    span: &std::ops::Range<usize>,
) -> Option<DeviceSection> {
    let mut name = None;
    let mut queue = Vec::new();
    for (key, key_span, value) in entries(table) {
        match key {
            "name" => name = reader.word(key, value).map(|word| (word, value.span())),
            "queue" => {
                if let Some(table) = reader.table(value, "device.queue") {
                    queue = read_queue(reader, "device.queue", table);
                }
            }
            _ => reader.unknown((key, &key_span), "a [[device]]", &["name", "queue"]),
        }
    }
    let Some((name, name_span)) = name else {
        if !table.contains_key("name") {
            reader.wrong(span, "a [[device]] needs a name, which exports refer to");
        }
        return None;
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 64 || !name.bytes().all(plain) {
        let message = "a device's name is made of at most 64 letters, digits, `.`, `_` and `-`";
        reader.wrong(&name_span, message);
        return None;
    }
    Some(DeviceSection { name, queue, origin: reader.origin(&name_span) })
}

fn one_line(text: &str) -> String {
    text.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(", ")
}
