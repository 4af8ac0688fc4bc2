//! Messages of a hand-over between the server and its shards: pause, and adoption by a new process.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use headworks_core::{ExportId, ShardId, VolumeId};
use headworks_nbd::Negotiated;

use crate::clients::client::ShardClient;
use crate::clients::files::hand_over::HandedFile;
use crate::clients::nbd::connection::HandedConnection;
use crate::successor::handover::ToldExport;

/// How a pause treats the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseWay {
    /// The contents move with their memory, dirty or not.
    AsItIs,
    /// Everything dirty is written out; the next cache begins empty.
    WrittenOut,
    /// Everything dirty is written out, most of it while clients are still served; the contents move.
    WrittenOutBefore,
}

/// The order to pause.
#[derive(Debug)]
pub struct PauseOrder {
    /// What is done with dirty data and with the contents of the cache.
    pub way: PauseWay,
    /// Volumes that this process must flush in any case: what their devices acknowledged, the next process cannot make durable.
    pub flush: Arc<[VolumeId]>,
    /// Dropped when the shard has begun: it moves no client to another shard any more.
    pub begun: Option<Sender<Infallible>>,
    /// Told when the shard is paused, or why it cannot be.
    pub answer: Sender<Result<PausedShard, String>>,
    /// Its other end is dropped to end the pause.
    pub end: Receiver<Infallible>,
}

/// What a paused shard hands over.
#[derive(Debug)]
pub struct PausedShard {
    /// The shard that is paused.
    pub shard: ShardId,
    /// Connections, each with what its client was told of its export.
    pub connections: Vec<(ToldExport, HandedConnection)>,
    /// Files of FUSE, each with what its programs know of its export.
    pub files: Vec<(ToldExport, HandedFile)>,
    /// Connections that cannot move.
    pub stay: usize,
    /// Contents of the cache; none without a cache whose memory moves.
    pub contents: Option<Vec<u64>>,
    /// Volumes of which a device flush failed and was not acknowledged.
    pub suspect: Vec<VolumeId>,
}

/// What a shard of the new process takes over before its first request.
pub struct AdoptOrder {
    /// Contents of the cache; none if the cache begins empty.
    pub contents: Option<Vec<u64>>,
    /// Volumes of the old process, by id, and their ids here.
    pub volumes: Vec<Option<VolumeId>>,
    /// Clients of this shard.
    pub clients: Vec<AdoptedClient>,
    /// Told whether everything was adopted.
    pub answer: Sender<Result<(), String>>,
    /// Gets a message when the old process has left; disconnected, the shard ends and has changed nothing.
    pub go: Receiver<()>,
}

impl AdoptOrder {
    /// An order that ends a shard which was to take over.
    pub fn withdrawn() -> Self {
        let (contents, volumes, clients) = (None, Vec::new(), Vec::new());
        Self { contents, volumes, clients, answer: channel().0, go: channel().1 }
    }
}

/// A client that comes from another process.
pub struct AdoptedClient {
    /// Its id in the old process.
    pub old_id: u32,
    /// The connection or file, which is not bound yet.
    pub client: ShardClient,
    /// The export that it is bound to.
    pub export: ExportId,
    /// Protocol features agreed on in the handshake, of a connection.
    pub terms: Negotiated,
}

/// A pause of all shards and directories; they go on when it is dropped.
#[derive(Debug)]
pub struct PausedServer {
    /// The other end of each order's [`PauseOrder::end`], and of what the directories were told.
    pub ends: Vec<Sender<Infallible>>,
}
