//! The old server's side: the standing part, the pause with the live part, and the way back.

use std::convert::Infallible;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use headworks_core::ShardId;

use super::live;
use super::record::Handover;
use super::standing::StandingParts;
use crate::Server;
use crate::control::rpc::RpcFault;
use crate::messages::ControlMessage;
use crate::messages::hand_over::{PauseOrder, PausedServer, PausedShard};

impl Server {
    /// Listeners, image locks and settings, for a process that is to replace this one. The server goes on.
    ///
    /// # Errors
    /// A sentence why this server cannot be handed over.
    pub fn standing(&self) -> Result<Handover, String> {
        let changes = self.service().changes();
        let (volumes, locks) = changes.volumes_to_hand_over()?;
        let settings = changes.diff().map_err(RpcFault::into_message)?;
        let parts = StandingParts {
            listeners: &self.handed(),
            locks,
            has_memory: self.keeps_cache(),
            volumes: &volumes,
            changes: settings["text"].as_str().unwrap_or_default(),
        };
        parts.write()
    }

    /// Pauses the service: no accept, no read, no write-out, nothing in flight; then hands over connections and contents of caches.
    /// Without memory that another process can map, everything dirty is written out first, and the next cache begins empty.
    ///
    /// # Errors
    /// A sentence why requests in flight did not end within `limit`; the server already serves on.
    pub fn pause(&self, limit: Duration) -> Result<Handover, String> {
        let deadline = Instant::now() + limit;
        let clean = self.shared().keeper().memory().is_none();
        let (answers, paused) = channel();
        let mut ends = Vec::new();
        let mut order = |shard: u16, begun| {
            let (end, ended) = channel();
            ends.push(end);
            let order = PauseOrder { clean, begun, answer: answers.clone(), end: ended };
            self.shared().send(ShardId(shard), ControlMessage::Pause(order));
        };
        // The first shard accepts clients and passes them on: the others are told when it has stopped.
        let (begun, begins) = channel::<Infallible>();
        order(0, Some(begun));
        let stopped = begins.recv_timeout(limit);
        (1..self.shared().shards() as u16).for_each(|shard| order(shard, None));
        drop(answers);
        let paused = match stopped {
            Err(RecvTimeoutError::Disconnected) => {
                gather(&paused, self.shared().shards(), deadline)
            }
            _ => Err("the first shard does not answer".to_owned()),
        };
        match paused {
            Ok(paused) => {
                let stay: usize = paused.iter().map(|shard| shard.stay).sum();
                if stay > 0 {
                    tracing::info!(
                        "{stay} connections cannot move, since they are encrypted or in their handshake: they end with this process"
                    );
                }
                self.set_paused(Some(PausedServer { ends }));
                Ok(live::write(paused))
            }
            Err(reason) => {
                drop(ends);
                self.resume();
                Err(reason)
            }
        }
    }

    /// Ends a pause: the server serves on.
    pub fn resume(&self) {
        self.set_paused(None);
    }
}

/// Waits for all shards; returns what they hand over, in their order.
fn gather(
    answers: &Receiver<Result<PausedShard, String>>,
    shards: usize,
    deadline: Instant,
) -> Result<Vec<PausedShard>, String> {
    let mut paused = Vec::new();
    while paused.len() < shards {
        let left = deadline.saturating_duration_since(Instant::now());
        match answers.recv_timeout(left) {
            Ok(answer) => paused.push(answer?),
            Err(RecvTimeoutError::Disconnected) => return Err("the server stops".to_owned()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(
                    "requests in flight did not end in time: a device is slow, or does not answer"
                        .to_owned(),
                );
            }
        }
    }
    paused.sort_by_key(|shard: &PausedShard| shard.shard);
    Ok(paused)
}
