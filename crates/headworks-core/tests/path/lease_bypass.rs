//! The bound on bypass across shards: how often each other connection is served while a request waits, wherever both wait.
//!
//! Each shard has as many connections in an export of its own, all of the same weight, so every connection of the device has the
//! same share. A shard competes at the owner as one, which adds a level to the tree of shares, and what its lease holds when a
//! request arrives is used up before: both are constants of the bound, which no number of shards, connections or tags changes.

use std::collections::VecDeque;

use headworks_core::prng::Prng;
use headworks_core::{ExportId, Input};

use crate::bench::Shards;

/// Most requests of another connection that pass a request.
const PASSED_MAX: u32 = 7;

/// One connection: its shard, and its requests that were not sent to the device yet, with what passed each so far.
struct Connection {
    shard: usize,
    waiting: VecDeque<Vec<u32>>,
    outstanding: u32,
}

/// Closed loops of depth 1 on all shards, served one command at a time; returns the most requests of one connection that passed
/// a request of another.
fn most_passed(prng: &mut Prng, shards: u16, each: usize, tags: u32) -> u32 {
    let mut world = Shards::with_exports(shards, usize::from(shards), |q| {
        (q.nr_requests, q.queue_depth) = (tags, tags)
    });
    let count = each * usize::from(shards);
    let mut connections: Vec<Connection> = (0..count)
        .map(|n| Connection { shard: n / each, waiting: VecDeque::new(), outstanding: 0 })
        .collect();
    let (mut sent, mut open, mut most) = (0, Vec::new(), 0);
    for _ in 0..count * 40 {
        for (number, connection) in connections.iter_mut().enumerate() {
            if connection.outstanding == 0 && prng.below(4) > 0 {
                let shard = connection.shard;
                let at = prng.below(1 << 17) * 8;
                let word = format!("v{shard}:R{at}k+4k");
                let Input::Bio(mut bio) = world.at[shard].bio(&word) else { unreachable!() };
                (bio.id.connection, bio.id.export) = (number as u32, ExportId(shard as u16));
                connection.outstanding += 1;
                connection.waiting.push_back(vec![0; count]);
                world.at[shard].turn(&[Input::Bio(bio)]);
            }
        }
        world.deliver();
        while sent < world.at[0].commands() {
            let number = world.at[0].command(sent).segments[0].bio.connection as usize;
            connections[number].waiting.pop_front().expect("a command has a request");
            open.push((sent, number));
            sent += 1;
            for other in connections.iter_mut().enumerate().filter(|(n, _)| *n != number) {
                for passed in &mut other.1.waiting {
                    passed[number] += 1;
                    most = most.max(passed[number]);
                }
            }
        }
        if open.is_empty() {
            continue;
        }
        let (command, number) = open.swap_remove(prng.below(open.len() as u64) as usize);
        connections[number].outstanding -= 1;
        world.at[0].done(command);
        world.deliver();
    }
    most
}

#[test]
fn request_is_passed_by_bounded_requests_of_every_other_shard() {
    let mut prng = Prng::new(11);
    for round in 0..200 {
        let shards = 2 + prng.below(3) as u16;
        let (each, tags) = (1 + prng.below(24) as usize, 1 + prng.below(64) as u32);
        let most = most_passed(&mut prng, shards, each, tags);
        assert!(
            most <= PASSED_MAX,
            "round {round}, {shards} shards of {each}, {tags} tags: {most}"
        );
    }
}
