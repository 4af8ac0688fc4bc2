//! `headworks info URI`: what a server says of itself and of one export.
//!
//! Asks without choosing, so that a server that admits one client at a time is not occupied. A server too old for that is
//! asked by choosing.

use std::time::Duration;

use headworks::client::{ClientError, Export, Haggle, Listed, Uri};
use headworks::frontend::nbd::TransmissionFlags;
use serde_json::{Value, json};

/// What to ask.
pub struct InfoOptions {
    /// The server and the export.
    pub uri: Uri,
    /// One JSON object instead of lines for people.
    pub json: bool,
    /// How long the server may be silent.
    pub timeout: Duration,
}

/// Asks and prints.
pub fn run(options: &InfoOptions) -> Result<(), ClientError> {
    let (export, list) = ask(options)?;
    if options.json {
        println!("{:#}", as_json(&options.uri, &export, list.as_deref()));
    } else {
        print!("{}", as_text(&options.uri, &export, list.as_deref()));
    }
    Ok(())
}

/// The export, and the list if the server gives one.
fn ask(options: &InfoOptions) -> Result<(Export, Option<Vec<Listed>>), ClientError> {
    let connect = || Haggle::open(&options.uri, options.timeout);
    let mut haggle = connect()?;
    haggle.ask_structured()?;
    let list = match haggle.list() {
        Ok(list) => Some(list),
        Err(ClientError::Refused(_)) => None,
        Err(error) => return Err(error),
    };
    match haggle.info(&options.uri.export) {
        Ok(export) => haggle.abort().map(|()| (export, list)),
        // Either the export does not exist, or the server knows only how to choose: choosing tells which.
        Err(ClientError::Refused(_)) => {
            haggle.abort()?;
            let mut haggle = connect()?;
            haggle.ask_structured()?;
            Ok((haggle.go(&options.uri.export)?.1, list))
        }
        Err(error) => Err(error),
    }
}

fn flags(export: &Export) -> Vec<(&'static str, bool)> {
    let set = |&(flag, name)| (name, export.flags.contains(flag));
    TransmissionFlags::NAMES.iter().map(set).collect()
}

fn as_json(uri: &Uri, export: &Export, list: Option<&[Listed]>) -> Value {
    let flags: serde_json::Map<String, Value> =
        flags(export).into_iter().map(|(name, set)| (name.to_owned(), set.into())).collect();
    let sizes = export.block_sizes.map(
        |sizes| json!({ "minimum": sizes.min, "preferred": sizes.preferred, "maximum": sizes.max }),
    );
    let listed = |one: &Listed| json!({ "name": one.name, "description": one.description });
    json!({
        "uri": uri.to_string(),
        "name": export.name,
        "description": export.description,
        "size": export.size,
        "flags": flags,
        "block_sizes": sizes,
        "structured_replies": export.structured,
        "tls": export.tls,
        "exports": list.map(|list| list.iter().map(listed).collect::<Vec<_>>()),
    })
}

fn as_text(uri: &Uri, export: &Export, list: Option<&[Listed]>) -> String {
    let mut text = format!("uri: {uri}\nname: {:?}\n", export.name);
    if !export.description.is_empty() {
        text += &format!("description: {}\n", export.description.escape_debug());
    }
    text += &format!("size: {} bytes ({})\n", export.size, rounded(export.size));
    let set = flags(export).into_iter().filter(|(_, set)| *set).map(|(name, _)| name);
    text += &format!("flags: {}\n", set.collect::<Vec<_>>().join(" "));
    text += &match export.block_sizes {
        Some(sizes) => format!(
            "block sizes: minimum {}, preferred {}, maximum {}\n",
            sizes.min, sizes.preferred, sizes.max
        ),
        None => "block sizes: not told\n".to_owned(),
    };
    let structured = if export.structured { "yes" } else { "no" };
    text += &format!("structured replies: {structured}\n");
    if let Some(tls) = &export.tls {
        text += &format!("tls: {tls}\n");
    }
    let Some(list) = list else {
        return text + "exports: not told\n";
    };
    text += &format!("exports: {}\n", list.len());
    for one in list {
        let description = one.description.escape_debug();
        text += format!("  {:?} {description}", one.name).trim_end();
        text += "\n";
    }
    text
}

/// A size as people say it, in powers of 1024.
fn rounded(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let step = (bytes.max(1).ilog2() / 10) as usize;
    let scaled = bytes as f64 / (1u64 << (10 * step)) as f64;
    let shown = format!("{scaled:.1}");
    format!("{} {}", shown.trim_end_matches(".0"), units[step])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_tell_the_same() {
        let uri: Uri = "nbd+unix:///a?socket=/s".parse().expect("a good URI");
        let export = Export {
            name: "a".into(),
            size: 1536 << 20,
            flags: TransmissionFlags::SEND_FLUSH.with(TransmissionFlags::READ_ONLY),
            structured: true,
            ..Export::default()
        };
        let list = [Listed { name: "a\n".into(), description: String::new() }];
        let text = as_text(&uri, &export, Some(&list));
        assert_eq!(
            text,
            "uri: nbd+unix:///a?socket=/s\nname: \"a\"\nsize: 1610612736 bytes (1.5 GiB)\n\
             flags: read_only flush\nblock sizes: not told\nstructured replies: yes\n\
             exports: 1\n  \"a\\n\"\n"
        );
        let json = as_json(&uri, &export, None);
        assert_eq!(json["size"], 1_610_612_736u64);
        assert_eq!(json["flags"]["flush"], true);
        assert_eq!(json["flags"]["fua"], false);
        assert_eq!(json["exports"], Value::Null);
    }

    #[test]
    fn sizes_are_rounded_in_powers_of_1024() {
        assert_eq!(rounded(0), "0 bytes");
        assert_eq!(rounded(1023), "1023 bytes");
        assert_eq!(rounded(1 << 40), "1 TiB");
        assert_eq!(rounded(u64::MAX), "16 EiB");
    }
}
