"""Parts of the kill tests: kill.py flood|verify|flushed|check URI ...

flood    writes and reads with everything in flight until it is killed, in [64 MiB, 128 MiB)
verify   writes and reads back its own blocks in [0, 32 MiB) until the file STOP exists; prints how many
flushed  writes versions and flushes; then goes on writing without a flush until the server is gone. What was
         flushed when is in the file STATE: the check may find it, or anything newer, and nothing older
check    compares the disk with STATE
"""

import json
import os
import random
import sys

import nbd

MIB = 1 << 20
BLOCK = 4096
what, uri, argument = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None
random.seed(int(os.environ.get("SEED", "1")))
h = nbd.NBD()
h.connect_uri(uri)


def flood():
    buffers = [nbd.Buffer(256 * 1024) for _ in range(64)]
    done = 0
    while True:
        while h.aio_in_flight() < 64:
            at = 64 * MIB + random.randrange(0, 255) * 256 * 1024
            if random.random() < 0.5:
                h.aio_pwrite(b"\xaa" * (256 * 1024), at, lambda error: 1)
            else:
                h.aio_pread(buffers[random.randrange(64)], at, lambda error: 1)
        h.poll(-1)
        done += 1
        if done == 100:
            print("flooding", flush=True)


def verify():
    rounds = 0
    while not os.path.exists(argument):
        data = random.randbytes(BLOCK * random.randrange(1, 16))
        at = random.randrange(0, 8192 - 16) * BLOCK
        h.pwrite(data, at)
        assert h.pread(len(data), at) == data, f"block {at // BLOCK} changed by itself"
        rounds += 1
    print(rounds, flush=True)
    assert rounds > 0


def stamp(block, version):
    """A block that says who it is, in every one of its sectors, so that a torn or misplaced one is seen."""
    return (block.to_bytes(8, "big") + version.to_bytes(8, "big")) * (BLOCK // 16)


def read_stamp(data, block):
    """The version of a block, 0 for zeros; None for anything else."""
    version = int.from_bytes(data[8:16], "big")
    if data == stamp(block, version):
        return version
    return 0 if not any(data) else None


# Between the blocks of `verify` and those of `flood`, where nobody else has written.
BASE, BLOCKS = 32 * MIB, 2000


def flushed():
    durable = {}
    version = 0
    for _ in range(5):
        version += 1
        written = {}
        for _ in range(400):
            block = random.randrange(BLOCKS)
            h.aio_pwrite(stamp(block, version), BASE + block * BLOCK)
            written[block] = version
        while h.aio_in_flight():
            h.poll(-1)
        h.flush()
        durable.update(written)
    for _ in range(20):
        version += 1
        block = random.randrange(BLOCKS)
        h.pwrite(stamp(block, version), BASE + block * BLOCK, nbd.CMD_FLAG_FUA)
        durable[block] = version
    with open(argument + ".new", "w") as state:
        json.dump(durable, state)
    os.rename(argument + ".new", argument)
    try:
        while True:
            version += 1
            while h.aio_in_flight() < 32:
                block = random.randrange(BLOCKS)
                h.aio_pwrite(stamp(block, version), BASE + block * BLOCK, lambda error: 1)
            h.poll(-1)
    except nbd.Error:
        pass


def compare():
    with open(argument) as state:
        durable = {int(block): version for block, version in json.load(state).items()}
    lost, broken = [], []
    for block in range(BLOCKS):
        version = read_stamp(h.pread(BLOCK, BASE + block * BLOCK), block)
        if version is None:
            # A crash may tear what was never flushed, but a killed process is not a power cut: the kernel has it whole.
            broken.append(block)
        elif version < durable.get(block, 0):
            lost.append((block, version, durable[block]))
    print(f"{len(durable)} blocks were flushed; lost {lost[:5]}, torn {broken[:5]}")
    assert durable and not lost and not broken, f"{len(lost)} lost, {len(broken)} torn"


{"flood": flood, "verify": verify, "flushed": flushed, "check": compare}[what]()
