//! A socket as the transport of tests.

use std::io::{self, IoSlice, Read, Write};
use std::os::unix::net::UnixStream;

use headworks::driver::Span;
use headworks_house::Pool;

use crate::transport::Transport;

/// One end of a pair of sockets.
pub struct TestSocket(UnixStream);

impl TestSocket {
    /// Takes over an end, which waits for nothing from now on.
    pub fn new(socket: UnixStream) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self(socket)
    }
}

impl Transport for TestSocket {
    fn receive(&mut self, _: Option<Span>, scratch: &mut [u8], tail: usize) -> io::Result<usize> {
        self.0.read(&mut scratch[..tail])
    }

    fn send(&mut self, spans: &[Span], _: &mut Pool) -> io::Result<usize> {
        // SAFETY: the pieces stay until the call returns.
        let pieces: Vec<_> =
            spans.iter().map(|span| IoSlice::new(unsafe { span.bytes() })).collect();
        self.0.write_vectored(&pieces)
    }
}
