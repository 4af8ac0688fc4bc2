//! The reference: methods, and the objects of their answers, as a part of a manual page in troff.

use crate::methods::Method;
use crate::shape::{Kind, Record, Shape};

/// Escapes for troff: hyphens that are not to be broken or replaced, backslashes, and what would be a request at the start of a line.
#[must_use]
pub fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

/// The sections METHODS and OBJECTS.
#[must_use]
pub fn sections() -> String {
    let methods: String = Method::ALL.iter().map(|method| section(*method)).collect();
    let mut records = Vec::new();
    for method in Method::ALL {
        nested(method.answer(), &mut records, 0);
    }
    nested(crate::answers::ElevatorState::KIND, &mut records, 1);
    let objects: String = records.into_iter().map(object).collect();
    format!(".SH METHODS\n{methods}.SH OBJECTS\n{objects}")
}

fn section(method: Method) -> String {
    let mut text = format!(".SS {}\n{}\n", escaped(method.name()), sentence(method.about()));
    for one in method.parameters() {
        text += &entry('I', one.name, &format!("{}: {}", one.kind, one.about.trim()));
    }
    text += &format!(".PP\nThe result is {}.\n", escaped(&result(method.answer())));
    text + &fields(method.answer())
}

/// The kind of a result with its article.
fn result(kind: Kind) -> String {
    match kind {
        Kind::Record(_) => "an object".into(),
        Kind::List(_) => "a list of objects".into(),
        _ => "an object with each path and its value, a number or a string".into(),
    }
}

fn fields(kind: Kind) -> String {
    match kind {
        Kind::Record(record) => {
            let one = |field: &crate::shape::Field| {
                let about = format!("{}: {}", words(field.kind), field.about.trim());
                entry('B', field.name, &about)
            };
            record.fields.iter().map(one).collect()
        }
        Kind::List(of) => fields(*of),
        _ => String::new(),
    }
}

fn object(record: &'static Record) -> String {
    let about = sentence(record.about);
    format!(".SS {}\n{about}\n{}", record.name, fields(Kind::Record(record)))
}

/// A kind in words.
fn words(kind: Kind) -> String {
    match kind {
        Kind::Any => "any value".into(),
        Kind::Text => "string".into(),
        Kind::Number => "number".into(),
        Kind::Boolean => "boolean".into(),
        Kind::List(of) => format!("list of {}", plural(*of)),
        Kind::ByName(of) => format!("object by name of {}", plural(*of)),
        Kind::Maybe(of) => format!("{} or null", words(*of)),
        Kind::Pair => "pair of numbers".into(),
        Kind::Record(record) => record.name.into(),
    }
}

fn plural(kind: Kind) -> String {
    match kind {
        Kind::Text => "strings".into(),
        Kind::Number => "numbers".into(),
        Kind::Pair => "pairs of numbers".into(),
        Kind::List(of) => format!("lists of {}", plural(*of)),
        Kind::ByName(of) => format!("objects by name of {}", plural(*of)),
        other => words(other),
    }
}

/// Collects the objects below the objects of answers, which stand with their methods; each once.
fn nested(kind: Kind, found: &mut Vec<&'static Record>, depth: usize) {
    match kind {
        Kind::List(of) | Kind::ByName(of) | Kind::Maybe(of) => nested(*of, found, depth),
        Kind::Record(record) => {
            if depth > 0 {
                if found.iter().any(|known| known.name == record.name) {
                    return;
                }
                found.push(record);
            }
            record.fields.iter().for_each(|field| nested(field.kind, found, depth + 1));
        }
        _ => {}
    }
}

fn sentence(about: &str) -> String {
    escaped(about.trim())
}

/// A tagged paragraph; parameters are in italics, fields bold.
fn entry(font: char, name: &str, about: &str) -> String {
    format!(".TP\n.{font} {}\n{}\n", escaped(name), escaped(about))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_says_what_it_means_once() {
        let text = sections();
        assert!(text.lines().all(|line| !line.ends_with(": ")), "{text}");
        assert_eq!(text.matches(".SS Percentiles\n").count(), 1);
        let weight = ".TP\n.B weight\nnumber: share of the device, 1 to 10000\n";
        assert!(text.contains(weight));
        assert!(text.contains("object by name of OpStats: requests of its volume by operation"));
    }
}
