//! Start-up of a program as a list of reads: most of them wait for all before them.
//!
//! The list is drawn from a fixed seed so that it has the published counts of a program: requests, bytes and far jumps. Whether a
//! read continues the previous one, and which reads are read-ahead, is not published; `ahead_percent` is set so that a start on an
//! idle disk takes the published time of the model.

use headworks_core::prng::Prng;

/// Counts of the reads of a program's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// The name in rows.
    pub name: &'static str,
    /// Number of reads in a start.
    pub reads: u32,
    /// Bytes of all reads, in whole blocks.
    pub bytes: u64,
    /// Reads that do not continue the previous one.
    pub far: u32,
    /// Percentage of reads that are read-ahead: submitted together with the read before them.
    pub ahead_percent: u64,
}

/// A read of a program's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProgramRead {
    /// Length of the read in bytes.
    pub len: u32,
    /// Whether the read is at a random position; otherwise it continues the previous one.
    pub far: bool,
    /// Whether the read waits for all reads before it.
    pub waits: bool,
}

const BLOCK: u32 = 4096;
/// Largest read: the kernel's default read-ahead window.
const LEN_MAX: u32 = 128 << 10;

impl Program {
    /// The reads in their order, the same in every run.
    pub(super) fn list(&self) -> Vec<ProgramRead> {
        let mut prng = Prng::new(u64::from(self.reads)).split(self.name);
        let percent = |prng: &mut Prng, of| prng.below(100) < of;
        let mut list: Vec<ProgramRead> = (0..self.reads)
            .map(|index| ProgramRead {
                len: BLOCK,
                far: index == 0,
                waits: index == 0 || !percent(&mut prng, self.ahead_percent),
            })
            .collect();
        let mut far = 1;
        while far < self.far.min(self.reads) {
            let at = prng.below(self.reads.into()) as usize;
            far += u32::from(!list[at].far);
            list[at].far = true;
        }
        // What exceeds one block a read is spread at random: read-ahead is longer than what a page fault reads.
        let mut blocks = (self.bytes / u64::from(BLOCK)).saturating_sub(self.reads.into());
        let room = |read: &ProgramRead| read.len < LEN_MAX;
        while blocks > 0 && list.iter().any(room) {
            let at = prng.below(self.reads.into()) as usize;
            let read = &mut list[at];
            if room(read) && (!read.waits || percent(&mut prng, 20)) {
                read.len += BLOCK;
                blocks -= 1;
            }
        }
        assert!(blocks == 0, "{} bytes fit {} reads", self.bytes, self.reads);
        list
    }

    /// The most reads that are outstanding at once.
    pub(super) fn depth(&self) -> u32 {
        let (mut depth, mut most) = (0, 0);
        for read in self.list() {
            depth = if read.waits { 1 } else { depth + 1 };
            most = most.max(depth);
        }
        most + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_the_counts_of_the_program_every_time() {
        let program =
            Program { name: "x", reads: 700, bytes: 6 << 20, far: 120, ahead_percent: 40 };
        let list = program.list();
        assert_eq!(list, program.list());
        assert_eq!(list.len(), 700);
        assert_eq!(list.iter().map(|read| u64::from(read.len)).sum::<u64>(), 6 << 20);
        assert_eq!(list.iter().filter(|read| read.far).count(), 120);
        let ahead = list.iter().filter(|read| !read.waits).count();
        assert!((230..330).contains(&ahead), "{ahead}");
        assert!(list[0].waits && list.iter().all(|read| read.len <= LEN_MAX));
    }
}
