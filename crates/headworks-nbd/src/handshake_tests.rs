//! The handshake from a client's view: a transcript, every way to cut it, malformed input.

use super::*;
use crate::wire::TransmissionFlags;
use headworks_core::prng::Prng;

fn exports() -> Vec<ExportInfo> {
    let flags = TransmissionFlags::SEND_FLUSH.with(TransmissionFlags::SEND_DF);
    let export = |name: &str, size| ExportInfo {
        name: name.into(),
        description: format!("the disk {name}"),
        size,
        flags,
        block_sizes: BlockSizes::default(),
        unavailable: None,
        refuses_clients: false,
    };
    vec![export("first", 1 << 30), export("zweite", 4097)]
}

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(code.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut bytes = (name.len() as u32).to_be_bytes().to_vec();
    bytes.extend(name.bytes());
    bytes.extend((wanted.len() as u16).to_be_bytes());
    bytes.extend(wanted.iter().flat_map(|code| code.to_be_bytes()));
    bytes
}

fn context_data(name: &str, query: &str) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    [string(name), 1u32.to_be_bytes().to_vec(), string(query)].concat()
}

fn client(flags: u32, options: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = flags.to_be_bytes().to_vec();
    bytes.extend(options.concat());
    bytes
}

/// Feeds all of `bytes` in the given pieces; returns the output after the greeting, the rest, and the last outcome.
fn run(bytes: &[u8], mut cut: impl FnMut() -> usize) -> (Vec<u8>, usize, Outcome) {
    let (exports, mut out) = (exports(), Vec::new());
    let mut handshake = Handshake::new(&mut out);
    assert_eq!(out.drain(..).as_slice(), b"NBDMAGICIHAVEOPT\0\x03");
    let (mut at, mut last) = (0, Outcome::NeedMore);
    while at < bytes.len() {
        let end = bytes.len().min(at.saturating_add(cut().max(1)));
        loop {
            let (consumed, outcome) = handshake.feed(&exports, &bytes[at..end], &mut out);
            at += consumed;
            assert!(handshake.pending.len() <= OPTION_BYTES_MAX as usize);
            match outcome {
                Outcome::NeedMore => assert_eq!(at, end),
                Outcome::Reply => last = outcome,
                _ => return (out, bytes.len() - at, outcome),
            }
            if at == end {
                break;
            }
        }
    }
    (out, 0, last)
}

fn whole(bytes: &[u8]) -> (Vec<u8>, usize, Outcome) {
    run(bytes, || usize::MAX)
}

/// The answers in `out`: (option, kind, data).
fn answers(mut out: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !out.is_empty() {
        assert_eq!(be64(out, 0), OPTION_REPLY_MAGIC);
        let end = 20 + be32(out, 16) as usize;
        found.push((be32(out, 8), be32(out, 12), out[20..end].to_vec()));
        out = &out[end..];
    }
    found
}

fn kinds(out: &[u8]) -> Vec<u32> {
    answers(out).into_iter().map(|(_, kind, _)| kind).collect()
}

fn transcript() -> Vec<u8> {
    let mut bytes = client(
        3,
        &[
            option(5, &[]),
            option(8, &[]),
            option(3, &[]),
            option(6, &info_data("nobody", &[])),
            option(10, &context_data("first", "base:allocation")),
            option(6, &info_data("zweite", &[1, 2, 3, 77])),
            option(7, &info_data("", &[1])),
        ],
    );
    bytes.extend(b"the transmission phase");
    bytes
}

#[test]
fn transcript_is_answered_by_the_protocol() {
    use option_reply::*;
    let (out, left, outcome) = whole(&transcript());
    assert_eq!(left, 22);
    let terms = Negotiated { structured: true, base_allocation: true };
    assert_eq!(outcome, Outcome::Ready { export: 0, terms });
    let info_replies = [INFO, INFO, INFO, INFO, ACK, INFO, INFO, INFO, ACK];
    let mut expected = vec![ERR_POLICY, ACK, SERVER, SERVER, ACK, ERR_UNKNOWN, META_CONTEXT, ACK];
    expected.extend(info_replies);
    assert_eq!(kinds(&out), expected);
    let answers = answers(&out);
    assert_eq!(answers[2].2, b"\0\0\0\x05firstthe disk first");
    assert_eq!(answers[5].2, b"there is no export \"nobody\"");
    assert_eq!(answers[6].2, b"\0\0\0\x01base:allocation");
    // Size 4097, flags HAS_FLAGS | SEND_FLUSH | SEND_DF.
    assert_eq!(answers[8].2, b"\0\0\0\0\0\0\0\0\x10\x01\0\x85");
    assert_eq!(answers[9].2, b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0");
    assert_eq!(answers[10].2, b"\0\x01zweite");
    assert_eq!(answers[11].2, b"\0\x02the disk zweite");
    assert_eq!(answers[15].2, b"\0\x01first");
}

#[test]
fn any_cut_of_the_stream_gives_the_same_replies() {
    let bytes = transcript();
    let expected = whole(&bytes[..bytes.len() - 22]);
    let bytes = &bytes[..bytes.len() - 22];
    for size in 1..bytes.len() {
        assert_eq!(run(bytes, || size), expected, "pieces of {size}");
        let mut first = Some(size);
        let cut = || first.take().unwrap_or(usize::MAX);
        assert_eq!(run(bytes, cut), expected, "cut at {size}");
    }
}

#[test]
fn export_name_pads_unless_no_zeroes_is_set() {
    let ready = Outcome::Ready { export: 1, terms: Negotiated::default() };
    // Not structured, so DF is not offered.
    let head = b"\0\0\0\0\0\0\x10\x01\0\x05";
    let (out, left, outcome) = whole(&client(3, &[option(1, b"zweite")]));
    assert_eq!((&out[..], left, &outcome), (&head[..], 0, &ready));
    let (out, _, outcome) = whole(&client(0, &[option(1, b"zweite")]));
    assert_eq!((out.len(), &outcome), (10 + 124, &ready));
    assert_eq!(&out[..10], head);
    let (out, _, outcome) = whole(&client(3, &[option(1, b"third\n")]));
    assert_eq!(out, b"");
    assert_eq!(outcome, Outcome::Failed("there is no export \"third\\n\"".into()));
}

#[test]
fn context_applies_to_its_export_only() {
    let chosen = |set: &str, go: Vec<u8>| {
        let set = option(option::SET_META_CONTEXT, &context_data(set, "base:allocation"));
        match whole(&client(3, &[option(8, &[]), set, go])).2 {
            Outcome::Ready { terms, .. } => terms.base_allocation,
            other => panic!("{other:?}"),
        }
    };
    assert!(chosen("zweite", option(option::GO, &info_data("zweite", &[]))));
    assert!(chosen("zweite", option(option::EXPORT_NAME, b"zweite")));
    assert!(!chosen("zweite", option(option::GO, &info_data("first", &[]))));
    assert!(!chosen("zweite", option(option::EXPORT_NAME, b"")));
    assert!(chosen("first", option(option::GO, &info_data("", &[]))), "the default is an export");
}

#[test]
fn malformed_option_is_refused_and_handshake_continues() {
    use option_reply::*;
    let mut long_count = info_data("first", &[1]);
    long_count[10] = 9;
    let cut_name = info_data("first", &[])[..7].to_vec();
    let name_beyond = 5000u32.to_be_bytes().to_vec();
    for data in [long_count, cut_name, name_beyond, Vec::new(), vec![0; 5]] {
        for code in [option::GO, option::INFO] {
            let bytes = client(3, &[option(code, &data), option(2, &[])]);
            let (out, left, outcome) = whole(&bytes);
            assert_eq!((left, outcome), (0, Outcome::Closed), "{data:?}");
            assert_eq!(kinds(&out), [ERR_INVALID, ACK], "{data:?}");
        }
    }
    for code in [option::LIST, option::STRUCTURED_REPLY] {
        let (out, _, outcome) = whole(&client(1, &[option(code, b"x")]));
        assert_eq!((kinds(&out), outcome), (vec![ERR_INVALID], Outcome::Reply));
    }
    let big = vec![7; OPTION_BYTES_MAX as usize + 1];
    let (out, _, outcome) = whole(&client(3, &[option(7, &big), option(2, &[])]));
    assert_eq!((kinds(&out), outcome), (vec![ERR_TOO_BIG, ACK], Outcome::Closed));
    let (out, _, _) = whole(&client(3, &[option(99, &big[1..])]));
    assert_eq!(kinds(&out), [ERR_UNSUP]);
}

#[test]
fn unanswerable_input_ends_the_session() {
    let failed = |bytes: &[u8], part: &str| match whole(bytes).2 {
        Outcome::Failed(sentence) => assert!(sentence.contains(part), "{sentence}"),
        other => panic!("{other:?}"),
    };
    failed(&client(4, &[]), "unknown flags 0x4");
    failed(&client(3, &[vec![7; 16]]), "where an option must begin");
    let big = vec![7; OPTION_BYTES_MAX as usize + 1];
    failed(&client(3, &[option(1, &big)]), "export name of 65537 bytes");
    let list = vec![option(3, &[]); OPTIONS_MAX as usize + 1];
    failed(&client(3, &list), "more than 10000 options");
    assert_eq!(whole(&client(3, &list[1..])).2, Outcome::Reply);
}

#[test]
fn ended_handshake_consumes_no_bytes() {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(&mut out);
    let bytes = client(3, &[option(2, &[])]);
    assert_eq!(handshake.feed(&Vec::<ExportInfo>::new(), &bytes, &mut out).1, Outcome::Closed);
    let before = out.len();
    assert_eq!(handshake.feed(&Vec::<ExportInfo>::new(), &bytes, &mut out), (0, Outcome::NeedMore));
    assert_eq!(out.len(), before);
}

#[test]
fn server_without_exports_has_no_default() {
    let mut out = Vec::new();
    let mut handshake = Handshake::new(&mut out);
    let bytes = client(3, &[option(7, &info_data("", &[]))]);
    assert_eq!(handshake.feed(&Vec::<ExportInfo>::new(), &bytes, &mut out).1, Outcome::Reply);
    assert_eq!(kinds(&out[18..]), [option_reply::ERR_UNKNOWN]);
}

#[test]
fn export_that_refuses_clients_is_listed_and_not_opened() {
    let mut all = exports();
    all[0].refuses_clients = true;
    let name = all[0].name.clone();
    let sentence = format!("export {name:?} takes no new clients now");
    // The default is not replaced by the next export.
    for wanted in [name.as_str(), ""] {
        let mut out = Vec::new();
        let bytes = client(3, &[option(option::GO, &info_data(wanted, &[]))]);
        let outcome = Handshake::new(&mut out).feed(&all, &bytes, &mut out).1;
        assert_eq!(outcome, Outcome::Failed(sentence.clone()));
        assert_eq!(kinds(&out[18..]), [option_reply::ERR_POLICY]);
        assert!(out.ends_with(sentence.as_bytes()));
    }
    let mut out = Vec::new();
    let bytes = client(3, &[option(option::EXPORT_NAME, name.as_bytes())]);
    let outcome = Handshake::new(&mut out).feed(&all, &bytes, &mut out).1;
    assert_eq!(outcome, Outcome::Failed(sentence));
    let mut out = Vec::new();
    let bytes =
        client(3, &[option(option::LIST, &[]), option(option::INFO, &info_data(&name, &[]))]);
    let mut handshake = Handshake::new(&mut out);
    let (used, _) = handshake.feed(&all, &bytes, &mut out);
    handshake.feed(&all, &bytes[used..], &mut out);
    let listed = [option_reply::SERVER, option_reply::SERVER, option_reply::ACK];
    let told = kinds(&out[18..]);
    assert_eq!(told[..3], listed, "it is listed");
    assert_eq!(told.last(), Some(&option_reply::ACK), "and described");
}

#[test]
fn unavailable_export_without_a_reason_is_just_not_available() {
    let absent = ExportInfo {
        name: "absent".into(),
        unavailable: Some(String::new()),
        ..ExportInfo::default()
    };
    let mut out = Vec::new();
    let mut handshake = Handshake::new(&mut out);
    let bytes = client(3, &[option(option::GO, &info_data("absent", &[]))]);
    assert_eq!(handshake.feed(&vec![absent], &bytes, &mut out).1, Outcome::Reply);
    assert!(out.ends_with(b"export \"absent\" is not available"));
}

#[test]
fn unavailable_export_is_not_listed_and_refused_with_its_reason() {
    let absent = ExportInfo {
        name: "absent".into(),
        unavailable: Some("its image /x does not exist".into()),
        ..ExportInfo::default()
    };
    let all = [vec![absent], exports()].concat();
    let reason = b"export \"absent\" is not available: its image /x does not exist";
    let says = |out: &[u8]| out.windows(reason.len()).any(|part| part == reason);
    for code in [option::GO, option::INFO] {
        let mut out = Vec::new();
        let mut handshake = Handshake::new(&mut out);
        let bytes = client(3, &[option(code, &info_data("absent", &[]))]);
        assert_eq!(handshake.feed(&all, &bytes, &mut out).1, Outcome::Reply);
        assert_eq!(kinds(&out[18..]), [option_reply::ERR_UNKNOWN]);
        assert!(says(&out));
    }
    let mut out = Vec::new();
    let mut handshake = Handshake::new(&mut out);
    let bytes = client(3, &[option(option::LIST, &[])]);
    assert_eq!(handshake.feed(&all, &bytes, &mut out).1, Outcome::Reply);
    assert_eq!(kinds(&out[18..]).len(), 3, "two exports and an ACK");
    // The default is the first export that can be opened.
    let bytes = client(3, &[option(option::GO, &info_data("", &[]))]);
    let outcome = Handshake::new(&mut out).feed(&all, &bytes, &mut out).1;
    assert!(matches!(outcome, Outcome::Ready { export: 1, .. }), "{outcome:?}");
    let bytes = client(3, &[option(option::EXPORT_NAME, b"absent")]);
    let outcome = Handshake::new(&mut out).feed(&all, &bytes, &mut out).1;
    assert!(matches!(outcome, Outcome::Failed(why) if why.contains("does not exist")));
}

#[test]
fn random_input_causes_no_panic_and_no_growth() {
    let mut prng = Prng::new(11);
    for _ in 0..3000 {
        let mut bytes = client(prng.below(4) as u32, &[]);
        for _ in 0..prng.below(8) {
            let mut data = info_data(["", "first", "x"][prng.below(3) as usize], &[1, 2, 3]);
            for _ in 0..prng.below(3) {
                let at = prng.below(data.len() as u64) as usize;
                data[at] = prng.next() as u8;
            }
            data.truncate(prng.below(2 * data.len() as u64) as usize);
            bytes.extend(option(prng.below(14) as u32, &data));
        }
        for _ in 0..prng.below(3) {
            let at = prng.below(bytes.len() as u64) as usize;
            bytes[at] = prng.next() as u8;
        }
        let expected = whole(&bytes);
        let (out, _, outcome) = run(&bytes, || prng.between(1, 30) as usize);
        assert_eq!((&out, &outcome), (&expected.0, &expected.2));
        assert!(out.len() < 8192);
    }
}

/// Feeds `bytes` to a handshake with TLS; returns the replies, the rest and the last outcome.
fn with_tls(encryption: Encryption, bytes: &[u8]) -> (Vec<u8>, usize, Outcome, Handshake) {
    let (exports, mut out) = (exports(), Vec::new());
    let mut handshake = Handshake::new(&mut out);
    handshake.offer(encryption);
    out.clear();
    let mut at = 0;
    loop {
        let (consumed, outcome) = handshake.feed(&exports, &bytes[at..], &mut out);
        at += consumed;
        if outcome != Outcome::Reply {
            return (out, bytes.len() - at, outcome, handshake);
        }
    }
}

#[test]
fn starttls_resets_earlier_negotiation() {
    use option_reply::*;
    let asks = client(3, &[option(8, &[]), option(5, &[]), option(3, &[])]);
    let (out, left, outcome, mut handshake) = with_tls(Encryption::Offered, &asks);
    assert_eq!((kinds(&out), left, outcome), (vec![ACK, ACK], 16, Outcome::Encrypt));
    // The negotiation starts again: no second STARTTLS, and no structured replies until requested.
    let (mut out, exports) = (Vec::new(), exports());
    let (_, outcome) = handshake.feed(&exports, &option(5, &[]), &mut out);
    assert_eq!((kinds(&out), outcome), (vec![ERR_INVALID], Outcome::Reply));
    let (_, outcome) = handshake.feed(&exports, &option(7, &info_data("", &[])), &mut out);
    assert_eq!(outcome, Outcome::Ready { export: 0, terms: Negotiated::default() });
}

#[test]
fn starttls_takes_no_data_and_must_be_offered() {
    use option_reply::*;
    let asks = client(3, &[option(5, b"x"), option(2, &[])]);
    let (out, _, outcome, _) = with_tls(Encryption::Offered, &asks);
    assert_eq!((kinds(&out), outcome), (vec![ERR_INVALID, ACK], Outcome::Closed));
    let (out, _, outcome, _) = with_tls(Encryption::Off, &client(3, &[option(5, &[])]));
    assert_eq!((kinds(&out), outcome), (vec![ERR_POLICY], Outcome::NeedMore));
}

#[test]
fn required_tls_refuses_other_options() {
    use option_reply::*;
    let go = info_data("first", &[]);
    let asks = [option(3, &[]), option(6, &go), option(7, &go), option(8, &[]), option(77, &[])];
    let (out, _, outcome, _) = with_tls(Encryption::Required, &client(3, &asks));
    assert_eq!((kinds(&out), outcome), (vec![ERR_TLS_REQD; 5], Outcome::NeedMore));
    let (out, _, outcome, _) = with_tls(Encryption::Required, &client(3, &[option(1, b"first")]));
    assert!(out.is_empty());
    assert!(matches!(outcome, Outcome::Failed(sentence) if sentence.contains("without TLS")));
    let (out, _, outcome, _) = with_tls(Encryption::Required, &client(3, &[option(2, &[])]));
    assert_eq!((kinds(&out), outcome), (vec![ACK], Outcome::Closed));
    // However long they are.
    let big = vec![7; OPTION_BYTES_MAX as usize + 1];
    let long = client(3, &[option(7, &big), option(77, &big), option(5, &big), option(2, &big)]);
    let (out, _, outcome, _) = with_tls(Encryption::Required, &long);
    let expected = vec![ERR_TLS_REQD, ERR_TLS_REQD, ERR_TOO_BIG, ACK];
    assert_eq!((kinds(&out), outcome), (expected, Outcome::Closed));
    // And after it everything, the old way too.
    let (mut out, _, outcome, mut handshake) =
        with_tls(Encryption::Required, &client(3, &[option(5, &[])]));
    assert_eq!(outcome, Outcome::Encrypt);
    let (_, outcome) = handshake.feed(&exports(), &option(1, b"first"), &mut out);
    assert_eq!(outcome, Outcome::Ready { export: 0, terms: Negotiated::default() });
}

/// Exports of which the client sees all but those whose names begin with `hidden`.
struct Partial(Vec<ExportInfo>);

impl Offer for Partial {
    fn exports(&self) -> &[ExportInfo] {
        &self.0
    }

    fn sees(&self, index: usize) -> bool {
        !self.0[index].name.starts_with("hidden")
    }
}

/// What a client is told that may not see `hidden` and sends `options`, and the outcome of the last.
fn told_partly(options: &[Vec<u8>]) -> (Vec<u8>, Outcome) {
    let hidden = ExportInfo { name: "hidden".into(), size: 77, ..ExportInfo::default() };
    let reason = Some("its image is missing".to_owned());
    let absent = ExportInfo { name: "hidden-gone".into(), unavailable: reason, ..hidden.clone() };
    let offer = Partial([vec![hidden], exports(), vec![absent]].concat());
    let (mut out, mut at) = (Vec::new(), 0);
    let mut handshake = Handshake::new(&mut out);
    out.clear();
    let bytes = client(3, options);
    loop {
        let (consumed, outcome) = handshake.feed(&offer, &bytes[at..], &mut out);
        at += consumed;
        if outcome != Outcome::Reply || at == bytes.len() {
            return (out, outcome);
        }
    }
}

/// The output with a name in the place of another one of its length.
fn renamed(out: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut out = out.to_vec();
    while let Some(at) = out.windows(from.len()).position(|part| part == from.as_bytes()) {
        out[at..at + to.len()].copy_from_slice(to.as_bytes());
    }
    out
}

#[test]
fn every_option_answers_hidden_export_like_unknown_one() {
    for (hidden, unknown) in [("hidden", "nobody"), ("hidden-gone", "nobody-gone")] {
        let data = |name: &str| -> [Vec<Vec<u8>>; 5] {
            let context = context_data(name, "base:allocation");
            let structured = option(option::STRUCTURED_REPLY, &[]);
            [
                vec![option(option::INFO, &info_data(name, &[1, 2, 3]))],
                vec![option(option::GO, &info_data(name, &[1, 2, 3]))],
                vec![option(option::EXPORT_NAME, name.as_bytes())],
                vec![structured.clone(), option(option::LIST_META_CONTEXT, &context)],
                vec![structured, option(option::SET_META_CONTEXT, &context)],
            ]
        };
        for (of_hidden, of_unknown) in data(hidden).iter().zip(&data(unknown)) {
            let (out, outcome) = told_partly(of_hidden);
            let (expected, expected_outcome) = told_partly(of_unknown);
            assert_eq!(renamed(&out, hidden, unknown), expected);
            assert!(kinds(&out).iter().all(|kind| *kind != option_reply::INFO));
            match (outcome, expected_outcome) {
                (Outcome::Failed(said), Outcome::Failed(expected)) => {
                    assert_eq!(said.replace(hidden, unknown), expected);
                }
                (outcome, expected) => assert_eq!(outcome, expected),
            }
        }
    }
}

#[test]
fn list_and_default_leave_hidden_exports_out() {
    let (out, _) = told_partly(&[option(option::LIST, &[])]);
    let names: Vec<_> = answers(&out).into_iter().map(|(_, _, data)| data).collect();
    assert_eq!(names.len(), 3, "two exports and an ACK");
    assert!(!out.windows(6).any(|part| part == b"hidden"));
    let (_, outcome) = told_partly(&[option(option::GO, &info_data("", &[]))]);
    assert!(matches!(outcome, Outcome::Ready { export: 1, .. }), "{outcome:?}");
}
