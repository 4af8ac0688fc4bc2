//! Devices that write in bursts, stand still or die.

use super::super::model::{Model, mb};
use super::{rates_percent, report};
use crate::time::{MS, SEC};

#[test]
fn bursts() {
    for pool in [256, 4096] {
        for n in [1, 10, 100] {
            let mut model = Model::new(pool, &[mb(100)]);
            model.devices[0].burst = 8192;
            model.add(n, 0);
            model.run(20 * SEC);
            model.reset();
            model.run(20 * SEC);
            eprintln!(
                "burst {pool} {n}: rates {:.1} {}",
                rates_percent(&model, 0),
                report(&mut model)
            );
        }
        for n in [1, 10, 100, 1000] {
            let mut model = Model::new(pool, &[mb(700)]);
            model.devices[0].stall = Some((2 * SEC, 400 * MS));
            model.add(n, 0);
            model.run(20 * SEC);
            model.reset();
            model.run(20 * SEC);
            eprintln!(
                "stall {pool} {n}: rates {:.1} {}",
                rates_percent(&model, 0),
                report(&mut model)
            );
        }
    }
}
