"""What clients may rely on when an export is cached. `cache.py WHAT URI [ARGUMENTS]` prints a line for each check."""

import errno
import os
import random
import sys

import nbd

from tap import check, done


def connect(uri):
    handle = nbd.NBD()
    handle.set_strict_mode(0)  # the server is to refuse, not the client
    handle.connect_uri(uri)
    return handle


def fails(number, act):
    try:
        act()
    except nbd.Error as error:
        return error.errnum == number
    return False


def offers(uri):
    h = connect(uri)
    check("NBD_CMD_CACHE is offered", h.can_cache())
    h.cache(1 << 20, 0)
    h.cache(64 << 20, 0)
    check("and answered, also for a range that is larger than any payload", True)
    check("not for one beyond the end", fails(errno.EINVAL, lambda: h.cache(4096, h.get_size())))
    smallest = h.get_block_size(nbd.SIZE_MINIMUM)
    check(f"the smallest block is 1: {smallest}", smallest == 1)


def bytes_(uri):
    """Any byte range, against a model."""
    h, draw = connect(uri), random.Random(1)
    size = 256 << 10
    h.pwrite(bytes(size), 0)
    model = bytearray(size)
    good = True
    for _ in range(600):
        length = draw.choice([1, 3, 511, 513, 4095, 4097, 70000])
        at = draw.randrange(size - length)
        if draw.random() < 0.5:
            data = draw.randbytes(length)
            model[at : at + length] = data
            h.pwrite(data, at)
        else:
            good &= h.pread(length, at) == model[at : at + length]
    h.flush()
    check("600 reads and writes of any length and place", good and h.pread(size, 0) == model)
    h.zero(5001, 777)
    model[777 : 777 + 5001] = bytes(5001)
    check("zeroing keeps what is around it", h.pread(size, 0) == model)


def fill(uri, mib, seed, flush):
    """Acknowledged, and flushed or not."""
    h, data = connect(uri), random.Random(seed).randbytes(1 << 20)
    for index in range(int(mib)):
        h.pwrite(data, index << 20)
    if flush == "flush":
        h.flush()


def rounds(uri, start_mib, mib, enough):
    """Writes a range and flushes it, again and again until a file is there; prints a line for each flush."""
    h, data = connect(uri), random.Random(1).randbytes(1 << 20)
    while not os.path.exists(enough):
        for index in range(int(mib)):
            h.pwrite(data, int(start_mib) + index << 20)
        h.flush()
        print(int(mib) << 20, flush=True)


def flushes(uri):
    """A write and a flush: exit 0 if both succeed."""
    h = connect(uri)
    h.pwrite(b"x" * 4096, 0)
    h.flush()


def seen(uri):
    """What one connection wrote, another reads, without a flush between them."""
    one, other = connect(uri), connect(uri)
    good = True
    for index in range(200):
        one.pwrite(bytes([index % 251]) * 4096, 4096 * (index % 7))
        good &= other.pread(4096, 4096 * (index % 7)) == bytes([index % 251]) * 4096
    check("a write is seen by every other connection when it is acknowledged", good)


what, uri, *rest = sys.argv[1:]
if what == "offers":
    offers(uri)
elif what == "bytes":
    bytes_(uri)
elif what == "seen":
    seen(uri)
elif what == "fill":
    fill(uri, *rest)
    sys.exit(0)
elif what == "rounds":
    rounds(uri, *rest)
    sys.exit(0)
elif what == "flushes":
    flushes(uri)
    sys.exit(0)
else:
    sys.exit(f"there is no {what}")
done()
