//! The front end's half of the control messages.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::memory::DriverMemory;
use super::{Capacity, DriverError, Queue, capacity_of};
use crate::channel::Channel;
use crate::features::{self, protocol};
use crate::wire::request as message;
use crate::wire::{InFlightDescription, Message, RegionDescription, u32_at, u64_at};

/// Bytes of the configuration space that a driver reads: every field.
const CONFIG_READ: u32 = 60;

/// A connection to a device.
#[derive(Debug)]
pub(super) struct Control {
    channel: Channel,
    protocol: u64,
    timeout: Duration,
}

impl Control {
    pub(super) fn connect(socket: &Path, timeout: Duration) -> Result<Self, DriverError> {
        let socket = UnixStream::connect(socket)?;
        Ok(Self { channel: Channel::new(socket), protocol: 0, timeout })
    }

    /// Negotiates what both sides have of `wanted`; returns the features and the disk.
    pub(super) fn negotiate(&mut self, wanted: u64) -> Result<(u64, Capacity), DriverError> {
        self.send(message::SET_OWNER, &[], &[], false)?;
        let offered = self.ask_integer(message::GET_FEATURES)?;
        let needed = features::VERSION_1 | features::PROTOCOL_FEATURES;
        if offered & needed != needed {
            return Err(DriverError::Device(format!(
                "the device offers features {offered:#x} only"
            )));
        }
        let chosen = offered & wanted;
        let protocol = self.ask_integer(message::GET_PROTOCOL_FEATURES)?;
        let all = protocol::MQ | protocol::REPLY_ACK | protocol::CONFIG | protocol::INFLIGHT_SHMFD;
        let protocol = protocol & all;
        self.send(message::SET_PROTOCOL_FEATURES, &protocol.to_le_bytes(), &[], false)?;
        self.protocol = protocol;
        self.set(message::SET_FEATURES, &chosen.to_le_bytes(), &[])?;
        if !self.has(protocol::CONFIG) {
            return Err(DriverError::Device("the device has no configuration space".to_owned()));
        }
        let capacity = self.capacity(chosen)?;
        Ok((chosen, capacity))
    }

    pub(super) fn has(&self, bits: u64) -> bool {
        self.protocol & bits == bits
    }

    /// A second descriptor of the connection.
    pub(super) fn socket(&self) -> io::Result<OwnedFd> {
        self.channel.as_fd().try_clone_to_owned()
    }

    pub(super) fn peer(&self) -> Option<u32> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of_val(&peer) as libc::socklen_t;
        let socket = self.channel.as_fd().as_raw_fd();
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        // SAFETY: structure and length live until the call has returned.
        let result =
            unsafe { libc::getsockopt(socket, level, name, (&raw mut peer).cast(), &raw mut len) };
        u32::try_from(peer.pid).ok().filter(|pid| result == 0 && *pid > 0)
    }

    pub(super) fn capacity(&mut self, features: u64) -> Result<Capacity, DriverError> {
        let queues = match self.has(protocol::MQ) {
            true => self.ask_integer(message::GET_QUEUE_NUM)?,
            false => 1,
        };
        let mut body = Vec::new();
        for word in [0, CONFIG_READ, 0] {
            body.extend(word.to_le_bytes());
        }
        body.resize(12 + CONFIG_READ as usize, 0);
        let reply = self.ask(message::GET_CONFIG, &body)?;
        if reply.body.len() != body.len() {
            return Err(DriverError::Device(
                "the device does not tell its configuration".to_owned(),
            ));
        }
        Ok(capacity_of(&reply.body[12..], features, u16::try_from(queues).unwrap_or(u16::MAX)))
    }

    pub(super) fn make_in_flight(
        &mut self,
        queues: u16,
        queue_size: u16,
    ) -> Result<(InFlightDescription, OwnedFd), DriverError> {
        let about = InFlightDescription { size: 0, offset: 0, queues, queue_size };
        let mut reply = self.ask(message::GET_INFLIGHT_FD, &about.bytes())?;
        match reply.fds.pop() {
            Some(fd) if reply.body.len() == InFlightDescription::BYTES => {
                Ok((InFlightDescription::parse(&reply.body), fd))
            }
            _ => Err(DriverError::Device("the device gives no in-flight region".to_owned())),
        }
    }

    pub(super) fn share_in_flight(
        &mut self,
        about: &InFlightDescription,
        fd: &OwnedFd,
    ) -> Result<(), DriverError> {
        self.set(message::SET_INFLIGHT_FD, &about.bytes(), &[fd.as_raw_fd()])
    }

    pub(super) fn share_memory(&mut self, memory: &DriverMemory) -> Result<(), DriverError> {
        let mut body = 1_u64.to_le_bytes().to_vec();
        let RegionDescription { guest, size, user, file_offset } = memory.description();
        body.extend(RegionDescription { guest, size, user, file_offset }.bytes());
        self.set(message::SET_MEM_TABLE, &body, &[memory.fd()])
    }

    /// Describes, starts and enables a ring.
    pub(super) fn start_ring(&mut self, queue: &Queue, base: u16) -> Result<(), DriverError> {
        let index = u32::from(queue.index());
        self.set(message::SET_VRING_NUM, &pair(index, u32::from(queue.size())), &[])?;
        self.set(message::SET_VRING_BASE, &pair(index, u32::from(base)), &[])?;
        self.set(message::SET_VRING_ADDR, &queue.addresses().bytes(index), &[])?;
        let name = u64::from(index).to_le_bytes();
        self.set(message::SET_VRING_CALL, &name, &[queue.call_fd()])?;
        self.set(message::SET_VRING_KICK, &name, &[queue.kick_fd()])?;
        self.set(message::SET_VRING_ENABLE, &pair(index, 1), &[])
    }

    pub(super) fn stop_ring(&mut self, index: u16) -> Result<u16, DriverError> {
        let reply = self.ask(message::GET_VRING_BASE, &pair(u32::from(index), 0))?;
        let base = (reply.body.len() == 8).then(|| u32_at(&reply.body, 4));
        let base = base.and_then(|base| u16::try_from(base).ok());
        base.ok_or_else(|| DriverError::Device("the device answers no base of a ring".to_owned()))
    }

    fn send(&self, request: u32, body: &[u8], fds: &[RawFd], asks: bool) -> io::Result<()> {
        let bytes = Message::request(request, body.to_vec(), Vec::new(), asks).bytes();
        self.channel.send_bytes(&bytes, fds, self.timeout)
    }

    fn reply(&mut self, request: u32) -> Result<Message, DriverError> {
        match self.channel.wait(self.timeout)? {
            Some(reply) if reply.header.request == request && reply.header.is_reply() => Ok(reply),
            Some(other) => Err(DriverError::Device(format!(
                "the device answers message {} by {}",
                request, other.header.request
            ))),
            None => Err(DriverError::Device(format!(
                "the device closed the connection at message {request}"
            ))),
        }
    }

    fn ask(&mut self, request: u32, body: &[u8]) -> Result<Message, DriverError> {
        self.send(request, body, &[], false)?;
        self.reply(request)
    }

    fn ask_integer(&mut self, request: u32) -> Result<u64, DriverError> {
        let reply = self.ask(request, &[])?;
        let value = (reply.body.len() == 8).then(|| u64_at(&reply.body, 0));
        value
            .ok_or_else(|| DriverError::Device(format!("the answer to message {request} is short")))
    }

    /// Sends a message that has no answer of its own, and waits for its acknowledgement if there is one.
    fn set(&mut self, request: u32, body: &[u8], fds: &[RawFd]) -> Result<(), DriverError> {
        let asks = self.has(protocol::REPLY_ACK);
        self.send(request, body, fds, asks)?;
        if !asks {
            return Ok(());
        }
        let reply = self.reply(request)?;
        match reply.body.len() == 8 && u64_at(&reply.body, 0) == 0 {
            true => Ok(()),
            false => Err(DriverError::Device(format!("the device refused message {request}"))),
        }
    }
}

fn pair(index: u32, value: u32) -> Vec<u8> {
    [index.to_le_bytes(), value.to_le_bytes()].concat()
}
