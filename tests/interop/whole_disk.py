"""A terabyte in requests of 4 GiB: the server works through them in pieces, others are served in between, memory stays as it is.

    whole_disk.py URI SERVER [IMAGE]
"""

import os
import sys

import nbd

from tap import case, check, done, same_bytes

URI, SERVER, IMAGE = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
MIB = 1 << 20
MOST = (1 << 32) - 4096
ISLAND = 4 * MIB


def connect():
    handle = nbd.NBD()
    handle.set_strict_mode(0)
    handle.connect_uri(URI)
    return handle


def resident_kib():
    with open(f"/proc/{SERVER}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))


worker, reader = connect(), connect()
SIZE = worker.get_size()
# Bytes here and there, also where two requests meet and at both ends.
ISLANDS = [0, MOST - ISLAND // 2, 77 * MOST, SIZE // 2, SIZE - ISLAND]


def whole_disk(command, name):
    def covered():
        for offset in ISLANDS:
            worker.pwrite(os.urandom(MIB) * 4, offset)
        worker.flush()
        pieces = [(offset, min(MOST, SIZE - offset)) for offset in range(0, SIZE, MOST)]
        errors, memory, served, most = [], resident_kib(), 0, 0

        def completed(error):
            if error.value:
                errors.append(error.value)
            return 1

        for offset, length in pieces:
            command(length, offset, completed)
        while worker.aio_in_flight():
            # One read of somebody else each time that anything may have happened.
            reader.pread(4096, (served * 7919 % (SIZE // MIB)) * MIB)
            served += 1
            most = max(most, resident_kib())
            worker.poll(0)
        print(f"#   {len(pieces)} requests; {served} reads in between; {most - memory} KiB more at the most")
        assert not errors, errors
        assert served > 3, "nobody else was served"
        assert most - memory < 24 * 1024, f"{most - memory} KiB more"
        for offset in ISLANDS:
            same_bytes(reader.pread(ISLAND, offset), bytes(ISLAND))

    covered.__doc__ = f"{name} of {SIZE >> 40} TiB in requests of 4 GiB: done, others are served, memory stays as it is"
    case(covered)


for command, name in [(worker.aio_trim, "trim"), (worker.aio_zero, "zero")]:
    whole_disk(command, name)

if IMAGE:
    used = os.stat(IMAGE[0]).st_blocks * 512
    check("the image uses no space again", used < 2 * MIB, f"{used} bytes")
done()
