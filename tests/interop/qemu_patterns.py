"""qemu-io commands by the hundred, drawn from a seed, against a model of the disk.

    qemu_patterns.py SEED URI OTHER

Commands go to URI; what they leave is read from OTHER, another way to the same export, with a program that is not QEMU's.
"""

import random
import re
import subprocess
import sys

from tap import case, done, same_bytes

SEED, URI, OTHER = sys.argv[1:]
MIB, SPAN = 1 << 20, 24 << 20
RANDOM = random.Random(int(SEED))
model = bytearray(SPAN)


def qemu_io(commands):
    """Has one qemu-io do it all, by its standard input; what it says of failures is in its output, not in its status."""
    done = subprocess.run(["qemu-io", "-f", "raw", "-d", "unmap", URI], input="\n".join(commands) + "\n", capture_output=True, text=True, timeout=60)
    said = done.stdout + done.stderr
    bad = [line for line in said.splitlines() if re.search("fail|rror|nvalid|bad argument|requires", line)]
    assert done.returncode == 0 and not bad, f"exit {done.returncode}: {bad[:5]}"
    return said


def extent(most, unit=512):
    length = RANDOM.randrange(1, most // unit) * unit
    return RANDOM.randrange(0, (SPAN - length) // unit) * unit, length


def put(offset, length, byte):
    model[offset : offset + length] = bytes([byte]) * length


def write():
    (offset, length), byte = extent(512 << 10), RANDOM.randrange(1, 256)
    put(offset, length, byte)
    return [f"write {RANDOM.choice(['', '-f '])}-P {byte} {offset} {length}"]


def write_vector():
    """One request of several buffers."""
    lengths = [RANDOM.randrange(1, 64) * 512 for _ in range(RANDOM.randrange(1, 8))]
    offset, byte = extent(512 << 10)[0] // 2, RANDOM.randrange(1, 256)
    offset -= offset % 512
    put(offset, sum(lengths), byte)
    return [f"writev -P {byte} {offset} {' '.join(map(str, lengths))}"]


def write_at_once():
    """Several requests under way that do not overlap; then all are waited for."""
    commands, offset = [], RANDOM.randrange(0, 8) * MIB
    for _ in range(RANDOM.randrange(2, 12)):
        length, byte = RANDOM.randrange(1, 256) * 512, RANDOM.randrange(1, 256)
        put(offset, length, byte)
        commands.append(f"aio_write -q -P {byte} {offset} {length}")
        offset += length + RANDOM.randrange(0, 3) * 512
    RANDOM.shuffle(commands)
    return commands + ["aio_flush"]


def zero():
    offset, length = extent(MIB)
    put(offset, length, 0)
    return [f"write -z {RANDOM.choice(['', '-u ', '-f '])}{offset} {length}"]


def discard():
    """What was discarded reads as anything until it is written again: so it is."""
    offset, length = extent(MIB, 4096)
    byte = RANDOM.randrange(1, 256)
    put(offset, length, byte)
    return [f"discard {offset} {length}", f"write -P {byte} {offset} {length}"]


def flush():
    return ["flush"]


def look():
    """Reads a run of equal bytes, wherever the draw falls."""
    at = RANDOM.randrange(SPAN // 512) * 512
    end = at + 512
    while end < SPAN and end - at < 256 << 10 and model[end : end + 512] == model[at : at + 512]:
        end += 512
    assert len(set(model[at : at + 512])) == 1
    read = RANDOM.choice(["read -P {} {} {}", "readv -P {} {} {}", "aio_read -q -P {} {} {}"])
    return [read.format(model[at], at, end - at)] + (["aio_flush"] if read.startswith("aio") else [])


@case
def _():
    """400 steps of qemu-io: writes of every kind, zeroing, discarding, flushing, and reads that find their pattern"""
    commands = [f"write -z 0 {SPAN}"]
    for _ in range(400):
        commands += RANDOM.choices([write, write_vector, write_at_once, zero, discard, flush, look], [4, 2, 2, 3, 2, 1, 6])[0]()
    said = qemu_io(commands)
    assert len(re.findall(r"^(?:qemu-io> )*(?:read|wrote|discard) ", said, re.MULTILINE)) > 300, said[-500:]


@case
def _():
    """another client, in another way, finds every byte of it"""
    copy = subprocess.run(["nbdcopy", OTHER, "-"], capture_output=True, timeout=60)
    assert copy.returncode == 0, copy.stderr
    same_bytes(copy.stdout[:SPAN], bytes(model))


@case
def _():
    """qemu-io map accounts for the whole disk"""
    said = qemu_io(["map"])
    spans = re.findall(r"\((0x[0-9a-f]+)\) bytes +(?:not )?allocated at offset .* \((0x[0-9a-f]+)\)", said)
    at = 0
    for length, offset in sorted(spans, key=lambda span: int(span[1], 16)):
        assert int(offset, 16) == at, said
        at += int(length, 16)
    assert at == 64 * MIB, said


@case
def _():
    """qemu-io sees a pattern that is not there, so the reads above have looked"""
    offset = next(at for at in range(0, SPAN, 512) if model[at] not in (0, 7))
    try:
        qemu_io([f"read -P 7 {offset} 512"])
    except AssertionError:
        return
    raise AssertionError("a wrong pattern was found")


done()
