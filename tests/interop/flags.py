"""Every command with every flag, at every edge of the disk: done, or refused with the one error that the protocol has for it.

    flags.py simple|structured writable|read-only URI
"""

import random
import sys

import nbd

from rawnbd import *
from tap import case, done, same_bytes

FORM, WHAT, URI = sys.argv[1:]
RANDOM = random.Random(99)
KIB, MIB = 1024, 1 << 20
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO, PAYLOAD_LEN = (1 << bit for bit in range(6))
EPERM, ENOSPC, EOVERFLOW, ENOTSUP = 1, 28, 75, 95
NAMES = ["read", "write", "disc", "flush", "trim", "cache", "zero", "block status"]
STRUCTURED = FORM == "structured"
READ_ONLY = WHAT == "read-only"
CHUNK_ERROR = 1 << 15

polite = nbd.NBD()
polite.connect_uri(URI)
BLOCK = max(polite.get_block_size(nbd.SIZE_MINIMUM), 1)
# Where it is not offered it may be refused.
FUA_FITS = FUA if polite.can_fua() else 0
polite.shutdown()

client, SIZE = Raw(URI).go(structured=STRUCTURED)
SPAN = 8 * KIB  # of whole blocks, whatever they are
PLACE = 4 * MIB


def answer(length=0):
    """The error of the next reply and, if it is a read's, the bytes."""
    (magic,) = struct.unpack(">I", client.receive(4))
    if magic == SIMPLE_MAGIC:
        error, cookie = struct.unpack(">IQ", client.receive(12))
        return error, cookie, client.receive(length) if error == 0 and length else b""
    assert magic == STRUCTURED_MAGIC, hex(magic)
    error, data = 0, None
    while True:
        flags, kind, cookie, n = struct.unpack(">HHQI", client.receive(16))
        body = client.receive(n)
        if kind & CHUNK_ERROR:
            error = struct.unpack(">I", body[:4])[0]
        elif kind == CHUNK_DATA:
            data = data or bytearray(length)
            at = struct.unpack(">Q", body[:8])[0] - answer.offset
            data[at : at + len(body) - 8] = body[8:]
        if flags & CHUNK_DONE:
            return error, cookie, data or bytes(0 if error else length)
        (magic,) = struct.unpack(">I", client.receive(4))
        assert magic == STRUCTURED_MAGIC, hex(magic)


def ask(command, offset, length, flags=0, data=None):
    if command == WRITE and data is None:
        data = RANDOM.randbytes(length)
    cookie = RANDOM.getrandbits(64)
    answer.offset = offset
    client.request(command, cookie, offset, length, data or b"", flags)
    error, echoed, found = answer(length if command == READ else 0)
    assert echoed == cookie, (echoed, cookie)
    return error, found


def content(offset=PLACE, length=SPAN):
    error, found = ask(READ, offset, length)
    assert error == 0, error
    return found


# The flags that may stand on a command. FUA may stand on each, the protocol says, and means something on three.
FITTING = {
    READ: FUA_FITS | (DF if STRUCTURED else 0),
    WRITE: FUA_FITS,
    FLUSH: FUA_FITS,
    TRIM: FUA_FITS,
    CACHE: FUA_FITS,
    WRITE_ZEROES: FUA_FITS | NO_HOLE | FAST_ZERO,
}
WRITES = {WRITE, TRIM, WRITE_ZEROES}
ALL_FLAGS = list(range(64)) + [1 << bit for bit in range(6, 16)] + [0xFFFF]


def flags_of(command):
    def every_combination():
        before = content()
        for flags in ALL_FLAGS:
            data = RANDOM.randbytes(SPAN)
            length = 0 if command == FLUSH else SPAN
            error, found = ask(command, 0 if command == FLUSH else PLACE, length, flags, data if command == WRITE else None)
            what = f"flags {flags:#x}: {error}"
            if READ_ONLY and command in WRITES:
                assert error == EPERM, what
            elif flags & ~FITTING.get(command, 0):
                assert error == EINVAL, what
            else:
                # A device that cannot zero fast says so, and has done nothing.
                assert error == 0 or (error == ENOTSUP and flags & FAST_ZERO), what
            if error == 0 and command == READ:
                same_bytes(found, before)
            if error == 0 and command == WRITE:
                before = data
            if error == 0 and command == WRITE_ZEROES:
                before = bytes(SPAN)
            if error == 0 and command == TRIM:
                before = content()
            same_bytes(content(), before)

    every_combination.__doc__ = f"{WHAT}, {FORM}: {NAMES[command]} with each of {len(ALL_FLAGS)} sets of flags: done if they fit, else EINVAL and nothing done"
    case(every_combination)


for command in [READ, WRITE, FLUSH, TRIM, CACHE, WRITE_ZEROES]:
    flags_of(command)


@case
def _():
    """unknown commands, and block status without a context: EINVAL with any flags"""
    for command in [BLOCK_STATUS, 8, 9, 10, 99, 0x7FFF, 0x8000, 0xFFFF]:
        for flags in [0, FUA, REQ_ONE, 0xFFFF]:
            for offset, length in [(0, 0), (PLACE, SPAN), (1 << 63, 0xFFFFFFFF)]:
                client.request(command, 7, offset, length, flags=flags)
                error, cookie, _ = answer()
                assert (error, cookie) == (EINVAL, 7), (command, flags, error)
    content()


BEYOND = [
    (SIZE, BLOCK),
    (SIZE - BLOCK, 2 * BLOCK),
    (SIZE + MIB, BLOCK),
    (1 << 63, BLOCK),
    ((1 << 64) - BLOCK, BLOCK),
    ((1 << 64) - BLOCK, 2 * BLOCK),
]
BENT = [(BLOCK // 2, BLOCK), (0, BLOCK + 1), (1, 1), (0, BLOCK - 1), (SIZE - BLOCK // 2, BLOCK // 2), (PLACE + 1, SPAN)]
# Of what has no payload the length is a number only.
FAR = [(0, 0xFFFFFFFF), (PLACE, (1 << 32) - BLOCK)]


def refusal(command, beyond):
    """The errors that the protocol has for a range that is not on the disk, or not of whole blocks."""
    if READ_ONLY and command in WRITES:
        return {EPERM}
    if beyond and command in (WRITE, WRITE_ZEROES):
        return {ENOSPC}
    return {EINVAL}


@case
def _():
    """ranges beyond the end, around the end of 64 bits, empty ones and bent ones: the protocol's error, and nothing done"""
    last = content(SIZE - 8 * KIB, 8 * KIB)
    first = content(0, 8 * KIB)
    for command in [READ, WRITE, TRIM, CACHE, WRITE_ZEROES]:
        beyond = BEYOND + ([] if command in (READ, WRITE) else FAR)
        for offset, length in beyond + [(0, 0), (SIZE, 0)] + (BENT if BLOCK > 1 else []):
            if command == TRIM and (offset, length) in BENT:
                continue  # It is advice: the blocks that are whole may go.
            error, _ = ask(command, offset, length)
            wanted = refusal(command, (offset, length) in beyond)
            assert error in wanted, f"{NAMES[command]} of {length} at {offset}: {error}, wanted {wanted}"
    for offset, length in [(1, 0), (0, 1), (PLACE, SPAN)]:
        assert ask(FLUSH, offset, length)[0] == EINVAL, (offset, length)
    same_bytes(content(SIZE - 8 * KIB, 8 * KIB), last)
    same_bytes(content(0, 8 * KIB), first)


@case
def _():
    """the last block, and with a smallest block of 1 the last byte, is as good as any other"""
    for length in [BLOCK, 2 * BLOCK, 5 * BLOCK]:
        offset = SIZE - length
        before = content(offset, length)
        if not READ_ONLY:
            before = RANDOM.randbytes(length)
            assert ask(WRITE, offset, length, FUA, before)[0] == 0
        same_bytes(content(offset, length), before)
        assert ask(CACHE, offset, length)[0] == 0
        if not READ_ONLY:
            assert ask(WRITE_ZEROES, offset, length)[0] == 0
            same_bytes(content(offset, length), bytes(length))


@case
def _():
    """reads of more than 32 MiB: EINVAL, with DF EOVERFLOW or EINVAL"""
    for length in [32 * MIB + BLOCK, 0x7FFFFFFF // BLOCK * BLOCK, 0xFFFFFFFF // BLOCK * BLOCK]:
        assert ask(READ, 0, length)[0] == EINVAL, length
        if STRUCTURED:
            assert ask(READ, 0, length, DF)[0] in (EOVERFLOW, EINVAL), length
    content()


client.request(DISC, 0, 0, 0)
done()
