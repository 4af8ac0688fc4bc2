//! Exports as the handshake tells them, and which of them a client sees.
//!
//! A client that may see only some exports ([`Offer`]) gets, for any other one, the words for a name that does not exist. The search
//! is by name first and asks for the one export that it finds, so what a client does not see costs nothing more.

use super::wire::{PAYLOAD_BYTES_MAX, TransmissionFlags};

/// The sizes of requests that an export takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths must be multiples of this. A power of two, at most 64 KiB.
    pub min: u32,
    /// The preferred multiple. A power of two.
    pub preferred: u32,
    /// The longest read or write, at most 32 MiB.
    pub max: u32,
}

impl Default for BlockSizes {
    /// Any alignment, pages preferred, at most 32 MiB: as qemu announces.
    fn default() -> Self {
        Self { min: 1, preferred: 4096, max: PAYLOAD_BYTES_MAX }
    }
}

/// The description of an export in the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportInfo {
    /// Name of the export, at most 4096 bytes without NUL.
    pub name: String,
    /// Description in one sentence; may be empty.
    pub description: String,
    /// Size of the export in bytes.
    pub size: u64,
    /// Transmission flags. `HAS_FLAGS` is added; `SEND_DF` is removed without structured replies.
    pub flags: TransmissionFlags,
    /// Block sizes that the export announces.
    pub block_sizes: BlockSizes,
    /// Why clients cannot open the export at present, as a clause; such an export is not listed.
    pub unavailable: Option<String>,
    /// No client may open it now; it is listed and described.
    pub refuses_clients: bool,
}

/// The exports of a server, as one client sees them.
///
/// The list has those that the client does not see, too, so that an index means the same for every client.
pub trait Offer {
    /// All exports of the server; the first one that the client sees is its default.
    fn exports(&self) -> &[ExportInfo];

    /// Whether the client sees the export of an index of the list.
    fn sees(&self, index: usize) -> bool;
}

/// A list of exports that every client sees.
impl Offer for Vec<ExportInfo> {
    fn exports(&self) -> &[ExportInfo] {
        self
    }

    fn sees(&self, _index: usize) -> bool {
        true
    }
}

/// The export of a server that has one.
impl Offer for ExportInfo {
    fn exports(&self) -> &[ExportInfo] {
        std::slice::from_ref(self)
    }

    fn sees(&self, _index: usize) -> bool {
        true
    }
}

impl ExportInfo {
    /// What a client is told, and the log, of an export that no client may open now.
    pub(super) fn refusal(&self) -> String {
        format!("export {:?} takes no new clients now", self.name)
    }

    /// Returns the flags that this client sees; its [`RequestParser`](super::RequestParser) takes the same.
    #[must_use]
    pub const fn flags_for(&self, terms: Negotiated) -> TransmissionFlags {
        let flags = self.flags.with(TransmissionFlags::HAS_FLAGS);
        if terms.structured { flags } else { flags.without(TransmissionFlags::SEND_DF) }
    }
}

/// What client and server negotiated before transmission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// Reads are answered with structured replies.
    pub structured: bool,
    /// Block status is allowed in the context `base:allocation`.
    pub base_allocation: bool,
}

/// Finds an export that the client sees by name. The empty name means the first such export that can be opened, unless an export
/// has that name.
///
/// # Errors
/// The message for an unknown or unavailable export; one that the client does not see is unknown. The name is quoted and cut,
/// because it reaches a log.
pub(super) fn find(offer: &dyn Offer, name: &[u8]) -> Result<usize, String> {
    let shown = String::from_utf8_lossy(&name[..name.len().min(64)]);
    let exports = offer.exports();
    let named = exports.iter().position(|export| export.name.as_bytes() == name);
    let named = named.filter(|index| offer.sees(*index));
    let is_first = |index: &usize| exports[*index].unavailable.is_none() && offer.sees(*index);
    let first = || (0..exports.len()).find(is_first);
    let index = named.or_else(|| name.is_empty().then(first).flatten());
    let index = index.ok_or_else(|| format!("there is no export {shown:?}"))?;
    match &exports[index].unavailable {
        None => Ok(index),
        Some(reason) if reason.is_empty() => Err(format!("export {shown:?} is not available")),
        Some(reason) => Err(format!("export {shown:?} is not available: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exports of which a client sees those with a `true`.
    struct Partial(Vec<ExportInfo>, Vec<bool>);

    impl Offer for Partial {
        fn exports(&self) -> &[ExportInfo] {
            &self.0
        }

        fn sees(&self, index: usize) -> bool {
            self.1[index]
        }
    }

    fn export(name: &str, unavailable: Option<&str>) -> ExportInfo {
        ExportInfo {
            name: name.into(),
            unavailable: unavailable.map(str::to_owned),
            ..ExportInfo::default()
        }
    }

    fn partial(seen: [bool; 4]) -> Partial {
        let absent = export("gone", Some("its image /secret is missing"));
        Partial(vec![export("", None), export("a", None), absent, export("b", None)], seen.into())
    }

    #[test]
    fn hidden_export_is_found_in_no_other_words_than_unknown_one() {
        let offer = partial([false, true, false, false]);
        for name in ["b", "gone", "nobody"] {
            let expected = Err(format!("there is no export {name:?}"));
            assert_eq!(find(&offer, name.as_bytes()), expected);
        }
        assert_eq!(find(&offer, b"a"), Ok(1));
        let all = partial([true; 4]);
        assert_eq!(find(&all, b"b"), Ok(3));
        assert!(find(&all, b"gone").unwrap_err().contains("/secret"));
    }

    #[test]
    fn empty_name_is_first_export_that_client_sees() {
        assert_eq!(find(&partial([true; 4]), b""), Ok(0));
        assert_eq!(find(&partial([false, true, true, true]), b""), Ok(1));
        assert_eq!(find(&partial([false, false, true, true]), b""), Ok(3), "not an absent one");
        let none = Err("there is no export \"\"".to_owned());
        assert_eq!(find(&partial([false, false, true, false]), b""), none);
        assert_eq!(find(&Vec::new(), b""), none);
    }
}
