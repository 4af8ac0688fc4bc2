//! The part of HTTP that a scraper needs: one request and one response for each connection.
//!
//! ```text
//!   bytes --> head complete? --> GET or HEAD of /metrics: 200, else 404, 405, 400, 431 --> answer --> closed
//!               | no: wait, until the connection's deadline
//! ```
//!
//! Parsing only: the caller reads, writes and keeps the time.

/// Longest request head; scrapers send a few hundred bytes.
pub const HEAD_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

/// State of a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadStatus {
    /// The head is not complete.
    Incomplete,
    /// A request for the metrics page.
    Page {
        /// GET, with a body in the response; HEAD has none.
        body: bool,
    },
    /// A request that is refused with this status.
    Refused(u16),
}

/// Parses a request head as far as it has arrived.
#[must_use]
pub fn read_head(bytes: &[u8]) -> HeadStatus {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return HeadStatus::Incomplete,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return HeadStatus::Refused(431);
        }
        Err(_) => return HeadStatus::Refused(400),
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    match (request.method, path) {
        (Some("GET"), "/metrics") => HeadStatus::Page { body: true },
        (Some("HEAD"), "/metrics") => HeadStatus::Page { body: false },
        (_, "/metrics") => HeadStatus::Refused(405),
        _ => HeadStatus::Refused(404),
    }
}

/// Builds the response with the page.
#[must_use]
pub fn page(text: &str, body: bool) -> Vec<u8> {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    answer("200 OK", kind, "", text, body)
}

/// Builds an error response that says what would be right.
#[must_use]
pub fn refusal(status: u16) -> Vec<u8> {
    let (line, sentence) = match status {
        404 => ("404 Not Found", "the only path is /metrics"),
        405 => ("405 Method Not Allowed", "/metrics takes GET"),
        431 => ("431 Request Header Fields Too Large", "a head has at most 8 KiB and 64 fields"),
        503 => ("503 Service Unavailable", "the server is stopping, or a shard does not answer"),
        _ => ("400 Bad Request", "not an HTTP request"),
    };
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    answer(line, "text/plain; charset=utf-8", allow, &format!("{sentence}\n"), true)
}

fn answer(line: &str, kind: &str, fields: &str, text: &str, body: bool) -> Vec<u8> {
    let length = text.len();
    let head = format!(
        "HTTP/1.1 {line}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{fields}Connection: close\r\n\r\n"
    );
    let mut bytes = head.into_bytes();
    if body {
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    #[test]
    fn only_get_and_head_of_metrics_succeed() {
        let head = |line: &str| read_head(format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert_eq!(head("GET /metrics"), HeadStatus::Page { body: true });
        assert_eq!(head("GET /metrics?a=b"), HeadStatus::Page { body: true });
        assert_eq!(head("HEAD /metrics"), HeadStatus::Page { body: false });
        assert_eq!(head("POST /metrics"), HeadStatus::Refused(405));
        assert_eq!(head("GET /"), HeadStatus::Refused(404));
        assert_eq!(head("GET /metricsx"), HeadStatus::Refused(404));
        assert_eq!(read_head(b"\x16\x03\x01\x02\x00\x01"), HeadStatus::Refused(400));
    }

    #[test]
    fn head_is_parsed_in_pieces_and_bounded() {
        let whole = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        for cut in 0..whole.len() {
            assert_eq!(read_head(&whole[..cut]), HeadStatus::Incomplete, "{cut}");
        }
        let mut long = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        long.resize(HEAD_MAX - 1, b'a');
        assert_eq!(read_head(&long), HeadStatus::Incomplete);
        long.push(b'a');
        assert_eq!(read_head(&long), HeadStatus::Refused(431));
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(65));
        assert_eq!(read_head(many.as_bytes()), HeadStatus::Refused(431));
    }

    #[test]
    fn garbage_is_refused_or_incomplete() {
        let mut prng = Prng::new(5);
        for _ in 0..5_000 {
            let len = prng.below(200) as usize;
            let bytes: Vec<u8> = (0..len).map(|_| prng.next() as u8).collect();
            assert!(!matches!(read_head(&bytes), HeadStatus::Page { .. }));
        }
    }

    #[test]
    fn response_has_content_length() {
        let text = String::from_utf8(page("abc\n", true)).unwrap();
        assert!(text.contains("Content-Length: 4\r\n") && text.ends_with("\r\n\r\nabc\n"));
        let head = String::from_utf8(page("abc\n", false)).unwrap();
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"));
        assert!(String::from_utf8(refusal(405)).unwrap().contains("Allow: GET"));
    }
}
