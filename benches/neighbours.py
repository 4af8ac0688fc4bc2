#!/usr/bin/env python3
"""Reads of 4 KiB of one export while a client of another prefetches, zeroes or trims a GiB.

  benches/neighbours.py [--binary FILE] [--rounds N] [-- SERVE OPTIONS]

The reader takes 4 KiB of `mem:` again and again, with a pause of 0.2 ms; each round has a second of it alone, and then beside each load: cache
commands of 32 MiB on a sparse image (direct I/O), write-zeroes and trims of an image on tmpfs that is full. A row has the median of the rounds'
medians, 99th percentiles and longest reads in ms, their range, and what the thread of all clients had of a CPU and waited for one. On a busy machine
the last column tells whether a read waited for the thread, or the thread for a CPU. Nothing is asserted: unit tests bound the steps.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "interop"))
import rawnbd  # noqa: E402

GIB = 1 << 30


def shard_times(pid):
    """Milliseconds that the thread ran, and that it waited for a CPU."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/comm") as comm:
            if comm.read().startswith("shard-"):
                with open(f"/proc/{pid}/task/{task}/schedstat") as times:
                    ran, waited, _ = times.read().split()
                return int(ran) / 1e6, int(waited) / 1e6
    raise RuntimeError("no shard")


def connect(sock, name):
    return rawnbd.Raw(f"nbd+unix:///?socket={sock}", 120).go(name.encode())[0]


def commands(sock, name, command, length):
    connection = connect(sock, name)
    for cookie, offset in enumerate(range(0, GIB, length)):
        connection.request(command, cookie, offset, length)
    for _ in range(0, GIB, length):
        error, _ = connection.reply()
        assert error == 0, error
    connection.close()


def reads(sock, load=None):
    """Latencies in ms, for a second, or while the load runs and for half a second after it."""
    connection, times = connect(sock, "neighbour"), []
    thread = threading.Thread(target=load) if load else None
    if thread:
        thread.start()
    end = time.monotonic() + (0.5 if load else 1)
    while time.monotonic() < end or thread and thread.is_alive():
        began = time.perf_counter()
        connection.read(0, 4096)
        times.append((time.perf_counter() - began) * 1e3)
        time.sleep(0.0002)
    connection.close()
    return sorted(times)


def measure(pid, sock, load, row):
    ran, waited = shard_times(pid)
    times = reads(sock, load)
    later = shard_times(pid)
    row.append((times[len(times) // 2], times[len(times) * 99 // 100], times[-1], later[0] - ran, later[1] - waited))


def fill(path):
    with open(path, "r+b") as file:
        for _ in range(GIB >> 24):
            file.write(b"x" * (1 << 24))


def rounds(binary, count, options):
    rows = {}
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as disk, tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        sock, sparse, full = f"{memory}/s", f"{disk}/sparse.img", f"{memory}/full.img"
        for _ in range(count):
            for path in (sparse, full):
                with open(path, "wb") as file:
                    file.truncate(GIB)
            words = [binary, "serve", "-U", sock, *options, f"sparse=file:path={sparse}", f"full=file:path={full},cache=none", "neighbour=mem:size=1M"]
            server = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            while not os.path.exists(sock):
                time.sleep(0.01)
            connect(sock, "neighbour").close()
            loads = {
                "alone": None,
                "cache commands": lambda: commands(sock, "sparse", rawnbd.CACHE, 32 << 20),
                "alone again": None,
                "write-zeroes": lambda: commands(sock, "full", rawnbd.WRITE_ZEROES, GIB),
                "trim": lambda: commands(sock, "full", rawnbd.TRIM, GIB),
            }
            for name, load in loads.items():
                if name in ("write-zeroes", "trim"):
                    fill(full)
                measure(server.pid, sock, load, rows.setdefault(name, []))
            server.terminate()
            server.wait()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/headworks"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("options", nargs="*")
    args = parser.parse_args()
    print(f"{'':16} {'median':>22} {'99 %':>22} {'longest':>24}   thread ran, waited for a CPU")
    for name, row in rounds(args.binary, args.rounds, args.options).items():
        columns = list(zip(*row))
        cells = [f"{statistics.median(column):.2f} ({min(column):.2f}-{max(column):.2f})" for column in columns[:3]]
        ran, waited = (statistics.median(column) for column in columns[3:])
        print(f"{name:16} {cells[0]:>22} {cells[1]:>22} {cells[2]:>24}   {ran:.0f} ms, {waited:.0f} ms")


main()
