//! Shares of a saturated device.

use headworks_core::ExportId;
use headworks_core::prng::Prng;
use headworks_core::tags::TagRequest;

use crate::gate::{Gate, KIB, request};

/// Completes the oldest request and submits another one, `steps` times. Returns the bytes completed, by `key`.
fn run(
    gate: &mut Gate,
    steps: usize,
    keys: usize,
    mut again: impl FnMut(&TagRequest) -> TagRequest,
    key: impl Fn(&TagRequest) -> usize,
) -> Vec<f64> {
    let mut bytes = vec![0.0; keys];
    for _ in 0..steps {
        let done = gate.finish(0);
        bytes[key(&done)] += f64::from(done.bytes);
        gate.submit(again(&done));
        gate.now += 1;
    }
    bytes
}

fn jain(bytes: &[f64]) -> f64 {
    let (sum, squares) = (bytes.iter().sum::<f64>(), bytes.iter().map(|x| x * x).sum::<f64>());
    sum * sum / (bytes.len() as f64 * squares)
}

/// Sets the size: 4 KiB to 1 MiB; requests over 256 KiB are split.
fn sized(from: TagRequest, size: u32) -> TagRequest {
    let bytes = (4 * KIB) << (size % 9);
    let cost = bytes.max(4096).into();
    TagRequest { bytes, cost, tags: bytes.div_ceil(256 * KIB) as u16, ..from }
}

#[test]
fn equal_connections_get_equal_bytes_with_any_sizes() {
    for (flows, steps) in [(2, 20_000), (8, 40_000), (512, 200_000)] {
        for depth in [62, 64, 256] {
            let mut gate = Gate::new(depth, depth);
            // Half of the connections have a fixed size each, the others mix sizes.
            let mut prng = Prng::new(u64::from(flows));
            let mut next = |n: u32| {
                let size = if n.is_multiple_of(2) { n / 2 } else { prng.below(9) as u32 };
                sized(request(n, 1, 0), size)
            };
            for n in 0..flows {
                // Connections with small requests need more of them to be always waiting.
                let many = if next(n).bytes < 64 * KIB { 300 } else { 40 };
                let many = if flows > 100 { many / 10 } else { many };
                let requests: Vec<TagRequest> = (0..many).map(|_| next(n)).collect();
                gate.batch(&requests);
            }
            let key = |request: &TagRequest| request.connection as usize;
            run(&mut gate, steps / 10, flows as usize, |done| next(done.connection), key);
            let bytes = run(&mut gate, steps, flows as usize, |done| next(done.connection), key);
            let index = jain(&bytes);
            assert!(index >= 0.99, "{flows} flows, depth {depth}: {index:.4} {bytes:?}");
        }
    }
}

#[test]
fn exports_get_bytes_by_weight_with_any_connections() {
    for (weights, connections) in [
        ([100, 200, 400], [4, 4, 4]),
        ([100, 200, 400], [40, 5, 1]),
        ([1, 2, 4], [1, 7, 3]),
        ([2500, 5000, 10_000], [2, 2, 2]),
    ] {
        let mut gate = Gate::new(64, 64);
        let mut prng = Prng::new(7);
        let mut next = |export: u16, connection: u32| {
            let export_id = ExportId(export);
            let weight = weights[usize::from(export)];
            let from = TagRequest { export: export_id, weight, ..request(connection, 1, 0) };
            sized(from, prng.below(9) as u32)
        };
        for export in 0..3 {
            for n in 0..240 {
                let requests = next(export, n % connections[usize::from(export)]);
                gate.submit(requests);
            }
        }
        let key = |request: &TagRequest| usize::from(request.export.0);
        run(&mut gate, 10_000, 3, |done| next(done.export.0, done.connection), key);
        let bytes = run(&mut gate, 200_000, 3, |done| next(done.export.0, done.connection), key);
        for (got, want) in [(bytes[1] / bytes[0], 2.0), (bytes[2] / bytes[0], 4.0)] {
            assert!((got / want - 1.0).abs() < 0.05, "{weights:?} {connections:?}: {bytes:?}");
        }
    }
}

#[test]
fn light_connections_are_charged_to_their_export() {
    // Export 1 has 64 connections with one small request at a time; export 0 has one that always waits. Equal weights.
    let mut gate = Gate::new(8, 8);
    gate.batch(&[request(0, 1, 128 * KIB); 16]);
    let light = |n: u32| TagRequest { export: ExportId(1), ..request(n, 1, 16 * KIB) };
    gate.batch(&(0..64).map(light).collect::<Vec<_>>());
    let key = |request: &TagRequest| usize::from(request.export.0);
    let bytes = run(&mut gate, 50_000, 2, |done| *done, key);
    assert!((bytes[0] / bytes[1] - 1.0).abs() < 0.05, "{bytes:?}");
}

#[test]
fn changed_weight_applies_from_next_request() {
    let mut gate = Gate::new(8, 8);
    let of = |export: u16, weight| TagRequest {
        export: ExportId(export),
        weight,
        ..request(1, 1, 64 * KIB)
    };
    for export in 0..2 {
        gate.batch(&vec![of(export, 100); 50]);
    }
    let key = |request: &TagRequest| usize::from(request.export.0);
    let heavier = |done: &TagRequest| of(done.export.0, if done.export.0 == 1 { 300 } else { 100 });
    run(&mut gate, 100, 2, heavier, key);
    let bytes = run(&mut gate, 20_000, 2, heavier, key);
    assert!((bytes[1] / bytes[0] / 3.0 - 1.0).abs() < 0.05, "{bytes:?}");
}
