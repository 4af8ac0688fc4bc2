//! The part of HTTP that scrapers and browsers need: one request and one response for each connection.
//!
//! ```text
//!   bytes --> head complete? --> GET or HEAD of a known path: 200, else 404, 405, 421, 400, 431 --> answer --> closed
//!               | no: wait, until the connection's deadline
//! ```
//!
//! Parsing only: the caller reads, writes and keeps the time.
//!
//! A site on the Internet can give its own name the address of this machine, and would then read the status page in the browser of an
//! operator as its own (DNS rebinding). So the page is served only to requests that name an IP address, `localhost` or this machine.
//! `/metrics` is served under every name, for scrapers use names of all kinds.

use std::net::{IpAddr, Ipv6Addr};

use crate::observe::status_page::files::{self, PageFile};

/// Longest request head; scrapers send a few hundred bytes.
pub const HEAD_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;

/// State of a request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadStatus {
    /// The head is not complete.
    Incomplete,
    /// A request that is served.
    Request {
        /// What it asks for.
        target: RequestTarget,
        /// GET, with a body in the response; HEAD has none.
        body: bool,
    },
    /// A request that is refused with this status.
    Refused(u16),
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestTarget {
    /// The metrics in Prometheus' format.
    Metrics,
    /// A file of the status page.
    File(&'static PageFile),
    /// The data of the status page.
    Data {
        /// Number of the last sample that the page has.
        after: u64,
    },
}

/// Parses a request head as far as it has arrived; `own_host` is the name of this machine.
#[must_use]
pub fn read_head(bytes: &[u8], own_host: &str) -> HeadStatus {
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
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let target = match path {
        "/metrics" => RequestTarget::Metrics,
        files::DATA_PATH => RequestTarget::Data { after: after(query) },
        path => match files::find(path) {
            Some(file) => RequestTarget::File(file),
            None => return HeadStatus::Refused(404),
        },
    };
    let body = match request.method {
        Some("GET") => true,
        Some("HEAD") => false,
        _ => return HeadStatus::Refused(405),
    };
    let is_host = |header: &&httparse::Header<'_>| header.name.eq_ignore_ascii_case("host");
    let mut hosts = request.headers.iter().filter(is_host).map(|header| header.value);
    if target != RequestTarget::Metrics && !hosts.all(|host| is_own_name(host, own_host)) {
        return HeadStatus::Refused(421);
    }
    HeadStatus::Request { target, body }
}

/// The number in `after=7`; 0 without one.
fn after(query: &str) -> u64 {
    let mut values = query.split('&').filter_map(|pair| pair.strip_prefix("after="));
    values.next_back().and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Whether a name in the field `Host` cannot belong to another site.
fn is_own_name(host: &[u8], own_host: &str) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, port)| {
            address.parse::<Ipv6Addr>().is_ok() && is_port_suffix(port)
        });
    }
    let (name, port) = host.split_at(host.find(':').unwrap_or(host.len()));
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    let is_own =
        name.parse::<IpAddr>().is_ok() || is("localhost") || (!own_host.is_empty() && is(own_host));
    is_own && is_port_suffix(port)
}

/// Whether the text behind a host is nothing, or a colon and a port, which may be empty (RFC 3986).
fn is_port_suffix(text: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    text.is_empty() || text.strip_prefix(':').is_some_and(is_port)
}

/// Builds the response with the metrics.
#[must_use]
pub fn metrics(text: &str, body: bool) -> Vec<u8> {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    answer("200 OK", kind, "", text, body)
}

/// Builds the response with a file of the status page.
#[must_use]
pub fn file(file: &PageFile, body: bool) -> Vec<u8> {
    answer("200 OK", file.media_type, files::FIELDS, file.text, body)
}

/// Builds the response with the data of the status page.
#[must_use]
pub fn data(text: &str, body: bool) -> Vec<u8> {
    answer("200 OK", "application/json", files::FIELDS, text, body)
}

/// Builds an error response that says what would be right.
#[must_use]
pub fn refusal(status: u16) -> Vec<u8> {
    let (line, sentence) = match status {
        404 => ("404 Not Found", "there are / for browsers and /metrics for Prometheus"),
        405 => {
            ("405 Method Not Allowed", "this address takes GET and HEAD: nothing is changed here")
        }
        421 => (
            "421 Misdirected Request",
            "the status page is served to requests that name an IP address, localhost or the name of this machine as their host",
        ),
        431 => ("431 Request Header Fields Too Large", "a head has at most 8 KiB and 64 fields"),
        503 => ("503 Service Unavailable", "the server is stopping, or a shard does not answer"),
        _ => ("400 Bad Request", "not an HTTP request"),
    };
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let fields = format!("{allow}X-Content-Type-Options: nosniff\r\n");
    answer(line, "text/plain; charset=utf-8", &fields, &format!("{sentence}\n"), true)
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

    const METRICS: RequestTarget = RequestTarget::Metrics;

    fn head(line: &str, host: &str) -> HeadStatus {
        read_head(format!("{line} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes(), "store-1")
    }

    fn served(target: RequestTarget) -> HeadStatus {
        HeadStatus::Request { target, body: true }
    }

    #[test]
    fn only_get_and_head_of_known_paths_succeed() {
        let head = |line: &str| head(line, "127.0.0.1:9100");
        assert_eq!(head("GET /metrics"), served(METRICS));
        assert_eq!(head("GET /metrics?a=b"), served(METRICS));
        let no_body = HeadStatus::Request { target: METRICS, body: false };
        assert_eq!(head("HEAD /metrics"), no_body);
        for file in &files::PAGE_FILES {
            assert_eq!(head(&format!("GET {}", file.path)), served(RequestTarget::File(file)));
            assert_eq!(head(&format!("POST {}", file.path)), HeadStatus::Refused(405));
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"] {
            for path in ["/metrics", "/", files::DATA_PATH] {
                assert_eq!(head(&format!("{method} {path}")), HeadStatus::Refused(405), "{method}");
            }
        }
        for path in ["/metricsx", "/..", "//", "/status", "/vendor/", "/vendor/../status.js"] {
            assert_eq!(head(&format!("GET {path}")), HeadStatus::Refused(404), "{path}");
        }
        assert_eq!(read_head(b"\x16\x03\x01\x02\x00\x01", ""), HeadStatus::Refused(400));
    }

    #[test]
    fn data_are_asked_for_from_a_number_on() {
        let after = |query: &str| match head(&format!("GET {}{query}", files::DATA_PATH), "::1") {
            HeadStatus::Refused(421) => u64::MAX,
            HeadStatus::Request { target: RequestTarget::Data { after }, .. } => after,
            other => panic!("{other:?}"),
        };
        assert_eq!(after(""), u64::MAX, "an address of version 6 is in brackets");
        let after = |query: &str| match head(&format!("GET {}{query}", files::DATA_PATH), "[::1]") {
            HeadStatus::Request { target: RequestTarget::Data { after }, .. } => after,
            other => panic!("{other:?}"),
        };
        let words = ["", "?after=7", "?x=1&after=8", "?after=-1", "?after=99999999999999999999"];
        assert_eq!(words.map(after), [0, 7, 8, 0, 0]);
    }

    #[test]
    fn page_is_served_only_to_names_that_no_other_site_has() {
        let own = [
            "127.0.0.1",
            "10.1.2.3:80",
            "[::1]:9100",
            "localhost:1",
            "LOCALHOST",
            "Store-1:9100",
            "[::1]",
            "localhost:",
        ];
        for host in own {
            assert!(matches!(head("GET /", host), HeadStatus::Request { .. }), "{host}");
        }
        let foreign = [
            "evil.example",
            "localhost.evil.example:9100",
            "store-1.evil.example",
            "",
            "[x]",
            "127.0.0.1.evil.example",
            "[::1]evil.example",
            "[::1].evil.example:80",
            "[::1]:80.evil.example",
            "[::1",
            "[::1]]:80",
            "127.0.0.1:evil.example",
            "localhost:80:80",
            "localhost:@evil.example",
        ];
        for host in foreign {
            for path in ["/", files::DATA_PATH] {
                let told = head(&format!("GET {path}"), host);
                assert_eq!(told, HeadStatus::Refused(421), "{host}");
            }
            assert_eq!(head("GET /metrics", host), served(METRICS), "scrapers use every name");
        }
        // Of two fields both count; none is HTTP/1.0, which no browser speaks.
        let two = b"GET / HTTP/1.1\r\nHost: localhost\r\nhost: evil.example\r\n\r\n";
        assert_eq!(read_head(two, ""), HeadStatus::Refused(421));
        let none = read_head(b"GET / HTTP/1.0\r\n\r\n", "");
        assert!(matches!(none, HeadStatus::Request { .. }));
        let unnamed = read_head(b"GET / HTTP/1.1\r\nHost: \r\n\r\n", "");
        assert_eq!(unnamed, HeadStatus::Refused(421), "a machine without a name");
    }

    #[test]
    fn head_is_parsed_in_pieces_and_bounded() {
        let whole = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        for cut in 0..whole.len() {
            assert_eq!(read_head(&whole[..cut], ""), HeadStatus::Incomplete, "{cut}");
        }
        let mut long = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        long.resize(HEAD_MAX - 1, b'a');
        assert_eq!(read_head(&long, ""), HeadStatus::Incomplete);
        long.push(b'a');
        assert_eq!(read_head(&long, ""), HeadStatus::Refused(431));
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(65));
        assert_eq!(read_head(many.as_bytes(), ""), HeadStatus::Refused(431));
    }

    #[test]
    fn garbage_is_refused_or_incomplete() {
        let mut prng = Prng::new(5);
        for _ in 0..5_000 {
            let len = prng.below(200) as usize;
            let bytes: Vec<u8> = (0..len).map(|_| prng.next() as u8).collect();
            assert!(!matches!(read_head(&bytes, ""), HeadStatus::Request { .. }));
        }
    }

    #[test]
    fn response_has_content_length() {
        let text = String::from_utf8(metrics("abc\n", true)).unwrap();
        assert!(text.contains("Content-Length: 4\r\n") && text.ends_with("\r\n\r\nabc\n"));
        let head = String::from_utf8(metrics("abc\n", false)).unwrap();
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"));
        assert!(String::from_utf8(refusal(405)).unwrap().contains("Allow: GET"));
    }

    #[test]
    fn page_and_data_are_confined_by_their_fields() {
        let page = files::find("/").unwrap();
        for bytes in [file(page, true), file(page, false), data("{}", true)] {
            let text = String::from_utf8(bytes).unwrap();
            let (head, _) = text.split_once("\r\n\r\n").unwrap();
            for line in files::FIELDS.lines() {
                assert!(head.lines().any(|other| other == line), "{line}");
            }
        }
    }
}
