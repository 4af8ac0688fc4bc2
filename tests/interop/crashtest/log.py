"""A log on a disk. `load` appends records and promises each one, by a line, once it should be durable; `check` looks for what was promised.

With the argument `careless` every fifth record is promised without a flush.
"""

import os
import struct
import sys
import zlib

import nbd

BLOCK, RECORDS = 4096, int(os.environ.get("RECORDS", "20"))


def record(number):
    body = struct.pack("<Q", number) + bytes([number]) * (BLOCK - 12)
    return struct.pack("<I", zlib.crc32(body)) + body


def load(disk, careless):
    for number in range(1, RECORDS + 1):
        disk.pwrite(record(number), number * BLOCK)
        if not careless or number % 5 != 0:
            disk.flush()
        print(number, flush=True)
        # The head of the log is written after every fifth record.
        if number % 5 == 0:
            disk.pwrite(struct.pack("<Q", number).ljust(BLOCK, b"\0"), 0)
            disk.flush()


def check(disk, promises):
    for number in map(int, promises):
        if disk.pread(BLOCK, number * BLOCK) != record(number):
            sys.exit(f"record {number} was promised and is not there")


disk = nbd.NBD()
disk.connect_uri(os.environ["uri"])
if sys.argv[1] == "load":
    load(disk, "careless" in sys.argv)
else:
    check(disk, sys.stdin)
