//! What the baselines model: tasks (threads that submit a bio), the tags they want, and the eight queues they sleep in.
//!
//! This is the state alone, after Linux's `sbitmap_queue`; `host` moves it through time, `legacy518` and `kuai_v3` decide.
//!
//! ```text
//!              tag (more wanted): submit the piece, then
//!           .---------------------------------------------.
//!           v                                             |
//!  ask --> Runs --none free, or not allowed--> Sleeps     |
//!           | \                                  | woken  |
//!           |  `-- the last tag: gone            v        |
//!           `<------------ runs at last ------- Woken     |
//!           `---------------------------------------------'
//! ```
//!
//! Invariants: free + held = depth; `active` is the sum of the queues' `waiters`, which count who sleeps and who was woken and
//! did not run yet (Linux counts a task out when it runs); a task is in one line at most: of its queue, while it sleeps, or of
//! those who wait to gather.

use super::{Requester, TagOptions, TagRequest, TagStats};
use crate::options::WakeOptions;
use crate::slab::NIL;

/// Wait queues of a tag map (SBQ_WAIT_QUEUES).
pub const QUEUES: usize = 8;

/// The name of a task.
pub type TaskId = u32;

/// Where a task is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskState {
    /// Nobody's.
    #[default]
    Free,
    /// It will try for a tag, now or when it has submitted a piece.
    Runs,
    /// In its queue.
    Sleeps,
    /// Out of its queue; the CPU has not come to it yet.
    Woken,
}

/// A thread that submits one bio, piece by piece; or the gathering of a lease for another shard.
#[derive(Clone, Debug)]
pub struct Task {
    pub requester: Requester,
    pub sync: bool,
    pub want: u16,
    /// Tags that it still has to get.
    pub left: u16,
    pub state: TaskState,
    /// Its wait queue for this tag, once it has one.
    pub queue: Option<u8>,
    /// It may take a tag whoever waits, until it has one (`kuai_v3`).
    pub preempt: bool,
    /// It slept at least once.
    pub slept: bool,
    pub asked_at: u64,
    next: TaskId,
}

/// Tasks in the order in which they came.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    head: TaskId,
    tail: TaskId,
}

/// A wait queue.
#[derive(Clone, Copy, Debug)]
pub struct WaitQueue {
    line: Line,
    /// Who sleeps here, and who was woken here and did not run yet.
    pub waiters: u32,
    /// Tags to fall free before it is woken; below 0 while wakers race.
    pub wait_cnt: i32,
}

/// All tasks of a device, and its tags.
#[derive(Debug)]
pub struct Tasks {
    tasks: Vec<Task>,
    spare: Line,
    /// Tasks that still want tags.
    pub alive: u32,
    pub queues: [WaitQueue; QUEUES],
    /// `ws_active`.
    pub active: u32,
    /// The queue that is woken next.
    pub wake_index: u8,
    /// The queue that the next one who must sleep joins.
    pub wait_index: u8,
    pub wake_batch: u32,
    pub depth: u32,
    pub free: u32,
    async_depth: u32,
    asyncs: u32,
    /// The one task that gathers a lease for another shard: two half-gathered leases could wait for each other for ever.
    gathering: Option<TaskId>,
    /// Those that gather after it.
    gatherers: Line,
    pub stats: TagStats,
    settled_at: u64,
}

impl Line {
    const EMPTY: Self = Self { head: NIL, tail: NIL };

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
    pub fn new(options: TagOptions, wake: &WakeOptions) -> Self {
        let TagOptions { depth, async_depth, waiters_max } = options;
        assert!(depth > 0, "a device without tags serves nobody");
        // Linux's rule: all eight queues get a turn by the tags that one population of waiters can have in flight.
        let wake_batch = match wake.wake_batch {
            0 => (depth.min(async_depth) / QUEUES as u32).clamp(1, 8),
            batch => batch,
        };
        let queue = WaitQueue { line: Line::EMPTY, waiters: 0, wait_cnt: wake_batch as i32 };
        let nobody = Task {
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
            tasks: vec![nobody; waiters_max],
            spare: Line::EMPTY,
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
            gatherers: Line::EMPTY,
            stats: TagStats::default(),
            settled_at: 0,
        };
        (0..waiters_max as u32).for_each(|id| made.spare.push(&mut made.tasks, id));
        made
    }

    pub fn task(&self, id: TaskId) -> &Task {
        &self.tasks[id as usize]
    }

    pub fn task_mut(&mut self, id: TaskId) -> &mut Task {
        &mut self.tasks[id as usize]
    }

    /// Brings the account of idle tags up to `at`; before every change of who waits and what is free.
    pub fn settle(&mut self, at: u64) {
        if self.active > 0 {
            let lasted = at.saturating_sub(self.settled_at);
            self.stats.idle_tag_ns += u64::from(self.free) * lasted;
            self.stats.idle_max = self.stats.idle_max.max(self.free);
        }
        self.settled_at = self.settled_at.max(at);
    }

    /// A task for `ask`; false as its second half while it has to wait for another gatherer.
    pub fn begin(&mut self, at: u64, request: &TagRequest) -> (TaskId, bool) {
        assert!(request.tags >= 1, "nobody requests for nothing");
        let id = self.spare.pop(&self.tasks).expect("more waiters than slots exist");
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

    /// The task has all its tags. Returns who gathers next, if this was a gatherer.
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
        self.spare.push(&mut self.tasks, id);
        if self.gathering != Some(id) {
            return None;
        }
        self.gathering = self.gatherers.pop(&self.tasks);
        self.gathering
    }

    /// Tags that the gatherer holds without using them.
    pub fn gathered(&self) -> u32 {
        let of = |id| u32::from(self.task(id).want - self.task(id).left);
        self.gathering.map_or(0, of)
    }

    /// Whether a tag is free that the task may hold.
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

    /// A tag comes back.
    pub fn put(&mut self, at: u64) {
        self.settle(at);
        self.free += 1;
        assert!(self.free <= self.depth, "a tag came back twice");
    }

    /// So many of those that come back were for asynchronous requests.
    pub fn put_asyncs(&mut self, count: u32) {
        assert!(count <= self.asyncs, "an asynchronous tag came back twice");
        self.asyncs -= count;
    }

    /// The next queue for who must sleep, round robin.
    pub fn next_queue(&mut self) -> u8 {
        let queue = self.wait_index;
        self.wait_index = after(queue);
        queue
    }

    /// The task goes to sleep at the tail of its queue.
    pub fn sleep(&mut self, at: u64, id: TaskId) {
        self.settle(at);
        let task = &mut self.tasks[id as usize];
        assert!(task.state == TaskState::Runs, "who sleeps does not go to sleep");
        task.state = TaskState::Sleeps;
        self.stats.waits += u64::from(!task.slept);
        task.slept = true;
        let queue = task.queue.expect("a queue is chosen before a task sleeps");
        let queue = &mut self.queues[usize::from(queue)];
        queue.line.push(&mut self.tasks, id);
        queue.waiters += 1;
        self.active += 1;
    }

    /// Takes the head of `queue` out: it will run.
    pub fn wake(&mut self, queue: u8) -> Option<TaskId> {
        let id = self.queues[usize::from(queue)].line.pop(&self.tasks)?;
        let task = self.task_mut(id);
        assert!(task.state == TaskState::Sleeps, "only who sleeps is woken");
        task.state = TaskState::Woken;
        Some(id)
    }

    /// A woken task runs.
    pub fn finish_wait(&mut self, at: u64, id: TaskId) {
        self.settle(at);
        let task = &mut self.tasks[id as usize];
        task.state = TaskState::Runs;
        let queue = task.queue.expect("who was woken slept in a queue");
        self.queues[usize::from(queue)].waiters -= 1;
        self.active -= 1;
    }

    /// Whether somebody sleeps in `queue` (`waitqueue_active`).
    pub fn is_sleeping(&self, queue: u8) -> bool {
        self.queues[usize::from(queue)].line.head().is_some()
    }

    /// Who sleeps in `queue`, from its head.
    pub fn sleepers(&self, queue: u8) -> impl Iterator<Item = &Task> {
        let mut next = self.queues[usize::from(queue)].line.head();
        std::iter::from_fn(move || {
            let task = self.task(next?);
            next = (task.next != NIL).then_some(task.next);
            Some(task)
        })
    }

    /// Counts a freed tag for `queue` (`atomic_dec_return`).
    pub fn count_down(&mut self, queue: u8) -> i32 {
        let count = &mut self.queues[usize::from(queue)].wait_cnt;
        *count -= 1;
        *count
    }

    /// The count of `queue` starts anew.
    pub fn count_anew(&mut self, queue: u8) {
        self.queues[usize::from(queue)].wait_cnt = self.wake_batch as i32;
    }
}

/// The queue after `queue`.
pub const fn after(queue: u8) -> u8 {
    (queue + 1) % QUEUES as u8
}
