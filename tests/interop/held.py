"""Clients that are held at a bound, with nothing else going on: no other client's work may be what brings them back."""

import struct
import sys

from rawnbd import *
from tap import case, done

WHAT, URI = sys.argv[1:3]
MIB = 1 << 20
EPERM = 1


def header(command, cookie, offset, length):
    return struct.pack(">IHHQQI", REQUEST_MAGIC, 0, command, cookie, offset, length)


def refused():
    @case
    def _():
        """40 refused requests in one send are all answered, 4 at a time"""
        client, _ = Raw(URI, timeout=10).go()
        client.send(b"".join(header(TRIM, cookie, 0, 4096) for cookie in range(40)))
        assert sorted(client.reply() for _ in range(40)) == [(EPERM, cookie) for cookie in range(40)]

    @case
    def _():
        """200 pipelined reads, 4 at a time"""
        client, _ = Raw(URI, timeout=10).go()
        client.send(b"".join(header(READ, cookie, cookie * 4096, 4096) for cookie in range(200)))
        for _ in range(200):
            error, _ = client.reply()
            assert error == 0
            client.receive(4096)


def one():
    @case
    def _():
        """a handshake in one send, one option at a time"""
        client = Raw(URI, timeout=5)
        client.receive(18)
        options = struct.pack(">I", 3)
        options += struct.pack(">QII", OPTION_MAGIC, OPT_LIST, 0)
        options += struct.pack(">QII", OPTION_MAGIC, OPT_GO, 6) + bytes(6)
        client.send(options)
        while client.option_reply()[:2] != (OPT_GO, REP_ACK):
            pass
        client.send(b"".join(header(FLUSH, cookie, 0, 0) for cookie in range(30)))
        assert [client.reply() for _ in range(30)] == [(0, cookie) for cookie in range(30)]


def buffers():
    @case
    def _():
        """a write of 32 MiB, which is all that one connection may hold"""
        client, _ = Raw(URI, timeout=10).go()
        client.write(0, bytes(32 * MIB))

    @case
    def _():
        """who waits for buffers gets those of a client that is closed because it reads nothing"""
        deaf, _ = Raw(URI, timeout=10).go()
        for cookie in range(30):
            deaf.request(READ, cookie, 0, MIB)
        waits, _ = Raw(URI, timeout=10).go()
        waits.request(READ, 1, 0, 32 * MIB)
        assert waits.reply() == (0, 1)
        waits.receive(32 * MIB)


{"refused": refused, "one": one, "buffers": buffers}[WHAT]()
done()
