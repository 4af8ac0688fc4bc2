#!/usr/bin/env python3
"""Verified load on a file: every byte that is read is one that was written last, until the file STOP is there.

  fuse_writer.py FILE SIZE STOP MODEL

Four threads have a part of the file each, which stays open: writes of any length, reads, holes, and fsyncs. What the file must contain is written to MODEL at the end.
Prints the number of operations, or what was wrong.
"""
import ctypes
import os
import random
import sys
import threading

path, size, stop, model = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
THREADS = 4
PART = size // THREADS
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
PUNCH, ZERO, KEEP = 2, 16, 1
wrong, counts, parts = [], [0] * THREADS, [None] * THREADS


def zeroed(fd, mode, offset, length):
    if libc.fallocate(fd, mode | KEEP, offset, length) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def work(number):
    prng, start = random.Random(number), number * PART
    flags = os.O_RDWR | (os.O_DSYNC if number == 0 else 0)
    fd = os.open(path, flags)
    known = bytearray(os.pread(fd, PART, start))
    while len(known) < PART:
        known += os.pread(fd, PART - len(known), start + len(known))
    try:
        while not wrong and not (counts[number] % 16 == 0 and os.path.exists(stop)):
            length = prng.choice([512, 4096, 4096, 12345, 65536, 300000])
            at = prng.randrange(PART - length)
            what = prng.random()
            if what < 0.5:
                data = prng.randbytes(length)
                done = 0
                while done < length:
                    done += os.pwrite(fd, data[done:], start + at + done)
                known[at : at + length] = data
            elif what < 0.9:
                found = b""
                while len(found) < length:
                    found += os.pread(fd, length - len(found), start + at + len(found))
                if found != known[at : at + length]:
                    first = next(i for i in range(length) if found[i] != known[at + i])
                    wrong.append(f"byte {start + at + first} is {found[first]}, not {known[at + first]}")
            elif what < 0.97:
                at, length = at // 4096 * 4096, (length + 4095) // 4096 * 4096
                length = min(length, PART - at)
                zeroed(fd, prng.choice([PUNCH, ZERO]), start + at, length)
                known[at : at + length] = bytes(length)
            else:
                os.fsync(fd)
            counts[number] += 1
        os.fsync(fd)
    except OSError as error:
        wrong.append(f"{error} after {counts[number]} operations")
    os.close(fd)
    parts[number] = known


threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if not wrong:
    with open(model, "wb") as file:
        for part in parts:
            file.write(part)
print(wrong or f"{sum(counts)} operations")
sys.exit(bool(wrong))
