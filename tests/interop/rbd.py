"""Clients of an export that is an image of a cluster.

  rbd.py records SOCKET STOP     writes and reads blocks until the file STOP is there; every byte and every answer is right
  rbd.py shut-out SOCKET READY   writes until an error is heard; says READY by a file after the first write
  rbd.py void SOCKET READY       reads what is cached until that is refused, and all else is
  rbd.py dirty SOCKET            writes 64 KiB and leaves without a flush
  rbd.py stuck SOCKET READY      writes and flushes 256 KiB, says so by a file; with READY.go there sends reads and writes elsewhere,
                                 and waits until the server closes the connection
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


def void(socket, ready):
    """Reads what the cache holds until that is refused, which takes the server some seconds to find out; then all is."""
    client = connect(socket)
    client.pread(16 * BLOCK, 0)
    client.pwrite(b"A" * BLOCK, 64 * BLOCK)
    touch(ready)
    limit = time.monotonic() + 60
    try:
        while time.monotonic() < limit:
            client.pread(BLOCK, 0)
            time.sleep(0.01)
        print("not ok - what is cached is not read for ever")
        sys.exit(1)
    except nbd.Error as error:
        print(f"ok - what is cached is not read any more: {error.errno}")
    for what, call in [("a cached read", lambda: client.pread(BLOCK, 64 * BLOCK)), ("a write into the cache", lambda: client.pwrite(b"A" * BLOCK, 0)),
                       ("a flush", client.flush)]:
        try:
            call()
            print(f"not ok - {what} fails, too")
            sys.exit(1)
        except nbd.Error:
            print(f"ok - {what} fails, too")


def dirty(socket):
    client = connect(socket)
    client.pwrite(b"D" * (64 << 10), 0)
    print("ok - a write into the cache")
    client.shutdown()


def stuck(socket, ready):
    client = connect(socket)
    client.pwrite(b"F" * (256 << 10), 0)
    client.flush()
    touch(ready)
    while not os.path.exists(ready + ".go"):
        time.sleep(0.01)
    memory = [nbd.Buffer.from_bytearray(bytearray(b"U" * BLOCK)) for _ in range(64)]
    failed = []

    def heard(error):
        failed.append(error.value)
        return 1

    for index, buffer in enumerate(memory):
        call = client.aio_pwrite if index % 2 else client.aio_pread
        call(buffer, (1 << 20) + index * BLOCK, completion=heard)
    try:
        while not client.aio_is_closed() and not client.aio_is_dead():
            client.poll(60_000)
    except nbd.Error:
        pass
    answered = failed.count(0)
    print(f"{'not ok' if answered else 'ok'} - no operation of a stopped OSD succeeds ({answered} did)")


if __name__ == "__main__":
    {"records": records, "shut-out": shut_out, "void": void, "dirty": dirty, "stuck": stuck}[sys.argv[1]](*sys.argv[2:])
