//! What a server may send, to our own client: it haggles, reads, writes and leaves, and must come out with an answer or with
//! one sentence, without a panic and without believing lengths.
#![cfg_attr(fuzzing, no_main)]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use headworks_nbd::CommandFlags;
use headworks_nbd::client::{Client, ClientError, OptionNegotiation, Socket};

/// What a socket takes without anybody reading.
const STREAM_MAX: usize = 64 << 10;

fn talk(stream: &[u8], plan: u8) -> Result<(), ClientError> {
    let (ours, mut theirs) = UnixStream::pair()?;
    theirs.write_all(stream)?;
    theirs.shutdown(Shutdown::Write)?;
    let mut negotiation = OptionNegotiation::start(Socket::from(ours))?;
    if plan & 1 > 0 {
        negotiation.ask_structured()?;
    }
    if plan & 2 > 0 {
        let listed = negotiation.list()?;
        assert!(listed.len() <= stream.len(), "every line of a list takes bytes");
    }
    if plan & 4 > 0 {
        negotiation.info("disk")?;
    }
    let (socket, export) = negotiation.go("disk")?;
    let mut client = Client::from_parts(socket, export);
    let mut buffer = [0; 512];
    for round in 0..4_u64 {
        client.read(round * 512, &mut buffer)?;
        client.write(round * 512, &buffer, CommandFlags::FUA)?;
        client.trim(0, 512, CommandFlags::NONE)?;
    }
    client.flush()?;
    client.disconnect()
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((plan, stream)) = data.split_first() else { return };
    if stream.len() > STREAM_MAX {
        return;
    }
    if let Err(error) = talk(stream, *plan) {
        let sentence = error.to_string();
        assert!(!sentence.contains(char::is_control), "for a log: {sentence:?}");
    }
});
