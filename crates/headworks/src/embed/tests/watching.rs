//! A device that waits for a socket, driven by feeders and by the owner's thread.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use super::*;
use headworks_core::Notice;

use crate::engine::Interest;

/// Sends an octet for each command, and completes the oldest command for each octet that comes back; an `L` says that the volume lost
/// data, and completes nothing.
struct SocketDevice {
    socket: UnixStream,
    commands: std::collections::VecDeque<Command>,
    watches: bool,
}

impl SocketDevice {
    /// A device with two places, one of which is for a socket that never becomes ready.
    fn pair() -> (Self, UnixStream) {
        let (socket, peer) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        (Self { socket, commands: Default::default(), watches: false }, peer)
    }

    fn setup(self) -> DeviceSetup {
        DeviceSetup::new(self, volatile(NullDevice::queue_options()))
    }
}

impl Device for SocketDevice {
    unsafe fn submit(&mut self, _: Instant, batch: CommandBatch<'_>, _: &mut DeviceIo<'_>) {
        self.commands.extend(batch.commands);
        assert_eq!(
            self.socket.write(&vec![b'c'; batch.commands.len()]).unwrap(),
            batch.commands.len()
        );
    }

    fn on_ready(&mut self, _: Instant, place: u16, io: &mut DeviceIo<'_>) {
        assert_eq!(place, 3);
        // One octet a call: what is left calls again.
        let mut octet = [0];
        match self.socket.read(&mut octet) {
            Ok(1) if octet == *b"L" => io.lose(VolumeId(0)),
            Ok(1) => {
                let Command { id, len, .. } = self.commands.pop_front().unwrap();
                io.completions.push(Completion {
                    id,
                    transferred: len,
                    status: Ok(()),
                    hole: false,
                });
            }
            Ok(_) => return,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        io.watch(3, self.socket.as_raw_fd(), Interest::Read);
    }

    fn on_timeout(&mut self, _: Instant, io: &mut DeviceIo<'_>) {
        self.watches = true;
        io.watch(3, self.socket.as_raw_fd(), Interest::Read);
    }

    fn next_timeout(&self) -> Option<Instant> {
        (!self.watches).then_some(Instant(0))
    }
}

/// Sends back what it receives, until the other side closes.
fn echo(mut peer: UnixStream) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let mut octets = [0; 64];
        while let Ok(count @ 1..) = peer.read(&mut octets) {
            peer.write_all(&octets[..count]).unwrap();
        }
    })
}

fn owners() -> impl Iterator<Item = OwnerOptions> {
    let engines = [EngineChoice::Auto, EngineChoice::Threads];
    let both = DRIVES.into_iter().flat_map(move |drive| engines.map(|engine| (drive, engine)));
    both.map(|(drive, engine)| OwnerOptions { drive, engine, handles: 2, ..options() })
}

#[test]
fn commands_complete_when_the_socket_is_ready_and_removal_ends_the_watch() {
    for options in owners() {
        let (owner, mut handles) = Owner::start(options).unwrap();
        for _ in 0..3 {
            let (device, peer) = SocketDevice::pair();
            let peer = echo(peer);
            let device = owner.add_device(device.setup()).unwrap();
            let volume = owner.add_volume(device, mebibyte()).unwrap();
            std::thread::scope(|scope| {
                for handle in &mut handles {
                    scope.spawn(|| {
                        for round in 0..200 {
                            let io = Io::read(round % 256 * BLOCK as u64, BLOCK as u32);
                            assert_eq!(run(handle, volume, io), Ok(()));
                        }
                    });
                }
            });
            owner.remove_volume(volume, SOON).unwrap();
            drop(owner.remove_device(device, SOON).unwrap());
            peer.join().unwrap();
        }
        drop(handles);
        owner.join().unwrap();
    }
}

#[test]
fn loss_fails_every_later_flush_and_is_reported() {
    for options in owners() {
        let (owner, mut handles) = Owner::start(options).unwrap();
        let (device, mut peer) = SocketDevice::pair();
        let volume = add(&owner, device.setup());
        let handle = &mut handles[0];
        let answers = |peer: &mut UnixStream, octets: &[u8]| {
            peer.read_exact(&mut [0]).unwrap();
            peer.write_all(octets).unwrap();
        };
        std::thread::scope(|scope| {
            // A write, a flush, and a write behind whose answer stands the loss.
            let peer = scope.spawn(move || {
                for octets in [&b"c"[..], b"c", b"Lc"] {
                    answers(&mut peer, octets);
                }
                peer
            });
            let write = || Io::write(0, BLOCK as u32);
            assert_eq!(run(handle, volume, write()), Ok(()));
            assert_eq!(run(handle, volume, Io::flush()), Ok(()));
            assert_eq!(run(handle, volume, write()), Ok(()), "the loss came before its answer");
            assert_eq!(run(handle, volume, Io::flush()), Err(IoError::Medium));
            drop(peer.join().unwrap());
        });
        drop(handles);
        let report = owner.join().unwrap();
        let suspect = Notice::Suspect { volume, status: Err(IoError::Medium) };
        assert_eq!(report.notices, [suspect]);
    }
}
