//! Output of `headworks info` as text and JSON; names and order are those of `nbdinfo`.

use headworks_nbd::TransmissionFlags as Flags;
use headworks_nbd::client::{Export, Uri};
use serde_json::{Map, Value, json};

use super::Server;

/// Transmission flags in the order of the output.
const FACTS: [(&str, Flags); 10] = [
    ("is_rotational", Flags::ROTATIONAL),
    ("is_read_only", Flags::READ_ONLY),
    ("can_cache", Flags::SEND_CACHE),
    ("can_df", Flags::SEND_DF),
    ("can_fast_zero", Flags::SEND_FAST_ZERO),
    ("can_flush", Flags::SEND_FLUSH),
    ("can_fua", Flags::SEND_FUA),
    ("can_multi_conn", Flags::CAN_MULTI_CONN),
    ("can_trim", Flags::SEND_TRIM),
    ("can_zero", Flags::SEND_WRITE_ZEROES),
];

const BLOCK_SIZES: [&str; 3] = ["block_size_minimum", "block_size_preferred", "block_size_maximum"];

/// Prints a server and its exports.
pub fn print(server: &Server, json: bool) {
    crate::shown::print(match json {
        true => format!("{:#}\n", as_json(server)),
        false => as_text(server),
    });
}

fn block_sizes(export: &Export) -> Option<[u32; 3]> {
    export.block_sizes.map(|sizes| [sizes.min, sizes.preferred, sizes.max])
}

fn as_json(server: &Server) -> Value {
    let exports: Vec<_> =
        server.exports.iter().map(|(uri, export)| one_json(uri, export)).collect();
    json!({
        "protocol": "newstyle-fixed",
        "TLS": server.tls,
        "structured": server.structured,
        "exports": exports,
    })
}

fn one_json(uri: &Uri, export: &Export) -> Value {
    let mut all = Map::new();
    let mut tell = |name: &str, value: Value| all.insert(name.to_owned(), value);
    tell("export-name", export.name.clone().into());
    if !export.description.is_empty() {
        tell("description", export.description.clone().into());
    }
    tell("uri", uri.to_string().into());
    tell("contexts", export.contexts.clone().into());
    for (name, flag) in FACTS {
        tell(name, export.flags.contains(flag).into());
    }
    for (name, size) in BLOCK_SIZES.into_iter().zip(block_sizes(export).unwrap_or_default()) {
        if export.block_sizes.is_some() {
            tell(name, size.into());
        }
    }
    if let Some(tls) = &export.tls {
        tell("tls", tls.clone().into());
    }
    tell("export-size", export.size.into());
    if let Some(short) = short_size(export.size) {
        tell("export-size-str", short.into());
    }
    all.into()
}

fn as_text(server: &Server) -> String {
    let form = if server.structured { "structured" } else { "simple" };
    let tls = if server.tls { "with" } else { "without" };
    let mut text = format!("protocol: newstyle-fixed {tls} TLS, using {form} packets\n");
    for (uri, export) in &server.exports {
        text += &one_text(uri, export);
    }
    text
}

fn one_text(uri: &Uri, export: &Export) -> String {
    let mut text = format!("export=\"{}\":\n", export.name.escape_debug());
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        text += &format!("\t{name}: {value}\n");
    };
    if !export.description.is_empty() {
        line("description", &export.description.escape_debug());
    }
    match short_size(export.size) {
        Some(short) => line("export-size", &format!("{} ({short})", export.size)),
        None => line("export-size", &export.size),
    }
    line("uri", uri);
    if !export.contexts.is_empty() {
        let contexts = export.contexts.iter().map(|name| format!("\n\t\t{}", name.escape_debug()));
        text += &format!("\tcontexts:{}\n", contexts.collect::<String>());
    }
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        text += &format!("\t{name}: {value}\n");
    };
    for (name, flag) in FACTS {
        line(name, &export.flags.contains(flag));
    }
    if let Some(tls) = &export.tls {
        line("tls", tls);
    }
    for (name, size) in BLOCK_SIZES.into_iter().zip(block_sizes(export).iter().flatten()) {
        line(name, size);
    }
    text
}

/// A size with its largest exact unit, if it has one.
fn short_size(bytes: u64) -> Option<String> {
    let step = (bytes.trailing_zeros() / 10).min(6) as usize;
    let unit = ["", "K", "M", "G", "T", "P", "E"][step];
    (bytes > 0 && step > 0).then(|| format!("{}{unit}", bytes >> (10 * step)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        let uri: Uri = "nbd+unix:///a?socket=/s".parse().expect("a good URI");
        let export = Export {
            name: "a\n".into(),
            size: 1536 << 20,
            flags: Flags::SEND_FLUSH.with(Flags::READ_ONLY),
            structured: true,
            contexts: vec!["base:allocation".into()],
            block_sizes: Some(headworks_nbd::BlockSizes::default()),
            ..Export::default()
        };
        Server { structured: true, tls: false, exports: vec![(uri, export)] }
    }

    #[test]
    fn text_has_the_format_of_nbdinfo() {
        let expected = "protocol: newstyle-fixed without TLS, using structured packets\n\
            export=\"a\\n\":\n\texport-size: 1610612736 (1536M)\n\turi: nbd+unix:///a?socket=/s\n\
            \tcontexts:\n\t\tbase:allocation\n\tis_rotational: false\n\tis_read_only: true\n\
            \tcan_cache: false\n\tcan_df: false\n\tcan_fast_zero: false\n\tcan_flush: true\n\
            \tcan_fua: false\n\tcan_multi_conn: false\n\tcan_trim: false\n\tcan_zero: false\n\
            \tblock_size_minimum: 1\n\tblock_size_preferred: 4096\n\tblock_size_maximum: 33554432\n";
        assert_eq!(as_text(&server()), expected);
    }

    #[test]
    fn json_has_the_same_facts_as_text() {
        let mut server = server();
        let json = as_json(&server);
        let export = &json["exports"][0];
        assert_eq!(
            (&export["export-size"], &export["can_flush"]),
            (&json!(1536 << 20), &json!(true))
        );
        assert_eq!(export["contexts"], json!(["base:allocation"]));
        assert_eq!(export["block_size_maximum"], 32 << 20);
        assert_eq!(json["structured"], true);
        // Facts that the server did not send are left out.
        (server.exports[0].1.block_sizes, server.exports[0].1.size) = (None, 1000);
        let json = as_json(&server);
        assert_eq!(json["exports"][0].get("block_size_minimum"), None);
        assert_eq!(json["exports"][0].get("export-size-str"), None);
    }

    #[test]
    fn only_exact_multiples_have_a_short_size() {
        let all = [0, 512, 1024, 1536, 10 << 20, u64::MAX, 1 << 63].map(short_size);
        let expected = [None, None, Some("1K"), None, Some("10M"), None, Some("8E")];
        assert_eq!(all, expected.map(|size| size.map(String::from)));
    }
}
