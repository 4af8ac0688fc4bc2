//! The thin thread: one NBD client at a time on a memory disk, through shard and executor.

use std::collections::HashMap;
use std::io::{Read, Result, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use headworks::core::*;
use headworks::device::MemDevice;
use headworks::engine::{DiskOp, DiskQueue};
use headworks::executor::{Executor, Outlet};
use headworks::memory::Span;

struct NoDisk;
impl DiskQueue for NoDisk {
    fn push(&mut self, _: DiskOp, _: &[Span]) -> bool {
        false
    }
}

#[derive(Default)]
struct Client {
    buffers: HashMap<BioId, (Op, Vec<u8>)>,
    replies: Vec<u8>,
}

impl Outlet for Client {
    fn buffer(&mut self, bio: BioId) -> Span {
        let (_, bytes) = self.buffers.get_mut(&bio).expect("every bio has a buffer");
        Span {
            base: bytes.as_mut_ptr(),
            len: bytes.len(),
        }
    }
    fn reply(&mut self, id: BioId, status: Status, _: bool, _: ReplyStage) {
        let (op, bytes) = self.buffers.remove(&id).unwrap_or_default();
        self.replies.extend(0x6744_6698_u32.to_be_bytes());
        self.replies
            .extend(status.err().map_or(0, IoError::errno).to_be_bytes());
        self.replies.extend(id.sequence.to_be_bytes());
        if op == Op::Read {
            self.replies.extend(bytes);
        }
    }
    fn send(&mut self, _: ShardId, _: Message) {}
    fn timer(&mut self, _: Instant) {}
    fn notice(&mut self, _: Notice) {}
}

fn take<const N: usize>(stream: &mut UnixStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn handshake(stream: &mut UnixStream, size: u64) -> Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
    take::<4>(stream)?;
    loop {
        take::<8>(stream)?;
        let option = u32::from_be_bytes(take(stream)?);
        let len = u32::from_be_bytes(take(stream)?);
        std::io::copy(&mut stream.take(len.into()), &mut std::io::sink())?;
        let mut reply = |kind: u32, data: &[u8]| {
            stream.write_all(&0x0003_e889_0455_65a9_u64.to_be_bytes())?;
            stream.write_all(&option.to_be_bytes())?;
            stream.write_all(&kind.to_be_bytes())?;
            stream.write_all(&(data.len() as u32).to_be_bytes())?;
            stream.write_all(data)
        };
        if option != 7 {
            reply(0x8000_0001, &[])?;
            continue;
        }
        let mut info = vec![0, 0];
        info.extend(size.to_be_bytes());
        info.extend(5u16.to_be_bytes());
        reply(3, &info)?;
        return reply(1, &[]);
    }
}

fn serve(
    stream: &mut UnixStream,
    shard: &mut Shard,
    executor: &mut Executor,
    size: u64,
) -> Result<()> {
    handshake(stream, size)?;
    let mut client = Client::default();
    loop {
        let head: [u8; 28] = take(stream)?;
        let word = |at: usize| u64::from_be_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let len = u32::from_be_bytes(head[24..28].try_into().expect("4 bytes"));
        let op = match head[7] {
            0 => Op::Read,
            1 => Op::Write,
            3 => Op::Flush,
            _ => return Ok(()),
        };
        let id = BioId {
            connection: 1,
            volume: VolumeId(0),
            sequence: word(8),
        };
        let bio = Bio {
            id,
            offset: word(16),
            len,
            op,
            flags: BioFlags::SYNC,
        };
        let mut data = vec![0; if op.has_data() { len as usize } else { 0 }];
        if op == Op::Write {
            stream.read_exact(&mut data)?;
        }
        client.buffers.insert(id, (op, data));
        let mut inputs = vec![Input::Bio(bio)];
        while !inputs.is_empty() {
            shard.handle(Instant(0), &std::mem::take(&mut inputs));
            executor.run(
                Instant(0),
                shard.actions(),
                &mut client,
                &mut NoDisk,
                &mut inputs,
            );
            shard.clear_actions();
        }
        stream.write_all(&std::mem::take(&mut client.replies))?;
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "/tmp/headworks.sock".into());
    let size = 64 << 20;
    let volume = VolumeOptions {
        size,
        read_only: false,
        block_size: 1,
    };
    let mut shard = Shard::new(ShardConfig::single(QueueOptions::default(), volume, 64))?;
    let mut executor = Executor::new(vec![Some(Box::new(MemDevice::new(size)?))]);
    let listener = UnixListener::bind(&path)?;
    println!("nbd+unix:///?socket={path}");
    for stream in listener.incoming() {
        if let Err(error) = serve(&mut stream?, &mut shard, &mut executor, size) {
            eprintln!("headworks: error: {error}");
        }
    }
    Ok(())
}
