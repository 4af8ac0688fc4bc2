//! Writers and devices that differ.

use super::super::model::{Model, mb};
use super::report;
use crate::bio::IoClass;
use crate::time::{MS, SEC};

#[test]
fn shares() {
    for (bw, pool) in [(700, 4096), (700, 256), (200, 4096)] {
        for class in [IoClass::BestEffort, IoClass::RealTime] {
            let mut model = Model::new(pool, &[mb(bw)]);
            model.add(100, 0);
            let light = model.add_one(0, 65_536_000, class);
            model.run(5 * SEC);
            model.reset();
            model.run(60 * SEC);
            let told = report(&mut model);
            eprintln!(
                "light {class:?} {bw} {pool}: waited {:.3} % blocks {} {}",
                model.writers[light].waited_ns as f64 / 60e9 * 100.,
                model.writers[light].blocks,
                told
            );
        }
    }
    for pool in [256, 4096] {
        for n in [1, 10, 100] {
            let mut model = Model::new(pool, &[mb(700), mb(70)]);
            model.add(n, 0);
            model.add(n, 1);
            model.run(15 * SEC);
            model.reset();
            model.run(20 * SEC);
            eprintln!("two {pool} {n}: {}", report(&mut model));
            model.devices[1].dead = true;
            model.run(20 * SEC);
            model.reset();
            model.run(20 * SEC);
            eprintln!("dead slow {pool} {n}: {}", report(&mut model));
            model.revive(1);
            model.run(20 * SEC);
            model.reset();
            model.run(20 * SEC);
            eprintln!("again {pool} {n}: {}", report(&mut model));
            let mut model = Model::new(pool, &[mb(700), mb(70)]);
            model.add(n, 0);
            model.run(10 * SEC);
            model.devices[0].dead = true;
            model.add(n, 1);
            model.run(15 * SEC);
            model.reset();
            model.run(20 * SEC);
            eprintln!("dead fast {pool} {n}: {}", report(&mut model));
        }
    }
    // A11
    let mut model = Model::new(4096, &[mb(60)]);
    let per = |m: u64| 65536 * 1000 / m - 5000;
    let w: Vec<usize> =
        [10, 10, 20].iter().map(|m| model.add_one(0, per(*m), IoClass::BestEffort)).collect();
    model.add(1, 0);
    model.run(20 * SEC);
    model.reset();
    model.run(20 * SEC);
    for w in w {
        eprintln!(
            "A11 {} MB/s waited {:.2} %",
            model.writers[w].blocks as f64 * 4096. / 20e6,
            model.writers[w].waited_ns as f64 / 20e9 * 100.
        )
    }
    eprintln!("A11: {}", report(&mut model));
    let _ = MS;
}
