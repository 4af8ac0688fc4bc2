//! The transmission phase allocates nothing: a counting allocator watches parser and replies.

#[path = "../../headworks-core/tests/support/counting.rs"]
mod counting;

use counting::ALLOCATIONS;
use headworks_nbd::reply::REPLY_BYTES_MAX;
use headworks_nbd::wire::RequestHeader;
use headworks_nbd::{NbdError, Negotiated, Parsed, Replies, RequestParser, TransmissionFlags};

#[test]
fn requests_and_replies_allocate_nothing() {
    let mut stream = Vec::new();
    for index in 0..1000u64 {
        let header = RequestHeader {
            flags: (index % 3 == 0).into(),
            command: (index % 8) as u16,
            cookie: index,
            offset: index << 12,
            len: 4096,
        };
        // No payloads: the first write would take what follows for one, so writes are left out.
        if header.command != 1 {
            stream.extend(header.encode());
        }
    }
    let mut out = Vec::with_capacity(2 * stream.len() / 28 * REPLY_BYTES_MAX);
    let before = ALLOCATIONS.get();
    let mut answered = 0;
    for piece in [13, usize::MAX] {
        let offered = TransmissionFlags(0xfff & !2);
        let mut parser =
            RequestParser::new(offered, Negotiated { structured: true, base_allocation: false });
        let replies = Replies { structured: true };
        for mut bytes in stream.chunks(piece) {
            loop {
                let (used, parsed) = parser.parse(bytes);
                bytes = &bytes[used..];
                answered += 1;
                match parsed {
                    Parsed::Request(request) if request.cookie % 3 == 0 => {
                        replies.read_error(&mut out, request.cookie, NbdError::Io);
                    }
                    Parsed::Request(request) if request.cookie % 5 == 0 => {
                        let (cookie, offset, len) = (request.cookie, request.offset, request.len);
                        assert!(replies.read_hole(&mut out, cookie, offset, len));
                    }
                    Parsed::Request(request) => {
                        replies.read_data(&mut out, request.cookie, request.offset, request.len);
                        replies.done(&mut out, request.cookie, Ok(()));
                    }
                    Parsed::Refused(refusal) => replies.refused(&mut out, refusal),
                    Parsed::Disconnect => {}
                    Parsed::NeedMore => {
                        answered -= 1;
                        break;
                    }
                    Parsed::End(error) => panic!("{error}"),
                }
            }
        }
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert_eq!(answered, 2 * stream.len() / 28);
}
