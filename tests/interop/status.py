"""BLOCK_STATUS by libnbd against a model of what was written, and its contexts by hand."""

import errno
import os
import random
import struct
import sys

import nbd

from rawnbd import (
    BLOCK_STATUS,
    CHUNK_DONE,
    EINVAL,
    OPT_GO,
    OPT_STRUCTURED_REPLY,
    REP_ACK,
    REP_ERR_INVALID,
    REP_ERR_UNKNOWN,
    REP_INFO,
    Raw,
)
from tap import case, done

SOCKET, SIZE, CACHED, IMAGE = sys.argv[1], int(sys.argv[2]), sys.argv[3] != "0", sys.argv[4]
MIB, BLOCK = 1 << 20, 65536
DATA, HOLE_ZERO = 0, 3
RANDOM = random.Random(7)
OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT = 9, 10
REP_META_CONTEXT = 4
CHUNK_STATUS, CHUNK_ERROR = 5, 0x8001
CONTEXT = b"base:allocation"


def uri(export):
    return f"nbd+unix:///{export}?socket={SOCKET}"


def connect(export, context=True):
    h = nbd.NBD()
    if context:
        h.add_meta_context("base:allocation")
    h.set_strict_mode(0)
    h.connect_uri(uri(export))
    return h


def ask(h, offset, length, flags=0):
    """One request: a list of (length, type)."""
    told = []

    def extents(context, start, entries, error):
        assert context == "base:allocation" and start == offset, (context, start)
        told.extend(zip(entries[::2], entries[1::2]))

    h.block_status(length, offset, extents, flags)
    assert all(n > 0 for n, _ in told), told
    return told


def mapped(h, size, at=0):
    """From request to request up to the end: a list of (offset, length, type), and how many requests that took."""
    joined, requests = [], 0
    while at < size:
        requests += 1
        told = ask(h, at, min(size - at, (1 << 32) - BLOCK))
        assert len(told) <= 128, len(told)
        for length, kind in told:
            if joined and joined[-1][2] == kind:
                joined[-1][1] += length
            else:
                joined.append([at, length, kind])
            at += length
    assert at == size, (at, size)
    return [tuple(run) for run in joined], requests


def refused(number, function, *arguments):
    try:
        function(*arguments)
    except nbd.Error as error:
        assert error.errnum == number, error.string
        return
    raise AssertionError("not refused")


other = connect("other")


@case
def _():
    """a new image is one hole"""
    assert mapped(other, 16 * MIB)[0] == [(0, 16 * MIB, HOLE_ZERO)]


@case
def _():
    """what was just written is data, flushed or not"""
    h = connect("disk")
    before = os.path.exists(IMAGE) and os.open(IMAGE, os.O_RDONLY)
    at = 50 * MIB
    h.pwrite(b"\7" * 4096, at)
    if CACHED and before:
        # The image does not know of it yet: it is the cache that tells.
        found = os.lseek(before, at, os.SEEK_DATA)
        assert found > at, "it is in the image already"
    assert ask(h, at, 4096) == [(4096, DATA)]
    assert ask(h, at - BLOCK, 2 * BLOCK)[0] == (BLOCK, HOLE_ZERO)
    h.flush()
    assert ask(h, at, 4096) == [(4096, DATA)]


@case
def _():
    """a map says data wherever something was written, over random writes, zeroes and trims"""
    size = 16 * MIB
    model = bytearray(size)
    flags = other.get_block_size(nbd.SIZE_MINIMUM) or 1
    for step in range(120):
        at = RANDOM.randrange(size // 4096) * 4096
        length = min(RANDOM.choice([flags, 4096, 12288, BLOCK, 4 * BLOCK]), size - at)
        kind = RANDOM.randrange(10)
        if kind < 5:
            data = RANDOM.randbytes(length)
            other.pwrite(data, at)
            model[at : at + length] = data
        elif kind < 7:
            other.zero(length, at)
            model[at : at + length] = bytes(length)
        elif kind < 8:
            other.trim(length, at)
            # It may or may not have become zeros; what was there was given up.
            model[at : at + length] = other.pread(length, at)
        elif kind < 9:
            other.flush()
        else:
            offset = RANDOM.randrange(size // 4096) * 4096
            length = min(RANDOM.choice([4096, BLOCK, size]), size - offset)
            one = RANDOM.randrange(2)
            told = ask(other, offset, length, nbd.CMD_FLAG_REQ_ONE if one else 0)
            assert sum(n for n, _ in told) <= length and (len(told) == 1 or not one), told
            for n, kind in told:
                assert kind == DATA or not any(model[offset : offset + n]), f"step {step}: {offset}+{n} is no hole"
                offset += n
    for offset, n, kind in mapped(other, size)[0]:
        assert kind == DATA or not any(model[offset : offset + n]), f"{offset}+{n} is no hole"
    other.flush()
    runs = mapped(other, size)[0]
    for offset, n, kind in runs:
        assert kind == DATA or not any(model[offset : offset + n]), f"flushed: {offset}+{n} is no hole"
    assert any(kind == HOLE_ZERO for *_, kind in runs) and any(kind == DATA for *_, kind in runs), runs


@case
def _():
    """what is trimmed is a hole again"""
    other.pwrite(b"\7" * MIB, 4 * MIB)
    other.flush()
    assert ask(other, 4 * MIB, MIB) == [(MIB, DATA)]
    other.trim(MIB, 4 * MIB)
    assert ask(other, 4 * MIB, MIB) == [(MIB, HOLE_ZERO)]
    other.trim(16 * MIB, 0)
    assert mapped(other, 16 * MIB)[0] == [(0, 16 * MIB, HOLE_ZERO)]


@case
def _():
    """an answer has at most 128 extents, and the next question goes on"""
    for index in range(100):
        other.pwrite(b"\7" * 4096, index * 2 * BLOCK)
    other.flush()
    told = ask(other, 0, 16 * MIB)
    assert 1 <= len(told) <= 128, len(told)
    runs, requests = mapped(other, 16 * MIB)
    assert requests > 1 and [r[0] for r in runs if r[2] == DATA] == [i * 2 * BLOCK for i in range(100)], runs[:5]
    assert ask(other, BLOCK, 8 * MIB, nbd.CMD_FLAG_REQ_ONE) == [(BLOCK, HOLE_ZERO)]


@case
def _():
    """a sparse terabyte is told in as few requests as its length needs"""
    h = connect("huge")
    runs, requests = mapped(h, 1 << 40)
    assert (runs, requests) == ([(0, 1 << 40, HOLE_ZERO)], 257), (runs, requests)
    h.pwrite(b"\7" * BLOCK, 512 << 30)
    runs, requests = mapped(h, 1 << 40)
    assert len(runs) == 3 and runs[1] == (512 << 30, BLOCK, DATA) and requests <= 260, (runs, requests)


@case
def _():
    """ranges beyond the end, of nothing, and another command's flags are refused"""
    h = connect("other")
    refused(errno.EINVAL, ask, h, 16 * MIB, 4096)
    refused(errno.EINVAL, ask, h, 16 * MIB - 4096, 8192)
    refused(errno.EINVAL, ask, h, 0, 4096, nbd.CMD_FLAG_NO_HOLE)
    refused(errno.EINVAL, ask, h, 0, 0)
    assert ask(h, 16 * MIB - 4096, 4096)


@case
def _():
    """an error of the device is an error, and the connection goes on"""
    h = connect("bad")
    refused(errno.EIO, ask, h, 0, 4096)
    assert h.pread(512, 0) == bytes(512)


def string(text):
    return struct.pack(">I", len(text)) + text


def query(export, *queries):
    return string(export.encode()) + struct.pack(">I", len(queries)) + b"".join(map(string, queries))


def answers(raw):
    """Every answer up to the last."""
    told = []
    while True:
        _, kind, data = raw.option_reply()
        told.append((kind, data))
        if kind not in (REP_META_CONTEXT, REP_INFO):
            return told


def structured():
    raw = Raw(uri(""))
    raw.greet()
    raw.option(OPT_STRUCTURED_REPLY)
    assert answers(raw) == [(REP_ACK, b"")]
    return raw


def contexts(raw, option, data):
    """How the option ended, and the names of the contexts."""
    raw.option(option, data)
    *told, (kind, _) = answers(raw)
    return kind, [data[4:] for _, data in told]


def go(export, set_for=None):
    raw = structured()
    if set_for is not None:
        assert contexts(raw, OPT_SET_META_CONTEXT, query(set_for, CONTEXT)) == (REP_ACK, [CONTEXT])
    raw.option(OPT_GO, string(export.encode()) + b"\0\0")
    return raw, answers(raw)[-1][0]


@case
def _():
    """contexts are listed by name, by namespace and all together"""
    raw = structured()
    for queries in [(), (CONTEXT,), (b"base:",), (b"qemu:dirty-bitmap:x", b"base:")]:
        assert contexts(raw, OPT_LIST_META_CONTEXT, query("disk", *queries)) == (REP_ACK, [CONTEXT]), queries
    for queries in [(b"qemu:",), (b"base:allocation2",), (b"",)]:
        assert contexts(raw, OPT_LIST_META_CONTEXT, query("disk", *queries)) == (REP_ACK, []), queries
    raw.close()


@case
def _():
    """malformed questions about contexts are ERR_INVALID, unknown exports ERR_UNKNOWN, and the session goes on"""
    early = Raw(uri(""))
    early.greet()
    for option in [OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT]:
        assert contexts(early, option, query("disk", CONTEXT))[0] == REP_ERR_INVALID, "before structured replies"
    early.close()
    raw, good = structured(), query("disk", CONTEXT)
    for option in [OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT]:
        for bad in [good[:-1], good + b"\0", b"", query("disk")[:-4], query("disk", b"x" * 5000)]:
            assert contexts(raw, option, bad)[0] == REP_ERR_INVALID, (option, bad[:40])
        assert contexts(raw, option, query("nobody", CONTEXT))[0] == REP_ERR_UNKNOWN
        assert contexts(raw, option, good) == (REP_ACK, [CONTEXT])
    raw.close()


@case
def _():
    """a context holds for the export that it was set for, and until it is set anew"""

    def asks(raw):
        raw.request(BLOCK_STATUS, 5, 0, 4096)
        flags, kind, cookie, data = raw.chunk()
        assert flags == CHUNK_DONE and cookie == 5
        raw.close()
        if kind == CHUNK_ERROR:
            assert struct.unpack(">I", data[:4])[0] == EINVAL
        return kind == CHUNK_STATUS

    assert asks(go("disk", set_for="disk")[0])
    assert asks(go("", set_for="disk")[0]), "the default export is this one"
    assert not asks(go("disk")[0])
    assert not asks(go("other", set_for="disk")[0])
    raw = structured()
    assert contexts(raw, OPT_SET_META_CONTEXT, query("disk", CONTEXT))[1] == [CONTEXT]
    assert contexts(raw, OPT_SET_META_CONTEXT, query("disk", b"x:y")) == (REP_ACK, [])
    raw.option(OPT_GO, string(b"disk") + b"\0\0")
    assert answers(raw)[-1][0] == REP_ACK and not asks(raw)


@case
def _():
    """whoever did not ask for the context is refused, in simple replies, too"""
    raw, _ = Raw(uri("disk")).go(b"disk")
    raw.request(BLOCK_STATUS, 9, 0, 4096)
    assert raw.reply() == (EINVAL, 9)
    raw.close()


done()
