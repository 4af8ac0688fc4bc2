//! One client of the control socket: lines in, lines out, within bounds.
//!
//! A line is whole within [`READ_TIMEOUT`] after the answer before it, and no longer than [`LINE_MAX`]; a client that keeps neither
//! is told and closed. What was sent without an end of line when a client goes is nothing.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::rpc::{self, RpcFault};
use super::service::ControlService;

/// Bytes of a line. The longest that makes sense, a batch of sets, has a few thousand.
pub const LINE_MAX: usize = 64 << 10;
/// A client that asks for nothing for so long makes room for others.
pub const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// A client that takes none of its answer for so long is gone.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// What came of waiting for a line.
#[derive(Debug, PartialEq, Eq)]
enum Incoming {
    Line(Vec<u8>),
    /// Longer than a line may be.
    TooLong,
    /// Nothing whole in time.
    Late,
    /// The client has gone.
    End,
}

/// Lines of bounded length from a stream.
struct Lines<R> {
    from: R,
    buffer: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// The next line; `patience` sets how long one read may wait, from when it ends.
    fn next(&mut self, mut patience: impl FnMut(&R) -> io::Result<()>) -> Incoming {
        let mut looked_at = 0;
        loop {
            if let Some(end) = self.buffer[looked_at..].iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(looked_at + end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Incoming::Line(line);
            }
            looked_at = self.buffer.len();
            if looked_at > LINE_MAX {
                return Incoming::TooLong;
            }
            let mut some = [0; 4096];
            let read = patience(&self.from).and_then(|()| self.from.read(&mut some));
            match read {
                Ok(0) => return Incoming::End,
                Ok(count) => self.buffer.extend_from_slice(&some[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    return Incoming::Late;
                }
                Err(_) => return Incoming::End,
            }
        }
    }
}

/// Serves a client until it goes.
pub fn serve(stream: &UnixStream, service: &ControlService) {
    // A socket that cannot have a time-out is broken, and says so when it is used.
    let _ = stream.set_write_timeout(Some(SEND_TIMEOUT));
    let mut lines = Lines { from: stream, buffer: Vec::new() };
    loop {
        let until = Instant::now() + READ_TIMEOUT;
        let incoming = lines.next(|stream| {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))
        });
        let last_word = match incoming {
            Incoming::Line(line) => {
                let line = line.trim_ascii();
                let mut call = |method: &str, params: &_| service.call(method, params);
                match rpc::answer(line, &mut call).filter(|_| !line.is_empty()) {
                    Some(answer) if !say(stream, &answer) => return,
                    _ => continue,
                }
            }
            Incoming::TooLong => format!("a line has at most {LINE_MAX} bytes"),
            Incoming::Late => format!("no request for {} s", READ_TIMEOUT.as_secs()),
            Incoming::End => return,
        };
        refuse(stream, &RpcFault::request(last_word));
        return;
    }
}

/// Tells a client why it is closed.
pub fn refuse(stream: &UnixStream, why: &RpcFault) {
    let _ = stream.set_write_timeout(Some(Duration::from_secs(1)));
    say(stream, &rpc::failure(&Value::Null, why));
}

fn say(mut stream: &UnixStream, answer: &Value) -> bool {
    let line = format!("{answer}\n");
    stream.write_all(line.as_bytes()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a part with each read.
    struct Parts(Vec<Vec<u8>>);

    impl Read for Parts {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let Some(part) = self.0.first_mut() else {
                return Ok(0);
            };
            let count = part.len().min(into.len());
            into[..count].copy_from_slice(&part[..count]);
            part.drain(..count);
            if part.is_empty() {
                self.0.remove(0);
            }
            Ok(count)
        }
    }

    fn all(parts: &[&[u8]]) -> Vec<Incoming> {
        let from = Parts(parts.iter().map(|part| part.to_vec()).collect());
        let mut lines = Lines { from, buffer: Vec::new() };
        let mut all = Vec::new();
        loop {
            all.push(lines.next(|_| Ok(())));
            if !matches!(all.last(), Some(Incoming::Line(_))) {
                return all;
            }
        }
    }

    fn line(text: &str) -> Incoming {
        Incoming::Line(text.as_bytes().to_vec())
    }

    #[test]
    fn lines_are_the_same_however_they_arrive() {
        let expected = [line("one"), line(""), line("two"), Incoming::End];
        assert_eq!(all(&[b"one\n\ntwo\nha"]), expected, "half a line is nothing");
        assert_eq!(all(&[b"o", b"ne", b"\n\ntw", b"o\n", b"half"]), expected);
        assert_eq!(all(&[b"one\n", b"\n", b"two\n"]), expected);
    }

    #[test]
    fn the_longest_line_passes_and_a_longer_one_does_not() {
        let mut long = vec![b'x'; LINE_MAX];
        long.push(b'\n');
        assert_eq!(all(&[&long])[0], Incoming::Line(vec![b'x'; LINE_MAX]));
        assert_eq!(all(&[&vec![b'x'; 1 << 20]]), [Incoming::TooLong]);
    }

    #[test]
    fn patience_that_ended_is_told_from_a_client_that_went() {
        let mut lines = Lines { from: Parts(vec![b"a".to_vec()]), buffer: Vec::new() };
        assert_eq!(lines.next(|_| Err(io::ErrorKind::TimedOut.into())), Incoming::Late);
        assert_eq!(lines.next(|_| Ok(())), Incoming::End);
    }
}
