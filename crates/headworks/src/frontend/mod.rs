//! Frontends: protocols that bring bios. Each knows how its peers talk and nothing below a volume.

pub mod nbd;
