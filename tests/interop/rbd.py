"""Clients of an export that is an image of a cluster.

  rbd.py records SOCKET STOP     writes and reads blocks until the file STOP is there; every byte and every answer is right
  rbd.py shut-out SOCKET READY   writes until an error is heard; says READY by a file after the first write
  rbd.py dirty SOCKET            writes 64 KiB and leaves without a flush
"""
import os
import sys
import time

import nbd

BLOCK = 4096
PLACES = 1024


def connect(socket):
    client = nbd.NBD()
    client.connect_uri(f"nbd+unix:///?socket={socket}")
    return client


def touch(path):
    open(path, "w").close()


def records(socket, stop):
    client = connect(socket)
    count, longest = 0, 0.0
    while not os.path.exists(stop):
        place = count % PLACES * BLOCK
        block = count.to_bytes(8, "big") * (BLOCK // 8)
        began = time.monotonic()
        client.pwrite(block, place)
        if client.pread(BLOCK, place) != block:
            print(f"not ok - record {count} is read as it was written")
            sys.exit(1)
        longest = max(longest, time.monotonic() - began)
        count += 1
    client.flush()
    # The last record of each place, at the end.
    for index in range(max(0, count - PLACES), count):
        place = index % PLACES * BLOCK
        if client.pread(BLOCK, place) != index.to_bytes(8, "big") * (BLOCK // 8):
            print(f"not ok - record {index} is there at the end")
            sys.exit(1)
    print(f"ok - records are right ({count}, the longest wait {longest:.1f} s)")
    client.shutdown()


def shut_out(socket, ready):
    client = connect(socket)
    limit = time.monotonic() + 60
    written = 0
    while time.monotonic() < limit:
        try:
            client.pwrite(b"A" * BLOCK, written % PLACES * BLOCK)
        except nbd.Error as error:
            print(f"ok - a client hears it: {error.errno}")
            break
        written += 1
        if written == 1:
            touch(ready)
    else:
        print("not ok - a client hears it")
        sys.exit(1)
    for what, call in [("a flush", client.flush), ("a read", lambda: client.pread(BLOCK, 0)),
                       ("a write", lambda: client.pwrite(b"A" * BLOCK, 0))]:
        try:
            call()
            print(f"not ok - {what} fails after that")
            sys.exit(1)
        except nbd.Error:
            print(f"ok - {what} fails after that")


def dirty(socket):
    client = connect(socket)
    client.pwrite(b"D" * (64 << 10), 0)
    print("ok - a write into the cache")
    client.shutdown()


if __name__ == "__main__":
    {"records": records, "shut-out": shut_out, "dirty": dirty}[sys.argv[1]](*sys.argv[2:])
