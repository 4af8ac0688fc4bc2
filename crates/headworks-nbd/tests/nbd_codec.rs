//! The NBD codec and the client against each other, end to end over unix sockets.
//!
//! The test server is the codec, a thread per connection and a vector. Its faults are configurable: tiny receives, replies out of
//! order, replies before a payload, lost writes, garbage. The client must tolerate the first three and detect the others.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headworks_core::extent::ExtentWriter;
use headworks_core::prng::Prng;
use headworks_core::{EXTENTS_BYTES, Extent, ExtentState, Op};
use headworks_nbd::client::bench::{self, BenchOptions, Pattern, Verify, Waiting};
use headworks_nbd::client::{
    Client, ClientError, ClientOptions, OptionNegotiation, Socket, Target, Uri,
};
use headworks_nbd::status::StatusQuery;
use headworks_nbd::{
    CommandFlags, ExportInfo, Handshake, NbdError, Outcome, Parsed, Replies, Request,
    RequestParser, TransmissionFlags,
};

const SIZE: usize = 4 << 20;

/// Faults of the test server.
#[derive(Clone, Copy, Default)]
struct Faults {
    /// Receive at most so many bytes at once.
    piece: Option<usize>,
    /// Collect replies while there are more requests, then answer the last first.
    reverse: bool,
    /// Refuse all writes although the export is writable; refusals precede the payload.
    refuse_writes: bool,
    /// Acknowledge every n-th write without performing it.
    lose_every: Option<u64>,
    /// Answer every n-th request with garbage.
    nonsense_every: Option<u64>,
    /// Close after this many requests.
    close_after: Option<u64>,
}

struct Server {
    uri: Uri,
    directory: std::path::PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn exports() -> Vec<ExportInfo> {
    let flags = TransmissionFlags::SEND_FLUSH
        .with(TransmissionFlags::SEND_FUA)
        .with(TransmissionFlags::SEND_TRIM)
        .with(TransmissionFlags::SEND_WRITE_ZEROES)
        .with(TransmissionFlags::SEND_DF)
        .with(TransmissionFlags::CAN_MULTI_CONN);
    let export = |name: &str, flags| ExportInfo {
        name: name.into(),
        description: format!("a vector called {name}"),
        size: SIZE as u64,
        flags,
        ..ExportInfo::default()
    };
    let read_only = flags.with(TransmissionFlags::READ_ONLY);
    vec![export("disk", flags), export("read only", read_only)]
}

/// Serves a vector of zeros until the process ends.
fn serve(faults: Faults) -> Server {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let directory =
        std::env::temp_dir().join(format!("headworks-codec-{}-{count}", std::process::id()));
    std::fs::create_dir(&directory).expect("a directory of our own");
    let socket = directory.join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&socket).expect("a socket of our own");
    let disk = Arc::new(Mutex::new(vec![0; SIZE]));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, disk) = (stream.expect("a client"), Arc::clone(&disk));
            std::thread::spawn(move || Connection::new(stream, disk, faults).run());
        }
    });
    Server {
        uri: Uri { target: Target::Unix(socket), export: String::new(), tls: None },
        directory,
    }
}

struct Connection {
    stream: UnixStream,
    disk: Arc<Mutex<Vec<u8>>>,
    faults: Faults,
    input: Vec<u8>,
    requests: u64,
    writes: u64,
}

impl Connection {
    fn new(stream: UnixStream, disk: Arc<Mutex<Vec<u8>>>, faults: Faults) -> Self {
        Self {
            stream,
            disk,
            faults,
            input: vec![0; faults.piece.unwrap_or(64 << 10)],
            requests: 0,
            writes: 0,
        }
    }

    /// A hang-up of the client ends the thread only.
    fn run(mut self) {
        let _ = self.serve();
    }

    fn serve(&mut self) -> std::io::Result<()> {
        let (exports, mut out) = (exports(), Vec::new());
        let mut handshake = Handshake::new(&mut out);
        let (export, terms, mut rest) = loop {
            self.stream.write_all(&std::mem::take(&mut out))?;
            let received = self.receive()?;
            let mut at = 0;
            let outcome = loop {
                let (used, outcome) = handshake.feed(&exports, &self.input[at..received], &mut out);
                at += used;
                if outcome != Outcome::Reply {
                    break outcome;
                }
            };
            match outcome {
                Outcome::Ready { export, terms } => {
                    self.stream.write_all(&out)?;
                    break (export, terms, self.input[at..received].to_vec());
                }
                Outcome::Closed | Outcome::Failed(_) | Outcome::Encrypt => {
                    return self.stream.write_all(&out);
                }
                Outcome::NeedMore | Outcome::Reply => {}
            }
        };
        let mut offered = exports[export].flags_for(terms);
        if self.faults.refuse_writes {
            offered = offered.with(TransmissionFlags::READ_ONLY);
        }
        let mut parser = RequestParser::new(offered, terms);
        let mut write: Option<(Request, Vec<u8>)> = None;
        loop {
            let mut replies = Vec::new();
            let mut bytes = rest.as_slice();
            loop {
                if let Some((request, data)) = &mut write {
                    let taken = bytes.len().min(request.len as usize - data.len());
                    data.extend(&bytes[..taken]);
                    bytes = &bytes[taken..];
                    if data.len() < request.len as usize {
                        break;
                    }
                    let (request, data) = write.take().expect("it is there");
                    replies.push(self.answer(request, data, terms.structured));
                }
                let (used, parsed) = parser.parse(bytes);
                bytes = &bytes[used..];
                match parsed {
                    Parsed::NeedMore => break,
                    Parsed::Request(request) if request.payload() > 0 => {
                        write = Some((request, Vec::new()));
                    }
                    Parsed::Request(request) => {
                        replies.push(self.answer(request, Vec::new(), terms.structured));
                    }
                    Parsed::Refused(refusal) => {
                        let mut reply = Vec::new();
                        Replies { structured: terms.structured }.refused(&mut reply, refusal);
                        replies.push(reply);
                    }
                    Parsed::Disconnect | Parsed::End(_) => return Ok(()),
                }
            }
            if self.faults.reverse {
                replies.reverse();
            }
            self.stream.write_all(&replies.concat())?;
            if self.faults.close_after.is_some_and(|limit| self.requests >= limit) {
                return Ok(());
            }
            let received = self.receive()?;
            rest = self.input[..received].to_vec();
        }
    }

    fn receive(&mut self) -> std::io::Result<usize> {
        match self.stream.read(&mut self.input)? {
            0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
            received => Ok(received),
        }
    }

    fn answer(&mut self, request: Request, data: Vec<u8>, structured: bool) -> Vec<u8> {
        self.requests += 1;
        let (replies, mut out) = (Replies { structured }, Vec::new());
        let (cookie, len) = (request.cookie, request.len as usize);
        if self.faults.nonsense_every.is_some_and(|every| self.requests.is_multiple_of(every)) {
            replies.done(&mut out, cookie ^ 1 << 40, Ok(()));
            return out;
        }
        let mut disk = self.disk.lock().expect("no panics under the lock");
        let start = usize::try_from(request.offset).unwrap_or(usize::MAX);
        let Some(range) = disk.get_mut(start..start.saturating_add(len)) else {
            let error = NbdError::Invalid;
            if matches!(request.op(), Op::Read | Op::BlockStatus) {
                replies.read_error(&mut out, cookie, error);
            } else {
                replies.done(&mut out, cookie, Err(error));
            }
            return out;
        };
        match request.op() {
            Op::Read if range.iter().all(|&byte| byte == 0) => {
                if !replies.read_hole(&mut out, cookie, request.offset, request.len) {
                    out.extend(vec![0; len]);
                }
                return out;
            }
            Op::Read => {
                replies.read_data(&mut out, cookie, request.offset, request.len);
                out.extend_from_slice(range);
                return out;
            }
            Op::Write => {
                self.writes += 1;
                let lost = self.faults.lose_every.is_some_and(|n| self.writes.is_multiple_of(n));
                if !lost {
                    range.copy_from_slice(&data);
                }
            }
            Op::Discard | Op::WriteZeroes => range.fill(0),
            Op::Flush | Op::Prefetch => {}
            Op::BlockStatus => {
                let mut list = [0; EXTENTS_BYTES as usize];
                let mut writer = ExtentWriter::new(&mut list, request.len, 128);
                for sector in range.chunks(512) {
                    let zeros = sector.iter().all(|&byte| byte == 0);
                    let state = if zeros { ExtentState::HOLE_ZERO } else { ExtentState::DATA };
                    writer.push(sector.len() as u64, state);
                }
                writer.finish();
                let one = request.flags.contains(CommandFlags::REQ_ONE);
                let Request { offset, len, .. } = request;
                let question = StatusQuery { cookie, offset, len, block: 1, one };
                replies.block_status(&mut out, &question, &list);
                return out;
            }
        }
        replies.done(&mut out, cookie, Ok(()));
        out
    }
}

fn options(structured: bool) -> ClientOptions {
    let allocation = structured;
    ClientOptions { structured, allocation, timeout: Duration::from_secs(20) }
}

fn connect(server: &Server, structured: bool) -> Client {
    Client::connect(&server.uri, options(structured)).expect("a connection")
}

/// A short verifying mix on 4 KiB blocks.
fn mix(server: &Server) -> BenchOptions {
    BenchOptions {
        pattern: Pattern::RandRw { read_percent: 50 },
        runtime: Duration::from_millis(150),
        verify: Verify::FromZeros,
        client: options(false),
        ..BenchOptions::new(server.uri.clone())
    }
}

#[test]
fn reads_return_written_data_in_both_reply_forms() {
    for (structured, piece) in [(false, None), (true, None), (false, Some(7)), (true, Some(1))] {
        let server = serve(Faults { piece, ..Faults::default() });
        let mut client = connect(&server, structured);
        assert_eq!(client.export().structured, structured);
        let mut prng = Prng::new(4);
        let data: Vec<u8> = (0..5000).map(|_| prng.next() as u8).collect();
        let mut found = vec![1; 7000];
        client.read(0, &mut found).expect("a hole");
        assert!(found.iter().all(|&byte| byte == 0));
        client.write(1000, &data, CommandFlags::FUA).expect("write");
        client.flush().expect("flush");
        client.read(0, &mut found).expect("data");
        assert_eq!(found[1000..6000], data);
        client.write_zeroes(1000, 10, CommandFlags::NO_HOLE).expect("write-zeroes");
        client.trim(1010, 10, CommandFlags::NONE).expect("trim");
        client.read(1000, &mut found[..5000]).expect("data");
        assert_eq!(found[..20], [0; 20]);
        assert_eq!(found[20..5000], data[20..]);
        client.disconnect().expect("goodbye");
    }
}

#[test]
fn error_reaches_client_and_connection_continues() {
    let server = serve(Faults::default());
    for structured in [false, true] {
        let mut client = connect(&server, structured);
        let end = SIZE as u64;
        let invalid = |outcome: Result<(), ClientError>| {
            assert!(matches!(outcome, Err(ClientError::Request(NbdError::Invalid))));
        };
        invalid(client.read(end - 10, &mut [0; 11]));
        invalid(client.read(u64::MAX, &mut [0; 11]));
        invalid(client.read(0, &mut []));
        invalid(client.write(end - 10, &[1; 11], CommandFlags::NONE));
        invalid(client.write(0, &[1; 100_000], CommandFlags::DF));
        invalid(client.write_zeroes(0, 10, CommandFlags::FAST_ZERO));
        invalid(client.read(0, &mut vec![0; (32 << 20) + 1]));
        client.read(end - 10, &mut [0; 10]).expect("the connection goes on");
    }
    let mut uri = server.uri.clone();
    uri.export = "read only".into();
    let mut client = Client::connect(&uri, options(true)).expect("a connection");
    let refused = client.write(0, &[1; 4096], CommandFlags::NONE);
    assert!(matches!(refused, Err(ClientError::Request(NbdError::NotPermitted))));
    client.read(0, &mut [0; 512]).expect("the connection goes on");
}

#[test]
fn block_status_of_an_export_takes_few_requests() {
    const DATA: ExtentState = ExtentState::DATA;
    const HOLE: ExtentState = ExtentState::HOLE_ZERO;
    for faults in [Faults::default(), Faults { piece: Some(3), ..Faults::default() }] {
        let server = serve(faults);
        let mut client = connect(&server, true);
        // More extents than an answer has.
        for at in (0..400_u64).step_by(2) {
            client.write(at * 4096, &[7; 4096], CommandFlags::NONE).expect("a write");
        }
        let (mut told, mut map) = (Vec::<(u64, Extent)>::new(), client.map());
        while let Some((start, extents)) = map.next_extents().expect("an answer") {
            assert!(extents.len() <= 128);
            let mut at = start;
            for extent in extents {
                told.push((at, extent));
                at += u64::from(extent.len);
            }
        }
        assert_eq!(map.questions, 4);
        let rest = (SIZE - 399 * 4096) as u32;
        let expected = (0..400_u64).map(|block| {
            let len = if block == 399 { rest } else { 4096 };
            let state = if block % 2 == 0 { DATA } else { HOLE };
            (block * 4096, Extent { len, state })
        });
        assert!(told.into_iter().eq(expected));
        let one = client.block_status(4096, 65_536, CommandFlags::REQ_ONE).expect("an answer");
        assert_eq!(one, [Extent { len: 4096, state: HOLE }]);
        let beyond = client.block_status(SIZE as u64, 512, CommandFlags::NONE);
        assert!(matches!(beyond, Err(ClientError::Request(NbdError::Invalid))), "{beyond:?}");
        client.read(0, &mut [0; 512]).expect("the connection goes on");
    }
}

#[test]
fn block_status_without_context_is_refused() {
    let server = serve(Faults::default());
    let without = ClientOptions { allocation: false, ..options(true) };
    let mut client = Client::connect(&server.uri, without).expect("a connection");
    assert_eq!(client.export().allocation, None);
    let refused = client.block_status(0, 512, CommandFlags::NONE);
    assert!(matches!(refused, Err(ClientError::Refused(_))), "{refused:?}");
}

#[test]
fn list_and_info_report_all_exports() {
    let server = serve(Faults { piece: Some(3), ..Faults::default() });
    let socket = Socket::connect(&server.uri.target, Duration::from_secs(20)).expect("a socket");
    let mut negotiation = OptionNegotiation::start(socket).expect("a greeting");
    let before = negotiation.info("disk").expect("an export");
    assert!(!before.flags.contains(TransmissionFlags::SEND_DF));
    assert!(negotiation.ask_structured().expect("an answer"));
    assert_eq!(negotiation.contexts("disk").expect("a list"), ["base:allocation"]);
    assert!(negotiation.contexts("nobody").expect("an answer").is_empty());
    let list = negotiation.list().expect("a list");
    let names: Vec<_> = list.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["disk", "read only"]);
    let export = negotiation.info("").expect("the default export");
    assert_eq!((export.name.as_str(), export.size), ("disk", SIZE as u64));
    assert_eq!(export.description, "a vector called disk");
    assert!(export.flags.contains(TransmissionFlags::SEND_DF));
    assert_eq!(export.block_sizes.expect("told").max, 32 << 20);
    let nobody = negotiation.info("nobody").expect_err("no such export").to_string();
    assert!(nobody.contains("no such export") && nobody.contains("nobody"), "{nobody}");
    negotiation.abort().expect("goodbye");
}

#[test]
fn parallel_jobs_are_counted_separately_within_the_window() {
    let server = serve(Faults::default());
    let job =
        |pattern, threads| BenchOptions { pattern, threads, verify: Verify::Off, ..mix(&server) };
    let jobs = [job(Pattern::RandRead, 2), job(Pattern::RandWrite, 1)];
    let time = Duration::from_millis(250);
    let (found, watched) = bench::run_together(&jobs, time, time, || 7).expect("an honest server");
    assert_eq!(watched, 7);
    assert!(found[0].reads.bytes > 0 && found[0].writes.bytes == 0);
    assert!(found[1].writes.bytes > 0 && found[1].reads.bytes == 0);
    assert!(found.iter().all(|tally| tally.elapsed == time));
    // Everything is before the window or after it.
    let (found, ()) =
        bench::run_together(&jobs, time, Duration::ZERO, || ()).expect("an honest server");
    assert!(found.iter().all(|tally| tally.ios() == 0 && tally.calls[0] > 0));
}

#[test]
fn verifying_mix_passes_on_correct_servers() {
    let honest = Faults::default();
    let all = [
        (honest, 4096, 32, 1),
        (Faults { reverse: true, ..honest }, 4096, 32, 2),
        (Faults { piece: Some(1000), reverse: true, ..honest }, 512, 16, 1),
        // Both sides have more to send than the sockets hold.
        (honest, 256 << 10, 16, 1),
        (Faults { reverse: true, ..honest }, 64 << 10, 8, 2),
    ];
    for (index, (faults, block_bytes, iodepth, threads)) in all.into_iter().enumerate() {
        for structured in [false, true] {
            let server = serve(faults);
            let report = bench::run(&BenchOptions {
                block_bytes,
                iodepth,
                threads,
                client: options(structured),
                waiting: [Waiting::Sleep, Waiting::Poll][index % 2],
                ..mix(&server)
            });
            let report = report.expect("an honest server passes");
            assert_eq!(report.run.errors, 0);
            assert!(report.run.reads.latency.count() > 0 && report.run.writes.bytes > 0);
            assert!(report.run.verified > 0);
            let blocks = (SIZE / block_bytes as usize) as u64;
            assert_eq!(report.read_back.expect("verifying").verified, blocks);
        }
    }
}

#[test]
fn requests_of_a_rate_count_from_when_they_were_due() {
    let run = |rate, iodepth, waiting| {
        let server = serve(Faults::default());
        let runtime = Duration::from_millis(300);
        let options = BenchOptions { rate: Some(rate), iodepth, waiting, runtime, ..mix(&server) };
        bench::run(&options).expect("an honest server passes").run
    };
    for waiting in [Waiting::Sleep, Waiting::Poll] {
        let slow = run(1000, 32, waiting);
        // 300 in the mean, 17 more or less by chance; on a busy machine the last ones are not sent any more.
        assert!((1..400).contains(&slow.ios()), "{} requests", slow.ios());
        assert!(slow.verified > 0);
        // One at a time cannot keep up with a million a second: the last one was due long before.
        let late = run(1_000_000, 1, waiting);
        assert!(late.ios() < 300_000);
        let longest = late.reads.latency.max().max(late.writes.latency.max());
        assert!(longest > 100_000_000, "{longest} ns");
    }
    let server = serve(Faults::default());
    let options = BenchOptions { rate: Some(0), ..mix(&server) };
    let refused = bench::run(&options).expect_err("no requests at all").to_string();
    assert!(refused.contains("rate=0: write 1 to"), "{refused}");
}

#[test]
fn filled_export_is_read_back_and_verified() {
    let server = serve(Faults::default());
    let report = bench::run(&BenchOptions {
        pattern: Pattern::Read,
        fill: true,
        verify: Verify::Written,
        threads: 3,
        ..mix(&server)
    });
    let report = report.expect("an honest server passes");
    assert_eq!(report.run.verified, report.run.ios());
    assert_eq!(report.read_back.expect("verifying").verified, SIZE as u64 / 4096);
}

#[test]
fn lost_write_is_detected() {
    let server = serve(Faults { lose_every: Some(10), ..Faults::default() });
    match bench::run(&mix(&server)) {
        Err(ClientError::Verify(sentence)) => assert!(sentence.contains("should hold")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn stale_data_is_not_taken_for_zeros() {
    let server = serve(Faults::default());
    connect(&server, false).write(8192, b"x", CommandFlags::NONE).expect("write");
    let found = bench::run(&BenchOptions { pattern: Pattern::RandRead, ..mix(&server) });
    assert!(
        matches!(found, Err(ClientError::Verify(sentence)) if sentence.contains("offset 8192 "))
    );
}

#[test]
fn early_refusal_does_not_stop_the_pipeline() {
    let server = serve(Faults { refuse_writes: true, ..Faults::default() });
    let report = bench::run(&BenchOptions {
        pattern: Pattern::Write,
        block_bytes: 1 << 20,
        iodepth: 4,
        verify: Verify::Off,
        ..mix(&server)
    });
    let run = report.expect("refusals are counted").run;
    assert!(run.errors >= 4 && run.ios() == 0, "{} errors", run.errors);
    assert_eq!(run.first_error, Some(NbdError::NotPermitted));
    assert!(run.elapsed >= Duration::from_millis(150));
}

#[test]
fn protocol_violations_are_reported() {
    let ends = |faults, part: &str| {
        let server = serve(faults);
        let error = bench::run(&mix(&server)).expect_err("it must be noticed").to_string();
        assert!(error.contains(part), "{error}");
    };
    let honest = Faults::default();
    ends(Faults { nonsense_every: Some(50), ..honest }, "matches no request");
    ends(Faults { close_after: Some(50), ..honest }, "closed the connection");
}

#[test]
fn invalid_options_are_reported() {
    let server = serve(Faults::default());
    let wrong = |change: fn(&mut BenchOptions), part: &str| {
        let mut options = mix(&server);
        change(&mut options);
        let error = bench::run(&options).expect_err("refused").to_string();
        assert!(error.contains(part), "{error}");
    };
    wrong(|options| options.block_bytes = 0, "bs=0");
    wrong(|options| options.block_bytes = 64 << 20, "33554432");
    wrong(|options| options.block_bytes = 1000, "multiples of 512");
    wrong(|options| options.iodepth = 0, "iodepth=0");
    wrong(|options| options.size = Some(100), "only 0 blocks");
    wrong(|options| options.uri.export = "read only".into(), "read-only");
    wrong(|options| options.uri.export = "nobody".into(), "no such export");
    wrong(|options| options.uri.target = Target::Unix("/nowhere/at/all".into()), "cannot connect");
}
