//! What a client may send, through the handshake and the requests after it.
//!
//! The first byte says in what pieces the rest arrives. Arriving in pieces must make no difference, output and memory stay
//! bounded, and a request that is let through keeps the rules that it was checked for.
#![cfg_attr(fuzzing, no_main)]

use headworks_nbd::handshake::OPTIONS_MAX;
use headworks_nbd::reply::REPLY_BYTES_MAX;
use headworks_nbd::wire::{OPTION_BYTES_MAX, PAYLOAD_BYTES_MAX};
use headworks_nbd::{
    Command, CommandFlags, ExportInfo, Handshake, Negotiated, Outcome, Parsed, Replies, Request,
    RequestParser, TransmissionFlags,
};

/// The longest answer to one option: two exports with their names and descriptions.
const ANSWER_BYTES_MAX: usize = 4096;

fn exports() -> Vec<ExportInfo> {
    use TransmissionFlags as Flags;
    let all = Flags::NAMES.iter().fold(Flags::HAS_FLAGS, |all, (flag, _)| all.with(*flag));
    let export = |name: &str, flags| ExportInfo {
        name: name.into(),
        description: "a disk".into(),
        size: 1 << 40,
        flags,
        ..ExportInfo::default()
    };
    vec![
        export("", all.without(Flags::READ_ONLY)),
        export("ro", Flags::HAS_FLAGS.with(Flags::READ_ONLY).with(Flags::SEND_FLUSH)),
    ]
}

/// Everything that the server said and did with a stream.
#[derive(Debug, Default, PartialEq)]
struct Story {
    out: Vec<u8>,
    ready: Option<(usize, Negotiated)>,
    end: Option<String>,
    requests: Vec<Request>,
    replies: Vec<u8>,
}

fn shake_hands(story: &mut Story, stream: &[u8], piece: usize) -> usize {
    let exports = exports();
    let mut handshake = Handshake::new(&mut story.out);
    let (mut at, mut arrived, mut answers) = (0, piece.min(stream.len()), 0);
    loop {
        let before = story.out.len();
        let (used, outcome) = handshake.feed(&exports, &stream[at..arrived], &mut story.out);
        assert!(used <= arrived - at, "consumed more than there is");
        assert!(story.out.len() - before <= ANSWER_BYTES_MAX, "one answer a call");
        at += used;
        match outcome {
            Outcome::NeedMore if arrived == stream.len() => return at,
            Outcome::NeedMore => {
                assert_eq!(at, arrived, "whoever needs more has taken all");
                arrived = (arrived + piece).min(stream.len());
            }
            Outcome::Reply => {
                answers += 1;
                assert!(answers <= OPTIONS_MAX, "options are counted");
            }
            Outcome::Ready { export, terms } => {
                assert!(export < exports.len());
                story.ready = Some((export, terms));
                return at;
            }
            Outcome::Encrypt => {
                story.end = Some("a client hello comes".into());
                return at;
            }
            Outcome::Closed => {
                story.end = Some("goodbye".into());
                return at;
            }
            Outcome::Failed(sentence) => {
                assert!(!sentence.is_empty() && sentence.len() < 1000);
                assert!(!sentence.contains(char::is_control), "for a log: {sentence:?}");
                story.end = Some(sentence);
                return at;
            }
        }
    }
}

fn check(request: &Request, offered: TransmissionFlags) {
    let has = |flag| request.flags.contains(flag);
    let offers = |flag| offered.contains(flag);
    assert!(request.command != Command::Disconnect);
    assert!(!(request.command.is_write() && offers(TransmissionFlags::READ_ONLY)));
    assert!(!has(CommandFlags::FUA) || offers(TransmissionFlags::SEND_FUA));
    assert!(!has(CommandFlags::DF) || request.command == Command::Read);
    assert!(!has(CommandFlags::FAST_ZERO) || request.command == Command::WriteZeroes);
    assert!((request.command == Command::Flush) == (request.len == 0));
    let moves = matches!(request.command, Command::Read | Command::Write);
    assert!(!moves || request.len <= PAYLOAD_BYTES_MAX);
}

fn transmit(story: &mut Story, stream: &[u8], piece: usize) {
    let Some((export, terms)) = story.ready else { return };
    let offered = exports()[export].flags_for(terms);
    let mut parser = RequestParser::new(offered, terms);
    let replies = Replies { structured: terms.structured };
    let (mut at, mut arrived, mut payload) = (0, piece.min(stream.len()), 0);
    loop {
        let skipped = (arrived - at).min(payload);
        (at, payload) = (at + skipped, payload - skipped);
        let parsed =
            if payload > 0 { (0, Parsed::NeedMore) } else { parser.parse(&stream[at..arrived]) };
        let (used, parsed) = parsed;
        assert!(used <= arrived - at, "consumed more than there is");
        at += used;
        match parsed {
            Parsed::NeedMore if arrived == stream.len() => return,
            Parsed::NeedMore => arrived = (arrived + piece).min(stream.len()),
            Parsed::Request(request) => {
                check(&request, offered);
                payload = request.payload() as usize;
                story.requests.push(request);
            }
            Parsed::Refused(refusal) => {
                let before = story.replies.len();
                replies.refused(&mut story.replies, refusal);
                assert!(story.replies.len() - before <= REPLY_BYTES_MAX);
            }
            Parsed::Disconnect => {
                story.end = Some("goodbye".into());
                return;
            }
            Parsed::End(error) => {
                story.end = Some(error.to_string());
                return;
            }
        }
    }
}

fn story(stream: &[u8], piece: usize) -> Story {
    let mut story = Story::default();
    let used = shake_hands(&mut story, stream, piece);
    assert!(story.ready.is_none() || used <= stream.len());
    transmit(&mut story, &stream[used..], piece);
    story
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((piece, stream)) = data.split_first() else { return };
    if stream.len() > OPTION_BYTES_MAX as usize * 4 {
        return;
    }
    let piece = usize::from(*piece) + 1;
    assert_eq!(story(stream, stream.len().max(1)), story(stream, piece), "in pieces of {piece}");
});
