//! What a seed draws for its world.

use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC, US};

use super::client::ClientScenario;

/// What a world draws.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What each client draws from.
    pub clients: ClientScenario,
    /// Clients of all exports.
    pub count: u64,
    /// Exports, each with a volume and a device of its own. Freezes, limits, errors and a device that does not answer are the last one's.
    pub exports: u16,
    /// Clients of the first export without faults, whose requests may never take long; 0: clients are of any kind everywhere.
    pub quiet: u64,
    /// Bytes of the buffer pool.
    pub pool: usize,
    /// Bio slots of the shard.
    pub slots: u32,
    /// Most writes are longer than their windows, and given in pieces.
    pub pieces: bool,
    /// Bytes that the server's sockets hold of unread replies; 0: as many as they do by default.
    pub send_buffer: usize,
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
    /// Time after which a client that owes bytes is closed.
    pub stall: u64,
    /// At rest every connection is tried. That counts as a sign of its client, so stalls are looked for in other worlds.
    pub tries: bool,
    /// Virtual machines beside the connections.
    pub rings: u64,
    /// The process of the server dies now and then.
    pub deaths: bool,
}

impl Scenario {
    pub fn draw(prng: &mut Prng) -> Self {
        let pool: usize = [1 << 20, 2 << 20, 8 << 20][prng.below(3) as usize];
        let largest = (pool / 4) as u32 >> prng.below(4);
        let mut scenario = Self {
            clients: ClientScenario {
                size: 8 << 20,
                largest,
                requests: [10, 30, 80][prng.below(3) as usize],
                depth: [1, 8, 64][prng.below(3) as usize],
                large: [2, 6, 6][prng.below(3) as usize],
                vanishes: false,
            },
            count: prng.between(2, 10),
            exports: 1,
            quiet: 0,
            pool,
            slots: [8, 16, 64, 1024][prng.below(4) as usize],
            pieces: false,
            send_buffer: 0,
            requests: [1, 4, 16, 128][prng.below(4) as usize],
            freezes: prng.below(3) == 0,
            stuck: prng.below(4) == 0,
            pauses: prng.below(3) == 0,
            limits: prng.below(2) == 0,
            errors: [0, 0, 20_000, 200_000][prng.below(4) as usize],
            latency: [100 * US, 2 * MS, 50 * MS, 500 * MS][prng.below(4) as usize],
            stall: [300 * MS, 2 * SEC][prng.below(2) as usize],
            tries: prng.below(3) > 0,
            rings: 0,
            deaths: false,
        };
        if prng.below(2) == 0 {
            scenario.exports = prng.between(2, 3) as u16;
            scenario.count = scenario.count.max(4);
        }
        if scenario.exports > 1 && prng.below(2) == 0 {
            // Pauses stop everything.
            (scenario.quiet, scenario.pauses) = (prng.between(1, 2), false);
        }
        // From a stream of their own: worlds without them are as they were.
        let mut more = prng.split("pieces");
        scenario.send_buffer = [0, 4 << 10, 32 << 10][more.below(3) as usize];
        if scenario.quiet == 0 && more.below(4) == 0 {
            scenario.draw_pieces(&mut more);
        }
        scenario
    }

    /// Draws machines beside the connections. From a stream of their own, too.
    pub fn draw_machines(&mut self, prng: &Prng) {
        let mut more = prng.split("machines");
        self.rings = more.between(1, 3);
        self.deaths = self.quiet == 0 && more.below(3) > 0;
    }

    /// Draws what has long writes given in pieces, failing ones, and connections that close and move meanwhile.
    fn draw_pieces(&mut self, prng: &mut Prng) {
        self.pieces = true;
        (self.pool, self.count) = ((1 << 20) << prng.below(2), prng.between(5, 8));
        (self.clients.largest, self.clients.large) = ((self.pool / 4) as u32, 1);
        (self.clients.requests, self.requests) = (10, self.requests.max(4));
        self.errors = [0, 20_000, 200_000][prng.below(3) as usize];
        self.latency = self.latency.min(50 * MS);
        self.pauses = prng.below(2) == 0;
        self.clients.vanishes = prng.below(2) == 0;
    }

    /// What the clients without faults draw from: all that they have in flight is a part of what others leave of the pool.
    pub fn quiet_clients(&self) -> ClientScenario {
        let largest = (self.pool / 64) as u32;
        ClientScenario { largest, depth: self.clients.depth.min(4), ..self.clients }
    }

    /// The export of a client.
    pub fn export_of(&self, client: u64) -> u16 {
        match client.checked_sub(self.quiet) {
            None => 0,
            Some(other) if self.quiet > 0 => 1 + (other % u64::from(self.exports - 1)) as u16,
            Some(other) => (other % u64::from(self.exports)) as u16,
        }
    }
}
