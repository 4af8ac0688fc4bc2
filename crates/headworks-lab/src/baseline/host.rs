//! The modelled host of the old tag policies: it moves tasks through time and calls the policy's rules.
//!
//! Three things take time. A task runs: at once when it asks, `per_piece` after each tag but its last, and some time after it
//! was woken (`base + per_waiter * i + exp(jitter)`, `i` counting the tasks woken before it). A waker, which every freed tag
//! starts, takes up to four steps; between two of them it may be interrupted (drawn from the seed), and other wakers step in
//! between: these are the races of 5.18. And the safety net fires.
//!
//! ```text
//!  put --per tag--> waker: Looks -> Counts --batch complete--> Settles -> Wakes --delay--> woken tasks run and try
//!                      ^                                      | lost a race
//!                      `--------------------------------------'
//! ```
//!
//! **Hangs.** The rules of 5.18 can lose wake-ups: a batch that is accounted to an empty queue wakes no task (U3 in
//! `legacy518`). With few newcomers this ends with sleepers, all tags free and no event that would wake them. So do parts of
//! `kuai_v3` without the rest. That state is `waiters() > 0`, `free() == depth()`, `next_timeout() == None`. Because an
//! experiment must end, both policies have the safety net of `kuai_v3` (its patch 4: the time-out worker finds the device idle
//! and wakes all tasks). It is on by default and counted ([`TaskHost::rescues`]): each rescue is a hang of the policy without
//! it. `WakeOptions::safety_net` turns it off.
//!
//! Invariants: time does not go back; events happen in the order of their times; at one instant, tags are returned before a
//! task tries. Bounds: one event for each task and each of `WAKERS_MAX` wakers; at most one unfetched grant for each tag.
//! Integers only, so every build gives the same run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use headworks_core::Instant;
use headworks_core::prng::Prng;
use headworks_core::tags::{
    ByteBudget, Grant, Requester, ReturnedTags, TagOptions, TagOwner, TagRequest, TagStats,
};
use headworks_core::time::SEC;

use super::WakeOptions;
use super::tasks::{QUEUES, TaskId, TaskState, Tasks};

/// Most wakers that are interrupted at once: as many CPUs complete requests. A further one is not interrupted.
const WAKERS_MAX: u32 = 64;

/// Interruptions per million steps of wakers. One in twenty: the windows are short, but completions arrive in bursts on many
/// CPUs; this gives queues as uneven as were measured (117, 59, 76, 0, 24, 12, 21, 175), and hangs stay rare.
const INTERRUPTED: u32 = 50_000;

/// Mean length of an interruption, at most the mean time until a woken task runs. 8 us: an interrupt, or waking a batch.
const INTERRUPTION_NS: u32 = 8_000;

/// Idle time of a device with sleepers after which the safety net fires.
const SAFETY_NET_NS: u64 = 5 * SEC;

/// The next step of a waker, which a freed tag started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Waker {
    /// Reads the index and searches for a queue with sleepers.
    Looks,
    /// Counts the tag for the queue that it found.
    Counts {
        /// The queue that it found.
        queue: u8,
    },
    /// Starts the queue's next batch, unless another waker did.
    Settles {
        /// The queue with the complete batch.
        queue: u8,
        /// The count that it left.
        count: i32,
    },
    /// Advances the index and wakes the batch.
    Wakes {
        /// The queue with the complete batch.
        queue: u8,
    },
}

/// The outcome of a waker's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The waker ends without waking a task.
    Stop,
    /// Another step follows, maybe after steps of other wakers.
    Next(Waker),
    /// The waker ends and wakes tasks from the head of a queue.
    Wake {
        /// The queue with the complete batch.
        queue: u8,
        /// Most tasks to wake.
        count: u32,
    },
}

/// The decisions of an old tag policy.
pub trait Rules: Send {
    /// Returns whether the task may try for a tag.
    fn may_try(&self, _tasks: &Tasks, _id: TaskId) -> bool {
        true
    }

    /// Called when the task starts a piece of its bio.
    fn on_piece(&self, _tasks: &mut Tasks, _id: TaskId) {}

    /// Called when a woken task runs, before it tries for a tag.
    fn on_woken(&self, tasks: &mut Tasks, id: TaskId);

    /// Called when the task got no tag at its first try; it tries again before it sleeps.
    fn on_miss(&self, tasks: &mut Tasks, id: TaskId);

    /// Called when the task goes to sleep; afterwards it must have a queue.
    fn on_sleep(&self, tasks: &mut Tasks, id: TaskId);

    /// Takes one step of a waker.
    fn step(&mut self, tasks: &mut Tasks, waker: Waker) -> Step;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Task(TaskId),
    Waker(Waker),
}

/// A tag owner that runs tasks under the rules `R`.
#[derive(Debug)]
pub struct TaskHost<R> {
    rules: R,
    tasks: Tasks,
    wake: WakeOptions,
    /// Events by time, then by order of insertion.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    /// Interrupted wakers.
    wakers: u32,
    /// Grants that were not fetched yet; their tags are taken.
    granted: VecDeque<Grant>,
    /// When the safety net fires.
    net_at: Option<u64>,
    /// Times the safety net woke all sleepers.
    rescues: u64,
    delays: Prng,
    races: Prng,
}

impl<R: Rules> TaskHost<R> {
    pub(super) fn with_rules(options: TagOptions, wake: WakeOptions, rules: R) -> Self {
        let root = Prng::new(wake.seed.into());
        Self {
            rules,
            tasks: Tasks::new(options, &wake),
            wake,
            events: BinaryHeap::with_capacity(options.waiters_max + WAKERS_MAX as usize),
            sequence: 0,
            wakers: 0,
            granted: VecDeque::with_capacity(options.depth as usize),
            net_at: None,
            rescues: 0,
            delays: root.split("delays"),
            races: root.split("races"),
        }
    }

    /// Returns the waiters of each queue: asleep, or woken and not run yet.
    #[must_use]
    pub fn waiters_per_queue(&self) -> [u32; QUEUES] {
        self.tasks.queues.map(|queue| queue.waiters)
    }

    /// Returns the number of hangs that the safety net ended.
    #[must_use]
    pub fn rescues(&self) -> u64 {
        self.rescues
    }

    /// Returns the number of freed tags before each wake-up.
    #[must_use]
    pub fn wake_batch(&self) -> u32 {
        self.tasks.wake_batch
    }

    /// Handles the events that are due before `until`.
    fn advance(&mut self, until: u64) {
        while let Some(&Reverse((at, _, event))) = self.events.peek()
            && at < until
        {
            self.events.pop();
            match event {
                Event::Task(id) => self.run_task(at, id),
                Event::Waker(waker) => {
                    self.wakers -= 1;
                    self.run_waker(at, waker);
                }
            }
        }
        if let Some(at) = self.net_at.filter(|&at| at < until) {
            self.net_at = None;
            if self.is_stuck() {
                self.wake_all(at);
                self.advance(until);
            }
        }
    }

    fn push(&mut self, at: u64, event: Event) {
        assert!(self.events.len() < self.events.capacity(), "an event for each task and waker");
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    /// Runs a task that has got the CPU.
    fn run_task(&mut self, at: u64, id: TaskId) {
        let (rules, tasks) = (&self.rules, &mut self.tasks);
        let woken = tasks.task(id).state == TaskState::Woken;
        if woken {
            tasks.finish_wait(at, id);
            rules.on_woken(tasks, id);
        }
        let (may_try, is_free) = (rules.may_try(tasks, id), tasks.is_one_free(id));
        if may_try && is_free {
            let barges = !woken && !tasks.task(id).preempt && tasks.active > 0;
            tasks.stats.barged += u64::from(barges);
            return self.take(at, id);
        }
        if !woken {
            tasks.stats.barging_prevented += u64::from(is_free);
            rules.on_miss(tasks, id);
        }
        // Linux tries again here, twice; at the same instant nothing has changed.
        rules.on_sleep(tasks, id);
        tasks.sleep(at, id);
    }

    /// Gives the task a tag.
    fn take(&mut self, at: u64, id: TaskId) {
        self.tasks.take(at, id);
        let &super::tasks::Task { requester, want, left, .. } = self.tasks.task(id);
        match requester {
            Requester::Request(_) => {
                self.granted.push_back(Grant { requester, tags: 1, light: false, cost: 0 })
            }
            Requester::Shard(_) if left == 0 => {
                self.granted.push_back(Grant { requester, tags: want, light: false, cost: 0 })
            }
            Requester::Shard(_) => {}
        }
        if left > 0 {
            let task = self.tasks.task_mut(id);
            (task.queue, task.preempt) = (None, false);
            self.rules.on_piece(&mut self.tasks, id);
            return self.push(at + u64::from(self.wake.per_piece_ns), Event::Task(id));
        }
        if let Some(gatherer) = self.tasks.end(at, id) {
            self.push(at, Event::Task(gatherer));
        }
    }

    fn run_waker(&mut self, at: u64, mut waker: Waker) {
        loop {
            match self.rules.step(&mut self.tasks, waker) {
                Step::Stop => return,
                Step::Wake { queue, count } => return self.wake_batch_of(at, queue, count),
                Step::Next(next) => waker = next,
            }
            if self.wakers < WAKERS_MAX && self.races.per_million(INTERRUPTED) {
                self.wakers += 1;
                let mean = self.wake.base_ns.min(INTERRUPTION_NS);
                let until = at + exponential(&mut self.races, mean);
                return self.push(until, Event::Waker(waker));
            }
        }
    }

    fn wake_batch_of(&mut self, at: u64, queue: u8, count: u32) {
        self.tasks.stats.wakes += 1;
        for index in 0..count {
            let Some(id) = self.tasks.wake(queue) else {
                return;
            };
            self.wake_task(at, id, index);
        }
    }

    fn wake_task(&mut self, at: u64, id: TaskId, index: u32) {
        self.tasks.stats.woken += 1;
        let in_turn = u64::from(self.wake.per_waiter_ns) * u64::from(index);
        let jitter = exponential(&mut self.delays, self.wake.jitter_ns);
        self.push(at + u64::from(self.wake.base_ns) + in_turn + jitter, Event::Task(id));
    }

    /// Returns whether a task sleeps while no tag is in use and no event is pending.
    fn is_stuck(&self) -> bool {
        let idle = self.tasks.free + self.tasks.gathered() == self.tasks.depth;
        idle && self.tasks.active > 0 && self.events.is_empty()
    }

    fn watch(&mut self, now: u64) {
        if !self.is_stuck() {
            self.net_at = None;
        } else if self.wake.safety_net && self.net_at.is_none() {
            self.net_at = Some(now + SAFETY_NET_NS);
        }
    }

    fn wake_all(&mut self, at: u64) {
        self.rescues += 1;
        self.tasks.stats.wakes += 1;
        let mut index = 0;
        for queue in 0..QUEUES as u8 {
            while let Some(id) = self.tasks.wake(queue) {
                self.wake_task(at, id, index);
                index += 1;
            }
        }
    }
}

impl<R: Rules> TagOwner for TaskHost<R> {
    fn tags_for(&self, pieces: u32) -> u16 {
        u16::try_from(pieces).unwrap_or(u16::MAX)
    }

    fn reuses_tags(&self) -> bool {
        false
    }

    /// Grants nothing at once: tasks run when the batch ends.
    fn request(&mut self, now: Instant, requests: &[TagRequest], _most: usize) -> usize {
        self.advance(now.0);
        for request in requests {
            let (id, runs) = self.tasks.begin(now.0, request);
            self.rules.on_piece(&mut self.tasks, id);
            if runs {
                self.push(now.0, Event::Task(id));
            }
        }
        0
    }

    fn put(&mut self, now: Instant, freed: ReturnedTags) {
        self.advance(now.0);
        self.tasks.put_asyncs(freed.asyncs);
        for _ in 0..freed.count {
            self.tasks.put(now.0);
            self.run_waker(now.0, Waker::Looks);
        }
    }

    fn next_grant(&mut self, now: Instant, room: ByteBudget) -> Option<Grant> {
        self.advance(now.0.saturating_add(1));
        self.watch(now.0);
        match room {
            ByteBudget::Available => self.granted.pop_front(),
            // Tasks do not know bytes; the grant waits for a completion, which frees some.
            ByteBudget::LightOnly | ByteBudget::Guarded { .. } => None,
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        let event = self.events.peek().map(|&Reverse((at, ..))| at);
        event.into_iter().chain(self.net_at).min().map(Instant)
    }

    fn free(&self) -> u32 {
        self.tasks.free
    }

    fn depth(&self) -> u32 {
        self.tasks.depth
    }

    fn waiters(&self) -> u32 {
        self.tasks.alive
    }

    fn stats(&self) -> TagStats {
        self.tasks.stats
    }
}

/// Draws from the exponential distribution with that mean: `-ln(u) * mean`, in integers.
fn exponential(prng: &mut Prng, mean: u32) -> u64 {
    /// ln 2 in 1/65536.
    const LN_2: u128 = 45_426;
    if mean == 0 {
        return 0;
    }
    // u = draw / 2^64, so -log2(u) = leading zeros + 1 - log2 of the rest, which is a fraction in 1..2.
    let draw = prng.next() | 1;
    let zeros = draw.leading_zeros();
    let bits = (u64::from(zeros + 1) << 16) - log2_fraction(draw << zeros);
    ((u128::from(bits) * LN_2 * u128::from(mean)) >> 32) as u64
}

/// Returns log2 of `mantissa / 2^63`, which is in 1..2, in 1/65536; one squaring gives one bit.
fn log2_fraction(mantissa: u64) -> u64 {
    let (mut mantissa, mut log) = (mantissa, 0);
    for _ in 0..16 {
        let square = u128::from(mantissa) * u128::from(mantissa);
        let two = square >> 127 != 0;
        log = log << 1 | u64::from(two);
        mantissa = (square >> if two { 64 } else { 63 }) as u64;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_exponential() {
        let mut prng = Prng::new(1);
        let mut draws: Vec<u64> = (0..100_000).map(|_| exponential(&mut prng, 20_000)).collect();
        draws.sort_unstable();
        let mean = draws.iter().sum::<u64>() / 100_000;
        assert!((19_800..20_200).contains(&mean), "{mean}");
        // Quantiles of 1/4, 1/2, 3/4, 0.99: -ln(1 - q) times the mean.
        for (at, expected) in
            [(25_000, 5_753), (50_000, 13_863), (75_000, 27_726), (99_000, 92_103)]
        {
            let (got, slack) = (draws[at], expected / 20);
            assert!(got.abs_diff(expected) < slack, "{got} {expected}");
        }
        assert_eq!(exponential(&mut prng, 0), 0);
    }

    #[test]
    fn logarithm_is_exact_to_one_bit() {
        for mantissa in [1 << 63, 3 << 62, 0xb504_f333_f9de_6484, u64::MAX, 0x9e37_79b9_7f4a_7c15] {
            let exact = (mantissa as f64 / (1u64 << 63) as f64).log2() * 65_536.0;
            let got = log2_fraction(mantissa) as f64;
            assert!((got - exact).abs() < 1.5, "{mantissa:x}: {got} {exact}");
        }
    }
}
