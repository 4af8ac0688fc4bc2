//! `headworks info URI`: what a server and its exports support, in the terms of `nbdinfo`.
//!
//! The information comes from NBD_OPT_INFO, without opening an export, so that a server that admits one client at a
//! time is not occupied. Old servers without NBD_OPT_INFO, and `--map`, need NBD_OPT_GO.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use headworks_nbd::client::{Client, ClientError, ClientOptions, Export, OptionNegotiation, Uri};

mod map;
mod show;

use crate::{USAGE, complain};

/// Time-out for an answer of the server.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Exports queried per connection; servers limit the number of options in a handshake.
const ASKED_MAX: usize = 100;

/// Shows the exports of an NBD server and what they support
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  headworks info nbd://localhost                          the default export
  headworks info --list nbd://localhost                   all exports
  headworks info --map --totals 'nbd+unix:///db?socket=/run/d.sock'   bytes of data and holes")]
pub struct InfoArgs {
    /// URI of server and export
    pub uri: String,
    /// Print JSON with the field names of `nbdinfo --json`
    #[arg(long)]
    pub json: bool,
    /// Show every export that the server lists
    #[arg(long, conflicts_with_all = ["size", "map"])]
    pub list: bool,
    /// Print only the size, in bytes
    #[arg(long, conflicts_with = "map")]
    pub size: bool,
    /// Print the allocation map: offset, length, type and its meaning
    #[arg(long)]
    pub map: bool,
    /// With --map: print the bytes of each type instead
    #[arg(long, requires = "map")]
    pub totals: bool,
}

/// Queries the server, prints the result and returns the exit code.
pub fn run(options: &InfoArgs) -> ExitCode {
    let uri = match options.uri.parse() {
        Ok(uri) => uri,
        Err(error) => {
            complain(error);
            return ExitCode::from(USAGE);
        }
    };
    let shown = match options {
        InfoArgs { map: true, totals, json, .. } => show_map(&uri, *totals, *json),
        InfoArgs { list: true, json, .. } => all(&uri).map(|server| show::print(&server, *json)),
        InfoArgs { size: true, json, .. } => one(&uri).map(|server| {
            let size = server.exports[0].1.size;
            match json {
                true => crate::shown::print_line!("{}", serde_json::json!({ "export-size": size })),
                false => crate::shown::print_line!("{size}"),
            }
        }),
        InfoArgs { json, .. } => one(&uri).map(|server| show::print(&server, *json)),
    };
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(error);
            ExitCode::FAILURE
        }
    }
}

/// A server and the exports that were queried.
struct Server {
    structured: bool,
    tls: bool,
    /// Exports with their URIs.
    exports: Vec<(Uri, Export)>,
}

fn connect(uri: &Uri) -> Result<OptionNegotiation, ClientError> {
    let mut negotiation = OptionNegotiation::open(uri, TIMEOUT)?;
    negotiation.ask_structured()?;
    Ok(negotiation)
}

/// Queries the export that the URI names.
fn one(uri: &Uri) -> Result<Server, ClientError> {
    let mut negotiation = connect(uri)?;
    let export = match ask(&mut negotiation, &uri.export) {
        Ok(export) => {
            negotiation.abort()?;
            export
        }
        // The export does not exist, or the server has no NBD_OPT_INFO: NBD_OPT_GO tells which.
        Err(ClientError::Refused(_)) => {
            negotiation.abort()?;
            connect(uri)?.go(&uri.export)?.1
        }
        Err(error) => return Err(error),
    };
    let (structured, tls) = (export.structured, export.tls.is_some());
    Ok(Server { structured, tls, exports: vec![(uri.clone(), export)] })
}

/// Queries every export of the server.
fn all(uri: &Uri) -> Result<Server, ClientError> {
    let mut negotiation = connect(uri)?;
    let structured = negotiation.is_structured();
    let list = negotiation.list()?;
    let mut exports = Vec::with_capacity(list.len());
    for (index, listed) in list.into_iter().enumerate() {
        if index % ASKED_MAX == ASKED_MAX - 1 {
            negotiation.abort()?;
            negotiation = connect(uri)?;
        }
        let asked = ask(&mut negotiation, &listed.name)?;
        let uri = Uri { export: listed.name.clone(), ..uri.clone() };
        let description = match asked.description.is_empty() {
            true => listed.description,
            false => asked.description,
        };
        exports.push((uri, Export { name: listed.name, description, ..asked }));
    }
    negotiation.abort()?;
    Ok(Server { structured, tls: uri.tls.is_some(), exports })
}

fn ask(negotiation: &mut OptionNegotiation, name: &str) -> Result<Export, ClientError> {
    negotiation.renew_limit();
    let export = negotiation.info(name)?;
    let contexts = negotiation.contexts(name)?;
    Ok(Export { contexts, ..export })
}

fn show_map(uri: &Uri, totals: bool, json: bool) -> Result<(), ClientError> {
    let options = ClientOptions { structured: true, allocation: true, timeout: TIMEOUT };
    let mut client = Client::connect(uri, options)?;
    let mut printer = map::Printer::new(io::stdout().lock(), totals, json);
    let mut map = client.map();
    while printer.is_open()
        && let Some((_, extents)) = map.next_extents()?
    {
        extents.iter().for_each(|extent| printer.push(extent));
    }
    printer.finish();
    client.disconnect()
}
