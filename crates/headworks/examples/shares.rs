//! Three clients of one program, with what each may have: `cargo run --example shares`.
//!
//! Two of them want all that a disk of 2000 I/Os a second gives, one of which has ten times the weight of the other; the third may have
//! 100 I/Os a second.

use std::thread;
use std::time::{Duration, Instant};

use headworks::headworks_core::limits::{LimitKind, LimitTarget, Limits};
use headworks::headworks_core::{self, ExportConfig};
use headworks::{
    Answers, DeviceSetup, Handle, Io, Owner, OwnerOptions, QueueOptions, SafeDevice, VolumeId,
    VolumeOptions, Work,
};

type AnyError = Box<dyn std::error::Error>;

/// A disk that executes one command at a time, each in half a millisecond.
#[derive(Default)]
struct Disk {
    busy: Option<(headworks_core::Instant, Work)>,
}

impl SafeDevice for Disk {
    fn start(&mut self, now: headworks_core::Instant, work: Work, _: &mut Answers<'_>) {
        assert!(self.busy.is_none(), "its queue gives it one at a time");
        self.busy = Some((now.after(500_000), work));
    }

    fn on_timeout(&mut self, now: headworks_core::Instant, answers: &mut Answers<'_>) {
        if let Some((_, work)) = self.busy.take_if(|(until, _)| *until <= now) {
            work.complete(Ok(()), answers);
        }
    }

    fn next_timeout(&self) -> Option<headworks_core::Instant> {
        self.busy.as_ref().map(|(until, _)| *until)
    }
}

/// Keeps a handle's slots busy until the time is over; returns the I/Os that were done.
fn client(mut handle: Handle, volume: VolumeId, until: Instant) -> Result<usize, AnyError> {
    let (mut done, mut completions) = (0, Vec::new());
    while Instant::now() < until {
        while let Some(slot) = handle.slot() {
            handle.put(volume, slot, Io::read(0, 4096))?;
        }
        handle.wait();
        done += handle.reap(32, &mut completions);
        completions.drain(..).filter_map(|it| it.slot).for_each(|slot| handle.release(slot));
    }
    Ok(done)
}

fn main() -> Result<(), AnyError> {
    let (owner, handles) = Owner::start(OwnerOptions { handles: 3, ..OwnerOptions::default() })?;
    let queue = QueueOptions { queue_depth: 1, nr_requests: 4, ..QueueOptions::default() };
    let device = owner.add_device(DeviceSetup::safe(Disk::default(), queue))?;
    let options = VolumeOptions { size: 1 << 20, block_size: 4096, ..VolumeOptions::default() };
    let volume = owner.add_volume(device, options)?;

    let share = ExportConfig { weight: 1000, ..ExportConfig::default() };
    owner.set_share(handles[0].export(), share)?;
    let mut limits = Limits::default();
    limits.rates[LimitKind::IopsTotal as usize].average = 100;
    owner.set_limits(LimitTarget::Export(handles[2].export()), limits)?;

    let until = Instant::now() + Duration::from_secs(2);
    let begin =
        |handle| thread::spawn(move || client(handle, volume, until).map_err(|e| e.to_string()));
    let clients: Vec<_> = handles.into_iter().map(begin).collect();
    for (client, name) in clients.into_iter().zip(["weight 1000", "weight 100", "100 a second"]) {
        let done = client.join().map_err(|_| "a client panicked")??;
        println!("{name}: {} I/Os a second", done / 2);
    }
    // What still waits for the limit passes at the end of the owner.
    owner.shutdown()?;
    Ok(())
}
