//! Seed 003 in real time: the cost of a hit of 64 KiB with folios of 4 KiB and with large ones, by
//! identical code.
//!
//! ```text
//!   order 0:  bio -> 16 look-ups, 16 copies of 4 KiB          whole = measuring + bookkeeping + copying
//!   order 9:  bio ->  1 look-up,   1 copy of 64 KiB
//! ```
//!
//! Each part is measured: `nothing` makes the bios and reads the clock, `all but copies` leaves out
//! only the copying, `copy` copies as many bytes between similar addresses. Bookkeeping is `all but
//! copies` minus `nothing`. Times are CPU time of the one thread, in alternating runs; medians are
//! judged.

use headworks::house::Mapping;
use headworks_core::prng::Prng;
use headworks_core::{ConfigError, Op};

use crate::cached::driver::{BatchWork, CacheDriver, CacheDriverOptions, Io};
use crate::cached::{dirty_all, spread, thread_cpu_ns};
use crate::report::Progress;
use crate::report::{Goal, Report, Row, Verdict};
use crate::row_filter::RowFilter;

const TABLE: &str = "hits of 64 KiB";
const BYTES: u32 = 64 << 10;
/// Much larger than any processor cache, so that copies come from memory.
const SIZE: u64 = 512 << 20;
/// 4 of 64 KiB: the bytes that a connection may copy in one turn of the server.
const BATCH: u64 = 4;
const CONNECTIONS: u32 = 4;
const ROUNDS: u32 = 5;
const BATCHES: u64 = 10_000;
/// Percentages of writes.
const WRITES: [u32; 4] = [0, 10, 30, 50];
const ORDERS: [u8; 2] = [0, 9];
/// Goal: bookkeeping with small folios, as a multiple of that with large ones.
const BOOKKEEPING: f64 = 8.0;
/// Goal: a whole hit with small folios, as a multiple of that with large ones.
const WHOLE: f64 = 1.6;
/// Goal: index operations per MiB, one for each bio of 64 KiB.
const INDEX: f64 = 16.0;
/// Bounds of the cost of small folios, so that a slow baseline does not count as a gain: times the
/// copy, and ns for each folio.
const SMALL: (f64, f64) = (1.5, 40.0);

/// The size of a run; tests use a smaller one.
#[derive(Clone, Copy, Debug)]
struct Load {
    size: u64,
    rounds: u32,
    batches: u64,
}

/// A part of the work of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Hit(BatchWork),
    Copy,
}

impl Part {
    const ALL: [(&'static str, Self); 4] = [
        ("whole_ns", Self::Hit(BatchWork::Everything)),
        ("all_but_copies_ns", Self::Hit(BatchWork::AllButCopies)),
        ("nothing_ns", Self::Hit(BatchWork::Nothing)),
        ("copy_ns", Self::Copy),
    ];
}

/// Runs the experiment.
///
/// # Errors
/// Not enough memory, or a failed bio.
pub fn run_all(filter: &RowFilter) -> Result<Report, ConfigError> {
    if !filter.has_jobs(CONNECTIONS) || !filter.has_device("null") {
        return Ok(Report::default());
    }
    run_for(filter.seed, Load { size: SIZE, rounds: ROUNDS, batches: BATCHES })
}

fn run_for(seed: u64, load: Load) -> Result<Report, ConfigError> {
    let mut sides = Vec::new();
    for order in ORDERS {
        sides.push(Side::new(order, seed, load)?);
    }
    let mut progress = Progress::new("seed-003 for real", WRITES.len() * load.rounds as usize);
    let mut rows = Vec::new();
    for writes in WRITES {
        let mut times = vec![[(); Part::ALL.len()].map(|()| Vec::new()); sides.len()];
        for _ in 0..load.rounds {
            for (index, (_, part)) in Part::ALL.into_iter().enumerate() {
                for (side, times) in sides.iter_mut().zip(&mut times) {
                    times[index].push(side.run(part, writes)?);
                }
            }
            progress.step();
        }
        for (side, times) in sides.iter_mut().zip(&times) {
            rows.push(side.row(writes, times)?);
        }
    }
    let note = format!(
        "{TABLE}: a set of {} MiB on a null device, {CONNECTIONS} connections, {BATCH} bios a call, {} runs of each in turn, \
         medians; ns of the one thread",
        load.size >> 20,
        load.rounds
    );
    Ok(Report {
        title: "seed-003 for real".into(),
        notes: vec![note],
        verdicts: judge(&rows),
        rows,
    })
}

/// A cache with folios up to one order, which holds the whole set.
struct Side {
    order: u8,
    driver: CacheDriver,
    /// Memory as large as the set, for plain copies.
    plain: Mapping,
    buffer: Vec<u8>,
    prng: Prng,
    load: Load,
    /// Index operations and bytes of the counted whole hits.
    looked_up: u64,
    bytes: u64,
}

impl Side {
    fn new(order: u8, seed: u64, load: Load) -> Result<Self, ConfigError> {
        let pool = load.size * 5 / 2;
        let options =
            CacheDriverOptions { size: load.size, pool, max_folio_order: order, kept: false };
        let mut driver = CacheDriver::new(&options)?;
        dirty_all(&mut driver, load.size)?;
        let (plain, _) = Mapping::huge(load.size as usize)
            .map_err(|error| ConfigError::new("live", format!("no memory: {error}")))?;
        // SAFETY: all of our own mapping.
        unsafe { plain.base().write_bytes(7, plain.len()) };
        let buffer = vec![0; BATCH as usize * BYTES as usize];
        Ok(Self {
            order,
            driver,
            plain,
            buffer,
            prng: Prng::new(seed),
            load,
            looked_up: 0,
            bytes: 0,
        })
    }

    /// Nanoseconds per bio.
    fn run(&mut self, part: Part, writes: u32) -> Result<f64, ConfigError> {
        let batches = self.load.batches;
        self.batches(part, writes, batches / 10)?;
        let looked_up = self.index_operations();
        let before = thread_cpu_ns();
        self.batches(part, writes, batches)?;
        let ns = (thread_cpu_ns() - before) as f64;
        if part == Part::Hit(BatchWork::Everything) {
            self.looked_up += self.index_operations() - looked_up;
            self.bytes += batches * BATCH * u64::from(BYTES);
        }
        Ok(ns / (batches * BATCH) as f64)
    }

    fn index_operations(&self) -> u64 {
        self.driver.shard().cache_stats().map_or(0, |stats| stats.index.operations)
    }

    fn batches(&mut self, part: Part, writes: u32, batches: u64) -> Result<(), ConfigError> {
        let Self { driver, plain, buffer, prng, load, .. } = self;
        let blocks = load.size / u64::from(BYTES);
        let mut io = |number: u64| Io {
            op: if prng.below(100) < writes.into() { Op::Write } else { Op::Read },
            offset: prng.below(blocks) * u64::from(BYTES),
            len: BYTES,
            connection: (number % u64::from(CONNECTIONS)) as u32,
        };
        for batch in 0..batches {
            let ios = (batch * BATCH..(batch + 1) * BATCH).map(&mut io);
            match part {
                Part::Hit(work) => driver.call(work, ios)?,
                Part::Copy => {
                    let slots = buffer.chunks_exact_mut(BYTES as usize);
                    ios.zip(slots).for_each(|(io, slot)| copy(plain, io, slot));
                }
            }
        }
        Ok(())
    }

    fn row(&mut self, writes: u32, times: &[Vec<f64>]) -> Result<Row, ConfigError> {
        let mut row = Row::new(TABLE)
            .with("max_folio_order", self.order)
            .with("writes_percent", writes)
            .with("runs", self.load.rounds)
            .with("bios", u64::from(self.load.rounds) * self.load.batches * BATCH)
            .with("waited", self.driver.waited)
            .with("index_operations", std::mem::take(&mut self.looked_up))
            .with("mib", std::mem::take(&mut self.bytes) >> 20);
        for ((name, _), times) in Part::ALL.into_iter().zip(times) {
            let [least, median, most] = spread(times.iter().copied());
            row = row.with_real(name, median, 1);
            if name == "whole_ns" {
                row = row.with_real("least", least, 1).with_real("most", most, 1);
            }
        }
        Ok(row)
    }
}

#[inline]
fn copy(plain: &Mapping, io: Io, slot: &mut [u8]) {
    let place = plain.at(io.offset as usize, slot.len());
    // SAFETY: inside the mapping, which is used here only; the slot is other memory.
    unsafe {
        match io.op {
            Op::Write => place.copy_from_nonoverlapping(slot.as_ptr(), slot.len()),
            _ => slot.as_mut_ptr().copy_from_nonoverlapping(place, slot.len()),
        }
    }
}

/// Computes the verdicts of the rows.
#[must_use]
pub fn judge(rows: &[Row]) -> Vec<Verdict> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.table == TABLE).collect();
    let bookkeeping = |row: &Row| (row.real("all_but_copies_ns") - row.real("nothing_ns")).max(0.1);
    let mut verdicts = Vec::new();
    for small in rows.iter().filter(|row| row.int("max_folio_order") == 0) {
        let writes = small.int("writes_percent");
        let alike =
            |row: &&&Row| row.int("max_folio_order") > 0 && row.int("writes_percent") == writes;
        let most = SMALL.0 * small.real("copy_ns") + SMALL.1 * f64::from(BYTES / 4096);
        let whole = small.real("whole_ns");
        // Without this guard a slow baseline would look like a gain.
        let guard = Verdict {
            what: format!("{writes} % writes: order 0, whole, ns"),
            ours: Some(whole),
            goal: Some(Goal::AtMost(most)),
            ..Verdict::default()
        };
        verdicts.push(guard);
        let mut say = |what: &str, baseline: Option<f64>, ours: f64, goal: Goal| {
            let what = format!("{writes} % writes: {what}");
            verdicts.push(Verdict {
                what,
                seed: None,
                baseline,
                ours: Some(ours),
                goal: Some(goal),
                ..Verdict::default()
            });
        };
        let per_mib = |row: &Row| row.int("index_operations") as f64 / row.int("mib").max(1) as f64;
        if let Some(large) = rows.iter().find(alike) {
            let (old, new) = (bookkeeping(small), bookkeeping(large));
            say("bookkeeping, times less", Some(old), old / new, Goal::AtLeast(BOOKKEEPING));
            let (old, new) = (per_mib(small), per_mib(large));
            say("index operations for each MiB", Some(old), new, Goal::AtMost(INDEX));
            let ratio = whole / large.real("whole_ns").max(0.1);
            say("whole hit, times less", Some(whole), ratio, Goal::AtLeast(WHOLE));
        }
    }
    if !rows.is_empty() {
        let waited = rows.iter().map(|row| row.int("waited")).sum::<u64>() as f64;
        verdicts.push(Verdict {
            what: "bios that missed the cache".into(),
            seed: None,
            baseline: None,
            ours: Some(waited),
            goal: Some(Goal::Exactly(0.0)),
            ..Verdict::default()
        });
    }
    verdicts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(order: u8, whole: f64, decided: f64) -> Row {
        Row::new(TABLE)
            .with("max_folio_order", order)
            .with("writes_percent", 0)
            .with("waited", 0)
            .with("index_operations", if order == 0 { 2560 } else { 160 })
            .with("mib", 10)
            .with_real("whole_ns", whole, 1)
            .with_real("all_but_copies_ns", decided, 1)
            .with_real("nothing_ns", 20.0, 1)
            .with_real("copy_ns", 1000.0, 1)
    }

    #[test]
    fn what_measuring_costs_is_no_bookkeeping_and_a_slow_baseline_is_no_gain() {
        let rows = [row(0, 2140.0, 520.0), row(9, 1200.0, 70.0)];
        let verdicts = judge(&rows);
        assert_eq!(verdicts.len(), 5);
        assert_eq!((verdicts[2].baseline, verdicts[2].ours), (Some(256.0), Some(16.0)));
        assert!(verdicts[0].is_met(), "2140 is 1.5 times the copy and 16 times 40 ns");
        assert_eq!(verdicts[1].ours, Some(10.0));
        assert!(verdicts.iter().all(Verdict::is_met));
        let slow = judge(&[row(0, 2141.0, 520.0), row(9, 1200.0, 90.0)]);
        assert_eq!(slow.iter().filter(|verdict| !verdict.is_met()).count(), 2);
    }
}
