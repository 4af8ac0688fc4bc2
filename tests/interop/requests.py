"""Every NBD request through libnbd: pipelined and out of order, with each flag, at the edges, and refused."""

import errno
import random
import sys

import nbd

from tap import case, done, same_bytes

URI, SIZE = sys.argv[1], int(sys.argv[2])
MIB = 1 << 20
RANDOM = random.Random(20)


def connect(structured=True, strict=True):
    h = nbd.NBD()
    h.set_request_structured_replies(structured)
    if not strict:
        h.set_strict_mode(0)
    h.connect_uri(URI)
    return h


h = connect()
BLOCK = max(h.get_block_size(nbd.SIZE_MINIMUM), 1)


def up(n):
    """The smallest size of at least n that the server takes."""
    return -(-n // BLOCK) * BLOCK


def refused(errors, function, *arguments, **flags):
    wanted = [getattr(errno, name) for name in errors]
    try:
        function(*arguments, **flags)
    except nbd.Error as error:
        assert error.errnum in wanted, f"refused with {error.errno}, wanted {errors}: {error.string}"
        return
    raise AssertionError(f"not refused, wanted {errors}")


def pipeline(h, count, region, bytes_max):
    """Writes `count` pieces at once, then reads all of them at once in another order, and compares."""
    pieces, at = [], region
    for _ in range(count):
        n = up(RANDOM.randrange(1, bytes_max))
        pieces.append((at, RANDOM.randbytes(n)))
        at += n + up(RANDOM.randrange(1, 5000))
    assert at < SIZE
    RANDOM.shuffle(pieces)
    errors = []

    def completed(what):
        def callback(error):
            if error.value:
                errors.append((what, error.value))
            return 1

        return callback

    cookies = [h.aio_pwrite(data, offset, completed(("write", offset))) for offset, data in pieces]
    assert len(set(cookies)) == count
    while h.aio_in_flight():
        h.poll(-1)
    RANDOM.shuffle(pieces)
    reads = []
    for offset, data in pieces:
        buffer = nbd.Buffer(len(data))
        h.aio_pread(buffer, offset, completed(("read", offset)))
        reads.append((buffer, data))
    while h.aio_in_flight():
        h.poll(-1)
    assert not errors, errors
    for buffer, data in reads:
        same_bytes(buffer.to_bytearray(), data)


@case
def _():
    """64 requests of up to 64 KiB in flight, read back in another order"""
    pipeline(h, 64, 0, 65536)


@case
def _():
    """2000 small requests in flight on one connection"""
    pipeline(h, 2000, 16 * MIB, 4096)


@case
def _():
    """the same with simple replies"""
    simple = connect(structured=False)
    assert not simple.get_structured_replies_negotiated()
    pipeline(simple, 64, 40 * MIB, 65536)
    simple.shutdown()


@case
def _():
    """FUA on write, trim and zero; flush with nothing and with something to do"""
    data = RANDOM.randbytes(64 * 1024)
    h.flush()
    h.pwrite(data, MIB, nbd.CMD_FLAG_FUA)
    h.trim(4096, MIB, nbd.CMD_FLAG_FUA)
    h.zero(4096, MIB + 4096, nbd.CMD_FLAG_FUA)
    h.flush()
    same_bytes(h.pread(4096, MIB + 4096), bytes(4096))
    same_bytes(h.pread(56 * 1024, MIB + 8192), data[8192:])


def zeroes(flags, offset, length):
    around = 8192
    start, total = offset - around, around + length + around
    data = RANDOM.randbytes(total)
    h.pwrite(data, start)
    h.zero(length, offset, flags)
    same_bytes(h.pread(total, start), data[:around] + bytes(length) + data[around + length :])


for name, flags in [("", 0), (" with NO_HOLE", nbd.CMD_FLAG_NO_HOLE)]:

    def zero_case(flags=flags):
        for length in [up(1), 4096, up(5000), up(65537), 3 * MIB]:
            zeroes(flags, 48 * MIB, length)
            zeroes(flags, 48 * MIB + up(512), length)

    zero_case.__doc__ = f"zero{name}: the range and no byte more, aligned and not"
    case(zero_case)


@case
def _():
    """zero with FAST_ZERO does it all or says ENOTSUP and does nothing"""
    for flags in [nbd.CMD_FLAG_FAST_ZERO, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE]:
        data = RANDOM.randbytes(MIB)
        h.pwrite(data, 52 * MIB)
        try:
            h.zero(512 * 1024, 52 * MIB, flags)
            data = bytes(512 * 1024) + data[512 * 1024 :]
        except nbd.Error as error:
            assert error.errnum in (errno.ENOTSUP, errno.EOPNOTSUPP), error.string
        same_bytes(h.pread(MIB, 52 * MIB), data)


@case
def _():
    """trim rounds inward: its neighbours stay, the range reads as something"""
    for offset, length in [(0, 4096), (up(512), 65536), (up(3), up(70000))]:
        start = 56 * MIB
        data = RANDOM.randbytes(256 * 1024)
        h.pwrite(data, start)
        h.trim(length, start + offset)
        found = h.pread(len(data), start)
        same_bytes(found[:offset], data[:offset])
        same_bytes(found[offset + length :], data[offset + length :])


@case
def _():
    """trim and zero of the whole disk in one request, then every byte is zero"""
    last = SIZE - 4096
    h.pwrite(b"\xff" * 4096, last)
    h.trim(SIZE, 0)
    h.zero(SIZE, 0)
    for offset in range(0, SIZE, 32 * MIB):
        assert not any(h.pread(32 * MIB, offset)), f"bytes left at {offset}"


@case
def _():
    """structured reads: chunks cover the range once; with DF there is one"""
    data = RANDOM.randbytes(128 * 1024)
    h.zero(MIB, 60 * MIB)
    h.pwrite(data, 60 * MIB + 256 * 1024)

    def read(flags):
        chunks = []

        def chunk(piece, offset, status, error):
            chunks.append((offset, len(piece), status))

        found = h.pread_structured(MIB, 60 * MIB, chunk, flags)
        same_bytes(found, bytes(256 * 1024) + data + bytes(640 * 1024))
        at = 60 * MIB
        for offset, length, _ in sorted(chunks):
            assert offset == at, chunks
            at += length
        assert at == 61 * MIB, chunks
        return chunks

    read(0)
    assert len(read(nbd.CMD_FLAG_DF)) == 1


@case
def _():
    """a write acknowledged on one connection is read on another"""
    other = connect()
    for i in range(100):
        data = RANDOM.randbytes(up(1000))
        a, b = (h, other) if i % 2 else (other, h)
        a.pwrite(data, 64 * MIB)
        same_bytes(b.pread(len(data), 64 * MIB), data)
    other.flush()
    other.shutdown()


@case
def _():
    """32 MiB in one request, written and read"""
    data = RANDOM.randbytes(32 * MIB)
    h.pwrite(data, 64 * MIB)
    same_bytes(h.pread(32 * MIB, 64 * MIB), data)


@case
def _():
    """four 32 MiB reads and writes at once on two connections"""
    other = connect()
    data = RANDOM.randbytes(32 * MIB)
    for _ in range(2):
        h.aio_pwrite(data, 32 * MIB)
        other.aio_pread(nbd.Buffer(32 * MIB), 96 * MIB)
    while h.aio_in_flight() + other.aio_in_flight():
        h.poll(10)
        other.poll(10)
    same_bytes(h.pread(32 * MIB, 32 * MIB), data)
    other.shutdown()


# libnbd's own checks would keep the following from reaching the server.
loose = connect(strict=False)
B4K = up(4096)


@case
def _():
    """past the end: reads EINVAL, writes and zeroes ENOSPC (or EINVAL), trims either; the data stays"""
    h.pwrite(b"\x5a" * B4K, SIZE - B4K)
    for offset in [SIZE, SIZE - BLOCK, SIZE + MIB, (1 << 63), (1 << 64) - B4K]:
        refused(["EINVAL"], loose.pread, 2 * B4K, offset)
        refused(["ENOSPC", "EINVAL"], loose.pwrite, b"x" * (2 * B4K), offset)
        refused(["ENOSPC", "EINVAL"], loose.zero, 2 * B4K, offset)
        refused(["ENOSPC", "EINVAL"], loose.trim, 2 * B4K, offset)
    same_bytes(h.pread(B4K, SIZE - B4K), b"\x5a" * B4K)


@case
def _():
    """a write past the end says ENOSPC"""
    refused(["ENOSPC"], loose.pwrite, b"x" * B4K, SIZE)


@case
def _():
    """large writes past the end say ENOSPC once they are sent, and the connection lives"""
    for _ in range(3):
        refused(["ENOSPC"], loose.pwrite, b"x" * (8 * MIB), SIZE - B4K)
    loose.pread(B4K, 0)


@case
def _():
    """more than 32 MiB: refused with EINVAL or EOVERFLOW, or the connection ends; nobody else notices"""
    for what in ["pread", "pwrite"]:
        big = connect(strict=False)
        length = 32 * MIB + B4K
        try:
            if what == "pread":
                big.pread(length, 0)
            else:
                big.pwrite(bytes(length), 0)
            raise AssertionError(f"{what} was not refused")
        except nbd.Error as error:
            assert error.errnum in (errno.EINVAL, errno.EOVERFLOW) or big.aio_is_dead() or big.aio_is_closed(), error.string
    loose.pread(B4K, 0)


@case
def _():
    """nothing to do: zero lengths succeed or say EINVAL, and the connection lives"""
    for function, arguments in [
        (loose.pread, (0, 0)),
        (loose.pwrite, (b"", 0)),
        (loose.trim, (0, 0)),
        (loose.zero, (0, 0)),
        (loose.pread, (0, SIZE)),
    ]:
        try:
            function(*arguments)
        except nbd.Error as error:
            assert error.errnum == errno.EINVAL, error.string
    loose.pread(B4K, 0)


@case
def _():
    """below the minimum block: EINVAL (or done, where the minimum is 1)"""
    if BLOCK == 1:
        loose.pwrite(b"abc", 12345)
        same_bytes(loose.pread(3, 12345), b"abc")
        return
    refused(["EINVAL"], loose.pread, BLOCK // 2, 0)
    refused(["EINVAL"], loose.pread, BLOCK, BLOCK // 2)
    refused(["EINVAL"], loose.pwrite, b"x" * BLOCK, BLOCK // 2)
    refused(["EINVAL"], loose.zero, BLOCK + 1, 0)


@case
def _():
    """flags that a command does not have: EINVAL or ignored, and the connection lives"""
    for function, arguments, flags in [
        (loose.flush, (), nbd.CMD_FLAG_DF),
        (loose.trim, (B4K, 0), nbd.CMD_FLAG_FAST_ZERO),
        (loose.pwrite, (bytes(B4K), 0), nbd.CMD_FLAG_NO_HOLE),
        (loose.flush, (), 0x8000),
    ]:
        try:
            function(*arguments, flags=flags)
        except nbd.Error as error:
            assert error.errnum == errno.EINVAL, error.string
    loose.pread(B4K, 0)


loose.shutdown()
h.shutdown()
done()
