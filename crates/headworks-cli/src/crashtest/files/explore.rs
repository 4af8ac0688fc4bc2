//! Exploring a record: jobs take places, make the states that are drawn there or all of them, and judge each distinct one once.
//!
//! What is drawn depends on the seed alone, and trees that are equal (with equal promises) are one state, so neither the number of jobs nor
//! their order changes which states are broken.

use crate::shown::error_line;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use headworks_crash::{
    Draws, Explainer, Limits, Model, MountUser, Record, State, Tree, Walk, lock, next_choices,
    shrink,
};

use super::super::arguments::CrashtestArgs;
use super::causes::{Cause, Causes};
use super::judge::{Judge, Verdict};
use super::program::mount;
use super::workplace::{Workplace, jobs, size};
use super::{DISK_DRAWS, DRAW_TIME, DRAWS};

/// Checks for shrinking one failure at most.
const SHRINK_CHECKS: u32 = 200;
/// Files of which stores to a mapping are tried as a cause, each by itself.
const MAPPED_MAX: usize = 8;
/// Failures that are kept for their causes at most; more are counted alone.
const FAILURES_MAX: usize = 100_000;
/// Draws at a place that has too many states for all of them.
const BEYOND_DRAWS: u64 = 64;
/// Rounds of draws: a test that runs out of time has looked at places everywhere.
const ROUNDS: usize = 4;
/// Time between lines of progress.
const TOLD: Duration = Duration::from_secs(1);

/// What exploring a record found.
pub struct Found {
    /// States that were made, equal ones included.
    pub states: u64,
    pub distinct: u64,
    pub broken: u64,
    /// Places that were looked at, and all places, of every model.
    pub places: (u64, u64),
    /// Places that have too many states for all of them.
    pub beyond: u64,
    /// States whose recovery changed something, and states of cuts inside it.
    pub recoveries: (u64, u64),
    pub causes: Vec<Cause>,
    pub time: Duration,
    /// Whether `--time` ended it.
    pub timed_out: bool,
}

/// Explores a record, with jobs that share it.
pub struct Explorer<'a> {
    options: &'a CrashtestArgs,
    place: &'a Workplace,
    record: &'a Record,
    check: &'a str,
    explainer: Explainer<'a>,
    block: u64,
    verdicts: Mutex<HashMap<u64, Verdict>>,
    met: Mutex<HashSet<u64>>,
    /// Broken states of the record that have no cause yet: place, choices, what the check said.
    failures: Mutex<Vec<(usize, Vec<u32>, String)>>,
    causes: Mutex<Causes>,
    error: Mutex<Option<String>>,
    stop: AtomicBool,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    states: AtomicU64,
    broken: AtomicU64,
    places: AtomicU64,
    beyond: AtomicU64,
    recoveries: AtomicU64,
    inner: AtomicU64,
}

/// States of one model, given to jobs by place.
struct Source {
    model: Model,
    draws: Draws,
    rounds: usize,
    /// The next place of all rounds.
    next: AtomicUsize,
}

/// Where a state is: in the record, or in a recovery of one of its states.
struct Site<'s, 'r> {
    model: Model,
    /// The place of the record, whose promises count.
    outer: &'s Walk<'r>,
    walk: &'s Walk<'s>,
    within: Option<&'s State>,
    explainer: &'s Explainer<'s>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(counter: &AtomicU64) {
    // Relaxed: read after the threads were joined, or for a line of progress.
    counter.fetch_add(1, Ordering::Relaxed);
}

impl<'a> Explorer<'a> {
    /// Prepares to explore a record with this check.
    pub fn new(
        options: &'a CrashtestArgs,
        place: &'a Workplace,
        record: &'a Record,
        check: &'a str,
    ) -> Self {
        let block = options.block(record);
        Self {
            options,
            place,
            record,
            check,
            explainer: Explainer::new(record).with_block(block),
            block,
            verdicts: Mutex::default(),
            met: Mutex::default(),
            failures: Mutex::default(),
            causes: Mutex::default(),
            error: Mutex::default(),
            stop: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    /// The record that is explored.
    pub fn record(&self) -> &'a Record {
        self.record
    }

    /// The check of its states.
    pub fn check(&self) -> &'a str {
        self.check
    }

    /// The cause of one broken state.
    pub fn shrunk(&self, model: Model, place: usize, choices: &[u32]) -> Result<Cause, String> {
        let mut judge = Judge::new(self.place, "job-0", self.check, self.options.timeout);
        let mut walk = Walk::new(self.record, model, self.block);
        walk.go(place);
        let site =
            Site { model, outer: &walk, walk: &walk, within: None, explainer: &self.explainer };
        self.cause(&site, choices, true, &mut judge)
    }

    /// Explores under each model in turn.
    pub fn explore(&self, models: &[Model]) -> Result<Found, String> {
        let began = Instant::now();
        let files = &self.options.files;
        let exhaustive = files.exhaustive.is_some();
        let time = files.time.map(Duration::from_nanos).or((!exhaustive).then_some(DRAW_TIME));
        let places = self.record.changes.len() as u64 + 1;
        let draws = if self.record.image().is_some() { DISK_DRAWS } else { DRAWS };
        let mut timed_out = false;
        for (index, model) in models.iter().enumerate() {
            let count = if exhaustive { 0 } else { self.options.cuts.unwrap_or(draws) };
            let source = Source {
                model: *model,
                draws: Draws { seed: self.options.seed, count, places },
                rounds: if exhaustive { 1 } else { ROUNDS },
                next: AtomicUsize::new(0),
            };
            // What one model does not use is the next one's.
            let until = time.map(|time| began + time * (index as u32 + 1) / models.len() as u32);
            self.stop.store(false, Ordering::Relaxed);
            timed_out |= self.run_jobs(&source, until);
            if let Some(error) = locked(&self.error).take() {
                return Err(error);
            }
            self.explain(*model)?;
            if files.stop_at_first && !locked(&self.causes).list.is_empty() {
                break;
            }
        }
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        Ok(Found {
            states: read(&counts.states),
            distinct: locked(&self.met).len() as u64,
            broken: read(&counts.broken),
            places: (read(&counts.places), places * models.len() as u64),
            beyond: read(&counts.beyond),
            recoveries: (read(&counts.recoveries), read(&counts.inner)),
            causes: std::mem::take(&mut *locked(&self.causes)).sorted(),
            time: began.elapsed(),
            timed_out,
        })
    }

    /// Runs the jobs to their end, and tells how far they are. Returns whether time ran out.
    fn run_jobs(&self, source: &Source, until: Option<Instant>) -> bool {
        let (end, ended) = mpsc::channel::<()>();
        let mut timed_out = false;
        std::thread::scope(|scope| {
            for job in 0..jobs(self.options) {
                let end = end.clone();
                scope.spawn(move || {
                    if let Err(error) = self.job(source, job) {
                        locked(&self.error).get_or_insert(error);
                        self.stop.store(true, Ordering::Relaxed);
                    }
                    drop(end);
                });
            }
            drop(end);
            let mut told = Instant::now();
            loop {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                let wait = left.filter(|_| !timed_out).map_or(TOLD, |left| left.min(TOLD));
                match ended.recv_timeout(wait) {
                    Err(mpsc::RecvTimeoutError::Disconnected) => return,
                    _ if told.elapsed() >= TOLD => {
                        told = Instant::now();
                        self.tell(source);
                    }
                    _ => {}
                }
                if until.is_some_and(|until| Instant::now() >= until) && !timed_out {
                    timed_out = true;
                    self.stop.store(true, Ordering::Relaxed);
                }
            }
        });
        timed_out
    }

    fn tell(&self, source: &Source) {
        let at = source.next.load(Ordering::Relaxed) as u64 % source.draws.places;
        let states = self.counts.states.load(Ordering::Relaxed);
        error_line!(
            "{}: place {at} of {}; {states} states, {} distinct, {} broken",
            source.model,
            source.draws.places - 1,
            locked(&self.met).len(),
            self.counts.broken.load(Ordering::Relaxed)
        );
    }

    fn job(&self, source: &Source, job: usize) -> Result<(), String> {
        let mut judge =
            Judge::new(self.place, &format!("job-{job}"), self.check, self.options.timeout);
        let places = source.draws.places as usize;
        let new = || Walk::new(self.record, source.model, self.block);
        let (mut walk, mut round) = (new(), 0);
        while !self.stop.load(Ordering::Relaxed) {
            let next = source.next.fetch_add(1, Ordering::Relaxed);
            if next >= places * source.rounds {
                break;
            }
            if next / places != round {
                (walk, round) = (new(), next / places);
            }
            self.explore_place(source, round, next % places, &mut walk, &mut judge, job)?;
        }
        Ok(())
    }

    /// Looks at the states of a place: those drawn in this round, or all.
    fn explore_place(
        &self,
        source: &Source,
        round: usize,
        at: usize,
        walk: &mut Walk<'a>,
        judge: &mut Judge<'_>,
        job: usize,
    ) -> Result<(), String> {
        let Some(most) = self.options.files.exhaustive else {
            let own = |number: &u64| *number as usize % source.rounds == round;
            let drawn: Vec<u64> = source.draws.at(at as u64).filter(own).collect();
            if drawn.is_empty() {
                return Ok(());
            }
            walk.go(at);
            // Once, whatever the number of rounds that come here.
            if source.draws.at(at as u64).next() == drawn.first().copied() {
                count(&self.counts.places);
            }
            return self.draw(source.model, source.draws, drawn.into_iter(), walk, judge, job);
        };
        walk.go(at);
        count(&self.counts.places);
        if walk.states(most).is_none() {
            count(&self.counts.beyond);
            let draws =
                Draws { seed: source.draws.seed ^ at as u64, count: BEYOND_DRAWS, places: 1 };
            return self.draw(source.model, draws, 0..BEYOND_DRAWS, walk, judge, job);
        }
        let mut choices = vec![0; walk.axes().len()];
        loop {
            self.state(source.model, walk, &choices, judge, job)?;
            if self.stop.load(Ordering::Relaxed) || !next_choices(walk.axes(), &mut choices) {
                return Ok(());
            }
        }
    }

    fn draw(
        &self,
        model: Model,
        draws: Draws,
        numbers: impl Iterator<Item = u64>,
        walk: &Walk<'_>,
        judge: &mut Judge<'_>,
        job: usize,
    ) -> Result<(), String> {
        for number in numbers {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            self.state(model, walk, &draws.choices(number, walk.axes()), judge, job)?;
        }
        Ok(())
    }

    /// Looks at a state of the record, and at cuts inside its recovery.
    fn state(
        &self,
        model: Model,
        walk: &Walk<'_>,
        choices: &[u32],
        judge: &mut Judge<'_>,
        job: usize,
    ) -> Result<(), String> {
        let site = Site { model, outer: walk, walk, within: None, explainer: &self.explainer };
        let trees = walk.trees(choices);
        let new = self.examine(&site, choices, &trees, judge)?;
        match self.options.files.recovery {
            Some(cuts) if new => self.cut_recovery(model, walk, choices, trees, cuts, judge, job),
            _ => Ok(()),
        }
    }

    /// Judges a state, unless an equal one was, and finds the cause if it is broken. Returns whether it is new, and holds.
    fn examine(
        &self,
        site: &Site<'_, '_>,
        choices: &[u32],
        trees: &[Tree],
        judge: &mut Judge<'_>,
    ) -> Result<bool, String> {
        count(&self.counts.states);
        let hash = site.outer.hash(trees);
        if !locked(&self.met).insert(hash) {
            return Ok(false);
        }
        let Verdict::Broken(said) = self.verdict(site, hash, trees, judge)? else {
            return Ok(true);
        };
        count(&self.counts.broken);
        if site.within.is_none() {
            let mut failures = locked(&self.failures);
            if failures.len() < FAILURES_MAX {
                failures.push((site.walk.place(), choices.to_vec(), said));
            }
        } else {
            self.find_cause(site, choices, &said, judge)?;
        }
        if self.options.files.stop_at_first {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(false)
    }

    /// Finds the causes of the failures of a model, in the order of their places: the number of jobs changes none of them.
    fn explain(&self, model: Model) -> Result<(), String> {
        let mut failures = std::mem::take(&mut *locked(&self.failures));
        failures.sort();
        let mut judge = Judge::new(self.place, "job-0", self.check, self.options.timeout);
        let mut walk = Walk::new(self.record, model, self.block);
        for (place, choices, said) in failures {
            walk.go(place);
            let site =
                Site { model, outer: &walk, walk: &walk, within: None, explainer: &self.explainer };
            self.find_cause(&site, &choices, &said, &mut judge)?;
        }
        Ok(())
    }

    /// Counts a failure to a cause that explains it, or shrinks it to one.
    fn find_cause(
        &self,
        site: &Site<'_, '_>,
        choices: &[u32],
        said: &str,
        judge: &mut Judge<'_>,
    ) -> Result<(), String> {
        let lost = site.explainer.lost_in_general(site.walk.axes(), choices, site.walk.place());
        let (known, shrinks) = {
            let mut causes = locked(&self.causes);
            let known = causes.attribute(said, &lost, site.within.is_some());
            (known, !known && causes.may_shrink())
        };
        if !known {
            let cause = self.cause(site, choices, shrinks, judge)?;
            locked(&self.causes).add(cause);
        }
        Ok(())
    }

    fn verdict(
        &self,
        site: &Site<'_, '_>,
        hash: u64,
        trees: &[Tree],
        judge: &mut Judge<'_>,
    ) -> Result<Verdict, String> {
        if let Some(known) = locked(&self.verdicts).get(&hash) {
            return Ok(known.clone());
        }
        let verdict = judge.check(self.record, site.outer.place(), trees)?;
        locked(&self.verdicts).insert(hash, verdict.clone());
        Ok(verdict)
    }

    /// Shrinks a broken state and says why it is broken.
    fn cause(
        &self,
        site: &Site<'_, '_>,
        choices: &[u32],
        shrinks: bool,
        judge: &mut Judge<'_>,
    ) -> Result<Cause, String> {
        let mut failed = None;
        let mut judged = |choices: &[u32]| {
            let trees = site.walk.trees(choices);
            let verdict = self.verdict(site, site.outer.hash(&trees), &trees, judge);
            verdict.map_err(|error| failed = Some(error)).ok()
        };
        let fails = |verdict: Option<Verdict>| matches!(verdict, Some(Verdict::Broken(_)));
        let checks = if shrinks { SHRINK_CHECKS } else { 0 };
        let small = shrink(choices, checks, |choices| fails(judged(choices)));
        let unasked = shrinks && !fails(judged(&site.walk.nothing_kept()));
        if let Some(error) = failed {
            return Err(error);
        }
        let whole = small.iter().all(|choice| *choice == 0);
        let mapped = if whole && shrinks { self.mapped(site, judge)? } else { None };
        let trees = site.walk.trees(&small);
        let verdict = judge.check(self.record, site.outer.place(), &trees)?;
        let said = match verdict {
            Verdict::Broken(said) => said,
            Verdict::Holds => "the check fails now and then on the same directory".to_owned(),
        };
        let (axes, place) = (site.walk.axes(), site.walk.place());
        let effects = site.explainer.effects(axes, &small, place);
        let mut why: Vec<String> = match (effects.is_empty(), shrinks) {
            (true, _) => vec![site.explainer.without_loss(place, mapped)],
            (_, false) => vec![format!(
                "not shrunk, as many were before: {} losses, {}",
                effects.len(),
                effects[0].said
            )],
            _ => effects.iter().map(|effect| effect.said.clone()).collect(),
        };
        if site.within.is_some() {
            why.insert(0, "the power failed again while the check recovered:".to_owned());
        }
        Ok(Cause {
            model: site.model,
            said,
            why,
            effects,
            states: 1,
            first: State::new(place, &small),
            within: site.within.cloned(),
            hash: site.outer.hash(&trees),
            unasked,
            log: judge.said(),
            seen: Vec::new(),
        })
    }

    /// Runs the check of a state on directories that record, and looks at states of cuts inside it.
    /// The file of which stores to a mapping are missing: with those that came later the check holds. With those of all files it may hold, too.
    fn mapped(
        &self,
        site: &Site<'_, '_>,
        judge: &mut Judge<'_>,
    ) -> Result<Option<(u8, u64)>, String> {
        let files = site.walk.mapped_later();
        let each = files.iter().take(MAPPED_MAX).map(std::slice::from_ref);
        for some in each.chain([&files[..]]).filter(|some| !some.is_empty()) {
            let trees = site.walk.with_mapped(some);
            let verdict = self.verdict(site, site.outer.hash(&trees), &trees, judge)?;
            if matches!(verdict, Verdict::Holds) {
                return Ok(some.first().copied());
            }
        }
        Ok(None)
    }

    #[allow(clippy::too_many_arguments)] // One call; a struct would be named after it.
    fn cut_recovery(
        &self,
        model: Model,
        outer: &Walk<'_>,
        choices: &[u32],
        trees: Vec<Tree>,
        cuts: u64,
        judge: &mut Judge<'_>,
        job: usize,
    ) -> Result<(), String> {
        let limits = Limits { size: size(self.options), record: self.options.files.record_max };
        let start = Record::new(self.record.disks.clone(), trees);
        let inner = {
            let mounted =
                mount(self.place, start, limits, &format!("job{job}-"), MountUser::Program)?;
            judge.check_there(self.record, outer.place(), &mounted.paths)?;
            lock(&mounted.recording).close().map_err(|error| error.to_string())?
        };
        if inner.counts().changes == 0 {
            return Ok(());
        }
        count(&self.counts.recoveries);
        let explainer = Explainer::new(&inner).with_block(self.block);
        let state = State::new(outer.place(), choices);
        let mut walk = Walk::new(&inner, model, self.block);
        let draws =
            Draws { seed: self.options.seed, count: cuts, places: inner.changes.len() as u64 + 1 };
        for at in 0..draws.places {
            for number in draws.at(at) {
                walk.go(at as usize);
                let choices = draws.choices(number, walk.axes());
                let site =
                    Site { model, outer, walk: &walk, within: Some(&state), explainer: &explainer };
                count(&self.counts.inner);
                self.examine(&site, &choices, &walk.trees(&choices), judge)?;
            }
        }
        Ok(())
    }
}
