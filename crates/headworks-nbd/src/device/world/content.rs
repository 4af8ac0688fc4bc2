//! The bytes that one block of the remote may have, as a client knows them from its answers.
//!
//! A write that succeeded leaves one value. A write that was refused leaves the bytes of before, its own or a mixture of both, until the
//! next one succeeds. A discard leaves the value of before or zeros. After a loss that was told, any older content is possible.

/// What a block may have.
#[derive(Clone, Debug)]
pub(super) struct Content {
    /// The values that its bytes may have; none: any.
    values: Option<Vec<u8>>,
    /// Bytes of several values may stand beside each other.
    is_mixed: bool,
}

impl Content {
    /// A block of zeros.
    pub fn zeros() -> Self {
        Self { values: Some(vec![0]), is_mixed: false }
    }

    /// A write of `value` succeeded.
    pub fn write(&mut self, value: u8) {
        *self = Self { values: Some(vec![value]), is_mixed: false };
    }

    /// A discard of the block succeeded.
    pub fn discard(&mut self) {
        self.add(0);
    }

    /// A change to `value` was refused.
    pub fn refuse(&mut self, value: u8) {
        self.add(value);
        self.is_mixed = true;
    }

    /// What no flush covers may be gone. From a remote that refuses, bytes of older contents may be mixed: a change that is sent several times
    /// can be refused each time but the last.
    pub fn lose(&mut self, is_refusing: bool) {
        self.values = None;
        self.is_mixed |= is_refusing;
    }

    /// Takes the bytes that a read returned. True if they settle what was unknown: from now on they are the content.
    ///
    /// # Errors
    /// The block cannot have them; a sentence.
    pub fn read(&mut self, bytes: &[u8]) -> Result<bool, String> {
        let first = bytes[0];
        let is_torn = bytes.iter().any(|&byte| byte != first);
        if is_torn && !self.is_mixed {
            return Err("was read torn".to_owned());
        }
        let Some(values) = &self.values else {
            if !self.is_mixed {
                self.values = Some(vec![first]);
            }
            return Ok(!self.is_mixed);
        };
        match bytes.iter().find(|byte| !values.contains(byte)) {
            Some(wrong) => Err(format!("has {wrong}, none of {values:?}")),
            None => Ok(false),
        }
    }

    fn add(&mut self, value: u8) {
        if let Some(values) = &mut self.values
            && !values.contains(&value)
        {
            values.push(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_write_leaves_old_new_or_mixed_bytes_until_the_next_success() {
        let mut block = Content::zeros();
        block.write(1);
        block.refuse(2);
        for bytes in [[1, 1], [2, 2], [1, 2], [2, 1]] {
            assert_eq!(block.read(&bytes), Ok(false));
        }
        assert!(block.read(&[0, 1]).is_err(), "older than what was acknowledged");
        block.write(3);
        assert!(block.read(&[3, 2]).is_err());
        let mut whole = block.clone();
        block.lose(true);
        assert_eq!(block.read(&[1, 2]), Ok(false));
        whole.lose(false);
        assert!(whole.read(&[1, 2]).is_err());
        assert_eq!(whole.read(&[9, 9]), Ok(true));
        assert!(whole.read(&[3, 3]).is_err(), "it was read as another one");
    }

    #[test]
    fn discard_leaves_the_value_of_before_or_zeros() {
        let mut block = Content::zeros();
        block.write(4);
        block.discard();
        assert_eq!((block.read(&[4, 4]), block.read(&[0, 0])), (Ok(false), Ok(false)));
        assert!(block.read(&[5, 5]).is_err() && block.read(&[4, 0]).is_err());
    }
}
