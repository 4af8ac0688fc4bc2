//! Clients of a shard: NBD connections, vhost-user devices and files of FUSE.
//!
//! | module | content |
//! |---|---|
//! | `client` | a client of any kind, as the reactor knows it |
//! | `nbd` | connections: receive, parse, reply, send |
//! | `rings` | vhost-user devices, whose requests come by shared memory |
//! | `files` | files of FUSE, one for each export |
//! | `whole` | the path of a request that arrives whole, of the latter two: admission, bio, answer |
//! | `connection_id` | ids of connections: which shard, which kind |

pub(crate) mod client;
pub(crate) mod connection_id;
pub(crate) mod files;
pub(crate) mod nbd;
pub(crate) mod rings;
pub(crate) mod whole;
