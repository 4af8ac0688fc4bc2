//! The old server's side: the standing part, the pause with the live part, and the way back.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use headworks_core::{ShardId, VolumeId};

use super::live;
use super::record::Handover;
use super::standing::StandingParts;
use crate::Server;
use crate::change;
use crate::clients::files::directory::RestingDirectories;
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::hand_over::{PauseOrder, PauseWay, PausedServer, PausedShard};
use headworks_control::RpcFault;

/// Age of a command that makes a pause wait while clients are served.
const SLOW: Duration = Duration::from_millis(if cfg!(test) { 100 } else { 1000 });
/// Time until the devices are asked again.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Why a pause failed; the oldest command follows.
const LATE: &str = "requests in flight did not end in time";

impl Server {
    /// Listeners, image locks and settings, for a process that is to replace this one. The server goes on.
    ///
    /// # Errors
    /// A sentence why this server cannot be handed over.
    pub fn standing(&self) -> Result<Handover, String> {
        let (volumes, locks) = change::hand_over::volumes_to_hand_over(self.service().changes())?;
        let changes = self.unsaved_changes()?;
        *self.handed_changes() = Some(changes.clone());
        (*self.handed_volumes()).clone_from(&volumes);
        let has_memory = self.may_hand_memory();
        *self.handed_memory() = has_memory;
        let parts = StandingParts {
            listeners: &self.handed(),
            locks,
            has_memory,
            volumes: &volumes,
            changes: &changes,
        };
        parts.write()
    }

    /// Pauses the service: no accept, no read, no write-out, nothing in flight; then hands over connections and contents of caches.
    /// Without memory that another process can map, everything dirty is written out first, and the next cache begins empty.
    ///
    /// Clients are served as long as a device has a command for so long that it may not answer in time.
    ///
    /// # Errors
    /// A sentence why requests in flight did not end within `limit`; the server already serves on.
    pub fn pause(&self, limit: Duration) -> Result<Handover, String> {
        self.await_devices(Instant::now() + limit)?;
        let has_memory = *self.handed_memory();
        if has_memory && !self.may_hand_memory() {
            return Err("an export was given up meanwhile; try again".to_owned());
        }
        let way = if has_memory { PauseWay::AsItIs } else { PauseWay::WrittenOut };
        // Before the pause: the shards are asked. While they are paused they refuse changes.
        let changes = self.unsaved_changes()?;
        if self.handed_changes().as_ref().is_some_and(|handed| *handed != changes) {
            return Err("exports or settings were changed meanwhile; try again".to_owned());
        }
        self.service().set_handing_over(true);
        // First: a file that is mounted now is in its shard, or has left it.
        let resting = self.service().changes().directories().rest(Instant::now() + limit);
        let resting = resting.inspect_err(|_| self.service().set_handing_over(false))?;
        let mut pause = PauseInProgress { resting: Some(resting), ..self.begin_pause(way, limit) };
        loop {
            if let Some(outcome) = self.advance_pause(&mut pause, limit) {
                return outcome.and_then(|live| self.check_images().map(|()| live));
            }
        }
    }

    /// Whether the memory of the cache may go to the process that replaces this one: not while a device may yet use it, for an export
    /// that was given up.
    fn may_hand_memory(&self) -> bool {
        self.keeps_cache() && self.abandoned().is_empty()
    }

    fn await_devices(&self, deadline: Instant) -> Result<(), String> {
        let oldest = || {
            change::held_up::oldest_command(self.service().changes()).filter(|one| one.age >= SLOW)
        };
        while let Some(oldest) = oldest() {
            if Instant::now() >= deadline {
                return Err(format!("{LATE}: {}", oldest.with_advice()));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Ends the pause if a snapshot or a resize was made since the new process opened the images: it would write to what is a base
    /// now, or have less than clients use. From here on there can be none, because they change what paused shards know.
    fn check_images(&self) -> Result<(), String> {
        let now = change::hand_over::volumes_to_hand_over(self.service().changes())
            .map(|(volumes, _)| volumes);
        let is_same = now.as_ref() == Ok(&*self.handed_volumes());
        if !is_same {
            self.resume();
            return Err(now.err().unwrap_or_else(|| {
                "a snapshot or a resize was made meanwhile; try again".to_owned()
            }));
        }
        Ok(())
    }

    /// What `headworks ctl` has changed, as a configuration file.
    fn unsaved_changes(&self) -> Result<String, String> {
        change::diff::for_successor(self.service().changes()).map_err(RpcFault::into_message)
    }

    /// Begins a pause for a process that starts when this one has ended: everything is written out and flushed, most of it while
    /// clients are served. At its end the marks of the images go, and so do the files of the server's own sockets.
    #[must_use]
    pub fn begin_pause_for_restart(&self, limit: Duration) -> PauseInProgress {
        let way = match self.keeps_cache() {
            true => PauseWay::WrittenOutBefore,
            false => PauseWay::WrittenOut,
        };
        self.begin_pause(way, limit)
    }

    /// The live part of a pause for a restart, when that is complete; none before. After an error the server serves on.
    pub fn poll_pause_for_restart(
        &self,
        pause: &mut PauseInProgress,
    ) -> Option<Result<Handover, String>> {
        let live = match self.advance_pause(pause, Duration::ZERO)? {
            Ok(live) => live,
            Err(reason) => return Some(Err(reason)),
        };
        self.shared().keeper().close_all();
        for (path, _) in self.handed().drain(..).filter_map(|listener| listener.file) {
            // A file that is left is replaced by the next server.
            let _ = std::fs::remove_file(path);
        }
        Some(Ok(live))
    }

    /// What a process that starts when this one has ended needs beside [`Server::begin_pause_for_restart`]: which volume is which
    /// image.
    ///
    /// # Errors
    /// As [`Server::standing`].
    pub fn standing_for_restart(&self) -> Result<Handover, String> {
        if let Some(name) = self.abandoned().first() {
            return Err(format!(
                "the device of export {name}, which was given up, has not answered"
            ));
        }
        let (mut volumes, _) = change::hand_over::volumes_to_hand_over(self.service().changes())?;
        // Another image may get the numbers of one that is closed.
        volumes.retain(|volume| volume.is_known);
        // The next process asks the remotes anew, and looks partitions up: they may have changed with the restart. The marks are gone by then.
        for volume in &mut volumes {
            (volume.remote, volume.path) = (None, None);
            volume.partitions.clear();
        }
        let (listeners, locks, has_memory) = (&[][..], Vec::new(), self.keeps_cache());
        StandingParts { listeners, locks, has_memory, volumes: &volumes, changes: "" }.write()
    }

    fn begin_pause(&self, way: PauseWay, limit: Duration) -> PauseInProgress {
        let ((answers, paused), (begun, begins)) = (channel(), channel());
        let mut pause = PauseInProgress {
            way,
            flush: change::hand_over::volumes_to_flush(self.service().changes()).into(),
            deadline: Instant::now() + limit,
            ends: Vec::new(),
            begins,
            answers: Some(answers),
            paused,
            gathered: Vec::new(),
            resting: None,
        };
        // The first shard accepts clients and passes them on: the others are told when it has stopped.
        self.order(&mut pause, 0, Some(begun));
        pause
    }

    fn order(&self, pause: &mut PauseInProgress, shard: u16, begun: Option<Sender<Infallible>>) {
        let Some(answer) = pause.answers.clone() else { return };
        let (end, ended) = channel();
        let flush = Arc::clone(&pause.flush);
        pause.ends.push(end);
        let order = PauseOrder { way: pause.way, flush, begun, answer, end: ended };
        self.shared().send(ShardId(shard), ControlMessage::Pause(order));
    }

    /// Advances a pause, and waits for a step at most for `wait`; returns its outcome at the end.
    fn advance_pause(
        &self,
        pause: &mut PauseInProgress,
        wait: Duration,
    ) -> Option<Result<Handover, String>> {
        let outcome = pause.advance(wait, |pause| {
            (1..self.shared().shards() as u16).for_each(|shard| self.order(pause, shard, None));
        })?;
        let (mut ends, resting) = (std::mem::take(&mut pause.ends), pause.resting.take());
        Some(match outcome {
            Ok(mut paused) => {
                let mounted = resting.map(|RestingDirectories { mounted, ends: resting }| {
                    ends.extend(resting);
                    mounted
                });
                if mounted.is_none() {
                    // What mounts ends with this process.
                    for shard in &mut paused {
                        shard.stay += std::mem::take(&mut shard.files).len();
                    }
                }
                let stay: usize = paused.iter().map(|shard| shard.stay).sum();
                if stay > 0 {
                    let files = if mounted.is_none() { ", files of FUSE" } else { "" };
                    tracing::info!(
                        "{stay} clients cannot move (encrypted ones, handshakes, virtual machines{files}): their connections end with this process"
                    );
                }
                self.set_paused(Some(PausedServer { ends }));
                Ok(live::write(paused, &mounted.unwrap_or_default()))
            }
            Err(reason) => {
                drop((ends, resting));
                self.resume();
                // What it has by now it had before: a paused shard sends nothing new.
                let oldest = change::held_up::oldest_command(self.service().changes());
                Err(match oldest.filter(|_| reason == LATE) {
                    Some(oldest) => format!("{LATE}: {}", oldest.with_advice()),
                    None => reason,
                })
            }
        })
    }

    /// Ends a pause: the server serves on.
    pub fn resume(&self) {
        self.service().set_handing_over(false);
        self.set_paused(None);
    }
}

/// A pause that is not complete yet. Dropped, it ends, and the shards go on.
#[derive(Debug)]
pub struct PauseInProgress {
    way: PauseWay,
    flush: Arc<[VolumeId]>,
    deadline: Instant,
    ends: Vec<Sender<Infallible>>,
    /// Closed when the first shard has stopped to read.
    begins: Receiver<Infallible>,
    /// For further orders; none when all shards are told.
    answers: Option<Sender<Result<PausedShard, String>>>,
    paused: Receiver<Result<PausedShard, String>>,
    gathered: Vec<PausedShard>,
    /// The directories, whose files move; none before a restart, which unmounts them.
    resting: Option<RestingDirectories>,
}

impl PauseInProgress {
    /// Waits at most for `wait`; returns what the shards hand over, in their order, when all have. `tell_others` orders the others to
    /// pause.
    fn advance(
        &mut self,
        wait: Duration,
        tell_others: impl FnOnce(&mut Self),
    ) -> Option<Result<Vec<PausedShard>, String>> {
        let wait = wait.min(self.deadline.saturating_duration_since(Instant::now()));
        if self.answers.is_some() {
            match self.begins.recv_timeout(wait) {
                Err(RecvTimeoutError::Disconnected) => {
                    tell_others(self);
                    self.answers = None;
                }
                _ => return self.late(),
            }
        }
        let shards = self.ends.len();
        while self.gathered.len() < shards {
            match self.paused.recv_timeout(wait) {
                Ok(Ok(paused)) => self.gathered.push(paused),
                Ok(Err(reason)) => return Some(Err(reason)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(Err("the server stops".to_owned()));
                }
                Err(RecvTimeoutError::Timeout) => return self.late(),
            }
        }
        let mut paused = std::mem::take(&mut self.gathered);
        paused.sort_by_key(|shard| shard.shard);
        Some(Ok(paused))
    }

    /// The outcome after the time limit; none before.
    fn late(&self) -> Option<Result<Vec<PausedShard>, String>> {
        (Instant::now() >= self.deadline).then(|| Err(LATE.to_owned()))
    }
}
