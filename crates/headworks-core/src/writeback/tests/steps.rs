//! What changes: bandwidth, writers, limits.

use super::super::model::{Model, mb};
use super::{rates_percent, report, second_percent};
use crate::time::SEC;

#[test]
fn steps() {
    for pool in [256, 4096] {
        for writers in [10, 100, 1000] {
            let mut model = Model::new(pool, &[mb(700)]);
            model.add(writers, 0);
            for (second, bandwidth) in [(0, 700), (10, 200), (20, 700)] {
                model.run(if second == 0 { 0 } else { 7 * SEC });
                model.reset();
                model.devices[0].bandwidth = mb(bandwidth);
                let mut s = vec![];
                for _ in 0..3 {
                    s.push(second_percent(&mut model, 0));
                }
                eprintln!(
                    "{pool} {writers} -> {bandwidth}: {s:.1?} rates {:.1} {}",
                    rates_percent(&model, 0),
                    report(&mut model)
                );
            }
        }
        for (bw, n) in [(700, 10), (700, 100), (10, 10), (3000, 100)] {
            let mut model = Model::new(pool, &[mb(bw)]);
            model.add(n, 0);
            model.run(10 * SEC);
            model.reset();
            model.add(n * 9, 0);
            let mut s = vec![];
            for _ in 0..3 {
                s.push(second_percent(&mut model, 0));
            }
            eprintln!(
                "{pool} {bw} {n}*10: {s:.1?} rates {:.1} {}",
                rates_percent(&model, 0),
                report(&mut model)
            );
            model.run(10 * SEC);
            model.reset();
            for w in n..n * 10 {
                model.close(w)
            }
            let mut s = vec![];
            for _ in 0..3 {
                s.push(second_percent(&mut model, 0));
            }
            eprintln!(
                "{pool} {bw} {n}/10: {s:.1?} rates {:.1} {}",
                rates_percent(&model, 0),
                report(&mut model)
            );
        }
        let mut model = Model::new(pool, &[mb(700)]);
        model.add(1000, 0);
        let mut s = vec![];
        for _ in 0..3 {
            s.push(second_percent(&mut model, 0));
        }
        eprintln!(
            "{pool} cold: {s:.1?} rates {:.1} {}",
            rates_percent(&model, 0),
            report(&mut model)
        );
    }
}
