//! `include/headworks.h` is what cbindgen makes of the sources. `RENEW=1 cargo test -p headworks-c --test header` writes it.

use std::path::{Path, PathBuf};

/// The files that export calls.
const SOURCES: [&str; 2] = ["disk_calls", "queue_calls"];

fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn generated() -> String {
    let config = cbindgen::Config::from_file(path("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_src(path("src/lib.rs"));
    let bindings = builder.with_config(config).generate().unwrap();
    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text).unwrap();
    // A heading of Rust's; the sentences below it are for callers in C, too.
    let lines = text.lines().filter(|line| line.trim() != "* # Safety").map(str::trim_end);
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn header_is_that_of_the_sources() {
    let (file, generated) = (path("include/headworks.h"), generated());
    if std::env::var_os("RENEW").is_some() {
        std::fs::write(&file, &generated).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = kept.lines().zip(generated.lines()).find(|(kept, made)| kept != made);
    assert!(
        kept == generated,
        "{} is not that of the sources, at {differs:?}: RENEW=1 cargo test -p headworks-c --test header",
        file.display()
    );
}

#[test]
fn header_declares_every_exported_call() {
    let header = generated();
    for name in SOURCES {
        let source = std::fs::read_to_string(path(&format!("src/{name}.rs"))).unwrap();
        let exported = source.split("extern \"C\" fn ").skip(1);
        for call in exported.filter_map(|text| text.split('(').next()) {
            assert!(header.contains(&format!("{call}(")), "{call} is missing");
        }
    }
}
