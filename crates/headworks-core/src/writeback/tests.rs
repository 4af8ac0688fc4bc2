//! The throttle against modelled devices and writers, in virtual time.

use super::model::{BIO, Model, mb};
use crate::time::SEC;

fn report(name: &str, model: &mut Model) {
    let stats = model.throttle.device_stats(crate::bio::DeviceId(0));
    let limit = model.throttle.stats().nr_dirty_threshold as f64;
    eprintln!(
        "{name}: busy {:.2} % wakes {:.0}/s timers {:.0}/s pause p50 {:.1} p99 {:.1} max {:.1} ms, jain {:.4}, used {:.3}..{:.3}, bw {} rate*n {} n {} pos {}",
        model.busy_percent(0),
        model.wakes_per_second(),
        model.timers as f64 * 1e9 / model.elapsed() as f64,
        model.pause_ms(50),
        model.pause_ms(99),
        model.pause_ms(100),
        model.jain(0),
        model.used_min as f64 / limit,
        model.used_max as f64 / limit,
        stats.write_bandwidth,
        stats.dirty_ratelimit * stats.writers_milli / 1000,
        stats.writers_milli,
        stats.pos_ratio,
    );
}

#[test]
fn matrix() {
    for pool in [256, 4096] {
        for bandwidth in [10, 700, 3000] {
            for writers in [1, 10, 100, 1000] {
                let start = std::time::Instant::now();
                let mut model = Model::new(pool, &[mb(bandwidth)]);
                model.add(writers, 0);
                model.run(20 * SEC);
                if bandwidth == 10 && writers == 1000 {
                    model.run(20 * SEC)
                }
                model.reset();
                model.run(10 * SEC);
                report(&format!("{pool} MiB {bandwidth} MB/s {writers}"), &mut model);
                eprintln!("      real {:?}", start.elapsed());
            }
        }
    }
    let _ = BIO;
}
