//! Shares at a device that takes fewer commands than there are tags: late binding, what may pass, and the window of an elevator.

use headworks_core::prng::Prng;
use headworks_core::{Control, ExportConfig, ExportId, Input, Scheduler, TenantConfig, TenantId};

use crate::bench::Bench;

/// Commands that the device takes.
const DEPTH: u32 = 8;

/// Closed loops: each connection has an export of its own and keeps some requests outstanding. The device answers in order.
struct Loops {
    bench: Bench,
    prng: Prng,
    answers: Vec<u64>,
    /// Commands that are answered.
    done: usize,
}

impl Loops {
    fn new(
        scheduler: Scheduler,
        exports: &[(u16, TenantId)],
        tenants: &[u16],
        depths: &[u32],
    ) -> Self {
        let bench = Bench::with(|config| {
            let queue = &mut config.devices[0].queue;
            (queue.scheduler, queue.nr_requests, queue.queue_depth) = (scheduler, 256, DEPTH);
            let export = |&(weight, tenant): &(u16, TenantId)| ExportConfig {
                weight,
                tenant,
                ..ExportConfig::default()
            };
            config.exports = exports.iter().map(export).collect();
            let tenant = |&weight: &u16| TenantConfig { weight, ..TenantConfig::default() };
            config.tenants = tenants.iter().map(tenant).collect();
        });
        let answers = vec![0; depths.len()];
        let mut loops = Self { bench, prng: Prng::new(1), answers, done: 0 };
        for (connection, &depth) in (0..).zip(depths) {
            let inputs: Vec<Input> = (0..depth).map(|_| loops.next(connection)).collect();
            loops.bench.turn(&inputs);
        }
        loops
    }

    /// Returns the next bio of a connection: 4 KiB that touch no others.
    fn next(&mut self, connection: u32) -> Input {
        let word = format!("R{}k+4k!nomerge", self.prng.below(1 << 16) * 8);
        let Input::Bio(mut bio) = self.bench.bio(&word) else { unreachable!() };
        (bio.id.connection, bio.id.export) = (connection, ExportId(connection as u16));
        Input::Bio(bio)
    }

    /// Answers the oldest command, and its connection asks again.
    fn step(&mut self) {
        let connection = self.bench.command(self.done).segments[0].bio.connection;
        self.bench.now += 100_000;
        self.bench.done(self.done);
        self.done += 1;
        self.answers[connection as usize] += 1;
        let next = self.next(connection);
        self.bench.turn(&[next]);
    }

    /// Returns the parts of the answers of so many steps after a while.
    fn parts(&mut self, steps: u32) -> Vec<f64> {
        (0..steps / 10).for_each(|_| self.step());
        let before = self.answers.clone();
        (0..steps).for_each(|_| self.step());
        let part = |(now, before)| (now - before) as f64 / f64::from(steps);
        self.answers.iter().zip(&before).map(part).collect()
    }
}

fn assert_near(parts: &[f64], wanted: &[f64], off: f64) {
    for (part, wanted) in parts.iter().zip(wanted) {
        assert!((part / wanted - 1.0).abs() <= off, "{parts:?} are not {wanted:?}");
    }
}

/// All fit into the tags and none into the device: weights decide, with either elevator.
#[test]
fn weights_hold_when_requests_outstanding_fit_into_the_tags() {
    for (scheduler, off) in [(Scheduler::None, 0.05), (Scheduler::MqDeadline, 0.1)] {
        let exports = [1, 7, 50].map(|weight| (weight, TenantId::NONE));
        let mut loops = Loops::new(scheduler, &exports, &[], &[32; 3]);
        let parts = loops.parts(5800);
        assert_near(&parts, &[1.0 / 58.0, 7.0 / 58.0, 50.0 / 58.0], off);
    }
}

/// A tenant's weight is divided among its exports, also in the window of an elevator that sorts.
#[test]
fn weights_of_tenants_hold_when_requests_outstanding_fit_into_the_tags() {
    for (scheduler, off) in [(Scheduler::None, 0.05), (Scheduler::MqDeadline, 0.1)] {
        let exports = [(100, TenantId(0)), (100, TenantId(1)), (300, TenantId(1))];
        let mut loops = Loops::new(scheduler, &exports, &[100, 300], &[32; 3]);
        assert_near(&loops.parts(4000), &[0.25, 0.1875, 0.5625], off);
    }
}

/// A weight that changes under load is that of the window, too.
#[test]
fn changed_weight_decides_under_load() {
    for (scheduler, off) in [(Scheduler::None, 0.05), (Scheduler::MqDeadline, 0.1)] {
        let exports = [(100, TenantId::NONE); 2];
        let mut loops = Loops::new(scheduler, &exports, &[], &[32; 2]);
        assert_near(&loops.parts(2000), &[0.5, 0.5], 0.02);
        loops.bench.control(Control::Weight { export: ExportId(1), weight: 900 });
        assert_near(&loops.parts(2000), &[0.1, 0.9], off);
    }
}

/// Behind a full device requests wait at the gate, where weights decide; only what came alone and was paid for passes.
#[test]
fn device_without_elevator_is_given_no_more_than_it_takes() {
    let mut depths = vec![32; 4];
    depths.extend([1; 4]);
    let exports = vec![(100, TenantId::NONE); depths.len()];
    let mut loops = Loops::new(Scheduler::None, &exports, &[], &depths);
    for _ in 0..3000 {
        loops.step();
        let held = 256 - loops.bench.tags_free();
        assert!(held >= 2, "the device is kept busy");
        assert!(held <= DEPTH + 4, "{held} held: each of the light ones has one request");
    }
    assert!(loops.answers.iter().all(|&answers| answers > 50), "{:?}", loops.answers);
}

#[test]
fn light_request_passes_a_full_device_when_another_has_paid() {
    let mut bench = Bench::new(|queue| (queue.queue_depth, queue.nr_requests) = (2, 16));
    bench.bios("R0+4k R1m+4k R2m+4k R3m+4k R4m+4k R5m+4k");
    let Input::Bio(mut light) = bench.bio("R64m+4k") else { unreachable!() };
    light.id.connection = 1;
    bench.turn(&[Input::Bio(light)]);
    assert_eq!(bench.tags_free(), 14, "no request was granted that pays for it");
    bench.done(0);
    assert_eq!(bench.tags_free(), 13, "one for the place in the device, and the light one");
    bench.done(1);
    assert_eq!(bench.tags_free(), 14, "none more passes");
    bench.finish_from(2);
    bench.assert_quiet();
}

/// A few light requests do not break the order of the sweep for more than one command each.
#[test]
fn express_requests_alternate_with_sorted_ones() {
    let exports = vec![(100, TenantId::NONE); 10];
    let mut depths = vec![64];
    depths.extend([1; 9]);
    let mut loops = Loops::new(Scheduler::MqDeadline, &exports, &[], &depths);
    let parts = loops.parts(4000);
    assert!(parts[0] > 0.05, "the deep one is not starved: {parts:?}");
    let light = &loops.answers[1..];
    assert!(light.iter().all(|&answers| answers > 100), "each light one is served: {light:?}");
}
