"""The client of benches/overlay.sh, and its table.

    overlay.py client SOCKET PID SERVER CELL...    lines of SERVER, CELL, VALUE (and bytes for first writes)
    overlay.py table RESULTS                       medians, ranges and goals; MISSED where one is

Cells, in I/Os per second: `first` writes, each in a cluster of its own; `over`, random writes in 128 MiB that were written before; `read`,
random reads of all, a quarter and some written before (`headworks bench`). In microseconds: `flush-new`, a write of a new block and a
flush; `flush-old`, of one that was written before.
"""

import collections
import json
import os
import random
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "interop"))
import rawnbd  # noqa: E402

BLOCK, CLUSTER, COUNT, DEPTH, FLUSHES = 4096, 128 << 10, 3000, 16, 100


def writes(connection, offsets):
    """I/Os per second."""
    data = random.Random(1).randbytes(BLOCK)
    began, sent = time.perf_counter(), 0
    for done in range(len(offsets)):
        while sent < len(offsets) and sent - done < DEPTH:
            connection.request(rawnbd.WRITE, sent, offsets[sent], BLOCK, data)
            sent += 1
        error, _ = connection.reply()
        assert error == 0, error
    return len(offsets) / (time.perf_counter() - began)


def flushes(connection, offsets):
    """Microseconds of a write and a flush, the median."""
    data, times = random.Random(2).randbytes(BLOCK), []
    for offset in offsets:
        began = time.perf_counter()
        connection.write(offset, data)
        connection.request(rawnbd.FLUSH, 9, 0, 0)
        assert connection.reply() == (0, 9)
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times)


def io_bytes(pid):
    with open(f"/proc/{pid}/io") as io:
        counts = dict(line.split(": ") for line in io.read().splitlines())
    return int(counts["read_bytes"]), int(counts["write_bytes"])


def client(socket, pid, server, *cells):
    connection = rawnbd.Raw(f"nbd+unix:///?socket={socket}", 120).go()[0]
    firsts = [at * CLUSTER for at in range(COUNT)]
    random.Random(3).shuffle(firsts)
    # Beyond the clusters of the first writes.
    new = [COUNT * CLUSTER + at * CLUSTER for at in range(FLUSHES)]

    def bench(*options):
        command = [os.environ["HEADWORKS"], "bench", "--uri", f"nbd+unix:///?socket={socket}", "--iodepth", str(DEPTH), "--runtime", "1s", "--json"]
        run = json.loads(subprocess.run(command + list(options), check=True, capture_output=True).stdout)
        assert not run["errors"], run
        return run["iops"]

    for cell in cells:
        before = io_bytes(pid)
        value = {
            "first": lambda: writes(connection, firsts),
            "over": lambda: bench("--rw", "randwrite", "--overwrite", "--fill", "--size", "128M"),
            "read": lambda: bench("--rw", "randread"),
            "flush-new": lambda: flushes(connection, new),
            "flush-old": lambda: flushes(connection, new),
        }[cell]()
        read, written = (after - old for after, old in zip(io_bytes(pid), before))
        print(server, cell, value, read, written, sep="\t")
    connection.close()


def table(path):
    values, moved = collections.defaultdict(list), {}
    for line in open(path):
        server, cell, value, *bytes_ = line.split("\t")
        values[server, cell].append(float(value))
        moved[server, cell] = [int(count) for count in bytes_]
    median = {key: statistics.median(each) for key, each in values.items()}
    for (server, cell), each in sorted(values.items(), key=lambda item: (item[0][1], item[0][0])):
        bytes_ = ""
        if cell == "first":
            read, written = (count / (1 << 20) for count in moved[server, cell])
            bytes_ = f"   {read:.0f} MiB read, {written:.0f} written"
        unit = {"open": "ms", "flush-new": "us", "flush-old": "us"}.get(cell, "/s")
        print(f"{cell:10} {server:13} {median[server, cell]:10.1f} {unit}  ({min(each):.1f}..{max(each):.1f}){bytes_}")

    def goal(what, value, most=None, least=None):
        met = value <= most if least is None else value >= least
        print(f"{what}: {value:.2f}, goal {'<= ' + str(most) if least is None else '>= ' + str(least)}: {'met' if met else 'MISSED'}")

    def ratio(cell, one, other):
        return median[one, cell] / median[other, cell]

    goal("first writes, times qcow2", ratio("first", "overlay", "qcow2"), least=2.0)
    goal("first writes, times qcow2 with extended L2", ratio("first", "overlay", "qcow2-ext-l2"), least=0.95)
    goal("bytes of first writes, of qcow2's", sum(moved["overlay", "first"]) / sum(moved["qcow2", "first"]), most=round(1 / 15, 3))
    goal("overwrites, times a raw file", ratio("over", "overlay", "raw"), least=0.95)
    goal("reads, times a raw file", ratio("read", "overlay", "raw"), least=0.95)
    goal("a new block and a flush, times a raw sparse file", ratio("flush-new", "overlay", "raw-sparse"), most=2.2)
    goal("an old block and a flush, times a raw sparse file", ratio("flush-old", "overlay", "raw-sparse"), most=1.05)
    goal("open of a TiB with all bits set, ms", median["full-tib", "open"], most=50)


{"client": client, "table": table}[sys.argv[1]](*sys.argv[2:])
