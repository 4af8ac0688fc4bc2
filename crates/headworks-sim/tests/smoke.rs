//! Swarm scenarios over consecutive seeds: no violation, reproducible hashes. That enough of them reach every point that is to be
//! covered, and pass, the optimised program shows in every test run (`scripts/worlds smoke-1 smoke-2`); here some run with assertions.

use headworks_sim::SmokeRun;
use headworks_sim::coverage::Point;
use headworks_sim::smoke::SmokeKind;

#[test]
fn swarm_scenarios_pass() {
    let mut smoke = SmokeRun::new(1, None);
    for _ in 0..80 {
        smoke.run_next().unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn equal_seeds_give_equal_hashes() {
    let hash = |seed, shards| {
        let mut smoke = SmokeRun::new(seed, shards);
        (0..3).for_each(|_| smoke.run_next().unwrap());
        smoke.hash()
    };
    assert_eq!(hash(7, None), hash(7, None));
    assert_ne!(hash(7, None), hash(8, None));
    assert_ne!(hash(7, Some(1)), hash(7, Some(4)));
}

#[test]
fn worlds_with_many_tenants_pass() {
    let mut smoke = SmokeRun::new(1, None);
    smoke.kind = SmokeKind::ManyTenants;
    for _ in 0..6 {
        smoke.run_next().unwrap_or_else(|failure| panic!("{failure}"));
    }
    for point in [Point::Limited, Point::LimitChanged, Point::TenantChanged, Point::LimitCut] {
        assert!(smoke.coverage.count(point) > 0, "{point:?}");
    }
}
