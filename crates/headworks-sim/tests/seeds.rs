//! Regression tests: simulated worlds that once failed, by seed.

use headworks_sim::check::Failure;
use headworks_sim::limits::LimitScenario;
use headworks_sim::scenario::Scenario;
use headworks_sim::world::Outcome;

/// Runs a world as it was when it failed: without upgrades and limits.
fn run(scenario: Scenario) -> Result<Outcome, Box<Failure>> {
    let mut scenario = Scenario { upgrades: 0, limits: LimitScenario::default(), ..scenario };
    scenario.cache.dirty_table = false;
    headworks_sim::run(scenario)
}

/// Two shards' caches took all bio slots of the shard that owns their device; its own cache had none.
const BIO_SLOTS_EXHAUSTED: u64 = 500_519;
/// A write-out failed while a discard waited for it: the block became dirty again without data.
const FAILED_UNDER_DISCARD: u64 = 50;
/// The dirty limits were changed, and no event woke the throttled writers. On four shards.
const WRITERS_NOT_WOKEN: u64 = 920_340;

/// A flush ignored blocks dirtied in a folio whose older blocks were still under write-out.
const FLUSHED_TOO_EARLY: u64 = 3_000_076;

/// The throttle's policy changed while a writer waited under the old one.
const POLICY_CHANGED_UNDER_WRITER: u64 = 169_490_432_799;

/// A discard cancelled the write-out of a FUA write, which was answered Ok and never written.
const DISCARDED_UNDER_FUA: u64 = 432_840_006_673;
/// In a small pool, blocks were evicted between their fill and the step of their waiter. On four shards.
const EVICTED_BEFORE_USE: u64 = 750_485_048_017;

#[test]
fn world_with_a_tiny_pool_makes_progress() {
    if let Err(failure) = run(Scenario::draw(EVICTED_BEFORE_USE, Some(4))) {
        panic!("{failure}");
    }
}

/// Dirty limits changed while writes failed: writers waited for dirty credit without end.
const WRITERS_WITHOUT_CREDIT: u64 = 299_479_692_027;
/// The checker waited for the last command for less time than an old tag policy takes to wake up. On four shards.
const IDLE_TOO_EARLY: u64 = 378_683_961_681;
/// The checker took idle ticks of a short write-back interval for work without end. On two shards.
const IDLE_TICKS: u64 = 670_606_918_819;
/// A bio of the idle class waited for a busy disk for longer than `io_timeout`. On two shards.
const IDLE_CLASS_WAITED: u64 = 273_667_998;

/// A bio that had waited long for a frame reached an idle device, which was taken for an unresponsive one at once.
const IDLE_DEVICE_BLAMED: u64 = 672_588_883_183;

/// Shards passed the tags of a device with bfq to each other without end. On four shards.
const TAGS_PASSED_ON: u64 = 2_679_514_618;

/// The process died between the growth of an image and the volume's: old bytes of the last block's frame were restored into it.
const OLD_BYTES_PAST_THE_END: u64 = 166_270_597_855;
/// The same, read as bytes that were never written.
const UNWRITTEN_BYTES_PAST_THE_END: u64 = 777_073;

#[test]
fn worlds_of_process_deaths_that_once_failed_pass() {
    for seed in [UNWRITTEN_BYTES_PAST_THE_END, OLD_BYTES_PAST_THE_END] {
        let limits = LimitScenario::default();
        if let Err(failure) =
            headworks_sim::run(Scenario { limits, ..Scenario::draw_death(seed, None) })
        {
            panic!("{failure}");
        }
    }
}

#[test]
fn smoke_worlds_that_once_failed_pass() {
    let worlds = [
        (WRITERS_WITHOUT_CREDIT, None),
        (IDLE_TOO_EARLY, Some(4)),
        (IDLE_TICKS, Some(2)),
        (IDLE_CLASS_WAITED, Some(2)),
        (TAGS_PASSED_ON, Some(4)),
        (IDLE_DEVICE_BLAMED, None),
    ];
    for (seed, shards) in worlds {
        if let Err(failure) = run(Scenario::draw(seed, shards)) {
            panic!("{failure}");
        }
    }
}

#[test]
fn worlds_that_once_failed_pass() {
    let worlds = [
        (BIO_SLOTS_EXHAUSTED, None),
        (FAILED_UNDER_DISCARD, None),
        (FLUSHED_TOO_EARLY, None),
        (WRITERS_NOT_WOKEN, Some(4)),
        (POLICY_CHANGED_UNDER_WRITER, None),
        (DISCARDED_UNDER_FUA, None),
    ];
    for (seed, shards) in worlds {
        let scenario = Scenario::draw_crash(seed, shards, false);
        if let Err(failure) = run(scenario) {
            panic!("{failure}");
        }
    }
}
