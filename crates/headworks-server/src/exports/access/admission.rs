//! A client in its handshake: the listener that it came through, and the certificate that it presented.

use super::bits::BitSet;
use headworks_core::ExportId;
use headworks_nbd::{ExportInfo, Offer};

/// How a client came in.
#[derive(Clone, Debug)]
pub struct Admission {
    listener: u16,
    /// Names in its certificate, which was verified; none without one.
    names: Vec<String>,
    /// The lists that the names fit, by each of the rules of `version`.
    lists: Vec<BitSet>,
    /// 0 before the first rules.
    version: u64,
    /// The names were taken.
    is_certified: bool,
}

impl Admission {
    /// The admission of a client of a listener.
    #[must_use]
    pub fn new(listener: u16) -> Self {
        let (names, lists) = (Vec::new(), Vec::new());
        Self { listener, names, lists, version: 0, is_certified: false }
    }

    /// Number of the listener.
    #[must_use]
    pub fn listener(&self) -> u16 {
        self.listener
    }

    /// Takes the names in the client's certificate.
    pub fn certify(&mut self, names: Vec<String>) {
        (self.names, self.version, self.is_certified) = (names, 0, true);
    }

    /// Whether the names in the client's certificate were taken.
    #[must_use]
    pub fn is_certified(&self) -> bool {
        self.is_certified
    }

    pub(super) fn lists(&self) -> &[BitSet] {
        &self.lists
    }

    /// Replaces the lists by those that `find` returns, if they are of other rules than those of `version`.
    pub(super) fn identify(&mut self, version: u64, find: impl FnOnce(&[String]) -> Vec<BitSet>) {
        if self.version != version {
            (self.lists, self.version) = (find(&self.names), version);
        }
    }
}

/// The exports of a server, and which client sees which.
pub trait ExportDirectory {
    /// All exports that some client may see.
    fn exports(&self) -> &[ExportInfo];

    /// Prepares the admission of a client for questions about the present exports.
    fn identify(&self, admission: &mut Admission);

    /// Whether a client sees the export of an index. The admission was prepared since the last change.
    fn sees(&self, admission: &Admission, index: usize) -> bool;

    /// Size of an export in bytes; none if it is not served.
    fn size_of(&self, export: ExportId) -> Option<u64>;
}

/// A list of exports that every client sees.
impl ExportDirectory for Vec<ExportInfo> {
    fn exports(&self) -> &[ExportInfo] {
        self
    }

    fn identify(&self, _admission: &mut Admission) {}

    fn sees(&self, _admission: &Admission, _index: usize) -> bool {
        true
    }

    fn size_of(&self, export: ExportId) -> Option<u64> {
        self.get(usize::from(export.0)).map(|info| info.size)
    }
}

/// The exports of a directory as one client sees them.
pub struct ClientOffer<'a> {
    directory: &'a dyn ExportDirectory,
    admission: &'a Admission,
}

impl<'a> ClientOffer<'a> {
    /// What the client of an admission sees.
    pub fn new(directory: &'a dyn ExportDirectory, admission: &'a mut Admission) -> Self {
        directory.identify(admission);
        Self { directory, admission }
    }
}

impl Offer for ClientOffer<'_> {
    fn exports(&self) -> &[ExportInfo] {
        self.directory.exports()
    }

    fn sees(&self, index: usize) -> bool {
        self.directory.sees(self.admission, index)
    }
}
