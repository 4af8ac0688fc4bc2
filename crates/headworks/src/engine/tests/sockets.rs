//! Readiness of sockets.

use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};

use super::*;

#[test]
fn readiness_comes_once_for_each_watch() {
    on_both(1, |engine| {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let fd = socket.as_raw_fd();
        engine.watch(5, fd, Interest::Read);
        assert_eq!(all_there_is(engine), [], "nothing to read");

        peer.write_all(b"x").unwrap();
        assert_eq!(turn_until(engine, |events| !events.is_empty()), [ready(5)]);
        peer.write_all(b"y").unwrap();
        assert_eq!(all_there_is(engine), [], "not watched");
        engine.watch(5, fd, Interest::Read);
        engine.watch(5, fd, Interest::Read);
        assert_eq!(all_there_is(engine), [ready(5)], "what was there before counts");

        // Watched again before the next turn, as a connection does.
        engine.watch(5, fd, Interest::Read);
        assert_eq!(all_there_is(engine), [ready(5)]);
    });
}

#[test]
fn a_watch_replaces_the_one_before() {
    on_both(1, |engine| {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let fd = socket.as_raw_fd();
        engine.watch(0, fd, Interest::Read);
        assert_eq!(all_there_is(engine), []);
        engine.watch(0, fd, Interest::Write);
        assert_eq!(all_there_is(engine), [ready(0)], "there is room");
        peer.write_all(b"x").unwrap();
        assert_eq!(all_there_is(engine), [], "the first watch is gone");

        engine.watch(0, fd, Interest::ReadWrite);
        assert_eq!(all_there_is(engine), [ready(0)], "one event for both");
        let (other, _its_peer) = UnixStream::pair().unwrap();
        engine.watch(0, fd, Interest::Read);
        engine.watch(0, other.as_raw_fd(), Interest::Read);
        assert_eq!(all_there_is(engine), [], "the token belongs to the other socket now");
    });
}

#[test]
fn many_sockets_are_watched_at_once() {
    on_both(1, |engine| {
        let mut pairs: Vec<_> = (0..100).map(|_| UnixStream::pair().unwrap()).collect();
        for (token, (socket, _)) in pairs.iter().enumerate() {
            engine.watch(token as u32, socket.as_raw_fd(), Interest::Read);
        }
        assert_eq!(all_there_is(engine), []);
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

/// Another name for the same open socket.
fn duplicate(socket: &UnixStream) -> OwnedFd {
    socket.try_clone().unwrap().into()
}

/// Gives `fd` to `socket` instead of what it was.
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
fn forgotten_means_silent_though_token_and_fd_are_reused() {
    on_both(1, |engine| {
        let (former, mut its_peer) = UnixStream::pair().unwrap();
        let (next, mut next_peer) = UnixStream::pair().unwrap();
        // `former` stays open under another number, so a poll left behind would still fire.
        for fired_before in [false, true] {
            let fd = duplicate(&former);
            let number = fd.as_raw_fd();
            engine.watch(7, number, Interest::Read);
            if !fired_before {
                assert_eq!(all_there_is(engine), []);
            }
            its_peer.write_all(b"x").unwrap();
            engine.forget(7, number);
            let fd = reuse(fd, &next);
            engine.watch(7, number, Interest::Read);
            assert_eq!(all_there_is(engine), [], "fired before: {fired_before}");

            next_peer.write_all(b"x").unwrap();
            assert_eq!(all_there_is(engine), [ready(7)]);
            let mut byte = [0];
            (&next).read_exact(&mut byte).unwrap();
            (&former).read_exact(&mut byte).unwrap();
            engine.forget(7, number);
            drop(fd);
        }
        engine.forget(1000, 5); // Never watched.
    });
}

#[test]
fn a_hang_up_is_readiness_and_then_rests() {
    on_both(1, |engine| {
        let (socket, peer) = UnixStream::pair().unwrap();
        engine.watch(1, socket.as_raw_fd(), Interest::Read);
        drop(peer);
        assert_eq!(turn_until(engine, |events| !events.is_empty()), [ready(1)]);
        // A socket in this state that nobody watches must not keep the engine awake.
        let (start, mut events) = (Instant::now(), Vec::new());
        let mut turns = 0;
        while start.elapsed() < Duration::from_millis(20) {
            engine.turn(Wait::For(SEC / 50), &mut events).unwrap();
            turns += 1;
        }
        assert_eq!(events, []);
        assert!(turns < 10, "it slept instead of turning {turns} times");
    });
}

#[test]
fn what_cannot_be_watched_is_ready_so_that_its_owner_sees_why() {
    on_both(1, |engine| {
        let regular = file("/dev/shm", false);
        engine.watch(2, regular.as_raw_fd(), Interest::Read);
        engine.watch(3, 9999, Interest::Read);
        let mut events = turn_until(engine, |events| events.len() >= 2);
        events.sort_by_key(|event| *event != ready(2));
        assert_eq!(events, [ready(2), ready(3)]);
        assert_eq!(all_there_is(engine), []);
    });
}

#[test]
fn a_forgotten_and_closed_socket_is_closed_for_its_peer() {
    on_both(1, |engine| {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        engine.watch(4, socket.as_raw_fd(), Interest::Read);
        assert_eq!(all_there_is(engine), []);
        engine.forget(4, socket.as_raw_fd());
        drop(socket);
        assert_eq!(all_there_is(engine), []);
        peer.set_nonblocking(true).unwrap();
        assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the engine holds it no longer");
    });
}

#[test]
fn more_events_than_the_completion_queue_holds_are_late_not_lost() {
    let Ok(mut engine) = Uring::with_room(1, 1) else {
        return; // Forbidden on this machine.
    };
    // The ring does not mind that one socket has a thousand tokens; a thousand sockets may be more than a process may open.
    let (socket, mut peer) = UnixStream::pair().unwrap();
    for token in 0..1000 {
        engine.watch(token, socket.as_raw_fd(), Interest::Read);
    }
    assert_eq!(all_there_is(&mut engine), []);
    peer.write_all(b"x").unwrap();
    let events = turn_until(&mut engine, |events| events.len() >= 1000);
    assert_eq!(events.len(), 1000);
    assert!((0..1000).all(|token| events.contains(&ready(token))));
}
