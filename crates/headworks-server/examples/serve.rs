//! Serves an image over NBD: `cargo run --example serve [SPEC]`, for example with `file:path=disk.img,size=1G`.
//!
//! Without an argument it serves a disk in memory and stops at once; with one it stops when Enter is pressed.

use headworks_server::{Address, Assembly, ExportSpec, Server, ServerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let spec = std::env::args().nth(1);
    let path = std::env::temp_dir().join(format!("headworks-serve-{}.sock", std::process::id()));
    let exports = [ExportSpec::parse(spec.as_deref().unwrap_or("mem:size=64M"), true)?];
    let listen = vec![Address::Unix { path: path.clone(), mode: 0o600 }];
    let options = ServerOptions { listen, ..ServerOptions::default() };
    let server = Server::start(Assembly::new(&exports)?, &options, || ())?;
    println!("nbd+unix:///?socket={}", path.display());
    if spec.is_some() {
        std::io::stdin().read_line(&mut String::new())?;
    }
    server.stop();
    server.join()?;
    Ok(())
}
