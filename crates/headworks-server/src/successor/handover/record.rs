//! The form of a hand-over's record: a head in JSON, and bytes that it refers to by position and length.
//!
//! ```text
//!   [mark: 8 bytes][length of the head: 8 bytes][head: JSON][bytes]
//! ```
//!
//! The other process may be of another version: every access is checked, and what does not fit is an error in words.

use std::os::fd::{AsFd, OwnedFd};

use serde_json::{Value, json};

/// State of a server for another process: a versioned record, and the descriptors that it refers to by index.
#[derive(Debug, Default)]
pub struct Handover {
    /// The record, in the format of this crate.
    pub record: Vec<u8>,
    /// Descriptors in the order of their indices in the record.
    pub descriptors: Vec<OwnedFd>,
}

/// The mark of a record; another layout gets another one.
const MARK: [u8; 8] = *b"hwhand1\n";

/// Writes a hand-over.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Writer {
    /// Adds bytes; returns how the head refers to them.
    pub fn bytes(&mut self, bytes: &[u8]) -> Value {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        json!([at, bytes.len()])
    }

    /// Adds a descriptor; returns its index.
    pub fn descriptor(&mut self, descriptor: OwnedFd) -> Value {
        self.descriptors.push(descriptor);
        json!(self.descriptors.len() - 1)
    }

    /// Adds a duplicate of a descriptor; returns its index.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn duplicate(&mut self, of: &impl AsFd) -> Result<Value, String> {
        let copy = of.as_fd().try_clone_to_owned();
        let copy = copy.map_err(|error| format!("cannot duplicate a descriptor: {error}"))?;
        Ok(self.descriptor(copy))
    }

    /// The hand-over with this head.
    pub fn finish(self, head: &Value) -> Handover {
        let head = head.to_string().into_bytes();
        let mut record = MARK.to_vec();
        record.extend_from_slice(&(head.len() as u64).to_le_bytes());
        record.extend_from_slice(&head);
        record.extend_from_slice(&self.bytes);
        Handover { record, descriptors: self.descriptors }
    }
}

/// Reads a hand-over.
#[derive(Debug)]
pub(super) struct Reader {
    bytes: Vec<u8>,
    descriptors: Vec<Option<OwnedFd>>,
}

pub(super) fn wrong(what: &str) -> String {
    format!("the running server's record has {what}; it is of another version: restart instead")
}

impl Reader {
    /// Takes a hand-over apart; returns its head.
    ///
    /// # Errors
    /// It is no such record.
    pub fn open(handover: Handover) -> Result<(Value, Self), String> {
        let Handover { record, descriptors } = handover;
        let rest = record.strip_prefix(&MARK).ok_or_else(|| wrong("another form"))?;
        let (length, rest) = rest.split_first_chunk().ok_or_else(|| wrong("no head"))?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (head, bytes) = rest.split_at_checked(length).ok_or_else(|| wrong("half a head"))?;
        let head = serde_json::from_slice(head).map_err(|_| wrong("no valid head"))?;
        let descriptors = descriptors.into_iter().map(Some).collect();
        Ok((head, Self { bytes: bytes.to_vec(), descriptors }))
    }

    /// The bytes that a value refers to.
    ///
    /// # Errors
    /// There are no such bytes.
    pub fn bytes(&self, reference: &Value) -> Result<&[u8], String> {
        let number = |index| reference.get(index).and_then(Value::as_u64);
        let range = number(0).zip(number(1)).and_then(|(at, len)| {
            let at = usize::try_from(at).ok()?;
            Some(at..at.checked_add(usize::try_from(len).ok()?)?)
        });
        range.and_then(|range| self.bytes.get(range)).ok_or_else(|| wrong("a wrong reference"))
    }

    /// Takes the descriptor that a value refers to; each once.
    ///
    /// # Errors
    /// There is no such descriptor, or it is taken.
    pub fn descriptor(&mut self, reference: &Value) -> Result<OwnedFd, String> {
        let index = reference.as_u64().and_then(|index| usize::try_from(index).ok());
        let place = index.and_then(|index| self.descriptors.get_mut(index));
        place.and_then(Option::take).ok_or_else(|| wrong("a wrong descriptor"))
    }
}

/// A field of an object as a number.
pub(super) fn number(object: &Value, field: &str) -> Result<u64, String> {
    object.get(field).and_then(Value::as_u64).ok_or_else(|| wrong(&format!("no number {field}")))
}

/// A field of an object as a number that fits `T`.
pub(super) fn fitting<T: TryFrom<u64>>(object: &Value, field: &str) -> Result<T, String> {
    T::try_from(number(object, field)?).map_err(|_| wrong(&format!("too large a number {field}")))
}

/// A field of an object as text.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> Result<&'a str, String> {
    object.get(field).and_then(Value::as_str).ok_or_else(|| wrong(&format!("no text {field}")))
}

/// A field of an object as truth.
pub(super) fn truth(object: &Value, field: &str) -> Result<bool, String> {
    object.get(field).and_then(Value::as_bool).ok_or_else(|| wrong(&format!("no flag {field}")))
}

/// A field of an object as a list.
pub(super) fn list<'a>(object: &'a Value, field: &str) -> Result<&'a [Value], String> {
    let list = object.get(field).and_then(Value::as_array);
    list.map(Vec::as_slice).ok_or_else(|| wrong(&format!("no list {field}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_returns_what_was_written() {
        let mut writer = Writer::default();
        let (one, two) = (writer.bytes(b"abc"), writer.bytes(b""));
        let null = std::fs::File::open("/dev/null").unwrap();
        let descriptor = writer.duplicate(&null).unwrap();
        let head = json!({ "one": one, "two": two, "fd": descriptor });
        let (head, mut reader) = Reader::open(writer.finish(&head)).unwrap();
        assert_eq!(reader.bytes(&head["one"]).unwrap(), b"abc");
        assert_eq!(reader.bytes(&head["two"]).unwrap(), b"");
        reader.descriptor(&head["fd"]).unwrap();
        assert!(reader.descriptor(&head["fd"]).unwrap_err().contains("wrong descriptor"));
    }

    #[test]
    fn any_damage_is_an_error() {
        let mut writer = Writer::default();
        let part = writer.bytes(b"abc");
        let whole = writer.finish(&json!({ "part": part })).record;
        let read = |record: Vec<u8>| {
            let handover = Handover { record, descriptors: Vec::new() };
            let (head, reader) = Reader::open(handover)?;
            reader.bytes(&head["part"]).map(<[u8]>::to_vec)
        };
        assert_eq!(read(whole.clone()).as_deref(), Ok(&b"abc"[..]));
        for cut in 0..whole.len() {
            assert!(read(whole[..cut].to_vec()).is_err(), "cut at {cut}");
        }
        for at in 0..whole.len() - 3 {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x15;
            // A changed reference may still be inside.
            if let Ok(found) = read(damaged) {
                assert!(found.len() <= 3);
            }
        }
    }
}
