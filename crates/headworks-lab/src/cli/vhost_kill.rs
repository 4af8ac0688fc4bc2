//! `headworks-lab run vhost-kill`: kills a vhost-user server again and again under verified requests, and connects again with the in-flight
//! region: nothing may be missing, answered twice, or in a wrong block.
//!
//! ```text
//!   start the server --> requests in flight on every queue --> kill -9 at a random moment --> start, reconnect --> ..
//!                                                                 after the last kill: all answers, and every block is read
//! ```
//!
//! A block has at most one request at a time, so its content is known: the number of the last acknowledged write in every word, or
//! zeros. A request that a dead process had taken may have been done or not; its answer comes from a later process.
//!
//! Exit codes: 0 nothing was lost, doubled or wrong; 1 otherwise; 2 usage.

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use headworks_core::prng::Prng;
use headworks_vhost::RequestOp;
use headworks_vhost::driver::{Driver, DriverError, DriverOptions, SlotStatus, Waited};

use crate::cli::complain;

/// Bytes of a block.
const BLOCK: u32 = 4096;
/// Longest time for a server to start, and for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of `headworks-lab run vhost-kill`.
#[derive(Args)]
pub struct VhostKillArgs {
    /// The device's socket, which the server makes
    #[arg(long)]
    socket: PathBuf,
    /// How often the server is killed
    #[arg(long, default_value_t = 10)]
    kills: u32,
    /// Bytes of the disk that are written and checked; they are zeros at first
    #[arg(long, default_value = "32M", value_parser = headworks_server::parse_size)]
    size: u64,
    /// Number of queues
    #[arg(long, default_value_t = 2)]
    queues: u16,
    /// Requests in flight of each queue
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// Seed of blocks, kinds and moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The server's command line, behind --
    #[arg(required = true, last = true)]
    server: Vec<String>,
}

impl VhostKillArgs {
    /// Runs the kills and prints what was found.
    pub fn run(self) -> ExitCode {
        match self.kill() {
            Ok(sentence) => {
                println!("{sentence}");
                ExitCode::SUCCESS
            }
            Err(sentence) => {
                complain(sentence);
                ExitCode::FAILURE
            }
        }
    }

    fn kill(self) -> Result<String, String> {
        let mut server = Server { command: self.server.clone(), child: None };
        server.start()?;
        let options = DriverOptions {
            queues: self.queues,
            depth: self.depth,
            buffer_bytes: BLOCK,
            timeout: PATIENCE,
            ..DriverOptions::new(self.socket.clone())
        };
        let driver = server.until_ready(|| Driver::connect(options.clone()))?;
        if !driver.has_in_flight() {
            return Err("the device offers no in-flight region".to_owned());
        }
        let blocks = self.size.min(driver.capacity().size) / u64::from(BLOCK);
        let mut world = World::new(driver, blocks, self.seed);
        for _ in 0..self.kills {
            let moment = Duration::from_micros(world.prng.between(1_000, 60_000));
            world.work(Some(moment))?;
            server.kill();
            world.taken_over += world.in_flight();
            server.start()?;
            server.until_ready(|| world.driver.reconnect())?;
        }
        world.work(Some(Duration::from_millis(20)))?;
        world.work(None)?;
        world.read_back()?;
        let World { answered, taken_over, .. } = world;
        Ok(format!(
            "{} kills, {answered} answers, {taken_over} requests in flight at kills, {blocks} blocks read back: none missing, none twice, \
             none wrong",
            self.kills
        ))
    }
}

/// The server's process, which is killed at the end, too.
struct Server {
    command: Vec<String>,
    child: Option<Child>,
}

impl Server {
    fn start(&mut self) -> Result<(), String> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).stdin(Stdio::null());
        let child = command.spawn().map_err(|error| format!("{}: {error}", self.command[0]))?;
        self.child = Some(child);
        Ok(())
    }

    /// Tries until the server listens and answers.
    fn until_ready<T>(
        &mut self,
        mut connect: impl FnMut() -> Result<T, DriverError>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match connect() {
                Ok(ready) => return Ok(ready),
                Err(DriverError::Usage(sentence)) => return Err(sentence),
                Err(error) if Instant::now() >= deadline => return Err(error.to_string()),
                Err(_) => {}
            }
            // A busy kernel closes the image of a killed server later than the next one looks for it.
            if self.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
                self.start()?;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Both fail only if the process is gone already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A request in flight, or an answer that is expected.
#[derive(Clone, Copy, Debug)]
struct Flying {
    op: RequestOp,
    block: u64,
    number: u64,
}

/// The driver and what its disk holds.
struct World {
    driver: Driver,
    prng: Prng,
    /// The number that every word of a block holds.
    content: Vec<u64>,
    is_busy: Vec<bool>,
    flying: Vec<Vec<Option<Flying>>>,
    next: u64,
    answered: u64,
    taken_over: usize,
}

impl World {
    fn new(mut driver: Driver, blocks: u64, seed: u64) -> Self {
        let flying =
            driver.queues().iter().map(|queue| vec![None; usize::from(queue.depth())]).collect();
        Self {
            driver,
            prng: Prng::new(seed),
            content: vec![0; blocks as usize],
            is_busy: vec![false; blocks as usize],
            flying,
            next: 1,
            answered: 0,
            taken_over: 0,
        }
    }

    fn in_flight(&self) -> usize {
        self.flying.iter().flatten().flatten().count()
    }

    /// Sends and checks for a time; without one until everything is answered.
    fn work(&mut self, time: Option<Duration>) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            let is_sending = time.is_some_and(|time| begin.elapsed() < time);
            if !is_sending && (time.is_some() || self.in_flight() == 0) {
                return Ok(());
            }
            if is_sending {
                (0..self.flying.len()).for_each(|queue| self.refill(queue));
            }
            let wait = if is_sending { Duration::from_millis(5) } else { PATIENCE };
            for queue in 0..self.flying.len() {
                self.collect(queue, wait)?;
            }
        }
    }

    /// Mostly writes; some flushes, zeroes and reads.
    fn refill(&mut self, queue: usize) {
        for slot in 0..self.flying[queue].len() {
            let block = self.prng.below(self.content.len() as u64);
            if self.flying[queue][slot].is_some() || self.is_busy[block as usize] {
                continue;
            }
            let op = match self.prng.below(20) {
                0 => RequestOp::Flush,
                1 => RequestOp::WriteZeroes,
                2 | 3 => RequestOp::Read,
                _ => RequestOp::Write,
            };
            self.put(queue, slot, op, block);
        }
        self.driver.queues()[queue].submit();
    }

    fn put(&mut self, queue: usize, slot: usize, op: RequestOp, block: u64) {
        let number = self.next;
        self.next += 1;
        self.is_busy[block as usize] = true;
        self.flying[queue][slot] = Some(Flying { op, block, number });
        let ring = &mut self.driver.queues()[queue];
        for word in ring.buffer(slot as u16).chunks_exact_mut(8) {
            word.copy_from_slice(&number.to_le_bytes());
        }
        let len = if op == RequestOp::Flush { 0 } else { BLOCK };
        ring.put(slot as u16, op, block * u64::from(BLOCK), len, 0);
    }

    fn collect(&mut self, queue: usize, wait: Duration) -> Result<(), String> {
        if self.flying[queue].iter().all(Option::is_none) {
            return Ok(());
        }
        let ring = &mut self.driver.queues()[queue];
        let left = match ring.wait(wait) {
            Waited::TimedOut if wait == PATIENCE => format!("within {} s", PATIENCE.as_secs()),
            Waited::Closed => "before the device closed the connection".to_owned(),
            Waited::Answered | Waited::TimedOut => String::new(),
        };
        if !left.is_empty() {
            return Err(format!("{} requests were not answered {left}", self.in_flight()));
        }
        let mut answers = Vec::new();
        ring.reap(|answer| answers.push(answer));
        if ring.counts().strays > 0 {
            return Err("a request was answered twice, or one that was not sent".to_owned());
        }
        answers.into_iter().try_for_each(|answer| self.check(queue, answer))
    }

    fn check(&mut self, queue: usize, answer: SlotStatus) -> Result<(), String> {
        let flying = self.flying[queue][usize::from(answer.slot)].take();
        let Flying { op, block, number } = flying.ok_or("an answer without a request")?;
        self.answered += 1;
        self.is_busy[block as usize] = false;
        if answer.status != 0 {
            return Err(format!("{op:?} of block {block} ended with status {}", answer.status));
        }
        match op {
            RequestOp::Write => self.content[block as usize] = number,
            RequestOp::WriteZeroes => self.content[block as usize] = 0,
            RequestOp::Read => {
                let expected = self.content[block as usize].to_le_bytes();
                let buffer = self.driver.queues()[queue].buffer(answer.slot);
                if let Some(word) = buffer.chunks_exact(8).find(|word| *word != expected) {
                    return Err(format!("block {block} has {word:?}, not {expected:?}"));
                }
            }
            RequestOp::Flush | RequestOp::Discard => {}
        }
        Ok(())
    }

    /// Reads every block once.
    fn read_back(&mut self) -> Result<(), String> {
        let mut block = 0;
        while block < self.content.len() as u64 {
            for slot in 0..self.flying[0].len() {
                if block < self.content.len() as u64 {
                    self.put(0, slot, RequestOp::Read, block);
                    block += 1;
                }
            }
            self.driver.queues()[0].submit();
            self.work(None)?;
        }
        Ok(())
    }
}
