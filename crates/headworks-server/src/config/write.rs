//! Writes a [`ConfigFile`] as TOML, with origins as comments.
//!
//! The text parses to the same values: a word that is a plain number or a switch is written as one, every other one as
//! a string.

use std::fmt::{self, Display, Formatter};

use headworks_core::options::Tunable;
use headworks_core::writeback::DirtyTunable;

use super::export::{ExportSection, LayerSection};
use super::problem::Origin;
use super::read::{Setting, Value};
use super::tunables::Tuned;
use super::{ConfigFile, DeviceSection, ListenSection, TenantSection};

impl Display for ConfigFile {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "[server]")?;
        for setting in &self.server {
            let name = key(&setting.name);
            match &setting.value {
                Value::Unset => writeln!(f, "# {name} is not set")?,
                Value::Word(text) => line(f, &name, &word(&setting.name, text), &setting.origin)?,
                Value::List(words) => {
                    let all: Vec<String> = words.iter().map(|text| word("", text)).collect();
                    line(f, &name, &format!("[{}]", all.join(", ")), &setting.origin)?;
                }
            }
        }
        if !self.vm.is_empty() {
            writeln!(f, "\n[server.vm]")?;
        }
        for tuned in sorted(&self.vm, |tunable| tunable.code()) {
            line(f, tuned.tunable.name(), &dirty_word(tuned), &tuned.origin)?;
        }
        write_queue(f, "server.queue", &self.queue)?;
        for DeviceSection { name, queue, origin } in &self.devices {
            writeln!(f, "\n[[device]]")?;
            line(f, "name", &quoted(name), origin)?;
            write_queue(f, "device.queue", queue)?;
        }
        self.listeners.iter().try_for_each(|listener| write_listener(f, listener))?;
        self.tenants.iter().try_for_each(|tenant| write_tenant(f, tenant))?;
        self.exports.iter().try_for_each(|export| write_export(f, export))
    }
}

fn write_tenant(f: &mut Formatter<'_>, tenant: &TenantSection) -> fmt::Result {
    writeln!(f, "\n[[tenant]]")?;
    line(f, "name", &quoted(&tenant.name), &tenant.origin)?;
    tenant.settings.iter().try_for_each(|setting| {
        line(f, &setting.name, &word(&setting.name, setting.word()), &setting.origin)
    })?;
    write_list(f, "exports", &tenant.exports, &tenant.origin)?;
    write_list(f, "certificates", &tenant.certificates, &tenant.origin)
}

fn write_listener(f: &mut Formatter<'_>, listener: &ListenSection) -> fmt::Result {
    writeln!(f, "\n[[listen]]")?;
    line(f, "name", &quoted(&listener.name), &listener.origin)?;
    listener.settings.iter().try_for_each(|setting| {
        line(f, &setting.name, &word(&setting.name, setting.word()), &setting.origin)
    })?;
    write_list(f, "exports", &listener.exports, &listener.origin)
}

/// A list of names; nothing if it is empty.
fn write_list(f: &mut Formatter<'_>, name: &str, list: &[String], origin: &Origin) -> fmt::Result {
    if list.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = list.iter().map(|name| quoted(name)).collect();
    line(f, name, &format!("[{}]", all.join(", ")), origin)
}

/// Settings in the order of their table.
fn sorted<T: Copy>(tuned: &[Tuned<T>], number: impl Fn(T) -> u8) -> Vec<&Tuned<T>> {
    let mut all: Vec<&Tuned<T>> = tuned.iter().collect();
    all.sort_by_key(|tuned| number(tuned.tunable));
    all
}

/// Tunables outside of tables first, then each table.
fn write_queue(f: &mut Formatter<'_>, place: &str, queue: &[Tuned<Tunable>]) -> fmt::Result {
    let queue = sorted(queue, |tunable| tunable.code());
    let mut tables: Vec<&str> = Vec::new();
    let split = |tuned: &Tuned<Tunable>| tuned.tunable.name().split_once('/');
    for tuned in &queue {
        let table = split(tuned).map_or("", |(table, _)| table);
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    tables.sort_unstable();
    for table in tables {
        let dot = if table.is_empty() { "" } else { "." };
        writeln!(f, "\n[{place}{dot}{table}]")?;
        for tuned in &queue {
            let (own, name) = split(tuned).unwrap_or(("", tuned.tunable.name()));
            if own == table {
                line(f, name, &queue_word(tuned), &tuned.origin)?;
            }
        }
    }
    Ok(())
}

fn queue_word(tuned: &Tuned<Tunable>) -> String {
    let words = tuned.tunable.words().unwrap_or_default();
    let word = usize::try_from(tuned.value).ok().and_then(|index| words.get(index));
    word.map_or_else(|| tuned.value.to_string(), |word| quoted(word))
}

fn dirty_word(tuned: &Tuned<DirtyTunable>) -> String {
    if tuned.tunable.is_bytes() {
        return word("", &size_word(tuned.value));
    }
    let words = tuned.tunable.words().unwrap_or_default();
    let choice = usize::try_from(tuned.value).ok().filter(|_| tuned.tunable.words().is_some());
    let word = choice.and_then(|index| words.get(index));
    word.map_or_else(|| tuned.value.to_string(), |word| quoted(word))
}

fn write_export(f: &mut Formatter<'_>, export: &ExportSection) -> fmt::Result {
    writeln!(f, "\n[[export]]")?;
    line(f, "name", &quoted(&export.name), &export.origin)?;
    if let [wrappers @ .., base] = &export.parts[..] {
        line(f, base.kind, &table(base), &base.origin)?;
        if !wrappers.is_empty() {
            let each = wrappers.iter().map(|part| format!("{{ {} = {} }}", part.kind, table(part)));
            let list = format!("[{}]", each.collect::<Vec<_>>().join(", "));
            line(f, "wrap", &list, &wrappers[0].origin)?;
        }
    }
    export.settings.iter().try_for_each(|setting| {
        line(f, &setting.name, &word(&setting.name, setting.word()), &setting.origin)
    })?;
    write_list(f, "certificates", &export.certificates, &export.origin)
}

fn table(part: &LayerSection) -> String {
    let pair =
        |setting: &Setting| format!("{} = {}", setting.name, word(&setting.name, setting.word()));
    match &part.settings.iter().map(pair).collect::<Vec<_>>()[..] {
        [] => "{}".to_owned(),
        pairs => format!("{{ {} }}", pairs.join(", ")),
    }
}

fn line(f: &mut Formatter<'_>, name: &str, value: &str, origin: &Origin) -> fmt::Result {
    let origin: String =
        origin.to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let text = format!("{name} = {value}");
    writeln!(f, "{text:<40} # {origin}")
}

/// A key in the syntax of TOML.
fn key(name: &str) -> String {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    match !name.is_empty() && name.bytes().all(bare) {
        true => name.to_owned(),
        false => quoted(name),
    }
}

/// A word in the syntax of TOML. Paths and names that look like numbers stay strings.
fn word(name: &str, text: &str) -> String {
    let number = text.parse::<i64>().is_ok_and(|number| number.to_string() == text);
    let is_text = ["path", "device", "tenant", "unix", "owner"].contains(&name);
    match !is_text && (number || text == "true" || text == "false") {
        true => text.to_owned(),
        false => quoted(text),
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out += &format!("\\u{:04X}", u32::from(c)),
            c => out.push(c),
        }
    }
    out + "\""
}

/// Bytes in the largest unit that is exact.
pub fn size_word(bytes: u64) -> String {
    let unit = "KMGT".char_indices().rev().find(|(index, _)| {
        let step = 1u64 << (10 * (index + 1));
        bytes > 0 && bytes.is_multiple_of(step)
    });
    match unit {
        Some((index, letter)) => format!("{}{letter}", bytes >> (10 * (index + 1))),
        None => bytes.to_string(),
    }
}
