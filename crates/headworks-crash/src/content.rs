//! The bytes of a file: pages that copies share until one of them is changed.
//!
//! A copy costs a pointer a page, so a state of a large tree costs what it changes. Pages that are not there read as zeros. Each page keeps
//! its hash once it was asked for; a file's hash is a sum over pages that are not all zeros, so a hole and zeros are the same.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::hash;

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

#[derive(Debug)]
struct Page {
    bytes: [u8; PAGE as usize],
    /// 0: all bytes are zero.
    hash: OnceLock<u64>,
}

impl Page {
    const fn zero() -> Self {
        Self { bytes: [0; PAGE as usize], hash: OnceLock::new() }
    }

    fn hash(&self) -> u64 {
        *self.hash.get_or_init(|| match self.bytes.iter().all(|byte| *byte == 0) {
            true => 0,
            false => hash::hash(&self.bytes) | 1,
        })
    }
}

impl Clone for Page {
    /// A copy is made to be changed, so it has no hash yet.
    fn clone(&self) -> Self {
        Self { bytes: self.bytes, hash: OnceLock::new() }
    }
}

/// The bytes of a file.
#[derive(Clone, Debug, Default)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Content {
    /// The length of the file in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of the pages that are there.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }

    /// Bytes of pages that a write of this range would add.
    #[must_use]
    pub fn missing(&self, offset: u64, length: u64) -> u64 {
        if length == 0 {
            return 0;
        }
        let (first, last) = (offset / PAGE, (offset + length - 1) / PAGE);
        (last - first + 1 - self.pages.range(first..=last).count() as u64) * PAGE
    }

    /// Reads into `into` from `offset` on; returns how many bytes the file has there.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let length = self.size.saturating_sub(offset).min(into.len() as u64) as usize;
        let into = &mut into[..length];
        into.fill(0);
        for_pages(offset, length as u64, |page, at, from| {
            if let Some(page) = self.pages.get(&page) {
                into[from.clone()].copy_from_slice(&page.bytes[at..at + from.len()]);
            }
        });
        length
    }

    /// Writes bytes at `offset`; the file grows where they end behind it.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        for_pages(offset, bytes.len() as u64, |page, at, from| {
            let page = self.page(page);
            page[at..at + from.len()].copy_from_slice(&bytes[from]);
        });
        if !bytes.is_empty() {
            self.size = self.size.max(offset + bytes.len() as u64);
        }
    }

    /// Sets the length: bytes behind it are gone, new ones are zeros.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            let kept = size.div_ceil(PAGE);
            self.pages.split_off(&kept);
            let tail = (size % PAGE) as usize;
            if tail > 0 && self.pages.contains_key(&(size / PAGE)) {
                self.page(size / PAGE)[tail..].fill(0);
            }
        }
        self.size = size;
    }

    /// Makes a range zeros; the length stays.
    pub fn punch(&mut self, offset: u64, length: u64) {
        let end = offset.saturating_add(length).min(self.size);
        if end <= offset {
            return;
        }
        let covered = self.pages.range(offset / PAGE..end.div_ceil(PAGE)).map(|(page, _)| *page);
        for page in covered.collect::<Vec<_>>() {
            let (from, to) = (offset.max(page * PAGE), end.min((page + 1) * PAGE));
            match to.saturating_sub(from) {
                PAGE => drop(self.pages.remove(&page)),
                0 => {}
                length => {
                    let at = (from % PAGE) as usize;
                    self.page(page)[at..at + length as usize].fill(0);
                }
            }
        }
    }

    /// Offset of the next byte of data at or behind `offset`; none if only a hole follows.
    #[must_use]
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        let page = self.pages.range(offset / PAGE..).next().map(|(page, _)| page * PAGE)?;
        Some(page.max(offset)).filter(|data| *data < self.size)
    }

    /// Offset of the next hole at or behind `offset`; the end of the file counts as one.
    #[must_use]
    pub fn next_hole(&self, offset: u64) -> u64 {
        let mut page = offset / PAGE;
        while self.pages.contains_key(&page) {
            page += 1;
        }
        (page * PAGE).clamp(offset, self.size.max(offset))
    }

    /// Whether one of the pages in which a range is has a byte that is not 0.
    pub(crate) fn has_bytes(&self, range: Range<u64>) -> bool {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        self.pages.range(pages).any(|(_, page)| page.hash() != 0)
    }

    /// The pages that are there: offset and bytes, cut at the end of the file.
    pub fn data(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let inside = self.pages.iter().filter(|(page, _)| **page * PAGE < self.size);
        inside.map(|(page, bytes)| {
            let length = (self.size - page * PAGE).min(PAGE) as usize;
            (page * PAGE, &bytes.bytes[..length])
        })
    }

    /// A number that files with other bytes do not have.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let pages = self.pages.iter().map(|(page, bytes)| (page, bytes.hash()));
        let sum = pages.filter(|(_, hash)| *hash != 0);
        let sum = sum.fold(0u64, |sum, (page, hash)| sum.wrapping_add(hash::pair(*page, hash)));
        hash::pair(self.size, sum)
    }

    fn page(&mut self, page: u64) -> &mut [u8; PAGE as usize] {
        let page = self.pages.entry(page).or_insert_with(|| Arc::new(Page::zero()));
        let page = Arc::make_mut(page);
        page.hash = OnceLock::new();
        &mut page.bytes
    }
}

/// Calls for each page of a range: its number, the offset in it, and the part of the range.
fn for_pages(offset: u64, length: u64, mut call: impl FnMut(u64, usize, Range<usize>)) {
    let mut done = 0;
    while done < length {
        let at = offset + done;
        let part = (PAGE - at % PAGE).min(length - done);
        call(at / PAGE, (at % PAGE) as usize, done as usize..(done + part) as usize);
        done += part;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    fn bytes(content: &Content) -> Vec<u8> {
        let mut bytes = vec![1; content.size() as usize];
        assert_eq!(content.read(0, &mut bytes), bytes.len());
        bytes
    }

    #[test]
    fn equals_a_vector_under_random_changes() {
        let mut prng = Prng::new(1);
        for _ in 0..40 {
            let (mut content, mut model) = (Content::default(), Vec::new());
            for _ in 0..60 {
                let (at, length) = (prng.below(20_000), prng.below(9000));
                match prng.below(4) {
                    0 => {
                        content.truncate(at);
                        model.resize(at as usize, 0);
                    }
                    1 => {
                        content.punch(at, length);
                        let end = model.len().min((at + length) as usize);
                        if (at as usize) < end {
                            model[at as usize..end].fill(0);
                        }
                    }
                    _ => {
                        let written = vec![1 + prng.below(9) as u8; length as usize];
                        content.write(at, &written);
                        if length > 0 {
                            model.resize(model.len().max((at + length) as usize), 0);
                            model[at as usize..(at + length) as usize].copy_from_slice(&written);
                        }
                    }
                }
                assert_eq!(bytes(&content), model);
                let mut again = Content::default();
                again.write(0, &model);
                again.truncate(model.len() as u64);
                assert_eq!(content.hash(), again.hash(), "holes are zeros");
            }
        }
    }

    #[test]
    fn copies_do_not_see_each_others_changes() {
        let mut one = Content::default();
        one.write(0, &[1; 5000]);
        let (copy, hash) = (one.clone(), one.hash());
        one.write(4999, &[2]);
        assert_eq!(copy.hash(), hash);
        assert_ne!(one.hash(), hash);
        assert_eq!(bytes(&copy)[4999], 1);
    }

    #[test]
    fn data_and_holes_are_found() {
        let mut content = Content::default();
        content.write(3 * PAGE, &[1; 10]);
        content.truncate(9 * PAGE);
        assert_eq!((content.next_data(5), content.next_hole(5)), (Some(3 * PAGE), 5));
        assert_eq!((content.next_data(4 * PAGE), content.next_hole(3 * PAGE)), (None, 4 * PAGE));
        assert_eq!(content.missing(PAGE, 3 * PAGE), 2 * PAGE);
        assert_eq!(
            content.data().map(|(at, bytes)| (at, bytes.len())).last(),
            Some((3 * PAGE, 4096))
        );
    }
}
