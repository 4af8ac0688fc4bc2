"""Clients that leave replies unread beside one that reads: it is served, and no client gets wrong bytes.

    unread.py served|failing|versions URI CTL LOG [CERTIFICATES]

The image holds at each 8 bytes their own offset. The pool of buffers is 64 MiB, and --stall-timeout 60 s: what is tried here ends
long before a client is disconnected for want of progress.
"""

import itertools
import json
import os
import random
import select
import ssl
import struct
import subprocess
import sys
import time

from rawnbd import *
from tap import case, done

WHAT, URI, CTL, LOG = sys.argv[1:5]
CERTIFICATES = "".join(sys.argv[5:])
HEADWORKS = os.environ["HEADWORKS"]
MIB = 1 << 20
SIZE = 32 * MIB
SILENT = 60
# As many whose replies are all in the send queues: what their export may have is not used up.
QUEUED = 27
BLOCK = 4096


def expected(offset, length):
    return struct.pack(f">{length // 8}Q", *range(offset, offset + length, 8))


WORDS = {offset: expected(offset, MIB) for offset in range(0, SIZE, MIB)}


def connect(uri, name=b""):
    return Raw(uri, timeout=40).go(name, certificates=CERTIFICATES)[0]


def buffers():
    stats = subprocess.run([HEADWORKS, "ctl", CTL, "--json", "stats"], capture_output=True, check=True)
    return json.loads(stats.stdout)["buffers"]


def until(what, condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: {buffers()}"
        time.sleep(0.02)


def silent_clients(count, asked):
    """Clients with `asked` reads of 1 MiB each, of which they take nothing."""
    clients = [connect(URI) for _ in range(count)]
    for number, client in enumerate(clients):
        client.send(b"".join(header(READ, at, (number + at) % 32 * MIB, MIB) for at in range(asked)))
    # Their export may have half of what is shared, 28 of 56 MiB.
    until("their share of the pool is not used up", lambda: buffers()["taken"] > 26 * MIB)
    return clients


def takes_all(clients, asked):
    """Everybody reads to the end: each reply has the bytes of its own offset."""
    for number, client in enumerate(clients):
        seen = set()
        for _ in range(asked):
            error, cookie = client.reply()
            assert error == 0 and cookie not in seen, (error, cookie)
            seen.add(cookie)
            data = client.receive(MIB)
            assert data == WORDS[(number + cookie) % 32 * MIB], f"client {number}, reply {cookie}: wrong bytes"
        client.close()


reader = connect(URI)
for start in range(0, SIZE, MIB):
    reader.write(start, WORDS[start])
other = connect(URI, b"other")
other.write(0, WORDS[0])


def served():
    @case
    def _():
        """small and large reads beside 60 clients with unread replies, on their export and on another one; then those get their bytes"""
        clients = silent_clients(SILENT, 4)
        for at in range(200):
            assert reader.read(at * 4096, 4096) == expected(at * 4096, 4096)
            assert other.read(at * 4096, 4096) == expected(at * 4096, 4096)
        for at in range(32):
            assert reader.read(at * MIB, MIB) == WORDS[at * MIB]
        # 24 at once are more than the pool has left.
        other.send(b"".join(header(READ, at, 0, MIB) for at in range(24)))
        for _ in range(24):
            assert other.reply()[0] == 0
            assert other.receive(MIB) == WORDS[0]
        now = buffers()
        assert now["dropped_replies"] > 0 and now["closed"] == 0 and now["taken"] <= now["size"], now
        takes_all(clients, 4)
        until("buffers are lost", lambda: buffers()["taken"] == 0)


    @case
    def _():
        """large writes beside 60 clients with unread replies are taken"""
        clients = silent_clients(SILENT, 2)
        for at in range(8):
            other.write(at * 4 * MIB, bytes(4 * MIB))
        other.write(0, WORDS[0])
        takes_all(clients, 2)
        until("buffers are lost", lambda: buffers()["taken"] == 0)


    @case
    def _():
        """clients that leave with unread replies return everything"""
        clients = silent_clients(SILENT, 4)
        assert reader.read(0, MIB) == WORDS[0]
        for number, client in enumerate(clients):
            if number % 2:
                client.request(DISC, 0, 0, 0)
            client.close()
        until("buffers are lost", lambda: buffers()["taken"] == 0)
        assert reader.read(0, MIB) == WORDS[0]


class SlowReader:
    """Takes a reply of 1 MiB in pieces of random length, and checks that each of its blocks is one version."""

    def __init__(self, number, history):
        self.client, self.offset, self.data = connect(URI), (number * 7 + 3) * BLOCK % (SIZE - MIB), b""
        self.first = self.offset // BLOCK
        # Older versions may not arrive.
        self.oldest = [len(history[block]) - 1 for block in range(self.first, self.first + MIB // BLOCK)]
        self.client.request(READ, number, self.offset, MIB)
        self.client.socket.setblocking(False)

    def take(self, most):
        """Returns true once the reply is whole."""
        try:
            piece = self.client.socket.recv(min(most, 16 + MIB - len(self.data)))
            assert piece, "the server hung up"
            self.data += piece
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        return len(self.data) == 16 + MIB

    def check(self, history):
        magic, error, _ = struct.unpack(">IIQ", self.data[:16])
        assert (magic, error) == (SIMPLE_MAGIC, 0), (magic, error)
        for index, oldest in enumerate(self.oldest):
            block = self.data[16 + index * BLOCK :][:BLOCK]
            versions = history[self.first + index][oldest:]
            assert block[:8] in versions, f"block {self.first + index} has {block[:8].hex()}, none of its last {len(versions)} versions"
            assert block == block[:8] * (BLOCK // 8), f"block {self.first + index} is a mixture of versions"
        self.client.close()


def versions():
    def version(block, number):
        return struct.pack(">II", block, number)

    numbers = itertools.count(1)

    def overwrite(history, first, blocks, zeroes):
        number = next(numbers)
        for block in range(first, first + blocks):
            history[block].append(bytes(8) if zeroes else version(block, number))
        if zeroes:
            other.request(WRITE_ZEROES, 79, first * BLOCK, blocks * BLOCK)
            assert other.reply() == (0, 79)
        else:
            data = b"".join(version(block, number) * (BLOCK // 8) for block in range(first, first + blocks))
            other.write(first * BLOCK, data)

    @case
    def _():
        """slow readers under overwrites and zeroing: each block of a reply is one version, whatever gives way"""
        global other
        other = connect(URI)
        draw, history = random.Random(5), [[] for _ in range(SIZE // BLOCK)]
        for first in range(0, SIZE // BLOCK, 256):
            overwrite(history, first, 256, False)
        # Sealing costs time.
        count = 30 if CERTIFICATES else 100
        readers = [SlowReader(number, history) for number in range(count)]
        until("the readers are answered", lambda: all(select.select([reader.client.socket], [], [], 0)[0] for reader in readers))
        finished = 0
        while readers:
            zeroes = draw.random() < 0.2
            blocks = draw.choice([16, 32, 300]) if zeroes else draw.randint(1, 40)
            first = draw.randrange(SIZE // BLOCK - blocks)
            overwrite(history, first // 16 * 16 if zeroes else first, blocks, zeroes)
            for reader in draw.sample(readers, min(len(readers), 20)):
                if reader.take(draw.randint(1, 400_000)):
                    reader.check(history)
                    readers.remove(reader)
                    finished += 1
        assert finished == count and buffers()["closed"] == 0
        until("buffers are lost", lambda: buffers()["taken"] == 0)


def failing():
    @case
    def _():
        """a dropped reply that cannot be read again ends its client's connection with a line in the log; no byte of it is wrong"""
        clients = silent_clients(QUEUED, 1)
        dropped = 0
        for _ in range(20):
            # More than its share, untaken for a moment: the replies before them are older, and give way.
            other.send(b"".join(header(READ, at, 0, MIB) for at in range(24)))
            deadline = time.monotonic() + 1
            while not dropped and time.monotonic() < deadline:
                dropped = buffers()["dropped_replies"]
            for _ in range(24):
                assert other.reply()[0] == 0
                assert other.receive(MIB) == WORDS[0]
            if dropped:
                break
        dropped = buffers()["dropped_replies"]
        assert dropped > 0
        ended = 0
        for number, client in enumerate(clients):
            client.socket.settimeout(20)
            try:
                assert client.reply() == (0, 0)
            except (ConnectionError, EOFError):
                ended += 1
                continue
            data = b""
            try:
                while len(data) < MIB and (piece := client.socket.recv(MIB - len(data))):
                    data += piece
            except ConnectionError:
                pass
            ended += len(data) < MIB
            assert data == WORDS[number % 32 * MIB][: len(data)], f"client {number}: wrong bytes"
        assert 0 < ended <= dropped, (ended, dropped)
        assert buffers()["closed"] == ended, buffers()
        with open(LOG) as log:
            assert "a read that continues a reply failed" in log.read()
        for client in clients:
            client.close()
        until("buffers are lost", lambda: buffers()["taken"] == 0)


{"served": served, "failing": failing, "versions": versions}[WHAT]()
done()
