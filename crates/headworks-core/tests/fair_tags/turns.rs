//! Order of grants: turns, gathering, the reserve, light flows, the asynchronous limit.

use headworks_core::tags::{ByteBudget, TagOwner, TagRequest};
use headworks_core::{ExportId, TenantId};

use crate::gate::{Gate, KIB, request};

/// Creates a gate whose tags, but for the reserve, connection 9 holds one by one.
fn filled(depth: u32, async_depth: u32) -> Gate {
    let mut gate = Gate::new(depth, async_depth);
    let usable = depth - gate.reserve();
    gate.batch(&vec![request(9, 1, 128 * KIB); usable as usize]);
    assert_eq!((gate.waiting, gate.tags.free()), (0, gate.reserve()));
    gate
}

/// Returns the connections of the requests that were granted after waiting, in order.
fn order(gate: &Gate) -> Vec<u32> {
    gate.granted.iter().map(|&number| gate.requests[number].connection).collect()
}

#[test]
fn request_without_waiters_is_granted_but_leaves_reserve() {
    let mut gate = Gate::new(32, 32);
    gate.batch(&[request(1, 16, 512 * KIB), request(1, 14, 512 * KIB), request(1, 1, 512 * KIB)]);
    assert_eq!((gate.held.len(), gate.tags.free()), (2, 2), "two of 32 are reserved");
    // Its connection has a waiter already, so the request is not that of a new flow.
    gate.submit(request(1, 1, 4 * KIB));
    assert_eq!(gate.held.len(), 2);
    gate.submit(request(2, 1, 4 * KIB));
    assert_eq!(gate.held.len(), 3, "the reserve is for small requests of new flows");
    assert_eq!(Gate::new(15, 15).reserve(), 0);
}

#[test]
fn equal_connections_take_turns_by_bytes() {
    let mut gate = filled(8, 8);
    // The small request would finish first; then two of 64 KiB go for each of 128 KiB.
    gate.batch(&[request(1, 1, 128 * KIB); 6]);
    gate.batch(&vec![request(2, 1, 64 * KIB); 12]);
    (0..18).for_each(|_| _ = gate.done(0));
    assert_eq!(order(&gate), [2, 1, 2, 2, 1, 2, 2, 1, 2, 2, 1, 2, 2, 1, 2, 2, 1, 2]);
}

#[test]
fn gathering_head_is_passed_by_reserve_only() {
    let mut gate = filled(64, 64);
    let large = gate.submit(request(1, 32, 4096 * KIB));
    // Heavy and light requests arrive later, and all could use the returned tags.
    let later: Vec<TagRequest> = (0..20).map(|n| request(20 + n, 4, 512 * KIB)).collect();
    gate.batch(&later);
    let (mut passed, mut most_idle) = (0, 0);
    while !gate.holds(large) {
        passed += gate.granted.len();
        gate.granted.clear();
        gate.done(0);
        gate.submit(request(100 + gate.requests.len() as u32, 1, 4 * KIB));
        most_idle = most_idle.max(gate.tags.free());
    }
    assert_eq!(passed, 4, "64 / 16 may pass, and do");
    assert!(most_idle < 32 + 4, "{most_idle}");
    let stats = gate.tags.stats();
    assert_eq!((stats.barged, stats.idle_max), (4, 31));
    assert!(stats.barging_prevented >= 20, "{stats:?}");
}

#[test]
fn gathering_head_is_not_passed_without_reserve() {
    let mut gate = filled(8, 8);
    let large = gate.submit(request(1, 4, 512 * KIB));
    gate.done(0);
    let light = gate.submit(request(2, 1, 4 * KIB));
    gate.now = 500;
    gate.done(0);
    gate.done(0);
    assert!(!gate.holds(large) && !gate.holds(light));
    gate.now = 800;
    gate.done(0);
    assert_eq!(gate.granted, [large]);
    let stats = gate.tags.stats();
    assert_eq!((stats.barging_prevented, stats.barged, stats.idle_max), (1, 0, 3));
    assert_eq!((stats.idle_tag_ns, stats.longest_wait_ns), (500 + 3 * 300, 800));
    assert_eq!((stats.waits, stats.requests, stats.grants), (2, 10, 9));
    gate.give_back(0);
    gate.give_back(0);
    gate.submit(request(3, 1, 512 * KIB));
    let stats = gate.tags.stats();
    assert_eq!((stats.wakes, stats.woken), (2, 3), "two batches of grants");
}

#[test]
fn light_flow_waits_for_at_most_one_completion() {
    for (depth, exports, want) in [(4, 1, 1), (64, 1, 1), (64, 8, 1), (64, 1, 16), (256, 8, 32)] {
        let mut gate = Gate::new(depth, depth);
        let export = |n: u32| ExportId((n % exports) as u16);
        let heavy = |n: u32| TagRequest {
            export: export(n),
            ..request(n, want, u32::from(want) * 128 * KIB)
        };
        for n in 0..7 {
            gate.batch(&vec![heavy(n); 40]);
        }
        let light = TagRequest { export: export(7), ..request(7, 1, 4 * KIB) };
        let (mut number, mut waited, mut served) = (gate.submit(light), 0, 0);
        for step in 0..5_000 {
            let done = gate.done(0);
            if done == number {
                number = gate.submit(light);
                (waited, served) = (0, served + 1);
            } else if !gate.holds(number) {
                waited += 1;
            }
            assert!(waited <= 1, "depth {depth}, want {want}: waits at step {step}");
            if done != number && gate.requests[done].connection < 7 {
                gate.submit(heavy(gate.requests[done].connection));
            }
        }
        assert!(served >= 15, "depth {depth}: {served}");
    }
}

#[test]
fn light_flows_do_not_starve_heavy_flow() {
    // 300 connections with one small request at a time; any two of them could keep the device busy.
    for exports in [1, 2] {
        let mut gate = Gate::new(4, 4);
        let light = |n: u32| TagRequest {
            export: ExportId((n % exports) as u16),
            ..request(n, 1, 4 * KIB)
        };
        let heavy = request(1000, 1, 128 * KIB);
        gate.batch(&[heavy; 8]);
        gate.batch(&(0..300).map(light).collect::<Vec<_>>());
        let (mut heavy_bytes, mut all_bytes) = (0_u64, 0_u64);
        for _ in 0..100_000 {
            let done = gate.finish(0);
            gate.submit(done);
            all_bytes += u64::from(done.bytes);
            heavy_bytes += if done.connection == 1000 { u64::from(done.bytes) } else { 0 };
        }
        // One of 301 connections, or one of 151 of its export.
        let fair = all_bytes / 301;
        assert!(heavy_bytes >= fair * 9 / 10, "{heavy_bytes} of {all_bytes}");
    }
}

#[test]
fn one_time_connections_do_not_starve_persistent_ones() {
    let mut gate = Gate::new(4, 4);
    gate.batch(&[request(0, 1, 128 * KIB); 8]);
    let (mut stays, mut fresh) = (0, 1);
    for _ in 0..20_000 {
        let done = gate.finish(0);
        if done.connection == 0 {
            stays += 1;
            gate.submit(done);
        }
        while gate.waiting < 100 {
            gate.submit(request(fresh, 1, 64 * KIB));
            fresh += 1;
        }
    }
    // One of 100 that wait, with requests of twice the size: 100 would be fair. A quarter of the others go in their turns, the
    // rest in advance; an export's advance is bounded, otherwise this connection would starve.
    assert!(stays >= 15, "{stays} of 20000 requests");
}

#[test]
fn only_light_requests_go_while_byte_budget_is_used_up() {
    let mut gate = filled(32, 32);
    gate.put_in(&[
        request(1, 1, 128 * KIB),
        request(2, 4, 192 * KIB),
        request(3, 1, 32 * KIB + 512),
        request(4, 1, 32 * KIB),
    ]);
    gate.put_in(&[request(7, 1, 4 * KIB); 3]);
    (0..8).for_each(|_| _ = gate.give_back(0));
    gate.grants(ByteBudget::LightOnly);
    assert_eq!(order(&gate), [4], "one that came alone, not those of a queue");
    gate.put_in(&[request(5, 1, 16 * KIB), request(6, 1, 16 * KIB)]);
    gate.grants(ByteBudget::LightOnly);
    assert_eq!(order(&gate), [4, 5, 6], "each of them");
    gate.grants(ByteBudget::Available);
    assert!(order(&gate).contains(&1), "held requests go when the budget allows");
}

#[test]
fn only_requests_with_a_tight_target_go_while_bulk_is_at_its_limit() {
    let target = |connection, tags, bytes, target_us| TagRequest {
        target_us,
        ..request(connection, tags, bytes)
    };
    let guarded = |light_only| ByteBudget::Guarded { target_us: 500, light_only };
    let mut gate = filled(32, 32);
    gate.put_in(&[request(1, 4, 192 * KIB), target(2, 1, 4 * KIB, 900)]);
    gate.put_in(&[target(3, 8, 512 * KIB, 500), target(4, 1, 4 * KIB, 100)]);
    (0..4).for_each(|_| _ = gate.give_back(0));
    gate.grants(guarded(true));
    assert_eq!(order(&gate), [4], "the other limit is reached, too: only the small one");
    gate.grants(guarded(false));
    assert_eq!(order(&gate), [4], "the large one gathers its tags");
    gate.put_in(&[target(5, 1, 4 * KIB, 400)]);
    (0..8).for_each(|_| _ = gate.give_back(0));
    gate.grants(guarded(false));
    assert_eq!(order(&gate), [4, 3, 5], "a light one does not pass what gathers");
    (0..8).for_each(|_| _ = gate.give_back(0));
    gate.grants(guarded(false));
    assert_eq!(order(&gate).len(), 3, "looser targets and none wait");
    gate.grants(ByteBudget::Available);
    assert_eq!(order(&gate).len(), 5, "until the limit allows it");
}

#[test]
fn async_depth_limits_writes_and_reads_go_at_once() {
    for depth in [2, 3, 8, 16, 31, 62, 64, 256, 1024] {
        for async_depth in [1, depth / 4, depth / 2, depth - 1] {
            let mut gate = Gate::new(depth, async_depth.max(1));
            let write = |n: u32| TagRequest {
                sync: false,
                ..request(n % 5, 1 + (n % 2) as u16, 256 * KIB)
            };
            let write =
                |n: u32| TagRequest { tags: write(n).tags.min((depth / 2) as u16), ..write(n) };
            gate.batch(&(0..2 * depth).map(write).collect::<Vec<_>>());
            assert!(gate.waiting > 0, "depth {depth}, async {async_depth}");
            for n in 0..300 {
                // A read of a writer's connection or of another one, of any size.
                let read = gate.submit(request(n % 9, 1, (1 + n % 300) * KIB));
                assert!(gate.holds(read), "depth {depth}, async {async_depth}: read {n} waits");
                let at = gate.held.iter().position(|&number| number == read).unwrap();
                gate.done(at);
                gate.done(0);
                gate.submit(write(n));
            }
            assert!(!gate.held.is_empty(), "writes are served as well");
        }
    }
}

#[test]
fn async_limit_is_shared_by_turns() {
    // Some connections read and write, others only write; all get their share of writes.
    let mut gate = Gate::new(16, 2);
    let write = |n: u32| TagRequest { sync: false, ..request(n, 1, 32 * KIB) };
    for n in 0..6 {
        gate.batch(&[write(n); 3]);
        gate.batch(&vec![request(n, 1, 32 * KIB); if n < 2 { 12 } else { 0 }]);
    }
    let mut writes = [0; 6];
    for _ in 0..6_000 {
        let done = gate.finish(0);
        writes[done.connection as usize] += u32::from(!done.sync);
        gate.submit(done);
    }
    let (least, most) = (writes.iter().min().unwrap(), writes.iter().max().unwrap());
    assert!(*least > 0 && *least * 3 >= writes[2], "{writes:?}");
    assert!(writes[2..].iter().all(|n| n * 11 >= most * 10), "{writes:?}");
}

#[test]
#[should_panic(expected = "a tag was put back twice")]
fn second_put_of_tag_panics() {
    let mut gate = Gate::new(4, 4);
    gate.submit(request(1, 1, 4 * KIB));
    gate.held.push_back(0);
    gate.give_back(0);
    gate.give_back(0);
}

#[test]
fn connection_pays_for_flushes_and_retries() {
    let mut gate = filled(8, 8);
    gate.batch(&[request(1, 1, 128 * KIB); 8]);
    gate.batch(&[request(2, 1, 128 * KIB); 8]);
    (0..2).for_each(|_| _ = gate.done(0));
    gate.tags.charge(TenantId::NONE, ExportId(0), 1, 4 * 128 * u64::from(KIB));
    gate.tags.charge(TenantId::NONE, ExportId(0), 77, 1 << 40);
    (0..8).for_each(|_| _ = gate.done(0));
    let order = order(&gate);
    assert_eq!(order.iter().filter(|&&connection| connection == 1).count(), 3, "{order:?}");
}
