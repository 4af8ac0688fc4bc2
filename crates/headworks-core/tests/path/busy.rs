//! A device that refuses: what it refused goes back, may merge again, and is tried when the device may have room.

use headworks_core::time::MS;

use crate::bench::{BUSY, Bench};

#[test]
fn refused_requests_go_again_first_and_in_order() {
    let mut bench = Bench::new(|q| q.queue_depth = 3);
    bench.bios("R0+4k R1m+4k R2m+4k R3m+4k");
    assert_eq!(bench.sent_count(), 3);
    bench.failed(1, BUSY);
    bench.failed(2, BUSY);
    assert_eq!(bench.sent(), "", "nothing is sent to a device that refuses");
    bench.bios("R4m+4k");
    assert_eq!(bench.sent(), "");
    bench.done(0);
    assert_eq!(bench.sent(), "R1m+4k R2m+4k R3m+4k");
    bench.finish_from(3);
    assert_eq!(bench.replies(), "1:ok 2:ok 3:ok 4:ok 5:ok");
    bench.assert_quiet();
}

/// A device may refuse in any order; that is not the order which the elevator chose.
#[test]
fn refused_requests_go_again_in_the_order_in_which_they_left() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]] {
        let mut bench = Bench::new(|q| q.queue_depth = 4);
        bench.bios("R3m+4k R1m+4k R2m+4k R0+4k R9m+4k");
        assert_eq!(bench.sent(), "R3m+4k R1m+4k R2m+4k R0+4k");
        order.iter().for_each(|&n| bench.failed(n, BUSY));
        bench.pass(3 * MS);
        assert_eq!(bench.sent(), "R3m+4k R1m+4k R2m+4k R0+4k", "refused in the order {order:?}");
        // The second time, too: what was refused twice before what was refused once.
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
fn a_refusing_device_with_nothing_in_flight_is_asked_again_after_3_ms() {
    let mut bench = Bench::new(|_| ());
    bench.bios("R0+4k");
    bench.failed(0, BUSY);
    assert_eq!(bench.timer, Some(bench.now + 3 * MS));
    bench.pass(3 * MS - 1);
    assert_eq!(bench.sent(), "R0+4k");
    bench.pass(1);
    assert_eq!(bench.sent(), "R0+4k");
    bench.failed(1, BUSY);
    bench.pass(3 * MS);
    assert_eq!(bench.sent(), "R0+4k");
    bench.done(2);
    assert_eq!(bench.replies(), "1:ok");
    bench.assert_quiet();
}

#[test]
fn a_refusal_of_the_last_one_in_flight_starts_the_timer() {
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
fn a_refused_request_takes_neighbours_while_it_waits() {
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
fn two_refused_neighbours_survive_the_bio_between_them() {
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
fn what_is_half_done_when_refused_goes_on_where_it_was_and_merges_with_nobody() {
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
fn refused_pieces_go_again() {
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
