#!/usr/bin/env python3
"""Requests of an honest client beside clients of another export that begin writes and do not end them, and beside slow links.

  benches/half.py [--binary FILE] [--engine E,E] [--wire W,W] [--shards N,N] [--case TEXT] [--seconds S] [--weight W] [--json] [-- SERVE OPTIONS]

Export a has the honest client: eight connections, one for reads and one for writes of each of 4 KiB, 64 KiB, 2 MiB and 32 MiB, each with 20 ms
between its requests, in processes of their own. Export b has the others; both are images in memory that the device does not lend. The rows
"nobody" are the honest client alone, the measure of the goals of their engine, wire and shards; "beside writes" have four clients of b that write
1 MiB after the other, whole: they say what half of the device is. Cells: p99 / longest in ms, of reads and writes together; `>` is a request
that had no answer when the row ended. `links`: of what slow links send, the part that is taken. `fast`: writes of 64 KiB of one more client of a
without a pause, as a part of what it makes beside nobody. `buffer`: the longest that one of these requests waited for a buffer, in ms, as the
server counts it (`ctl latency`). `inside`: the longest of them from the turn in which it was complete to the turn that answered it, in ms: what
a client waits beyond that it waits for a processor or its socket. `rss`: by how much the server's memory grew; both images were written before.
Goals: p99 at most twice that beside nobody, longest 250 ms or twice the longest beside nobody, links 0.95, fast 0.9, buffer 25 ms, rss within
--buffers and 64 MiB. A row that misses one is marked, and the exit status is 1.
"""

import argparse
import json
import os
import pathlib
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/interop"))
sys.dont_write_bytecode = True

from half_senders import *  # noqa: E402

KIB = 1 << 10
SIZES = (4 * KIB, 64 * KIB, 2 * MIB, 32 * MIB)
NAMES = ("4K", "64K", "2M", "32M")
IMAGE = 256 * MIB
BUFFERS = 128 * MIB
FIXED = 64 * MIB
# The longest wait for a buffer, in ms.
BUFFER_WAIT = 25.0
# Name, connections, size, sent at once, bytes a second then.
HALVES = [
    ("4 x 32M, 1M sent", 4, 32 * MIB, MIB, 0),
    ("8 x 32M, 1 KiB/s", 8, 32 * MIB, 4 * KIB, KIB),
    ("8 x 32M, all but a byte", 8, 32 * MIB, 32 * MIB - 1, 0),
    ("100 x 8M, 256K sent", 100, 8 * MIB, 256 * KIB, 0),
    ("100 x 1M, all but a byte", 100, MIB, MIB - 1, 0),
    ("130 x 1M, 64 B/s", 130, MIB, 4 * KIB, 64),
]


class Server:
    def __init__(self, options, engine, certificates, shards, where):
        self.path, self.control, self.binary, self.certificates = where + "/socket", where + "/control", options.binary, certificates
        weight = f",weight={options.weight}" if options.weight else ""
        exports = [f"a=error:count=0{weight},of=mem:size=256M", "b=error:count=0,of=mem:size=256M"]
        command = [options.binary, "serve", "--engine", engine, "--shards", str(shards), "--cache", "0", "-U", self.path]
        command += ["--control", self.control]
        if certificates:
            command += ["--tls", "require", "--tls-certificates", certificates]
        with open(where + "/log", "ab") as log:
            self.process = subprocess.Popen(command + options.serve + exports, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while not os.path.exists(self.path):
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"half.py: error: the server did not start: see {where}/log")
            time.sleep(0.02)
        self.uri = f"nbd+unix:///?socket={self.path}"
        for name in (b"a", b"b"):
            allocate(self.uri, name, IMAGE, certificates)

    def longest(self, stage):
        """The longest that a request of export a was in a stage since the server began, in ms."""
        command = [self.binary, "ctl", "--json", self.control, "latency", "a"]
        told = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return max((rows[-1][0] for op in told["ops"].values() if (rows := op["stages"][stage])), default=0.0) / 1e3

    def stop(self):
        self.process.kill()
        self.process.wait()
        for path in (self.path, self.control):
            pathlib.Path(path).unlink(missing_ok=True)


class Worker:
    """An honest client in a process of its own; it writes the times of its requests, as they begin and end, to a pipe."""

    def __init__(self, server, size, write, offset, pause):
        self.size, (self.out, into) = size, os.pipe()
        client = Honest(server.uri, b"a", write, size, offset, server.certificates, timeout=3600)
        self.process = os.fork()
        if self.process:
            client.raw.close()
            os.close(into)
            return
        try:
            while True:
                os.write(into, struct.pack("d", time.monotonic()))
                client.request()
                os.write(into, struct.pack("d", time.monotonic()))
                time.sleep(pause)
        except BaseException as error:
            os.write(2, f"half.py: a request failed: {error}\n".encode())
        finally:
            os._exit(1)

    def end(self):
        """The times of its requests in ms, and how long the last one has been waiting; it is ended."""
        os.kill(self.process, signal.SIGKILL)
        now = time.monotonic()
        os.waitpid(self.process, 0)
        data = b""
        while piece := os.read(self.out, 1 << 16):
            data += piece
        os.close(self.out)
        marks = struct.unpack(f"{len(data) // 8}d", data[: len(data) // 8 * 8])
        times = [(end - begin) * 1e3 for begin, end in zip(marks[::2], marks[1::2])]
        return times, (now - marks[-1]) * 1e3 if len(marks) % 2 else 0.0


def drain(workers, seconds):
    time.sleep(seconds)
    return [worker.end() for worker in workers]


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))]


def honest(server, seconds):
    """For each size: p99, the longest, requests, and whether the longest has no answer yet."""
    workers = [
        Worker(server, size, write, (at * 2 + write) * 32 * MIB, 0.02) for at, size in enumerate(SIZES) for write in (False, True)
    ]
    found, cells = drain(workers, seconds), {}
    for size, name in zip(SIZES, NAMES):
        times, waits = [], 0.0
        for worker, (some, waiting) in zip(workers, found):
            if worker.size == size:
                times += some
                waits = max(waits, waiting)
        longest = max(times, default=0.0)
        # A request that was cut off in time says nothing; one that has waited for longer than any says so.
        stuck = waits > max(longest, 250.0)
        cells[name] = {
            "p99": max(percentile(times, 0.99) if times else 0.0, waits if stuck else 0.0),
            "longest": max(longest, waits if stuck else 0.0),
            "requests": len(times),
            "unanswered": stuck,
        }
    return cells


def fast(server, seconds):
    times, _ = drain([Worker(server, 64 * KIB, True, 0, 0.0)], seconds)[0]
    return len(times) / seconds


def copies(server, where):
    """Six copies of requests of 32 MiB, suspended in the middle."""
    source = where + "/source"
    with open(source, "wb") as file:
        for at in range(240):
            file.write(bytes([at + 1]) * MIB)
    command = ["nbdcopy", "-C", "1", "--requests=4", f"--request-size={32 * MIB}", source, server.uri.replace("///", "///b")]
    running = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(6)]
    time.sleep(0.4)
    for copy in running:
        copy.send_signal(signal.SIGSTOP)
    return running


def row(server, case, options, where):
    """Runs one case; returns what it measured."""
    crowd, running, links, before = None, [], [], rss(server.process.pid)
    kind, label, *numbers = case
    if kind == "half":
        count, size, part, rate = numbers
        crowd = Crowd(half_senders(server.uri, b"b", count, size, part, rate, server.certificates))
    elif kind == "links":
        links = slow_links(server.uri, b"b", *numbers, certificates=server.certificates)
        crowd = Crowd(links)
    elif kind == "writes":
        crowd = Crowd([Sender(connect(server.uri, b"b", server.certificates), MIB, 1 << 60, 0, at * 64 * MIB, repeats=True) for at in range(4)])
    elif kind == "copies":
        running = copies(server, where)
    # They have sent what they send at once; a long burst is a part of what is measured.
    time.sleep(1)
    began, sent = time.monotonic(), sum(link.sent for link in links)
    cells = honest(server, options.seconds)
    found = {"beside": label, "cells": cells, "links": None, "fast": fast(server, max(1, options.seconds / 2))}
    found |= {"buffer": server.longest("buffer"), "inside": server.longest("total")}
    if links:
        took = time.monotonic() - began
        found["links"] = (sum(link.sent for link in links) - sent) / (took * sum(link.rate for link in links))
    found["rss"] = max(0, rss(server.process.pid) - before) >> 20
    if crowd:
        crowd.close()
    for copy in running:
        copy.kill()
        copy.wait()
    return found


def missed(found, alone):
    """The goals that a row misses, in words."""
    if found["beside"] in ("nobody", "writes"):
        return []
    words = []
    for name in NAMES:
        cell, own = found["cells"][name], alone["cells"][name]
        if cell["p99"] > 2 * own["p99"]:
            words.append(f"{name} p99 {cell['p99'] / max(own['p99'], 0.001):.1f}x")
        if cell["longest"] > max(250, 2 * own["longest"]):
            words.append(f"{name} longest")
    if found["links"] is not None and found["links"] < 0.95:
        words.append("links")
    if found["fast"] < 0.9 * alone["fast"]:
        words.append("fast")
    if found["buffer"] > BUFFER_WAIT:
        words.append("buffer")
    if found["rss"] > (BUFFERS + FIXED) >> 20:
        words.append("rss")
    return words


def show(found, alone):
    line = f"{found['engine']:8} {found['wire']:6} {found['shards']:6} {found['beside']:26}"
    for name in NAMES:
        cell = found["cells"][name]
        text = f"{'>' if cell['unanswered'] else ''}{cell['p99']:.1f} / {cell['longest']:.1f}"
        line += f" {text:16}"
    links = "-" if found["links"] is None else f"{found['links']:.2f}"
    line += f" {links:>5} {found['fast'] / max(alone['fast'], 0.001):5.2f}"
    line += f" {found['buffer']:6.1f} {found['inside']:6.1f} {found['rss']:5} MiB"
    print(line + (f"  MISSED: {', '.join(found['missed'])}" if found["missed"] else ""), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/release/headworks"))
    parser.add_argument("--engine", default="uring,threads")
    parser.add_argument("--wire", default="plain,TLS")
    parser.add_argument("--shards", default="1,2")
    parser.add_argument("--case", default="", help="only rows whose name has this text, and nobody")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--weight", type=int, help="the weight of export a")
    parser.add_argument("--json", action="store_true", help="one object a line instead of the table")
    parser.add_argument("serve", nargs="*", help="options of `headworks serve`, after --")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    cases = [("alone", "nobody")] + [("half", *half) for half in HALVES]
    cases += [("links", "200 links of 100 KB/s", 200, 100_000), ("writes", "writes"), ("copies", "6 suspended copies")]
    cases = [case for case in cases if options.case in case[1] or case[1] == "nobody"]
    status = 0
    with tempfile.TemporaryDirectory() as where:
        subprocess.run([str(ROOT / "tests/interop/certificates.sh"), where], check=True, capture_output=True)
        if not options.json:
            print(f"{'engine':8} {'wire':6} {'shards':6} {'beside':26} " + " ".join(f"{name + ', ms':16}" for name in NAMES) + " links  fast buffer inside   rss")
        for engine in options.engine.split(","):
            for wire in options.wire.split(","):
                for shards in options.shards.split(","):
                    alone = None
                    for case in cases:
                        if case[0] == "copies" and wire == "TLS":
                            continue
                        server = Server(options, engine, where + "/pki" if wire == "TLS" else "", shards, where)
                        found = {"engine": engine, "wire": wire, "shards": int(shards)} | row(server, case, options, where)
                        server.stop()
                        alone = alone or found
                        found["missed"] = missed(found, alone)
                        status |= bool(found["missed"])
                        print(json.dumps(found), flush=True) if options.json else show(found, alone)
    sys.exit(status)


if __name__ == "__main__":
    main()
