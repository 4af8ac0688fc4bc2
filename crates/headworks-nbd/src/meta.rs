//! Metadata contexts of block status. There is one, `base:allocation`.
//!
//! ```text
//!   LIST  no query, "base:" or "base:allocation"  -->  the context (id 0), ACK        any other query: ACK alone
//!   SET   "base:allocation"                       -->  the context (its id), ACK      the same; it replaces what was set before
//!   either: before structured replies, or lengths that do not add up: ERR_INVALID; no such export: ERR_UNKNOWN
//! ```
//!
//! The context is set for one export; choosing another export leaves it unset.

use super::export::{ExportInfo, Offer, find};
use super::handshake::{Outcome, refuse, reply};
use super::wire::{STRING_BYTES_MAX, option, option_reply};

/// Name of the only metadata context.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Number of the context in replies.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// The export that the context was set for.
#[derive(Debug, Default)]
pub(super) struct MetaContexts {
    chosen: Option<String>,
}

impl MetaContexts {
    /// Answers LIST_META_CONTEXT or SET_META_CONTEXT.
    pub fn on_option(
        &mut self,
        option: u32,
        structured: bool,
        body: &[u8],
        offer: &dyn Offer,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let sets = option == option::SET_META_CONTEXT;
        if sets {
            // A failing SET clears it, too.
            self.chosen = None;
        }
        let invalid = option_reply::ERR_INVALID;
        if !structured {
            return refuse(out, option, invalid, "structured replies must be negotiated first");
        }
        let Some((name, queries)) = parse(body) else {
            return refuse(out, option, invalid, "the option's lengths do not add up");
        };
        let index = match find(offer, name) {
            Ok(index) => index,
            Err(message) => return refuse(out, option, option_reply::ERR_UNKNOWN, &message),
        };
        if queries.matches(!sets) {
            let id = if sets { BASE_ALLOCATION_ID } else { 0 };
            let parts = [&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()];
            reply(out, option, option_reply::META_CONTEXT, &parts);
            if sets {
                self.chosen = Some(offer.exports()[index].name.clone());
            }
        }
        reply(out, option, option_reply::ACK, &[])
    }

    /// Returns true when the context is set for this export.
    pub fn is_set_for(&self, export: &ExportInfo) -> bool {
        self.chosen.as_ref() == Some(&export.name)
    }
}

/// The queries of an option, with checked lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queries<'a> {
    count: u32,
    bytes: &'a [u8],
}

impl<'a> Queries<'a> {
    fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let query;
            (query, rest) = split_string(rest)?;
            Some(query)
        })
    }

    /// Returns true when a query matches the context. LIST accepts a namespace or an empty list as a wildcard.
    fn matches(self, lists: bool) -> bool {
        let means = |query: &[u8]| {
            query == BASE_ALLOCATION.as_bytes() || lists && query == b"base:".as_slice()
        };
        lists && self.count == 0 || self.iter().any(means)
    }
}

/// Splits an option's data: a name, a count, and that many queries.
fn parse(body: &[u8]) -> Option<(&[u8], Queries<'_>)> {
    let (name, rest) = split_string(body)?;
    let (count, bytes) = rest.split_first_chunk::<4>()?;
    let queries = Queries { count: u32::from_be_bytes(*count), bytes };
    let whole: usize = queries.iter().map(|query| 4 + query.len()).sum();
    let fits = whole == bytes.len() && queries.iter().count() == queries.count as usize;
    fits.then_some((name, queries))
}

/// Splits a length-prefixed string from the rest.
fn split_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let len = u32::from_be_bytes(*len) as usize;
    (len <= STRING_BYTES_MAX).then(|| rest.split_at_checked(len)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(name: &str, queries: &[&str]) -> Vec<u8> {
        let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
        let mut body = string(name);
        body.extend((queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| body.extend(string(query)));
        body
    }

    fn exports() -> Vec<ExportInfo> {
        let export = |name: &str| ExportInfo { name: name.into(), ..ExportInfo::default() };
        vec![export("first"), export("b")]
    }

    /// The kinds of the answers and the ids that were told.
    fn answers(contexts: &mut MetaContexts, option: u32, body: &[u8]) -> (Vec<u32>, Vec<u32>) {
        let mut out = Vec::new();
        contexts.on_option(option, true, body, &exports(), &mut out);
        let (mut kinds, mut ids, mut rest) = (Vec::new(), Vec::new(), &out[..]);
        let number = |bytes: &[u8], at: usize| super::super::wire::be32(bytes, at);
        while !rest.is_empty() {
            let (kind, len) = (number(rest, 12), number(rest, 16) as usize);
            if kind == option_reply::META_CONTEXT {
                ids.push(number(rest, 20));
                assert_eq!(&rest[24..20 + len], BASE_ALLOCATION.as_bytes());
            }
            kinds.push(kind);
            rest = &rest[20 + len..];
        }
        (kinds, ids)
    }

    const LIST: u32 = option::LIST_META_CONTEXT;
    const SET: u32 = option::SET_META_CONTEXT;
    const TOLD: [u32; 2] = [option_reply::META_CONTEXT, option_reply::ACK];

    #[test]
    fn list_accepts_wildcards_and_set_does_not() {
        let mut contexts = MetaContexts::default();
        let all: [&[&str]; 4] = [&[], &["base:"], &[BASE_ALLOCATION], &["qemu:x", "base:"]];
        for queries in all {
            let (kinds, ids) = answers(&mut contexts, LIST, &body("", queries));
            assert_eq!((&kinds[..], &ids[..]), (&TOLD[..], &[0][..]), "{queries:?}");
        }
        let none: [&[&str]; 4] = [&[], &["base:"], &["base:allocation2"], &["qemu:x", ""]];
        for queries in none {
            let (kinds, _) = answers(&mut contexts, SET, &body("b", queries));
            assert_eq!(kinds, [option_reply::ACK], "{queries:?}");
            assert!(!contexts.is_set_for(&exports()[1]));
        }
        let several = body("b", &["x:y", BASE_ALLOCATION, BASE_ALLOCATION]);
        let (kinds, ids) = answers(&mut contexts, SET, &several);
        assert_eq!((&kinds[..], &ids[..]), (&TOLD[..], &[BASE_ALLOCATION_ID][..]));
    }

    #[test]
    fn context_is_set_for_one_export_until_next_set() {
        let mut contexts = MetaContexts::default();
        let set = |contexts: &mut MetaContexts, name, queries: &[&str]| {
            answers(contexts, SET, &body(name, queries)).0
        };
        let is_set =
            |contexts: &MetaContexts| exports().iter().position(|e| contexts.is_set_for(e));
        set(&mut contexts, "", &[BASE_ALLOCATION]);
        assert_eq!(is_set(&contexts), Some(0), "the empty name is the first one's");
        answers(&mut contexts, LIST, &body("b", &[]));
        assert_eq!(is_set(&contexts), Some(0), "a list changes nothing");
        set(&mut contexts, "b", &[BASE_ALLOCATION]);
        assert_eq!(is_set(&contexts), Some(1));
        let unknown = set(&mut contexts, "c", &[BASE_ALLOCATION]);
        assert_eq!((unknown, is_set(&contexts)), (vec![option_reply::ERR_UNKNOWN], None));
        set(&mut contexts, "b", &[BASE_ALLOCATION]);
        set(&mut contexts, "b", &[]);
        assert_eq!(is_set(&contexts), None);
    }

    #[test]
    fn inconsistent_lengths_are_refused() {
        let good = body("b", &["base:", BASE_ALLOCATION]);
        assert!(parse(&good).is_some());
        for cut in 0..good.len() {
            assert_eq!(parse(&good[..cut]), None, "cut at {cut}");
        }
        assert_eq!(parse(&[&good[..], &[0]].concat()), None);
        let mut more = good.clone();
        more[8] = 3;
        assert_eq!(parse(&more), None, "three queries, and two are there");
        more[8] = 1;
        assert_eq!(parse(&more), None, "one query, and two are there");
        let long = "x".repeat(STRING_BYTES_MAX + 1);
        assert_eq!(parse(&body("b", &[&long])), None);
        let (kinds, _) = answers(&mut MetaContexts::default(), SET, &good[..7]);
        assert_eq!(kinds, [option_reply::ERR_INVALID]);
    }

    #[test]
    fn context_needs_structured_replies() {
        for option in [LIST, SET] {
            let (mut contexts, mut out) = (MetaContexts::default(), Vec::new());
            let body = body("b", &[BASE_ALLOCATION]);
            contexts.on_option(option, false, &body, &exports(), &mut out);
            assert_eq!(super::super::wire::be32(&out, 12), option_reply::ERR_INVALID);
            assert!(!contexts.is_set_for(&exports()[1]));
        }
    }
}
