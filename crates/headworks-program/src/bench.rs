//! Options of `headworks bench`: `headworks` describes them in its help, completions and manual pages, `headworks-bench` measures by them.

use clap::Args;
use headworks_server::{parse_size, parse_time};

use crate::known_words::{ENGINES, PATTERNS};
use crate::tunables::QueueArgs;

/// Measures a device in this process, an NBD server or a vhost-user device
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks bench --device null:size=1T --bs 4k --iodepth 32
  headworks bench --device file:path=disk.img --rw randread --iodepth 64
  headworks bench --device null:size=1T --rw randwrite --feeders 16
  headworks bench --device mem:size=1G --cache 2G --rw randread       with a page cache
  headworks bench --uri 'nbd+unix:///?socket=/run/d.sock' --rw randwrite --verify
  headworks bench --uri nbd://host --rate 20000 --iodepth 256         latency at a load
  headworks bench --uri 'vhost-user+unix:///?socket=/run/d.vhost' --poll     as a virtual machine's driver")]
pub struct BenchArgs {
    /// Device to measure in this process; a write pattern OVERWRITES it
    #[arg(long, value_name = "SPEC", required_unless_present = "uri", conflicts_with = "uri")]
    pub device: Option<String>,
    /// NBD server or vhost-user device to measure; a write pattern needs an export of zeros, or --overwrite
    #[arg(long)]
    pub uri: Option<String>,
    /// DESTROY what the export holds: without this a write pattern is refused unless what it would overwrite is all zeros (server)
    #[arg(long, conflicts_with = "device")]
    pub overwrite: bool,
    /// Access pattern: read, write, randread, randwrite or randrw
    #[arg(long, default_value = "randread", value_parser = PATTERNS, hide_possible_values = true)]
    pub rw: String,
    /// Block size: bytes of each request
    #[arg(long, default_value = "4k", value_parser = parse_size)]
    pub bs: u64,
    /// Requests in flight, per thread
    #[arg(long, default_value_t = 32)]
    pub iodepth: u32,
    /// Number of connections to a server, of queues of a vhost-user device, or of shards in process. Up to 64 have a thread each; more connections, up
    /// to 4096, are divided among one thread for each CPU, and latencies contain the wait for that thread
    #[arg(long, default_value_t = 1)]
    pub threads: u32,
    /// Number of threads that submit to one shard over rings (in process); without it each shard's thread submits
    /// itself
    #[arg(long, value_name = "N", conflicts_with_all = ["uri", "threads", "ios"])]
    pub feeders: Option<u32>,
    /// Requests a second that arrive at random, whatever was answered; latencies count from when a request was due. Without it each reply makes
    /// room for the next request (NBD server)
    #[arg(long, value_name = "N", conflicts_with = "device")]
    pub rate: Option<u32>,
    /// Duration of the run
    #[arg(long, default_value = "5s", value_parser = parse_time, value_name = "TIME")]
    pub runtime: u64,
    /// Stop after this many requests instead of after --runtime (in process)
    #[arg(long, value_name = "N", conflicts_with = "uri")]
    pub ios: Option<u64>,
    /// Use only this many bytes from the start (server), or the size of a device without one (in process)
    #[arg(long, value_parser = parse_size)]
    pub size: Option<u64>,
    /// Size of the page cache of each thread; 0: no cache (in process)
    #[arg(long, value_parser = parse_size, default_value = "0", conflicts_with = "uri", value_name = "SIZE")]
    pub cache: u64,
    /// Seed of the random offsets
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// I/O engine: auto, uring or threads (in process)
    #[arg(long, default_value = "auto", conflicts_with = "uri", value_parser = ENGINES, hide_possible_values = true)]
    pub engine: String,
    /// Write the whole range once before measuring (server)
    #[arg(long, conflicts_with = "device")]
    pub fill: bool,
    /// Compare what is read with what was written (server)
    #[arg(long, conflicts_with = "device")]
    pub verify: bool,
    /// With --verify: the export is new, so blocks that were never written must read as zeros
    #[arg(long, requires = "verify")]
    pub from_zeros: bool,
    /// Negotiate structured replies (server)
    #[arg(long, conflicts_with = "device")]
    pub structured: bool,
    /// Busy-poll for replies instead of sleeping (server)
    #[arg(long, conflicts_with = "device")]
    pub poll: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Of the queue and of write-back
    #[command(flatten)]
    pub queue: QueueArgs,
}
