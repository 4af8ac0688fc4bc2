//! `headworks info URI`: what a server says of itself and of its exports, in the words of `nbdinfo`.
//!
//! Asks without choosing, so that a server that admits one client at a time is not occupied. A server too old for that is
//! asked by choosing; a map can only be had by choosing.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use headworks_nbd::client::{Client, ClientError, ClientOptions, Export, Haggle, Uri};

mod map;
mod show;

use crate::{USAGE, complain};

/// How long the server may be silent.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Exports that are asked about on one connection: servers bound the options of a handshake.
const ASKED_MAX: usize = 100;

/// What to show.
#[derive(Args, Debug)]
pub struct Options {
    /// The server and the export
    pub uri: String,
    /// JSON, with the names that `nbdinfo --json` has
    #[arg(long)]
    pub json: bool,
    /// Every export that the server lists
    #[arg(long, conflicts_with_all = ["size", "map"])]
    pub list: bool,
    /// The size alone, in bytes
    #[arg(long, conflicts_with = "map")]
    pub size: bool,
    /// What the export is made of: offset, length, type, and the type in words
    #[arg(long)]
    pub map: bool,
    /// With --map: how much there is of each type
    #[arg(long, requires = "map")]
    pub totals: bool,
}

/// Asks and prints.
pub fn run(options: &Options) -> ExitCode {
    let uri = match options.uri.parse() {
        Ok(uri) => uri,
        Err(error) => {
            complain(error);
            return ExitCode::from(USAGE);
        }
    };
    let shown = match options {
        Options { map: true, totals, json, .. } => show_map(&uri, *totals, *json),
        Options { list: true, json, .. } => all(&uri).map(|server| show::print(&server, *json)),
        Options { size: true, json, .. } => one(&uri).map(|server| {
            let size = server.exports[0].1.size;
            match json {
                true => print(&format!("{}\n", serde_json::json!({ "export-size": size }))),
                false => print(&format!("{size}\n")),
            }
        }),
        Options { json, .. } => one(&uri).map(|server| show::print(&server, *json)),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(error);
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) {
    // Nobody may be reading.
    let _ = io::stdout().write_all(text.as_bytes());
}

/// What a server told.
struct Server {
    structured: bool,
    tls: bool,
    /// Each with its address.
    exports: Vec<(Uri, Export)>,
}

fn connect(uri: &Uri) -> Result<Haggle, ClientError> {
    let mut haggle = Haggle::open(uri, TIMEOUT)?;
    haggle.ask_structured()?;
    Ok(haggle)
}

/// The export that the address names.
fn one(uri: &Uri) -> Result<Server, ClientError> {
    let mut haggle = connect(uri)?;
    let export = match ask(&mut haggle, &uri.export) {
        Ok(export) => {
            haggle.abort()?;
            export
        }
        // Either the export does not exist, or the server knows only how to choose: choosing tells which.
        Err(ClientError::Refused(_)) => {
            haggle.abort()?;
            connect(uri)?.go(&uri.export)?.1
        }
        Err(error) => return Err(error),
    };
    let (structured, tls) = (export.structured, export.tls.is_some());
    Ok(Server { structured, tls, exports: vec![(uri.clone(), export)] })
}

/// Every export of the server.
fn all(uri: &Uri) -> Result<Server, ClientError> {
    let mut haggle = connect(uri)?;
    let structured = haggle.is_structured();
    let list = haggle.list()?;
    let mut exports = Vec::with_capacity(list.len());
    for (index, listed) in list.into_iter().enumerate() {
        if index % ASKED_MAX == ASKED_MAX - 1 {
            haggle.abort()?;
            haggle = connect(uri)?;
        }
        let asked = ask(&mut haggle, &listed.name)?;
        let uri = Uri { export: listed.name.clone(), ..uri.clone() };
        let description = match asked.description.is_empty() {
            true => listed.description,
            false => asked.description,
        };
        exports.push((uri, Export { name: listed.name, description, ..asked }));
    }
    haggle.abort()?;
    Ok(Server { structured, tls: uri.tls.is_some(), exports })
}

fn ask(haggle: &mut Haggle, name: &str) -> Result<Export, ClientError> {
    let export = haggle.info(name)?;
    let contexts = haggle.contexts(name)?;
    Ok(Export { contexts, ..export })
}

fn show_map(uri: &Uri, totals: bool, json: bool) -> Result<(), ClientError> {
    let options = ClientOptions { structured: true, allocation: true, timeout: TIMEOUT };
    let mut client = Client::connect(uri, options)?;
    let mut printer = map::Printer::new(io::stdout().lock(), totals, json);
    let mut map = client.map();
    while printer.is_heard()
        && let Some((_, extents)) = map.next_extents()?
    {
        extents.iter().for_each(|extent| printer.push(extent));
    }
    printer.finish();
    client.disconnect()
}
