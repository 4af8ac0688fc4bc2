//! Images of a crash test: a template, and a copy of it for each cut.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Bytes that are copied, or left a hole, at once.
const CHUNK: usize = 64 << 10;

/// Makes `to` a file with the content of `from`; zeros become holes.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut from = File::open(from)?;
    let mut into = File::create(to)?;
    into.set_len(from.seek(SeekFrom::End(0))?)?;
    from.rewind()?;
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = fill(&mut from, &mut chunk)?;
        let bytes = &chunk[..read];
        match bytes.iter().all(|byte| *byte == 0) {
            _ if read == 0 => return Ok(()),
            true => drop(into.seek(SeekFrom::Current(read as i64))?),
            false => into.write_all(bytes)?,
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_has_the_bytes_and_the_size() {
        let folder = std::env::temp_dir().join(format!("crashtest-copy.{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (from, to) = (folder.join("from"), folder.join("to"));
        let mut bytes = vec![0; 3 * CHUNK + 512];
        bytes[CHUNK + 7] = 1;
        for bytes in [&bytes[..], &bytes[..100], &[]] {
            std::fs::write(&from, bytes).unwrap();
            copy(&from, &to).unwrap();
            assert_eq!(std::fs::read(&to).unwrap(), bytes);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
