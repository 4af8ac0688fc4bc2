"""The client of benches/shared-base.sh, and its table.

    shared_base.py client SERVER SOCKET PID BASE GUESTS CONTROL    lines of SERVER, CELL, VALUE
    shared_base.py forget BASE                                     takes a file out of the kernel's page cache
    shared_base.py table RESULTS                                   medians, ranges and goals; MISSED where one is

Cells: `read`, bytes that came from the disk while all guests booted, and `memory`, bytes of the cache then (Headworks: frames in use; else the
base's pages in the kernel's cache), both over the bytes that a boot touches; `one`, memory after one guest, whose read-ahead brings more than it
asks for; `first`, MiB/s that the first guest reads from the disk; `boots`, MiB/s of all others;
`second`, the same after each has written; `written`, memory then, over what a boot touches and what was written.
"""

import collections
import os
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "interop"))
import rawnbd  # noqa: E402

BLOCK, MIB, DEPTH = 4096, 1 << 20, 16


def trace(size):
    """What a boot reads: files of 16 KiB to 2 MiB in random places, each in requests of one size; and the blocks that it touches."""
    chance, requests, touched = random.Random(11), [], set()
    while len(touched) * BLOCK < size // 4:
        length = BLOCK << chance.randrange(2, 10)
        first = chance.randrange((size - length) // BLOCK)
        piece = BLOCK << chance.randrange(0, 6)
        for at in range(first * BLOCK, first * BLOCK + length, piece):
            requests.append((at, min(piece, first * BLOCK + length - at)))
        touched.update(range(first, first + length // BLOCK))
    return requests, touched


def boot(connection, requests):
    """Reads with up to 16 requests in flight, as a guest's kernel does."""
    sent = 0
    sizes = {}
    for _ in range(len(requests)):
        while sent < len(requests) and len(sizes) < DEPTH:
            offset, length = requests[sent]
            connection.request(rawnbd.READ, sent, offset, length)
            sizes[sent] = length
            sent += 1
        error, cookie = connection.reply()
        assert error == 0, error
        left = sizes.pop(cookie)
        while left:
            left -= len(connection.socket.recv(left))


def disk_bytes(pid):
    with open(f"/proc/{pid}/io") as io:
        counts = dict(line.split(": ") for line in io.read().splitlines())
    return int(counts["read_bytes"])


def resident(path):
    """Bytes of a file in the kernel's page cache."""
    said = subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES", path], check=True, capture_output=True, text=True)
    return int(said.stdout)


def frames(control):
    said = subprocess.run([os.environ["HEADWORKS"], "ctl", control, "stats"], check=True, capture_output=True, text=True).stdout
    line = next(line for line in said.splitlines() if line.startswith("cache: "))
    return float(line.split()[1]) * MIB


def client(server, socket, pid, base, guests, control):
    guests = int(guests)
    requests, touched = trace(os.path.getsize(base))
    bytes_, requested = len(touched) * BLOCK, sum(length for _, length in requests)
    connections = [rawnbd.Raw(f"nbd+unix:///?socket={socket}", 120).go(b"g%d" % guest)[0] for guest in range(guests)]
    memory = (lambda: frames(control)) if server.startswith("headworks") else (lambda: resident(base))
    before = disk_bytes(pid)
    began = time.perf_counter()
    boot(connections[0], requests)
    print(server, "first", requested / (time.perf_counter() - began) / MIB, sep="\t")
    print(server, "one", memory() / bytes_, sep="\t")
    began = time.perf_counter()
    for connection in connections[1:]:
        boot(connection, requests)
    took = time.perf_counter() - began
    print(server, "boots", (guests - 1) * requested / took / MIB, sep="\t")
    print(server, "read", (disk_bytes(pid) - before) / bytes_, sep="\t")
    print(server, "memory", memory() / bytes_, sep="\t")
    own = 0
    for guest, connection in enumerate(connections):
        chance = random.Random(guest)
        for _ in range(64):
            # Within what a boot reads, and anywhere.
            at = requests[chance.randrange(len(requests))][0] if chance.random() < 0.5 else chance.randrange(1 << 16) * BLOCK
            connection.write(min(at, os.path.getsize(base) - 4 * BLOCK), chance.randbytes(4 * BLOCK))
            own += 4 * BLOCK
    began = time.perf_counter()
    for connection in connections:
        boot(connection, requests)
    took = time.perf_counter() - began
    print(server, "second", guests * requested / took / MIB, sep="\t")
    if server.startswith("headworks"):
        print(server, "written", memory() / (bytes_ + own), sep="\t")
    for connection in connections:
        connection.close()


def forget(base):
    with open(base, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def table(path):
    values = collections.defaultdict(list)
    for line in open(path):
        server, cell, value = line.split("\t")
        values[server, cell].append(float(value))
    median = {key: statistics.median(each) for key, each in values.items()}
    units = dict.fromkeys(["first", "boots", "second"], "MiB/s")
    for (server, cell), each in sorted(values.items(), key=lambda item: (item[0][1], item[0][0])):
        print(f"{cell:8} {server:10} {median[server, cell]:9.3f} {units.get(cell, 'times'):6} ({min(each):.3f}..{max(each):.3f})")

    def goal(what, value, most):
        print(f"{what}: {value:.3f}, goal <= {most}: {'met' if value <= most else 'MISSED'}")

    goal("the base is read, times what a boot touches", median["headworks", "read"], 1.1)
    goal("memory, times what a boot touches", median["headworks", "memory"], 1.1)
    goal("the same without read-ahead", median["headworks-no-ra", "memory"], 1.1)
    goal("memory of all guests, times that of one", median["headworks", "memory"] / median["headworks", "one"], 1.1)


{"client": client, "forget": forget, "table": table}[sys.argv[1]](*sys.argv[2:])
