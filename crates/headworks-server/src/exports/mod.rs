//! What is served: exports, their images and volumes, and the clients that may see them.
//!
//! | module | content |
//! |---|---|
//! | `assemble` | devices, volumes and exports from specifications: images are opened, locked and described |
//! | `export_range`, `partition_table` | the range of its volume that an export serves: offsets of both; where partitions are |
//! | `device_reader` | blocking reads of a device that no shard drives |
//! | `access` | the rules by which listeners and tenants show exports to clients |

pub(crate) mod access;
pub(crate) mod assemble;
pub(crate) mod device_reader;
pub(crate) mod export_range;
pub(crate) mod partition_table;
