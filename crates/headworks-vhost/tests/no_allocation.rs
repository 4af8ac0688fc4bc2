//! A turn of a device allocates nothing once its vectors have grown: neither for a request, nor for an answer, nor for the in-flight region.
#![cfg(not(loom))]

#[path = "../../headworks-core/tests/support/counting.rs"]
mod counting;

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use counting::ALLOCATIONS;
use headworks_vhost::driver::{Driver, DriverOptions, Waiting};
use headworks_vhost::{
    Channel, Device, Disk, Notifier, Offer, Outcome, Received, RequestOp, Session, Step,
};

/// Carries out the messages of a driver that connects on another thread.
fn connected(options: DriverOptions) -> (Driver, Device) {
    let listener = UnixListener::bind(&options.socket).unwrap();
    let driver = thread::spawn(move || Driver::connect(options).unwrap());
    let (socket, _) = listener.accept().unwrap();
    let mut channel = Channel::new(socket);
    let disk = Disk::new(1 << 30);
    let mut session =
        Session::new(Offer { disk, queues: 2, has_in_flight: true }, Arc::new(Notifier::new()));
    let mut device = Device::new(disk);
    while !driver.is_finished() {
        let Ok(Received::Message(message)) = channel.receive() else {
            thread::yield_now();
            continue;
        };
        let reply = match session.on_message(message).unwrap() {
            Step::Done => None,
            Step::Reply(reply) => Some(reply),
            Step::Order(order) => {
                device.on_order(order);
                session.on_answer(device.next_answer().unwrap()).unwrap()
            }
        };
        if let Some(reply) = reply {
            channel.send(&reply, Duration::from_secs(60)).unwrap();
        }
    }
    (driver.join().unwrap(), device)
}

#[test]
fn turns_allocate_nothing() {
    for (is_indirect, pieces) in [(false, 1), (true, 16)] {
        let name = format!("hw-vhost-allocations-{}-{pieces}", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&socket);
        let options = DriverOptions {
            queues: 2,
            is_indirect,
            pieces,
            buffer_bytes: 65536,
            waiting: Waiting::Poll,
            ..DriverOptions::new(socket.clone())
        };
        let (mut driver, mut device) = connected(options);
        std::fs::remove_file(&socket).unwrap();
        let mut requests = Vec::new();
        let (mut counted, mut answered) = (0, 0);
        for turn in 0..200 {
            for queue in driver.queues() {
                for slot in 0..queue.depth() {
                    let op =
                        [RequestOp::Read, RequestOp::Write, RequestOp::Flush, RequestOp::Discard]
                            [usize::from(slot) % 4];
                    let len = if op == RequestOp::Flush { 0 } else { 65536 };
                    queue.put(slot, op, 65536 * u64::from(slot), len, 0);
                }
                queue.submit();
            }
            let before = ALLOCATIONS.get();
            while device.take(64, &mut requests) > 0 {
                for request in requests.drain(..).rev() {
                    device.pieces(request.ticket, 0, request.len, |span| assert!(!span.is_empty()));
                    device.complete(request.ticket, Outcome::Done);
                }
            }
            device.publish();
            let _ = device.arm();
            assert!(device.next_answer().is_none());
            // The first turn grows the vector of requests.
            if turn > 0 {
                counted += ALLOCATIONS.get() - before;
            }
            for queue in driver.queues() {
                queue.reap(|answer| {
                    assert_eq!(answer.status, 0);
                    answered += 1;
                });
            }
        }
        assert_eq!(answered, 200 * 2 * 32);
        assert_eq!(counted, 0, "allocations with {pieces} pieces");
    }
}
