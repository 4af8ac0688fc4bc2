//! One client of the control socket: reads lines and writes answers, within bounds.
//!
//! A line must be complete within [`READ_TIMEOUT`] after the previous answer and has at most [`LINE_MAX`] bytes; a
//! client beyond either limit gets an error and is closed. A last line without an end is ignored.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::service::ControlService;
use headworks_control::rpc::{self, RpcFault};

/// Longest line in bytes. A batch of sets has a few thousand.
pub const LINE_MAX: usize = 64 << 10;
/// Time limit of a request; an idle client makes room for others.
pub const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of a write to a client that does not read.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Outcome of waiting for a line.
#[derive(Debug, PartialEq, Eq)]
enum Incoming {
    Line(Vec<u8>),
    /// The line is longer than [`LINE_MAX`].
    TooLong,
    /// No complete line within the time limit.
    Late,
    /// The client closed the connection.
    End,
}

/// Reads lines of bounded length from a stream.
struct Lines<R> {
    from: R,
    buffer: Vec<u8>,
}

impl<R: Read> Lines<R> {
    /// Returns the next line; `patience` sets the time limit of each read.
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

/// Serves a client until it disconnects.
pub fn serve(stream: &UnixStream, service: &ControlService) {
    // A broken socket also fails its next use.
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
                let mut guards = Vec::new();
                let mut call = |method: &str, params: &_| match method {
                    "upgrade" => {
                        let (result, guard) = service.upgrade(params);
                        guards.extend(guard);
                        result
                    }
                    _ => service.call(method, params),
                };
                // The guards are dropped after the answer was written.
                match rpc::answer(line, &mut call).filter(|_| !line.is_empty()) {
                    Some(answer) if !write_line(stream, &answer) => return,
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
    write_line(stream, &rpc::failure(&Value::Null, why));
}

fn write_line(mut stream: &UnixStream, answer: &Value) -> bool {
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
    fn lines_do_not_depend_on_fragmentation() {
        let expected = [line("one"), line(""), line("two"), Incoming::End];
        assert_eq!(all(&[b"one\n\ntwo\nha"]), expected, "half a line is nothing");
        assert_eq!(all(&[b"o", b"ne", b"\n\ntw", b"o\n", b"half"]), expected);
        assert_eq!(all(&[b"one\n", b"\n", b"two\n"]), expected);
    }

    #[test]
    fn longest_line_passes_and_longer_one_fails() {
        let mut long = vec![b'x'; LINE_MAX];
        long.push(b'\n');
        assert_eq!(all(&[&long])[0], Incoming::Line(vec![b'x'; LINE_MAX]));
        assert_eq!(all(&[&vec![b'x'; 1 << 20]]), [Incoming::TooLong]);
    }

    #[test]
    fn read_timeout_differs_from_disconnect() {
        let mut lines = Lines { from: Parts(vec![b"a".to_vec()]), buffer: Vec::new() };
        assert_eq!(lines.next(|_| Err(io::ErrorKind::TimedOut.into())), Incoming::Late);
        assert_eq!(lines.next(|_| Ok(())), Incoming::End);
    }
}
