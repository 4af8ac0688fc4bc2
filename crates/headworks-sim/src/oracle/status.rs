//! Checks of block status: a range reported as zeros must be one that a read begun with the request
//! could find to be zeros.
//!
//! Data is always a correct answer. Zeros are wrong when other data were acknowledged before the
//! request and no write since may have zeroed them.

use headworks_core::extent::extents;
use headworks_core::{Bio, Extent, ExtentState};

use super::{ANY, Entry, Oracle, Ticket, Violation, WriteRecord};
use crate::sector_pattern::SECTOR;

impl Oracle {
    /// Checks each extent reported as zeros.
    pub(super) fn check_status(
        &self,
        bio: &Bio,
        ticket: Ticket,
        list: &[u8],
    ) -> Result<(), Violation> {
        const RULE: &str = "a range reported as zeros reads as zeros";
        let volume = &self.volumes[usize::from(bio.id.volume.0)];
        let mut offset = bio.offset;
        for Extent { len, state } in extents(list, bio.len) {
            let end = offset + u64::from(len);
            let cells = match state.contains(ExtentState::ZERO) {
                true => volume.cell(offset)..volume.cell(end),
                false => 0..0,
            };
            for cell in cells {
                if !self.may_be_zero(cell, ticket.start) {
                    let (number, at, _) = volume.place(cell);
                    let place = Some((bio.id.volume.0, number * SECTOR as u64 + at as u64));
                    let asked = ticket.start;
                    let could = self.describe(cell);
                    let detail =
                        format!("a bio submitted at tick {asked} was answered with zeros; {could}");
                    return Err(Violation { rule: RULE, detail, place });
                }
            }
            offset = end;
        }
        match offset > bio.offset {
            true => Ok(()),
            false => Err(Violation {
                rule: "a block status reply has at least one extent",
                detail: format!("{bio:?} was answered with an empty list"),
                place: None,
            }),
        }
    }

    /// Whether a read begun at `start` may return zeros.
    fn may_be_zero(&self, cell: usize, start: u64) -> bool {
        let line = self.last_superseding(cell, false, start);
        let zero =
            |(entry, write): (&Entry, &WriteRecord)| write.version == 0 && entry.end(write) >= line;
        line == 0 && matches!(self.cells[cell].base, 0 | ANY) || self.list(cell).any(zero)
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::extent::ExtentWriter;
    use headworks_core::{BioId, IoError, Op, ReplyStage, Status, WriteMode};

    use super::super::{Contract, whole_sectors};
    use super::*;

    const DONE: ReplyStage = ReplyStage::Final;

    fn start(oracle: &mut Oracle, op: Op) -> (Bio, Ticket) {
        let bio = Bio { id: BioId::default(), op, len: 1024, ..Bio::default() };
        (bio, oracle.submit(&bio, &mut [0; 1024]))
    }

    fn end(oracle: &mut Oracle, (bio, ticket): (Bio, Ticket), status: Status) {
        oracle.answer(&bio, ticket, status, false, DONE, &[0; 1024]).unwrap();
    }

    /// Whether two sectors may be reported as zeros to this request.
    fn fits(oracle: &mut Oracle, (bio, ticket): (Bio, Ticket)) -> bool {
        let mut list = [0; 1024];
        let mut writer = ExtentWriter::new(&mut list, bio.len, 8);
        writer.push(bio.len.into(), ExtentState::HOLE_ZERO);
        writer.finish();
        oracle.answer(&bio, ticket, Ok(()), false, DONE, &list).is_ok()
    }

    #[test]
    fn zeros_are_rejected_where_an_earlier_write_was_acknowledged() {
        let mut oracle = Oracle::new(&[Contract {
            size: 1024,
            cuts: whole_sectors(),
            mode: WriteMode::Writeback,
            lasting: false,
        }]);
        let asked = start(&mut oracle, Op::BlockStatus);
        assert!(fits(&mut oracle, asked), "nothing was written");
        let before = start(&mut oracle, Op::BlockStatus);
        let write = start(&mut oracle, Op::Write);
        let during = start(&mut oracle, Op::BlockStatus);
        end(&mut oracle, write, Ok(()));
        let after = start(&mut oracle, Op::BlockStatus);
        let known = [before, during, after].map(|asked| fits(&mut oracle, asked));
        assert_eq!(known, [true, true, false]);
        // A failed write of zeros may or may not have taken effect.
        let zeroes = start(&mut oracle, Op::WriteZeroes);
        end(&mut oracle, zeroes, Err(IoError::Medium));
        let asked = start(&mut oracle, Op::BlockStatus);
        assert!(fits(&mut oracle, asked));
        let (bio, ticket) = start(&mut oracle, Op::BlockStatus);
        let nothing = oracle.answer(&bio, ticket, Ok(()), false, DONE, &[0; 1024]);
        assert!(nothing.is_err(), "an empty list");
    }
}
