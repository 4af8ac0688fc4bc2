"""A virtual machine of one disk without a machine: front end and driver of vhost-user-blk, written from the protocol's text.

Its memory is a memfd: rings, and a slot of a header, a status and a block for each request. The driver kicks at every submit and looks at the
used index again and again, so it needs no fences: Python has none."""

import mmap
import os
import random
import select
import socket
import struct
import time

BLOCK, RING = 4096, 128
DEPTH = 16
USER = 0x7F00_0000_0000
DESCRIPTORS, AVAILABLE, USED, HEADERS, DATA = 0, 0x1000, 0x2000, 0x3000, 0x10000
MEMORY = 1 << 20
READ, WRITE, FLUSH, ID, DISCARD, ZERO = 0, 1, 4, 8, 11, 13
GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE = 1, 2, 3, 5
VRING_NUM, VRING_ADDR, VRING_BASE, GET_VRING_BASE, VRING_KICK, VRING_CALL, VRING_ERR = 8, 9, 10, 11, 12, 13, 14
GET_PROTOCOL, SET_PROTOCOL, QUEUE_NUM, ENABLE, BACKEND, GET_CONFIG = 15, 16, 17, 18, 21, 24
GET_INFLIGHT, SET_INFLIGHT = 31, 32
HAS_ANSWER = {GET_FEATURES, GET_PROTOCOL, QUEUE_NUM, GET_CONFIG, GET_VRING_BASE, GET_INFLIGHT}


class Left(Exception):
    """The server has closed the connection."""


class FrontEnd:
    """Messages to a server, each with its answer."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.acknowledged = False
        self.socket.connect(path)

    def send(self, number, body=b"", fds=(), flags=1):
        socket.send_fds(self.socket, [struct.pack("<III", number, flags, len(body)) + body], list(fds))

    def receive(self):
        try:
            head, fds, _, _ = socket.recv_fds(self.socket, 12, 8)
            if len(head) < 12:
                raise Left
            number, _, length = struct.unpack("<III", head)
            body = b""
            while len(body) < length:
                more = self.socket.recv(length - len(body))
                if not more:
                    raise Left
                body += more
            return number, body, fds
        except ConnectionError as error:
            raise Left from error

    def ask(self, number, body=b"", fds=()):
        """The body of an answer, and its descriptors; 0 is demanded of an acknowledgement."""
        answers = number in HAS_ANSWER
        try:
            self.send(number, body, fds, 1 | (8 if self.acknowledged and not answers else 0))
        except ConnectionError as error:
            raise Left from error
        if not answers and not self.acknowledged:
            return b"", []
        told, body, fds = self.receive()
        assert told == number, (told, number)
        if not answers:
            assert body == bytes(8), f"message {number} was refused"
        return body, fds

    def number(self, message):
        return struct.unpack("<Q", self.ask(message)[0])[0]


class Machine:
    """One ring of 16 requests at a time, and what they are to have made of the disk."""

    def __init__(self, path, seed=1, offers_memory=None):
        self.path, self.random = path, random.Random(seed)
        self.file = os.memfd_create("machine", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, MEMORY)
        self.memory = mmap.mmap(self.file, MEMORY)
        # Indices are stored and loaded as a whole: `struct` does that byte by byte.
        self.words = memoryview(self.memory).cast("H")
        self.kick, self.call = (os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(2))
        self.available = self.used = 0
        self.flying, self.kept, self.notices = {}, None, None
        self.front = None
        self.connect()

    def word(self, place):
        return self.words[place // 2]

    def set_word(self, place, value):
        self.words[place // 2] = value & 0xFFFF

    def connect(self):
        """Connects, or connects again: the rings go on with the region of what is in flight."""
        end = time.monotonic() + 60
        while True:
            try:
                return self.begin()
            except (Left, FileNotFoundError, ConnectionError):
                assert time.monotonic() < end, "no server serves the machine"
                time.sleep(0.01)

    def begin(self):
        self.leave()
        front = FrontEnd(self.path)
        self.front = front
        front.ask(SET_OWNER)
        offered = front.number(GET_FEATURES)
        self.features = offered & (1 << 32 | 1 << 30 | 1 << 28 | 1 << 14 | 1 << 13 | 1 << 9)
        protocol = front.number(GET_PROTOCOL) & (1 | 1 << 3 | 1 << 5 | 1 << 9 | 1 << 12)
        front.ask(SET_PROTOCOL, struct.pack("<Q", protocol))
        front.acknowledged = True
        front.ask(SET_FEATURES, struct.pack("<Q", self.features))
        self.queues = front.number(QUEUE_NUM)
        self.keeps = bool(protocol & 1 << 12)
        self.notices, theirs = socket.socketpair()
        front.ask(BACKEND, fds=[theirs.fileno()])
        theirs.close()
        self.read_size()
        if self.keeps:
            if self.kept is None:
                body, fds = front.ask(GET_INFLIGHT, struct.pack("<QQHHI", 0, 0, 1, RING, 0))
                self.kept = (fds[0], body)
            front.ask(SET_INFLIGHT, self.kept[1], [self.kept[0]])
        front.ask(SET_MEM_TABLE, struct.pack("<IIQQQQ", 1, 0, 0, MEMORY, USER, 0), [self.file])
        front.ask(VRING_NUM, struct.pack("<II", 0, RING))
        front.ask(VRING_BASE, struct.pack("<II", 0, self.word(USED + 2)))
        front.ask(VRING_ADDR, struct.pack("<IIQQQQ", 0, 0, USER + DESCRIPTORS, USER + USED, USER + AVAILABLE, 0))
        front.ask(VRING_CALL, struct.pack("<Q", 0), [self.call])
        front.ask(VRING_KICK, struct.pack("<Q", 0), [self.kick])
        front.ask(ENABLE, struct.pack("<II", 0, 1))

    def leave(self):
        for one in (self.front and self.front.socket, self.notices):
            if one:
                one.close()

    def read_size(self):
        body, _ = self.front.ask(GET_CONFIG, struct.pack("<III", 0, 60, 0) + bytes(60))
        self.size = struct.unpack_from("<Q", body, 12)[0] * 512
        return self.size

    def stop_ring(self):
        return struct.unpack("<II", self.front.ask(GET_VRING_BASE, struct.pack("<II", 0, 0))[0])[1]

    def submit(self, slot, kind, sector=0, data=b"", length=BLOCK, pieces=1):
        """A request of a free slot: header, data in pieces, status. A piece that is far from the one before is one of its own."""
        place, header, at = DATA + slot * 2 * BLOCK, HEADERS + slot * 32, slot * 8
        self.memory[header : header + 17] = struct.pack("<IIQ", kind, 0, sector) + b"\xff"
        step, chain = length // pieces if length else 0, [(header, 16, 0)]
        for piece in range(pieces if length else 0):
            here = place + piece * (2 * BLOCK // pieces)
            if data:
                self.memory[here : here + step] = data[piece * step : (piece + 1) * step]
            chain.append((here, step, 2 if kind in (READ, ID) else 0))
        chain.append((header + 16, 1, 2))
        for index, (address, size, flags) in enumerate(chain):
            last = index == len(chain) - 1
            struct.pack_into("<QIHH", self.memory, (at + index) * 16, address, size, flags | (not last), 0 if last else at + index + 1)
        self.set_word(AVAILABLE + 4 + 2 * (self.available % RING), at)
        self.available = (self.available + 1) & 0xFFFF
        self.set_word(AVAILABLE + 2, self.available)
        self.flying[slot] = (kind, sector, data, length, pieces)
        os.eventfd_write(self.kick, 1)

    def bytes_of(self, slot, length, pieces):
        step = length // pieces
        places = (DATA + slot * 2 * BLOCK + piece * (2 * BLOCK // pieces) for piece in range(pieces))
        return b"".join(bytes(self.memory[place : place + step]) for place in places)

    def reap(self):
        """What was answered: slot, status, request."""
        done = []
        while self.used != self.word(USED + 2):
            head, _ = struct.unpack_from("<II", self.memory, USED + 4 + 8 * (self.used % RING))
            self.used = (self.used + 1) & 0xFFFF
            slot = head // 8
            assert slot in self.flying, f"slot {slot} is answered twice"
            done.append((slot, self.memory[HEADERS + slot * 32 + 16], self.flying.pop(slot)))
        return done

    def wait(self, seconds=60):
        """Waits for an answer; none when the server has left."""
        end = time.monotonic() + seconds
        while not (done := self.reap()):
            ready, _, _ = select.select([self.call, self.front.socket], [], [], 0.05)
            if self.call in ready:
                try:
                    os.eventfd_read(self.call)
                except BlockingIOError:
                    pass
            if self.front.socket in ready and not self.front.socket.recv(1, socket.MSG_PEEK):
                return self.reap()
            assert time.monotonic() < end, f"{len(self.flying)} requests are not answered"
        return done

    def one(self, kind, sector=0, data=b"", length=BLOCK, pieces=1):
        """One request: its status, and what was read."""
        self.submit(0, kind, sector, data, length, pieces)
        ((slot, status, _),) = self.wait()
        return status, self.bytes_of(slot, length, pieces) if length else b""
