"""Requests of any offset and length on exports without a cache.

model SOCKET BASE EXPORT...   connections that own bytes of the same blocks change them at the same time; each knows what its bytes are
kept SOCKET write|read WORD   the last bytes of a volume that ends within a block, and some before
strict SOCKET EXPORT          requests that are no whole blocks are refused
"""

import errno
import os
import random
import sys
import threading

import nbd

CONNECTIONS = 4
STEPS = 250
# Longer than a buffer of the server.
PART = 300 << 10


def connect(socket, export):
    handle = nbd.NBD()
    # What the server refuses is to be seen, not what the library does.
    handle.set_strict_mode(0)
    handle.set_export_name(export)
    handle.connect_unix(socket)
    return handle


class Owner(threading.Thread):
    """A connection that alone changes some ranges, and knows their bytes."""

    def __init__(self, socket, export, model, ranges, seed):
        super().__init__()
        self.handle, self.model, self.ranges = connect(socket, export), model, ranges
        self.random, self.error = random.Random(seed), None

    def run(self):
        try:
            for _ in range(STEPS):
                self.step()
            self.handle.flush()
            self.handle.shutdown()
        except Exception as error:  # a thread's exception is told by the main one
            self.error = error

    def step(self):
        start, end = self.random.choice(self.ranges)
        at = self.random.choice([start, self.random.randrange(start, end)])
        length = self.random.choice([end - at, self.random.randint(1, end - at)])
        what = self.random.randrange(8)
        fua = self.random.choice([0, nbd.CMD_FLAG_FUA])
        if what < 3:
            data = self.random.randbytes(length)
            self.handle.pwrite(data, at, fua)
            self.model[at : at + length] = data
        elif what == 3:
            self.handle.zero(length, at, fua)
            self.model[at : at + length] = bytes(length)
        elif what == 4 and self.random.randrange(8) == 0:
            self.handle.flush()
        else:
            seen = self.handle.pread(length, at)
            assert seen == self.model[at : at + length], f"{length} bytes at {at} differ"


def cut(size, rng):
    """Ranges for each connection, which meet within blocks."""
    owned, at = [[] for _ in range(CONNECTIONS)], 0
    while at < size:
        length = rng.choice([rng.randint(1, 700), rng.randint(1, 9000), 4096 - at % 4096, PART + rng.randint(1, 300)])
        owned[rng.randrange(CONNECTIONS)].append((at, min(size, at + length)))
        at += length
    return owned


def model(socket, base, *exports):
    for number, export in enumerate(exports):
        with open(base, "rb") as file:
            bytes_now = bytearray(file.read())
        smallest = connect(socket, export).get_block_size(nbd.SIZE_MINIMUM)
        assert smallest == 1, f"{export} announces a smallest block of {smallest}"
        size = len(bytes_now) if export != "slow" else 1 << 20
        owned = cut(size, random.Random(number))
        owners = [Owner(socket, export, bytes_now, ranges, seed) for seed, ranges in enumerate(owned)]
        for owner in owners:
            owner.start()
        for owner in owners:
            owner.join()
            if owner.error:
                raise owner.error
        handle = connect(socket, export)
        for at in range(0, len(bytes_now), 1 << 20):
            length = min(1 << 20, len(bytes_now) - at)
            assert handle.pread(length, at) == bytes_now[at : at + length], f"{export}: bytes were lost after {at}"
        trim(handle, bytes_now)
        with open(os.path.join(os.environ["DIR"], f"model-{export}"), "wb") as file:
            file.write(bytes_now)
        print(f"ok - {export}: {CONNECTIONS} connections that share blocks lose no bytes")


def trim(handle, bytes_now):
    """A trim never takes bytes outside of it; those within are written again."""
    at, length = 70_001, 30_000
    before = bytes(bytes_now[at - 5000 : at + length + 5000])
    handle.trim(length, at)
    seen = handle.pread(len(before), at - 5000)
    assert seen[:5000] == before[:5000] and seen[-5000:] == before[-5000:], "a trim took bytes outside of it"
    handle.pwrite(bytes_now[at : at + length], at, nbd.CMD_FLAG_FUA)


def kept(socket, what, word):
    handle = connect(socket, "odd")
    end = handle.get_size()
    for at, length in [(end - 1001, 1001), (1234567, 5000)]:
        data = (word.encode() * length)[:length]
        if what == "write":
            handle.pwrite(data, at)
        assert handle.pread(length, at) == data, f"{length} bytes at {at} are others"
    print(f"ok - bytes up to an end within a block: {what}")


def strict(socket, export):
    handle = connect(socket, export)
    smallest = handle.get_block_size(nbd.SIZE_MINIMUM)
    assert smallest > 1, smallest
    for call in [lambda: handle.pread(100, 0), lambda: handle.pwrite(bytes(100), smallest), lambda: handle.zero(smallest, 1)]:
        try:
            call()
        except nbd.Error as error:
            assert error.errnum == errno.EINVAL, error
        else:
            raise AssertionError("a part of a block was taken")
    handle.pwrite(bytes(smallest), smallest)
    print(f"ok - {export} refuses parts of its blocks of {smallest}")


if __name__ == "__main__":
    {"model": model, "kept": kept, "strict": strict}[sys.argv[1]](*sys.argv[2:])
