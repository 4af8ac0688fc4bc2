//! The baseline tag policies: what they get wrong, what each patch of the series changes, and that both end.

mod bed;

use bed::{Bed, Load};
use headworks_core::WakeOptions;
use headworks_core::tags::{KuaiV3, Legacy518, TagOptions};

fn options(depth: u32) -> TagOptions {
    TagOptions { depth, async_depth: depth, waiters_max: 2048 }
}

#[test]
fn figures() {
    for depth in [62, 64] {
        for jobs in [1, 8, 16, 32, 64, 128, 256, 512] {
            for latency_ns in [100_000, 1_000_000, 10_000_000] {
                let load = Load { jobs, latency_ns, ..Load::default() };
                let mut a = Bed::new(Legacy518::new(options(depth), WakeOptions::default()), load);
                a.run(200 * latency_ns);
                a.forget();
                a.run(1000 * latency_ns);
                let mut b = Bed::new(KuaiV3::new(options(depth), WakeOptions::default()), load);
                b.run(200 * latency_ns);
                b.forget();
                b.run(1000 * latency_ns);
                use headworks_core::tags::TagOwner;
                println!(
                    "{depth} {jobs} {latency_ns} legacy {:.3} {:?} {} kuai {:.3} {:?} {}",
                    a.sequential_ratio(),
                    a.tags.waiters_per_queue(),
                    a.tags.stats().rescues,
                    b.sequential_ratio(),
                    b.tags.waiters_per_queue(),
                    b.tags.stats().rescues
                );
            }
        }
    }
}
