"""Clients that begin what they do not end: writes whose payload trickles or stops, links that are slow, half handshakes.

`Crowd` drives any number of them on one thread, over non-blocking sockets: a sender gives what its socket takes, up to its `part`, and then
`rate` bytes a second. benches/half.py measures beside them what half.py checks beside them.
"""

import select
import socket
import ssl
import struct
import threading
import time

from rawnbd import *

MIB = 1 << 20
ZEROS = memoryview(bytes(MIB))
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
LEFT = (ConnectionError, ssl.SSLError, OSError)


def connect(uri, name=b"", certificates="", timeout=60):
    """A client in transmission, with simple replies."""
    return Raw(uri, timeout).go(name, certificates=certificates)[0]


class Sender:
    """Writes of `size` bytes, one after the other if `repeats`, of which `part` bytes come at once and `rate` bytes a second then."""

    def __init__(self, raw, size, part, rate=0, first=0, span=256 * MIB, repeats=False):
        self.raw, self.size, self.rate, self.repeats, self.span = raw, size, rate, repeats, span
        self.raw.socket.setblocking(False)
        self.offset, self.began = first % span // size * size, time.monotonic()
        # Bytes of the stream so far, and those that may be sent whatever the time: headers are not counted.
        self.sent, self.burst, self.left, self.replies, self.answers, self.errors = 0, part, False, 0, b"", 0
        self.head = memoryview(b"")
        self.begin()

    def begin(self):
        self.head = memoryview(header(WRITE, self.offset // MIB, self.offset, self.size))
        self.offset = (self.offset + self.size) % self.span
        self.rest = self.size

    def allowed(self, now):
        return self.burst + int(self.rate * (now - self.began)) - self.sent

    def owes(self, now):
        """Whether it has something to send now."""
        return not self.left and (len(self.head) > 0 or min(self.allowed(now), self.rest) > 0)

    def step(self, now):
        """Sends what it may and what the socket takes; takes replies."""
        try:
            self.receive()
            while self.owes(now):
                if self.head:
                    self.head = self.head[self.raw.socket.send(self.head) :]
                    continue
                count = self.raw.socket.send(ZEROS[: min(self.allowed(now), self.rest, MIB)])
                self.sent, self.rest = self.sent + count, self.rest - count
                if self.rest == 0 and self.repeats:
                    self.begin()
        except NOT_NOW:
            pass
        except LEFT:
            self.left = True

    def receive(self):
        try:
            piece = self.raw.socket.recv(4096)
            self.left = self.left or not piece
            self.answers += piece
        except NOT_NOW:
            return
        while len(self.answers) >= 16:
            magic, error, _ = struct.unpack(">IIQ", self.answers[:16])
            assert magic == SIMPLE_MAGIC, hex(magic)
            self.answers, self.replies, self.errors = self.answers[16:], self.replies + 1, self.errors + (error != 0)

    def finish(self):
        """From now on the rest of the payload comes as fast as it is taken."""
        self.burst, self.rate, self.repeats = self.sent + self.rest, 0, False


class Crowd:
    """Senders on a thread of their own, until `end`."""

    def __init__(self, senders):
        self.senders, self.stop, self.began = senders, threading.Event(), time.monotonic()
        for sender in senders:
            sender.began = self.began
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stop.is_set():
            now = time.monotonic()
            poll = select.poll()
            for sender in self.senders:
                if not sender.left:
                    sender.step(now)
                    poll.register(sender.raw.socket, select.POLLIN | (select.POLLOUT if sender.owes(now) else 0))
            # Rates are kept in steps of 20 ms.
            poll.poll(20)
            self.stop.wait(0.005)

    def end(self):
        self.stop.set()
        self.thread.join()

    def close(self):
        self.end()
        for sender in self.senders:
            sender.raw.close()


def allocate(uri, name, size, certificates=""):
    """Writes an image in memory once: what the server's memory grows by later is not the image's."""
    raw = connect(uri, name, certificates)
    for at in range(0, size, MIB):
        raw.write(at, bytes([1]) * MIB)
    raw.close()


def half_senders(uri, name, count, size, part, rate, certificates=""):
    return [Sender(connect(uri, name, certificates), size, part, rate, at * size) for at in range(count)]


def slow_links(uri, name, count, rate, size=MIB, certificates=""):
    """Honest clients whose link takes `rate` bytes a second: their writes follow one another."""
    links = []
    for at in range(count):
        raw = connect(uri, name, certificates)
        # What the link has on its way is not the server's: a small buffer shows what the server takes.
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
        links.append(Sender(raw, size, 0, rate, at * size, repeats=True))
    return links


def taken_part(links, seconds):
    """The part of what the links could send that was taken; what a socket holds at least does not count against the server."""
    could = sum(min(link.rate, 1 << 40) * seconds for link in links)
    return sum(link.sent for link in links) / could


def half_handshakes(uri, count):
    """Clients that stop in a greeting, in an option's header, in its data, and in a TLS record."""
    clients = []
    for at in range(count):
        raw = Raw(uri, timeout=20)
        if at % 4 > 0:
            raw.greet()
        if at % 4 == 1:
            raw.send(struct.pack(">QI", OPTION_MAGIC, OPT_GO))
        elif at % 4 == 2:
            raw.option(OPT_GO, bytes(30_000), length=65_000)
        elif at % 4 == 3:
            raw.option(OPT_STARTTLS)
            if raw.option_reply()[1] == REP_ACK:
                # A record of 16 KiB, a few bytes of which come.
                raw.send(b"\x16\x03\x01\x40\x00" + bytes(100))
        clients.append(raw)
    return clients


def rss(pid):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


class Honest:
    """A client that makes one request after the other and keeps their times."""

    def __init__(self, uri, name, write, size, offset, certificates="", pause=0.0, timeout=60):
        self.raw = connect(uri, name, certificates, timeout)
        self.write, self.size, self.offset, self.pause = write, size, offset, pause
        self.buffer, self.data = bytearray(size), bytes([7]) * size
        self.times, self.waits_since, self.failed = [], None, None

    def request(self):
        began = self.waits_since = time.monotonic()
        if self.write:
            self.raw.send(header(WRITE, 5, self.offset, self.size))
            self.raw.send(self.data)
        else:
            self.raw.send(header(READ, 5, self.offset, self.size))
        error, cookie = self.raw.reply()
        assert (error, cookie) == (0, 5), (error, cookie)
        view = memoryview(self.buffer)
        while not self.write and view:
            count = self.raw.socket.recv_into(view)
            assert count, "the server hung up"
            view = view[count:]
        self.waits_since = None
        self.times.append(time.monotonic() - began)

    def run(self, count=None, seconds=None):
        end = time.monotonic() + (seconds or 1e9)
        try:
            while (count is None or len(self.times) < count) and time.monotonic() < end:
                self.request()
                time.sleep(self.pause)
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"

    def name(self):
        size = f"{self.size >> 20}M" if self.size >= MIB else f"{self.size >> 10}K"
        return ("write " if self.write else "read ") + size
