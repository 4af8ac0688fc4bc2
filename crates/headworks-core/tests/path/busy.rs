//! Refusals by the device: refused requests are requeued, may merge, and are sent again when the device may have room.

use headworks_core::time::MS;

use crate::bench::{BUSY, Bench};

#[test]
fn refused_requests_are_resent_first_in_order() {
    let mut bench = Bench::new(|q| q.queue_depth = 3);
    bench.bios("R0+4k R1m+4k R2m+4k R3m+4k");
    assert_eq!(bench.sent_count(), 3);
    bench.failed(1, BUSY);
    bench.failed(2, BUSY);
    assert_eq!(bench.sent(), "", "nothing is sent to a busy device");
    bench.bios("R4m+4k");
    assert_eq!(bench.sent(), "");
    bench.done(0);
    assert_eq!(bench.sent(), "R1m+4k R2m+4k R3m+4k");
    bench.finish_from(3);
    assert_eq!(bench.replies(), "1:ok 2:ok 3:ok 4:ok 5:ok");
    bench.assert_quiet();
}

/// A device may refuse in any order; requests are sent again in the order that the elevator chose.
#[test]
fn refused_requests_are_resent_in_elevator_order() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
        let mut bench = Bench::new(|q| q.queue_depth = 4);
        bench.bios("R3m+4k R1m+4k R2m+4k R0+4k R9m+4k");
        assert_eq!(bench.sent(), "R3m+4k R1m+4k R2m+4k R0+4k");
        order.iter().for_each(|&n| bench.failed(n, BUSY));
        bench.pass(3 * MS);
        assert_eq!(bench.sent(), "R3m+4k R1m+4k R2m+4k R0+4k", "refused in the order {order:?}");
        // The second time as well: requests that were refused twice precede those refused once.
        bench.done(4);
        assert_eq!(bench.sent(), "R9m+4k");
        bench.failed(8, BUSY);
        bench.failed(5, BUSY);
        bench.pass(3 * MS);
        assert_eq!(bench.sent(), "R1m+4k R9m+4k", "{order:?}");
        bench.all_done([6, 7, 9, 10]);
        bench.assert_quiet();
    }
}

#[test]
fn idle_busy_device_is_retried_after_3_ms() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k");
    bench.failed(0, BUSY);
    assert_eq!(bench.timer, Some(bench.now + 3 * MS));
    bench.pass(3 * MS - 1);
    assert_eq!(bench.sent(), "R0+4k");
    bench.pass(1);
    assert_eq!(bench.sent(), "R0+4k");
    bench.failed(1, BUSY);
    bench.pass(6 * MS - 1);
    assert_eq!(bench.sent(), "", "the second pause in a row is longer");
    bench.pass(1);
    assert_eq!(bench.sent(), "R0+4k");
    bench.done(2);
    assert_eq!(bench.replies(), "1:ok");
    bench.bios("R0+4k");
    bench.failed(3, BUSY);
    bench.pass(3 * MS);
    assert_eq!(bench.sent(), "R0+4k R0+4k", "the pauses begin anew");
    bench.done(4);
    bench.assert_quiet();
}

#[test]
fn refusal_of_last_command_sets_retry_timer() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k R1m+4k");
    bench.sent();
    bench.failed(0, BUSY);
    bench.failed(1, BUSY);
    bench.pass(3 * MS);
    assert_eq!(bench.sent(), "R0+4k R1m+4k");
    bench.finish_from(2);
    bench.assert_quiet();
}

#[test]
fn requeued_request_merges_with_neighbours() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R64k+4k");
    bench.failed(0, BUSY);
    bench.each("R68k+4k R60k+4k");
    assert_eq!(bench.sent(), "R64k+4k");
    bench.pass(3 * MS);
    assert_eq!(bench.sent(), "R60k+12k");
    assert_eq!(bench.segments(1), "3:0+4k 1:0+4k 2:0+4k");
    bench.done(1);
    assert_eq!(bench.replies(), "3:ok 1:ok 2:ok");
    bench.assert_quiet();
}

#[test]
fn bio_between_two_requeued_requests_merges_with_one() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R64k+4k R72k+4k");
    bench.failed(0, BUSY);
    bench.failed(1, BUSY);
    bench.sent();
    bench.each("R68k+4k");
    bench.pass(3 * MS);
    assert_eq!(bench.sent(), "R64k+8k R72k+4k");
    bench.finish_from(2);
    assert_eq!(bench.replies(), "1:ok 3:ok 2:ok");
    bench.assert_quiet();
}

#[test]
fn partly_done_requeued_request_continues_and_never_merges() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+8k");
    bench.moved(0, 4096);
    bench.failed(1, BUSY);
    bench.bios("R8k+4k");
    bench.pass(3 * MS);
    assert_eq!(bench.sent(), "R0+8k R4k+4k R4k+4k R8k+4k");
    assert_eq!(bench.segments(2), "1:4k+4k");
    bench.all_done([2, 3]);
    assert_eq!(bench.replies(), "1:ok 2:ok");
    bench.assert_quiet();
}

#[test]
fn refused_pieces_are_resent() {
    let mut bench = Bench::new(|q| (q.max_sectors_kb, q.nr_requests) = (64, 4));
    bench.bios("R0+192k");
    assert_eq!(bench.sent(), "R0+64k R64k+64k");
    bench.failed(0, BUSY);
    bench.done(1);
    assert_eq!(bench.sent(), "R0+64k R128k+64k", "the refused one first");
    bench.all_done([2, 3]);
    assert_eq!(bench.replies(), "1:ok");
    bench.assert_quiet();
}
