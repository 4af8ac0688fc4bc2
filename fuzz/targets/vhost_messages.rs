//! What a front end may send to a vhost-user device: messages in any order, with any bodies and descriptors.
//!
//! The input is a list of messages: number, a byte of choices (acknowledgement, descriptors), length, body. Number 255 writes the rest of
//! its body into the memory that the descriptors name. After each message the device has a turn. Whatever happens, an order has an
//! answer as soon as nothing is in flight, requests are within the disk, and a closed device ends.
#![cfg_attr(fuzzing, no_main)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, LazyLock};

use headworks_vhost::wire::Message;
use headworks_vhost::{Device, Disk, Notifier, Offer, Outcome, Request, RequestOp, Session, Step};

const MEMORY: u64 = 1 << 16;
const DISK: u64 = 1 << 20;
const POKE: u32 = 255;
const MESSAGES_MAX: usize = 200;

/// The notifier of all sessions: the end of one takes milliseconds.
fn notifier() -> Arc<Notifier> {
    static ALL: LazyLock<Arc<Notifier>> = LazyLock::new(|| Arc::new(Notifier::new()));
    Arc::clone(&ALL)
}

/// A sealed file of a machine's memory.
fn memory() -> File {
    // SAFETY: the name is a C string; the descriptor is new and belongs to nothing else.
    let file = unsafe {
        let fd = libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0, "a file in memory: {}", io::Error::last_os_error());
        File::from_raw_fd(fd)
    };
    file.set_len(MEMORY).expect("the file is in memory");
    // SAFETY: the call takes no memory.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    file
}

fn event() -> OwnedFd {
    // SAFETY: the call takes no memory; the descriptor is new and belongs to nothing else.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC)) }
}

/// Touches every byte of a request's memory, and checks that there are as many as the request has.
fn touch(device: &Device, request: &Request) {
    let mut bytes = 0;
    device.pieces(request.ticket, 0, request.len, |span| {
        bytes += span.len();
        // SAFETY: the span is memory of a request in flight.
        unsafe {
            match request.op {
                RequestOp::Read => span.base().write_bytes(0x5a, span.len()),
                _ => {
                    let mut copy = vec![0; span.len()];
                    span.base().copy_to(copy.as_mut_ptr(), span.len());
                }
            }
        }
    });
    let moves = matches!(request.op, RequestOp::Read | RequestOp::Write);
    assert_eq!(bytes, if moves { request.len as usize } else { 0 });
}

fn check(request: &Request) {
    assert!(request.offset.checked_add(u64::from(request.len)).is_some_and(|end| end <= DISK));
    assert_eq!((request.offset | u64::from(request.len)) % 512, 0);
    assert_eq!(request.len == 0, request.op == RequestOp::Flush);
    assert!(!request.is_fua || request.op != RequestOp::Read);
}

fn turn(device: &mut Device) {
    let mut requests = Vec::new();
    device.take(usize::MAX, &mut requests);
    for request in requests.iter().rev() {
        check(request);
        touch(device, request);
        device.complete(request.ticket, Outcome::Done);
    }
    device.publish();
    device.arm();
    device.next_broken();
    assert_eq!(device.in_flight(), 0);
}

/// The next message of the input, which it is cut off from.
fn message(data: &mut &[u8], memory: &File) -> Option<Message> {
    let (head, rest) = data.split_at_checked(3)?;
    let (body, rest) = rest.split_at_checked(usize::from(head[2]).min(rest.len()))?;
    *data = rest;
    if u32::from(head[0]) == POKE {
        if let Some((at, bytes)) = body.split_first_chunk::<2>() {
            let at = u64::from(u16::from_le_bytes(*at));
            let len = bytes.len().min((MEMORY - at) as usize);
            memory.write_all_at(&bytes[..len], at).expect("the file is in memory");
        }
        return Some(Message::request(POKE, Vec::new(), Vec::new(), false));
    }
    let count = usize::from(head[1] & 7);
    let fd = |index: usize| match head[1] >> 3 & 1 {
        0 if index == 0 || count > 1 => {
            memory.try_clone().expect("few descriptors are open").into()
        }
        _ => event(),
    };
    let fds = (0..count).map(fd).collect();
    Some(Message::request(u32::from(head[0]), body.to_vec(), fds, head[1] & 0x10 == 0))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let memory = memory();
    let disk = Disk::new(DISK);
    let mut session = Session::new(Offer { disk, queues: 4, has_in_flight: true }, notifier());
    let mut device = Device::new(disk);
    for _ in 0..MESSAGES_MAX {
        let Some(message) = message(&mut data, &memory) else { break };
        if message.header.request == POKE {
            turn(&mut device);
            continue;
        }
        match session.on_message(message) {
            Ok(Step::Done) => {}
            Ok(Step::Reply(reply)) => assert!(reply.body.len() <= 4096 && reply.header.is_reply()),
            Ok(Step::Order(order)) => {
                device.on_order(order);
                turn(&mut device);
                let mut answer = device.next_answer();
                // What a dead process had taken comes in turns of 64.
                for _ in 0..32 {
                    if answer.is_none() {
                        turn(&mut device);
                        answer = device.next_answer();
                    }
                }
                let answer = answer.expect("nothing is in flight, so the order has an answer");
                if session.on_answer(answer).is_err() {
                    break;
                }
            }
            Err(sentence) => {
                assert!(!sentence.is_empty() && sentence.len() < 400, "{sentence}");
                assert!(!sentence.contains(char::is_control), "for a log: {sentence:?}");
                break;
            }
        }
        assert!(!session.is_waiting());
        turn(&mut device);
    }
    device.close();
    turn(&mut device);
    assert!(device.is_finished());
});
