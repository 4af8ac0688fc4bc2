//! `legacy518`: tag allocation of Linux 5.18 (lib/sbitmap.c, block/blk-mq-tag.c), as a baseline.
//!
//! A task tries for a tag whenever it wants one. If none is free it sleeps at the tail of one of eight queues, taken round
//! robin. Each freed tag is counted for the queue at `wake_index`, or for the first after it that has sleepers; when
//! `wake_batch` were counted, as many tasks are woken there, and they try again.
//!
//! Its faults, modelled on purpose (`tests/tags` shows each):
//!
//! - U1 barging: a newcomer takes a freed tag before hundreds of sleepers.
//! - U2 the stale store: a waker reads the index, another completes a batch and moves it on, and the first stores back what
//!   it found. The same queue is woken again and others starve.
//! - U3 lost batches: wakers account tags to a queue that others have just emptied, and wake no task for them; or advance the
//!   index twice. In the end sleepers may be left with nothing in flight: a hang (see the safety net in `host`).
//! - U4 a queue is chosen before it is known that the task will sleep: the queues fill unevenly.
//! - U5 a woken task that finds no tag goes to the tail of another queue: its age is lost.
//! - U6 the pieces of a split bio get their tags one by one, maybe with a sleep each: pieces of many bios reach the disk mixed.

use headworks_core::tags::TagOptions;

use super::WakeOptions;
use super::host::{Rules, Step, TaskHost, Waker};
use super::tasks::{QUEUES, TaskId, Tasks, after};

/// The tag policy of Linux 5.18.
pub type Legacy518 = TaskHost<Legacy>;

/// The rules of Linux 5.18.
#[derive(Clone, Copy, Debug, Default)]
pub struct Legacy;

impl Legacy518 {
    /// Creates an owner with all tags free.
    #[must_use]
    pub fn new(options: TagOptions, wake: WakeOptions) -> Self {
        Self::with_rules(options, wake, Legacy)
    }
}

impl Rules for Legacy {
    fn on_woken(&self, tasks: &mut Tasks, id: TaskId) {
        // A new queue at once, though the task may get a tag.
        tasks.task_mut(id).queue = Some(tasks.next_queue());
    }

    fn on_miss(&self, tasks: &mut Tasks, id: TaskId) {
        tasks.task_mut(id).queue = Some(tasks.next_queue());
    }

    fn on_sleep(&self, _tasks: &mut Tasks, _id: TaskId) {}

    fn step(&mut self, tasks: &mut Tasks, waker: Waker) -> Step {
        step(tasks, waker)
    }
}

/// Takes one step of `__sbq_wake_up`.
pub(super) fn step(tasks: &mut Tasks, waker: Waker) -> Step {
    match waker {
        Waker::Looks => match find_sleepers(tasks) {
            Some(queue) => Step::Next(Waker::Counts { queue }),
            None => Step::Stop,
        },
        Waker::Counts { queue } => {
            if tasks.wake_index != queue {
                // The value found earlier, not the current one: the stale store.
                tasks.wake_index = queue;
            }
            match tasks.count_down(queue) {
                1.. => Step::Stop,
                count => Step::Next(Waker::Settles { queue, count }),
            }
        }
        Waker::Settles { queue, count } => {
            if tasks.queues[usize::from(queue)].wait_cnt != count {
                return Step::Next(Waker::Looks);
            }
            tasks.restart_count(queue);
            Step::Next(Waker::Wakes { queue })
        }
        Waker::Wakes { queue } => {
            tasks.wake_index = after(tasks.wake_index);
            Step::Wake { queue, count: tasks.wake_batch }
        }
    }
}

/// Returns the first queue with sleepers, from the index on.
fn find_sleepers(tasks: &Tasks) -> Option<u8> {
    if tasks.active == 0 {
        return None;
    }
    let first = tasks.wake_index;
    let queues = (0..QUEUES as u8).map(|step| (first + step) % QUEUES as u8);
    queues.into_iter().find(|&queue| tasks.is_sleeping(queue))
}
