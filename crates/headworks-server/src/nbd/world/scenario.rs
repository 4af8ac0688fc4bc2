//! What a seed draws for its world.

use headworks_core::prng::Prng;
use headworks_core::time::{MS, US};

use super::client::ClientScenario;

/// What a world draws.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What each client draws from.
    pub clients: ClientScenario,
    /// Clients of the one export.
    pub count: u64,
    /// Bytes of the buffer pool.
    pub pool: usize,
    /// Bio slots of the shard.
    pub slots: u32,
    /// Requests that a connection may have in flight.
    pub requests: usize,
    /// The volume is frozen now and then.
    pub freezes: bool,
    /// The device ceases to answer now and then.
    pub stuck: bool,
    /// Connections move to another process now and then.
    pub pauses: bool,
    /// The server has a limit.
    pub limits: bool,
    /// Bios in a million that fail.
    pub errors: u32,
    /// The longest that a bio takes.
    pub latency: u64,
}

impl Scenario {
    pub fn draw(prng: &mut Prng) -> Self {
        let pool: usize = [1 << 20, 2 << 20, 8 << 20][prng.below(3) as usize];
        let largest = (pool / 4) as u32 >> prng.below(4);
        Self {
            clients: ClientScenario {
                size: 8 << 20,
                largest,
                requests: [10, 30, 80][prng.below(3) as usize],
                depth: [1, 8, 64][prng.below(3) as usize],
            },
            count: prng.between(2, 10),
            pool,
            slots: [8, 16, 64, 1024][prng.below(4) as usize],
            requests: [1, 4, 16, 128][prng.below(4) as usize],
            freezes: prng.below(3) == 0,
            stuck: prng.below(4) == 0,
            pauses: prng.below(3) == 0,
            limits: prng.below(2) == 0,
            errors: [0, 0, 20_000][prng.below(3) as usize],
            latency: [100 * US, 2 * MS, 50 * MS, 500 * MS][prng.below(4) as usize],
        }
    }
}
