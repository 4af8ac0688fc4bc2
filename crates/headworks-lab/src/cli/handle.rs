//! `headworks-lab run handle`: reads through a handle of the library, for benches/counts.sh and benches/c-api.sh, which have the same loop in C
//! (benches/c_api.c).
//!
//! Exit codes: 0 all reads succeeded, 1 otherwise.

use std::process::ExitCode;

use clap::Args;
use headworks::{
    DeviceSetup, EngineChoice, Handle, Io, IoCompletion, Owner, OwnerOptions, Slot, VolumeId,
    WaitOutcome,
};
use headworks_server::{Assembly, ExportSpec};

use crate::cli::complain;

/// Bytes of a read.
const BLOCK: u32 = 4096;
/// Reads of a batch.
const BATCH: u64 = 8;

/// Options of `headworks-lab run handle`.
#[derive(Args)]
pub struct HandleArgs {
    /// The disk
    #[arg(long, default_value = "null:size=1G")]
    spec: String,
    /// Number of reads, a multiple of 8
    #[arg(long, default_value_t = 1_000_000)]
    ios: u64,
    /// Reads in flight, in batches of 8
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(8..=4096))]
    iodepth: u32,
}

impl HandleArgs {
    /// Reads, and prints the processor time of each read.
    pub fn run(self) -> ExitCode {
        match self.read() {
            Ok(cpu) => {
                println!("{} reads, {:.1} ns of CPU each", self.ios, cpu as f64 / self.ios as f64);
                ExitCode::SUCCESS
            }
            Err(error) => {
                complain(error);
                ExitCode::FAILURE
            }
        }
    }

    fn read(&self) -> Result<u64, String> {
        let text = |error: headworks::ConfigError| error.to_string();
        let export = ExportSpec::parse(&self.spec, true).map_err(text)?;
        let mut assembly = Assembly::new(&[export]).map_err(text)?;
        let (queue, device) = assembly.devices.swap_remove(0);
        let (_, volume) = assembly.volumes[0];
        let options = OwnerOptions {
            depth: self.iodepth,
            slot_bytes: BLOCK as usize,
            tags_max: queue.nr_requests,
            // As benches/c_api.c: valgrind stops all threads while one waits in io_uring.
            engine: EngineChoice::Threads,
            ..OwnerOptions::default()
        };
        let (owner, mut handles) = Owner::start(options).map_err(text)?;
        let device = owner.add_device(DeviceSetup::boxed(device, queue)).map_err(text)?;
        let id = owner.add_volume(device, volume).map_err(text)?;
        let handle = handles.pop().ok_or("there is no handle")?;
        let blocks = volume.size / u64::from(BLOCK);
        let before = cpu_ns();
        Reader { handle, id, blocks, random: 1, free: Vec::new() }.read(self.ios)?;
        let cpu = cpu_ns() - before;
        owner.join().map_err(|error| error.to_string())?;
        Ok(cpu)
    }
}

struct Reader {
    handle: Handle,
    id: VolumeId,
    blocks: u64,
    random: u64,
    free: Vec<Slot>,
}

impl Reader {
    fn read(mut self, ios: u64) -> Result<(), String> {
        let depth = u64::from(self.handle.depth());
        self.free.extend(std::iter::from_fn(|| self.handle.slot()));
        let mut completions: Vec<IoCompletion> = Vec::with_capacity(2 * depth as usize);
        let (mut sent, mut done) = (0, 0);
        while done < ios {
            while sent < ios && sent - done + BATCH <= depth {
                for _ in 0..BATCH {
                    self.put()?;
                }
                sent += BATCH;
                self.handle.submit();
            }
            let count = self.handle.reap(depth as usize, &mut completions);
            if count == 0 && self.handle.wait() != WaitOutcome::Ready {
                return Err("the owner has ended".to_owned());
            }
            for completion in completions.drain(..) {
                completion.status.map_err(|error| error.to_string())?;
                self.free.extend(completion.slot);
            }
            done += count as u64;
        }
        Ok(())
    }

    fn put(&mut self) -> Result<(), String> {
        let slot = self.free.pop().ok_or("there is no free slot")?;
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let offset = (self.random >> 33) % self.blocks * u64::from(BLOCK);
        let io = Io::read(offset, BLOCK).allow_hole().user_data(slot.index().into());
        self.handle.put(self.id, slot, io).map_err(|rejected| rejected.to_string())
    }
}

/// Processor time of the process, in nanoseconds.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
