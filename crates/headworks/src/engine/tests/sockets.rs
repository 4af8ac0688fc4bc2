//! Readiness of sockets.

use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};

use super::*;

#[test]
fn readiness_is_reported_once_per_watch() {
    on_both(1, |engine| {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let fd = socket.as_raw_fd();
        engine.watch(5, fd, Interest::Read);
        assert_eq!(pending_events(engine), [], "nothing to read");

        peer.write_all(b"x").unwrap();
        assert_eq!(turn_until(engine, |events| !events.is_empty()), [ready(5)]);
        peer.write_all(b"y").unwrap();
        assert_eq!(pending_events(engine), [], "not watched");
        engine.watch(5, fd, Interest::Read);
        engine.watch(5, fd, Interest::Read);
        assert_eq!(pending_events(engine), [ready(5)], "data that arrived before the watch count");

        // A connection also watches again before the next turn.
        engine.watch(5, fd, Interest::Read);
        assert_eq!(pending_events(engine), [ready(5)]);
    });
}

#[test]
fn new_watch_replaces_previous_watch_of_token() {
    on_both(1, |engine| {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let fd = socket.as_raw_fd();
        engine.watch(0, fd, Interest::Read);
        assert_eq!(pending_events(engine), []);
        engine.watch(0, fd, Interest::Write);
        assert_eq!(pending_events(engine), [ready(0)], "the socket is writable");
        peer.write_all(b"x").unwrap();
        assert_eq!(pending_events(engine), [], "the first watch was replaced");

        engine.watch(0, fd, Interest::ReadWrite);
        assert_eq!(pending_events(engine), [ready(0)], "one event for both");
        let (other, _its_peer) = UnixStream::pair().unwrap();
        engine.watch(0, fd, Interest::Read);
        engine.watch(0, other.as_raw_fd(), Interest::Read);
        assert_eq!(pending_events(engine), [], "the token belongs to the other socket now");
    });
}

#[test]
fn watched_port_is_free_once_the_engine_is_dropped() {
    for choice in [EngineChoice::Uring, EngineChoice::Threads] {
        // Several times: a ring that the kernel takes apart later often is in time by chance.
        for _ in 0..20 {
            let Ok((mut engine, _)) = open_engine(choice, 1) else { continue };
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            engine.watch(0, listener.as_raw_fd(), Interest::Read);
            assert_eq!(pending_events(&mut *engine), []);
            // As a server ends: the watch is given up, and no turn follows.
            engine.forget(0);
            drop((listener, engine));
            std::net::TcpListener::bind(address).unwrap();
        }
    }
}

#[test]
fn only_readable_sockets_among_many_are_reported() {
    on_both(1, |engine| {
        let mut pairs: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
        for (token, (socket, _)) in pairs.iter().enumerate() {
            engine.watch(token as u32, socket.as_raw_fd(), Interest::Read);
        }
        assert_eq!(pending_events(engine), []);
        for (_, peer) in pairs.iter_mut().step_by(2) {
            peer.write_all(b"x").unwrap();
        }
        let mut events = turn_until(engine, |events| events.len() >= 50);
        events.sort_by_key(|event| match event {
            Event::Ready { token } => *token,
            _ => u32::MAX,
        });
        assert!(events.into_iter().eq((0..100).step_by(2).map(ready)));
    });
}

/// Another file descriptor of the same open socket.
fn duplicate(socket: &UnixStream) -> OwnedFd {
    socket.try_clone().unwrap().into()
}

/// Replaces the socket behind `fd` by `socket`.
fn reuse(fd: OwnedFd, socket: &UnixStream) -> OwnedFd {
    let number = fd.as_raw_fd();
    // SAFETY: dup2 closes the fd we own and opens it anew, in one step, so that no other test can take the number.
    unsafe {
        std::mem::forget(fd);
        assert_eq!(libc::dup2(socket.as_raw_fd(), number), number);
        OwnedFd::from_raw_fd(number)
    }
}

#[test]
fn forgotten_watch_stays_silent_after_token_and_fd_reuse() {
    on_both(1, |engine| {
        let (former, mut its_peer) = UnixStream::pair().unwrap();
        let (next, mut next_peer) = UnixStream::pair().unwrap();
        // `former` stays open under another number, so a poll left behind would still fire.
        for fired_before in [false, true] {
            let fd = duplicate(&former);
            let number = fd.as_raw_fd();
            engine.watch(7, number, Interest::Read);
            if !fired_before {
                assert_eq!(pending_events(engine), []);
            }
            its_peer.write_all(b"x").unwrap();
            engine.forget(7);
            let fd = reuse(fd, &next);
            engine.watch(7, number, Interest::Read);
            assert_eq!(pending_events(engine), [], "fired before: {fired_before}");

            next_peer.write_all(b"x").unwrap();
            assert_eq!(pending_events(engine), [ready(7)]);
            let mut byte = [0];
            (&next).read_exact(&mut byte).unwrap();
            (&former).read_exact(&mut byte).unwrap();
            engine.forget(7);
            drop(fd);
        }
        engine.forget(1000); // Never watched.
    });
}

#[test]
fn hang_up_is_reported_once_and_then_turn_sleeps() {
    on_both(1, |engine| {
        let (socket, peer) = UnixStream::pair().unwrap();
        engine.watch(1, socket.as_raw_fd(), Interest::Read);
        drop(peer);
        assert_eq!(turn_until(engine, |events| !events.is_empty()), [ready(1)]);
        // A closed peer on an unwatched socket must not keep the engine awake.
        let (start, mut events) = (Instant::now(), Vec::new());
        let mut turns = 0;
        while start.elapsed() < Duration::from_millis(20) {
            engine.turn(Wait::For(SEC / 50), &mut events).unwrap();
            turns += 1;
        }
        assert_eq!(events, []);
        assert!(turns < 10, "the engine turned {turns} times instead of sleeping");
    });
}

#[test]
fn unwatchable_fd_is_reported_as_ready() {
    on_both(1, |engine| {
        let regular = file("/dev/shm", false);
        engine.watch(2, regular.as_raw_fd(), Interest::Read);
        engine.watch(3, 9999, Interest::Read);
        let mut events = turn_until(engine, |events| events.len() >= 2);
        events.sort_by_key(|event| *event != ready(2));
        assert_eq!(events, [ready(2), ready(3)]);
        assert_eq!(pending_events(engine), []);
    });
}

#[test]
fn peer_sees_end_of_file_after_forget_and_close() {
    on_both(1, |engine| {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        engine.watch(4, socket.as_raw_fd(), Interest::Read);
        assert_eq!(pending_events(engine), []);
        engine.forget(4);
        drop(socket);
        assert_eq!(pending_events(engine), []);
        peer.set_nonblocking(true).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the engine keeps no reference to the socket");
    });
}

#[test]
fn completion_queue_overflow_loses_no_events() {
    let Ok(mut engine) = Uring::with_room(1, 1) else {
        return; // Forbidden on this machine.
    };
    // The ring accepts one socket under a thousand tokens; a thousand sockets may exceed the limit of open files.
    let (socket, mut peer) = UnixStream::pair().unwrap();
    for token in 0..1000 {
        engine.watch(token, socket.as_raw_fd(), Interest::Read);
    }
    assert_eq!(pending_events(&mut engine), []);
    peer.write_all(b"x").unwrap();
    let events = turn_until(&mut engine, |events| events.len() >= 1000);
    assert_eq!(events.len(), 1000);
    assert!((0..1000).all(|token| events.contains(&ready(token))));
}

fn place(device: u16, place: u16) -> Event {
    Event::Place { device: DeviceId(device), place }
}

#[test]
fn places_of_devices_are_told_apart_and_watch_again_what_is_left() {
    on_both(1, |engine| {
        let mut pairs: Vec<_> = (0..4).map(|_| UnixStream::pair().unwrap()).collect();
        let fds: Vec<_> = pairs.iter().map(|(socket, _)| socket.as_raw_fd()).collect();
        let places = [(0, 0), (0, 15), (63, 1)];
        for (&(device, place), &fd) in places.iter().zip(&fds) {
            engine.watch_place(DeviceId(device), place, fd, Interest::Read);
        }
        engine.watch(0, fds[3], Interest::Read);
        assert_eq!(pending_events(engine), []);
        for (_, peer) in &mut pairs {
            peer.write_all(b"xy").unwrap();
        }
        let mut events = turn_until(engine, |events| events.len() >= 4);
        events.sort_by_key(|event| format!("{event:?}"));
        assert_eq!(events, [place(0, 0), place(0, 15), place(63, 1), ready(0)]);

        // A device that read a part is called again if it watches again.
        (&pairs[1].0).read_exact(&mut [0]).unwrap();
        assert_eq!(pending_events(engine), []);
        engine.watch_place(DeviceId(0), 15, fds[1], Interest::Read);
        assert_eq!(pending_events(engine), [place(0, 15)]);
    });
}

#[test]
fn forgotten_device_has_no_events_and_its_places_are_free() {
    on_both(1, |engine| {
        let mut pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        let fds: Vec<_> = pairs.iter().map(|(socket, _)| socket.as_raw_fd()).collect();
        for (index, &fd) in fds.iter().enumerate() {
            engine.watch_place(
                DeviceId(7 + index as u16 / 2),
                index as u16 % 2,
                fd,
                Interest::Read,
            );
        }
        assert_eq!(pending_events(engine), []);
        for place in 0..PLACES {
            engine.forget_place(DeviceId(7), place);
            engine.forget_place(DeviceId(900), place);
        }
        for (_, peer) in &mut pairs {
            peer.write_all(b"x").unwrap();
        }
        assert_eq!(turn_until(engine, |events| !events.is_empty()), [place(8, 0)]);
        assert_eq!(pending_events(engine), []);
        engine.watch_place(DeviceId(7), 0, fds[1], Interest::Read);
        assert_eq!(pending_events(engine), [place(7, 0)]);
    });
}
