//! State of the modelled host: tasks, the tags they want, and the eight wait queues they sleep in.
//!
//! A task is a thread that submits one bio. The state follows Linux's `sbitmap_queue`; `host` moves it through time, and
//! `legacy518` and `kuai_v3` decide.
//!
//! ```text
//!                tag (more wanted): submit the piece, then
//!             .---------------------------------------------.
//!             v                                             |
//!  request --> Runs --none free, or not allowed--> Sleeps   |
//!             | \                                   | woken |
//!             |  `-- the last tag: task ends        v       |
//!             `<------------ gets the CPU -------- Woken    |
//!             `---------------------------------------------'
//! ```
//!
//! Invariants: free + held == depth; `active` is the sum of the queues' `waiters`, which count sleepers and tasks that were
//! woken and did not run yet (Linux stops counting a task when it runs); a task is in one list at most: of its queue while it
//! sleeps, of the free tasks, or of those that wait to gather.

use headworks_core::slab::NIL;
use headworks_core::tags::{Requester, TagOptions, TagRequest, TagStats};

use super::WakeOptions;

/// Number of wait queues of a tag map (SBQ_WAIT_QUEUES).
pub const QUEUES: usize = 8;

/// Index of a task in [`Tasks`].
pub type TaskId = u32;

/// Scheduling state of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskState {
    /// Not in use.
    #[default]
    Free,
    /// Tries for a tag, now or after it has submitted a piece.
    Runs,
    /// Sleeps in its wait queue.
    Sleeps,
    /// Removed from its queue, waiting for the CPU.
    Woken,
}

/// A thread that submits one bio, piece by piece; or the gathering of a lease for another shard.
#[derive(Clone, Debug)]
pub struct Task {
    /// Receiver of the grants.
    pub requester: Requester,
    /// Not limited to `async_depth` tags.
    pub sync: bool,
    /// Tags wanted in all, at least 1.
    pub want: u16,
    /// Tags still missing, at most `want`.
    pub left: u16,
    /// Scheduling state, see the diagram.
    pub state: TaskState,
    /// Its wait queue for this tag, once it has one.
    pub queue: Option<u8>,
    /// May take a tag before the sleepers, until it has one (`kuai_v3`).
    pub preempt: bool,
    /// Has slept at least once.
    pub slept: bool,
    /// Time of the request, in nanoseconds.
    pub asked_at: u64,
    next: TaskId,
}

/// A singly linked list of tasks, first in first out.
#[derive(Clone, Copy, Debug)]
pub struct TaskFifo {
    head: TaskId,
    tail: TaskId,
}

/// One wait queue of a tag map.
#[derive(Clone, Copy, Debug)]
pub struct WaitQueue {
    sleepers: TaskFifo,
    /// Tasks that sleep here, and tasks that were woken here and did not run yet.
    pub waiters: u32,
    /// Tags to be freed before the next wake-up; below 0 while wakers race.
    pub wait_cnt: i32,
}

/// All tasks of a device, and its tags.
#[derive(Debug)]
pub struct Tasks {
    tasks: Vec<Task>,
    free_tasks: TaskFifo,
    /// Tasks in use: those that still want tags.
    pub alive: u32,
    /// The eight wait queues.
    pub queues: [WaitQueue; QUEUES],
    /// Waiters of all queues (`ws_active`).
    pub active: u32,
    /// Queue of the next wake-up.
    pub wake_index: u8,
    /// Queue that the next sleeper joins.
    pub wait_index: u8,
    /// Tags freed, and tasks woken, for each wake-up.
    pub wake_batch: u32,
    /// Tags of the device.
    pub depth: u32,
    /// Tags that no request holds.
    pub free: u32,
    async_depth: u32,
    asyncs: u32,
    /// The one task that gathers a lease for another shard: two half-gathered leases could deadlock.
    gathering: Option<TaskId>,
    /// Tasks that gather after it.
    gatherers: TaskFifo,
    /// Counters for [`headworks_core::tags::TagOwner::stats`].
    pub stats: TagStats,
    settled_at: u64,
}

impl TaskFifo {
    const EMPTY: Self = Self { head: NIL, tail: NIL };

    /// Returns the first task.
    pub fn head(&self) -> Option<TaskId> {
        (self.head != NIL).then_some(self.head)
    }

    fn push(&mut self, tasks: &mut [Task], id: TaskId) {
        tasks[id as usize].next = NIL;
        match self.tail {
            NIL => self.head = id,
            tail => tasks[tail as usize].next = id,
        }
        self.tail = id;
    }

    fn pop(&mut self, tasks: &[Task]) -> Option<TaskId> {
        let id = self.head()?;
        self.head = tasks[id as usize].next;
        if self.head == NIL {
            self.tail = NIL;
        }
        Some(id)
    }
}

impl Tasks {
    /// Creates `options.depth` free tags and as many free tasks as requests may wait.
    pub fn new(options: TagOptions, wake: &WakeOptions) -> Self {
        let TagOptions { depth, async_depth, waiters_max } = options;
        assert!(depth > 0, "a device needs at least one tag");
        // Linux's rule: all eight queues get a turn by the tags that one population of waiters can have in flight.
        let wake_batch = match wake.wake_batch {
            0 => (depth.min(async_depth) / QUEUES as u32).clamp(1, 8),
            batch => batch,
        };
        let queue =
            WaitQueue { sleepers: TaskFifo::EMPTY, waiters: 0, wait_cnt: wake_batch as i32 };
        let unused = Task {
            requester: Requester::Request(NIL),
            sync: true,
            want: 0,
            left: 0,
            state: TaskState::Free,
            queue: None,
            preempt: false,
            slept: false,
            asked_at: 0,
            next: NIL,
        };
        let mut made = Self {
            tasks: vec![unused; waiters_max],
            free_tasks: TaskFifo::EMPTY,
            alive: 0,
            queues: [queue; QUEUES],
            active: 0,
            wake_index: 0,
            wait_index: 0,
            wake_batch,
            depth,
            free: depth,
            async_depth,
            asyncs: 0,
            gathering: None,
            gatherers: TaskFifo::EMPTY,
            stats: TagStats::default(),
            settled_at: 0,
        };
        (0..waiters_max as u32).for_each(|id| made.free_tasks.push(&mut made.tasks, id));
        made
    }

    /// Returns the task `id`.
    pub fn task(&self, id: TaskId) -> &Task {
        &self.tasks[id as usize]
    }

    /// Returns the task `id`, to change it.
    pub fn task_mut(&mut self, id: TaskId) -> &mut Task {
        &mut self.tasks[id as usize]
    }

    /// Accounts idle tag time up to `at`; called before every change of `active` and `free`.
    pub fn settle(&mut self, at: u64) {
        if self.active > 0 {
            let lasted = at.saturating_sub(self.settled_at);
            self.stats.idle_tag_ns += u64::from(self.free) * lasted;
            self.stats.idle_max = self.stats.idle_max.max(self.free);
        }
        self.settled_at = self.settled_at.max(at);
    }

    /// Takes a task for `request`. Returns false beside it if the task must wait for another gatherer.
    pub fn begin(&mut self, at: u64, request: &TagRequest) -> (TaskId, bool) {
        assert!(request.tags >= 1, "a request needs a tag");
        let id = self.free_tasks.pop(&self.tasks).expect("more waiters than slots exist");
        assert!(self.task(id).state == TaskState::Free, "a task is one at a time");
        *self.task_mut(id) = Task {
            requester: request.requester,
            sync: request.sync,
            want: request.tags,
            left: request.tags,
            state: TaskState::Runs,
            queue: None,
            preempt: false,
            slept: false,
            asked_at: at,
            next: NIL,
        };
        self.alive += 1;
        self.stats.requests += 1;
        let Requester::Shard(_) = request.requester else {
            return (id, true);
        };
        if self.gathering.is_some() {
            self.gatherers.push(&mut self.tasks, id);
            return (id, false);
        }
        self.gathering = Some(id);
        (id, true)
    }

    /// Ends a task that has all its tags. Returns the next gatherer if this was one.
    pub fn end(&mut self, at: u64, id: TaskId) -> Option<TaskId> {
        let task = &mut self.tasks[id as usize];
        assert!(task.left == 0 && task.state == TaskState::Runs, "a task ends with its last tag");
        task.state = TaskState::Free;
        if task.slept {
            let waited = at.saturating_sub(task.asked_at);
            self.stats.longest_wait_ns = self.stats.longest_wait_ns.max(waited);
        }
        self.stats.grants += 1;
        self.alive -= 1;
        self.free_tasks.push(&mut self.tasks, id);
        if self.gathering != Some(id) {
            return None;
        }
        self.gathering = self.gatherers.pop(&self.tasks);
        self.gathering
    }

    /// Returns the tags that the gatherer holds without using them.
    pub fn gathered(&self) -> u32 {
        let of = |id| u32::from(self.task(id).want - self.task(id).left);
        self.gathering.map_or(0, of)
    }

    /// Returns whether a tag is free that the task may hold.
    pub fn is_one_free(&self, id: TaskId) -> bool {
        self.free > 0 && (self.task(id).sync || self.asyncs < self.async_depth)
    }

    /// Takes a tag for the task.
    pub fn take(&mut self, at: u64, id: TaskId) {
        self.settle(at);
        assert!(self.is_one_free(id), "a tag is taken once");
        self.free -= 1;
        self.asyncs += u32::from(!self.task(id).sync);
        self.task_mut(id).left -= 1;
    }

    /// Returns a tag to the free ones.
    pub fn put(&mut self, at: u64) {
        self.settle(at);
        self.free += 1;
        assert!(self.free <= self.depth, "a tag was put back twice");
    }

    /// Uncounts `count` returned tags that asynchronous requests held.
    pub fn put_asyncs(&mut self, count: u32) {
        assert!(count <= self.asyncs, "an asynchronous tag was put back twice");
        self.asyncs -= count;
    }

    /// Returns the queue for the next sleeper, round robin.
    pub fn next_queue(&mut self) -> u8 {
        let queue = self.wait_index;
        self.wait_index = after(queue);
        queue
    }

    /// Puts the task to sleep at the tail of its queue.
    pub fn sleep(&mut self, at: u64, id: TaskId) {
        self.settle(at);
        let task = &mut self.tasks[id as usize];
        assert!(task.state == TaskState::Runs, "only a running task goes to sleep");
        task.state = TaskState::Sleeps;
        self.stats.waits += u64::from(!task.slept);
        task.slept = true;
        let queue = task.queue.expect("a queue is chosen before a task sleeps");
        let queue = &mut self.queues[usize::from(queue)];
        queue.sleepers.push(&mut self.tasks, id);
        queue.waiters += 1;
        self.active += 1;
    }

    /// Removes the first sleeper of `queue`, to be run later.
    pub fn wake(&mut self, queue: u8) -> Option<TaskId> {
        let id = self.queues[usize::from(queue)].sleepers.pop(&self.tasks)?;
        let task = self.task_mut(id);
        assert!(task.state == TaskState::Sleeps, "only a sleeper is woken");
        task.state = TaskState::Woken;
        Some(id)
    }

    /// Makes a woken task run.
    pub fn finish_wait(&mut self, at: u64, id: TaskId) {
        self.settle(at);
        let task = &mut self.tasks[id as usize];
        task.state = TaskState::Runs;
        let queue = task.queue.expect("a woken task slept in a queue");
        self.queues[usize::from(queue)].waiters -= 1;
        self.active -= 1;
    }

    /// Returns whether a task sleeps in `queue` (`waitqueue_active`).
    pub fn is_sleeping(&self, queue: u8) -> bool {
        self.queues[usize::from(queue)].sleepers.head().is_some()
    }

    /// Iterates over the sleepers of `queue` from its head.
    pub fn sleepers(&self, queue: u8) -> impl Iterator<Item = &Task> {
        let mut next = self.queues[usize::from(queue)].sleepers.head();
        std::iter::from_fn(move || {
            let task = self.task(next?);
            next = (task.next != NIL).then_some(task.next);
            Some(task)
        })
    }

    /// Counts a freed tag for `queue` and returns what is left (`atomic_dec_return`).
    pub fn count_down(&mut self, queue: u8) -> i32 {
        let count = &mut self.queues[usize::from(queue)].wait_cnt;
        *count -= 1;
        *count
    }

    /// Restarts the count of `queue` at `wake_batch`.
    pub fn restart_count(&mut self, queue: u8) {
        self.queues[usize::from(queue)].wait_cnt = self.wake_batch as i32;
    }
}

/// Returns the queue after `queue`.
pub const fn after(queue: u8) -> u8 {
    (queue + 1) % QUEUES as u8
}
