//! `[[template]]` tables: a tenant, an export and a socket for each of many names.
//!
//! ```toml
//! [[template]]
//! names = ["t01..t20", "spare"]      # {} stands for the name in every value below
//! [template.tenant]                  # keys of a [[tenant]]; its name is the name
//! weight = 200
//! [template.export]                  # of an [[export]]; name and tenant are the name
//! overlay = { path = "/srv/{}.hwo", base = "/srv/golden.img" }
//! [template.listen]                  # of a [[listen]]; name and tenant (without one, exports) are the name
//! unix = "/run/headworks/{}.sock"
//! ```
//!
//! A template is read before anything else knows of it: for each name it becomes the tables that a user would have written, which
//! the readers of these sections read. So a later file changes a tenant of a template like any other.
//! Invariant: a mistake in a template is reported for its first name alone, at its place in the template.

use std::borrow::Cow;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::read::{Reader, Value, entries};
use crate::exports::assemble::EXPORTS_MAX;

/// The sections of a template, in the order in which they are read.
const SECTIONS: [&str; 3] = ["tenant", "export", "listen"];

/// Stands for the name.
const PLACE: &str = "{}";

/// Most bytes of a template's values for all names together: many names in many places multiply.
const EXPANDED_MAX: usize = 16 << 20;

/// What a value takes beside its text.
const VALUE_BYTES: usize = 64;

/// The tables of a template, name by name: section and table.
pub(super) type Expanded<'i> = Vec<Vec<(&'static str, DeTable<'i>)>>;

/// Expands a template.
pub(super) fn expand<'i>(
    reader: &mut Reader<'_>,
    table: &DeTable<'i>,
    span: &Range<usize>,
) -> Expanded<'i> {
    let mut names = None;
    let mut sections: Vec<(&'static str, &DeTable<'i>, Range<usize>)> = Vec::new();
    for (key, key_span, value) in entries(table) {
        match SECTIONS.iter().find(|section| **section == key) {
            Some(section) => {
                let table = reader.table(value, section);
                sections.extend(table.map(|table| (*section, table, key_span)));
            }
            None if key == "names" => names = Some(read_names(reader, value)),
            None => {
                let known = ["names", "tenant", "export", "listen"];
                reader.unknown((key, &key_span), "a [[template]]", &known);
            }
        }
    }
    let Some(names) = names else {
        reader.wrong(span, "a [[template]] needs names, as in names = [\"t01..t20\"]");
        return Vec::new();
    };
    if sections.is_empty() {
        let what =
            "a [[template]] needs a [template.tenant], [template.export] or [template.listen]";
        reader.wrong(span, what);
    }
    sections.sort_by_key(|(section, ..)| SECTIONS.iter().position(|one| one == section));
    let has_tenant = sections.iter().any(|(section, ..)| *section == "tenant");
    let mut room = EXPANDED_MAX;
    let of_name = |name: &String| {
        let filled = sections.iter().map(|(section, table, span)| {
            let mut table = with_name(table, name, &mut room)?;
            implied(section, has_tenant, &mut |key, is_list| {
                let word = DeValue::String(Cow::Owned(name.clone()));
                let value = match is_list {
                    true => {
                        DeValue::Array([Spanned::new(span.clone(), word)].into_iter().collect())
                    }
                    false => word,
                };
                let key = Spanned::new(span.clone(), Cow::Borrowed(key));
                table.entry(key).or_insert_with(|| Spanned::new(span.clone(), value));
            });
            Some((*section, table))
        });
        filled.collect()
    };
    let expanded: Option<Expanded<'i>> = names.iter().map(of_name).collect();
    if expanded.is_none() {
        let mib = EXPANDED_MAX >> 20;
        reader.wrong(span, format!("a [[template]] makes at most {mib} MiB of configuration"));
    }
    expanded.unwrap_or_default()
}

/// The keys of a section whose value is the name if the template gives none; of a list it is the only one.
fn implied(section: &str, has_tenant: bool, set: &mut impl FnMut(&'static str, bool)) {
    set("name", false);
    match (section, has_tenant) {
        ("tenant", _) | ("export", false) => {}
        ("listen", false) => set("exports", true),
        _ => set("tenant", false),
    }
}

/// The table with the name in every value; none if it does not fit into the room that is left.
fn with_name<'i>(table: &DeTable<'i>, name: &str, room: &mut usize) -> Option<DeTable<'i>> {
    table.iter().map(|(key, value)| Some((key.clone(), filled(value, name, room)?))).collect()
}

fn filled<'i>(
    value: &Spanned<DeValue<'i>>,
    name: &str,
    room: &mut usize,
) -> Option<Spanned<DeValue<'i>>> {
    let text = value.get_ref().as_str().unwrap_or_default();
    let bytes = VALUE_BYTES + text.len() + text.matches(PLACE).count() * name.len();
    *room = room.checked_sub(bytes)?;
    let filled = match value.get_ref() {
        DeValue::String(text) => DeValue::String(Cow::Owned(text.replace(PLACE, name))),
        DeValue::Array(items) => {
            let items = items.iter().map(|item| filled(item, name, room));
            DeValue::Array(items.collect::<Option<_>>()?)
        }
        DeValue::Table(table) => DeValue::Table(with_name(table, name, room)?),
        other => other.clone(),
    };
    Some(Spanned::new(value.span(), filled))
}

/// The names of a template, those of ranges one by one.
fn read_names(reader: &mut Reader<'_>, value: &Spanned<DeValue<'_>>) -> Vec<String> {
    let words = reader.words("names", value).unwrap_or(Value::Unset);
    let mut names = Vec::new();
    for word in words.words() {
        match range(word) {
            Ok(more) => names.extend(more),
            Err(what) => reader.wrong(&value.span(), what),
        }
    }
    if names.len() > EXPORTS_MAX {
        reader.wrong(&value.span(), format!("names: more than {EXPORTS_MAX}"));
        names.clear();
    }
    names
}

/// The names of `t01..t20`: the same text before numbers of the same length, or numbers without leading zeros. Another word is a name.
fn range(word: &str) -> Result<Vec<String>, String> {
    let Some((first, last)) = word.split_once("..") else { return Ok(vec![word.to_owned()]) };
    let wrong = |what: &str| Err(format!("names: `{word}` {what}, as in t01..t20"));
    let (text, low) = numbered(first);
    let (same, high) = numbered(last);
    let (Ok(from), Ok(to)) = (low.parse::<u32>(), high.parse::<u32>()) else {
        return wrong("is no range: both ends need a number at their end");
    };
    let padded = low.starts_with('0') && low.len() > 1;
    if text != same || from > to || padded && low.len() != high.len() {
        return wrong("is no range: the ends differ in more than a number that grows");
    }
    if (to - from) as usize >= EXPORTS_MAX {
        return Err(format!("names: `{word}` has more than {EXPORTS_MAX} names"));
    }
    let width = if padded { low.len() } else { 0 };
    Ok((from..=to).map(|number| format!("{text}{number:0width$}")).collect())
}

/// A name without the number at its end, and the number.
fn numbered(name: &str) -> (&str, &str) {
    name.split_at(name.trim_end_matches(|letter: char| letter.is_ascii_digit()).len())
}

#[cfg(test)]
mod tests {
    use super::super::ConfigFile;
    use super::*;

    #[test]
    fn ranges_are_names_with_the_same_text_and_a_number_that_grows() {
        assert_eq!(range("t08..t11").unwrap(), ["t08", "t09", "t10", "t11"]);
        assert_eq!(range("vm9..vm11").unwrap(), ["vm9", "vm10", "vm11"]);
        assert_eq!(range("spare").unwrap(), ["spare"]);
        for wrong in ["a..b", "t1..", "..t2", "t2..t1", "t1..u2", "t01..t100", "t1..t99999999999"] {
            assert!(range(wrong).unwrap_err().contains("range"), "{wrong}");
        }
        assert!(range("t1..t2000").unwrap_err().contains("more than 1024"));
    }

    /// The sections of `text` and of what a user would write without a template are the same but for their places.
    #[test]
    fn template_is_what_a_user_would_have_written() {
        let text = "[[template]]\nnames = ['a1..a2']\n[template.tenant]\nweight = 200\n\
                    [template.export]\nbps-write = '5M'\nfile = { path = '/srv/{}.img', size = '1G' }\n\
                    wrap = [{ delay = { read = '1ms' } }]\n\
                    [template.listen]\nunix = '/run/{}.sock'\nmode = '0660'\n";
        let by_hand: String = ["a1", "a2"]
            .map(|name| {
                format!(
                    "[[tenant]]\nname = '{name}'\nweight = 200\n[[export]]\nname = '{name}'\n\
                     tenant = '{name}'\nbps-write = '5M'\nfile = {{ path = '/srv/{name}.img', size = '1G' }}\n\
                     wrap = [{{ delay = {{ read = '1ms' }} }}]\n\
                     [[listen]]\nname = '{name}'\ntenant = '{name}'\nunix = '/run/{name}.sock'\nmode = '0660'\n"
                )
            })
            .concat();
        let written = |text: &str| ConfigFile::parse("f", text).unwrap().to_string();
        let without_places = |text: String| -> Vec<String> {
            text.lines().map(|line| line.split('#').next().unwrap().trim().to_owned()).collect()
        };
        assert_eq!(without_places(written(text)), without_places(written(&by_hand)));
    }

    #[test]
    fn listener_without_a_tenant_offers_the_export_of_its_name() {
        let text = "[[template]]\nnames = 'a'\n[template.export]\nmem = { size = '1M' }\n\
                    [template.listen]\nunix = '/run/{}.sock'\n";
        let file = ConfigFile::parse("f", text).unwrap();
        assert_eq!(file.listeners[0].exports, ["a"]);
        assert_eq!(file.exports[0].settings, [], "no tenant");
    }

    #[test]
    fn mistake_is_reported_once_at_its_place() {
        let text = "[[template]]\nnames = ['a1..a9']\n[template.export]\nmem = { size = '1M' }\nweihgt = 5\n";
        let problems = ConfigFile::parse("f", text).unwrap_err().to_string();
        assert_eq!(problems.lines().count(), 1, "{problems}");
        assert!(problems.contains("f:5") && problems.contains("weight"), "{problems}");
        let places = "{}".repeat(100_000);
        let many = format!(
            "[[template]]\nnames = 'name1..name100'\n[template.tenant]\nweight = '{places}'\n"
        );
        for (text, said) in [
            ("[[template]]\n[template.export]\nmem = { size = '1M' }\n", "needs names"),
            ("[[template]]\nnames = 'a'\n", "needs a [template.tenant]"),
            ("[[template]]\nnames = 'a'\nexprot.x = 1\n", "the nearest is `export`"),
            (&*many, "at most 16 MiB"),
            ("[[template]]\nnames = ['a', 'a']\n[template.tenant]\n", "two tenants are named `a`"),
        ] {
            let problems = ConfigFile::parse("f", text).unwrap_err().to_string();
            assert!(problems.contains(said), "{text}: {problems}");
        }
    }
}
