//! `kuai_v3`: the patch series "improve tag allocation under heavy load" by Yu Kuai, version 3, April 2022, as a baseline.
//!
//! It is `legacy518` with up to eight patches, one bit each of `WakeOptions::patches` (bit 0 is patch 1):
//!
//! | patch | what it does | needs |
//! |---|---|---|
//! | 1 | counts the waiters of each queue | |
//! | 2 | chooses a queue only when the task goes to sleep, and keeps it until it has its tag (ends U4, half of U5) | |
//! | 3 | wakes the queue with most waiters next; the index is moved before the wake and never stored blindly (ends U2, most of U3) | 1 |
//! | 4 | no newcomer takes a tag while more than 8 tasks wait; a woken task may | |
//! | 5 | but newcomers may while tags are plenty: from more than 2 batches free until one batch or less | 4 |
//! | 6 | the pieces of a split bio after its first may take tags at once | 4 |
//! | 7 | a sleeper announces how many tags it will take | |
//! | 8 | wakes only as many tasks as will take the batch's tags | 7 |
//!
//! A patch without what it needs does nothing. Without any patch this is `legacy518`, grant by grant. Patch 4's other half,
//! the safety net, is an option of its own (`WakeOptions::safety_net`, see `host`): patch 4 alone leaves tags idle when a woken
//! queue holds fewer tasks than tags were freed, until nothing is in flight and no task is ever woken. Patch 5 follows its
//! description; as posted, its last line assigned `free >= 2 * wake_batch` and made the hysteresis ineffective.
//!
//! What patch 3 leaves: a woken task counts as a waiter until it runs, so a queue without sleepers may be the fullest, and a
//! batch for it wakes no task. The slower tasks wake up, the more often this happens.

use headworks_core::tags::TagOptions;

use super::WakeOptions;
use super::host::{Rules, Step, TaskHost, Waker};
use super::legacy518;
use super::tasks::{QUEUES, TaskId, Tasks};

/// The tag policy of the series.
pub type KuaiV3 = TaskHost<Patched>;

/// The rules of the series, with the selected patches.
#[derive(Clone, Copy, Debug)]
pub struct Patched {
    patches: u8,
    /// Many tags are free, so newcomers may take them (`force_tag_preemption`).
    plenty: bool,
}

impl KuaiV3 {
    /// Creates an owner with all tags free.
    #[must_use]
    pub fn new(options: TagOptions, wake: WakeOptions) -> Self {
        Self::with_rules(options, wake, Patched { patches: wake.patches, plenty: true })
    }
}

impl Patched {
    fn has(&self, patch: u8) -> bool {
        self.patches & 1 << (patch - 1) != 0
    }

    /// Patch 3: takes one step of its `__sbq_wake_up`. Exactly one waker counts to 0, so there is nothing to settle.
    fn step_balanced(&self, tasks: &mut Tasks, waker: Waker) -> Step {
        match waker {
            Waker::Looks if tasks.active == 0 => Step::Stop,
            Waker::Looks => {
                let queue = tasks.wake_index;
                if tasks.queues[usize::from(queue)].waiters == 0 {
                    move_index(tasks, queue);
                    return Step::Next(Waker::Looks);
                }
                Step::Next(Waker::Counts { queue })
            }
            Waker::Counts { queue } | Waker::Settles { queue, .. } | Waker::Wakes { queue } => {
                if tasks.count_down(queue) > 0 {
                    return Step::Stop;
                }
                move_index(tasks, queue);
                tasks.restart_count(queue);
                Step::Wake { queue, count: tasks.wake_batch }
            }
        }
    }

    /// Patch 5: updates `plenty` before each wake-up.
    fn update_plenty(&mut self, tasks: &Tasks) {
        let batch = tasks.wake_batch;
        if batch == 1 || tasks.free <= batch {
            self.plenty = false;
        } else if tasks.free > 2 * batch {
            self.plenty = true;
        }
    }
}

impl Rules for Patched {
    fn may_try(&self, tasks: &Tasks, id: TaskId) -> bool {
        !self.has(4)
            || tasks.task(id).preempt
            || tasks.active <= QUEUES as u32
            || self.has(5) && self.plenty
    }

    fn on_piece(&self, tasks: &mut Tasks, id: TaskId) {
        let task = tasks.task_mut(id);
        task.preempt = self.has(6) && task.left < task.want;
    }

    fn on_woken(&self, tasks: &mut Tasks, id: TaskId) {
        tasks.task_mut(id).preempt = true;
        self.on_miss(tasks, id);
    }

    fn on_miss(&self, tasks: &mut Tasks, id: TaskId) {
        if !self.has(2) {
            tasks.task_mut(id).queue = Some(tasks.next_queue());
        }
    }

    fn on_sleep(&self, tasks: &mut Tasks, id: TaskId) {
        if tasks.task(id).queue.is_none() {
            tasks.task_mut(id).queue = Some(tasks.next_queue());
        }
    }

    fn step(&mut self, tasks: &mut Tasks, waker: Waker) -> Step {
        let step = match self.has(1) && self.has(3) {
            true => self.step_balanced(tasks, waker),
            false => legacy518::step(tasks, waker),
        };
        let Step::Wake { queue, count } = step else {
            return step;
        };
        self.update_plenty(tasks);
        let by_need = self.has(7) && self.has(8);
        Step::Wake { queue, count: if by_need { tasks_for(tasks, queue, count) } else { count } }
    }
}

/// Patch 3: moves the index, if it still is at `old`, to the other queue with most waiters, if one has any.
fn move_index(tasks: &mut Tasks, old: u8) {
    if tasks.wake_index != old {
        return;
    }
    let mut most = (0, old);
    for (queue, of) in (0..).zip(&tasks.queues) {
        if queue != old && of.waiters > most.0 {
            most = (of.waiters, queue);
        }
    }
    tasks.wake_index = most.1;
}

/// Patch 8: returns how many sleepers of `queue`, from its head, will take `tags` tags. (Linux wakes as many more as tags are
/// left over, for tasks that go to sleep meanwhile; here none does in the middle of a step.)
fn tasks_for(tasks: &Tasks, queue: u8, tags: u32) -> u32 {
    let (mut count, mut left) = (0, tags);
    for task in tasks.sleepers(queue) {
        if left == 0 {
            break;
        }
        count += 1;
        left = left.saturating_sub(task.left.into());
    }
    count
}
