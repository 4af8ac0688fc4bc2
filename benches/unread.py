#!/usr/bin/env python3
"""The longest 4 KiB read of a client beside clients that leave replies unread, or read slowly.

  benches/unread.py [--binary FILE] [--server FILE] [--rounds N] [--seconds S] [--paced] [--no-tls | --tls-only] [-- SERVE OPTIONS]

For each engine, in the clear and with TLS: 40, 60 and 100 clients, each with 128 reads of 1 MiB of which it takes nothing; the
same with the reader on another export of weight 1000; 100 clients over TCP that take 100 KB/s each. Two images of 64 MiB are in
the cache. The reader is `headworks bench --rw randread --bs 4k --iodepth 1`; with --paced it reads every 20 ms. A cell is least /
median / most of the rounds' longest reads in ms. `rss` is the most that the server's resident memory grew. The goal is that the
longest read of all rounds takes at most 20 ms; a row beyond it is marked MISSED, and the exit status is 1. The rows "alone" have the
reader without others: what the machine itself adds.
"""

import argparse
import json
import os
import pathlib
import resource
import signal
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/interop"))
sys.dont_write_bytecode = True

from rawnbd import READ, Raw, header

MIB = 1 << 20
IMAGE = 64 * MIB
GOAL_MS = 20
RATE = 100_000


class Client:
    """A client in transmission that asks for reads of 1 MiB and takes as much as it is told to."""

    def __init__(self, address, name, certificates, buffer):
        connected = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connected.settimeout(30)
        connected.connect(address)
        self.socket = Raw("", 30, connected).go(name, certificates=certificates)[0].socket
        self.socket.setblocking(False)
        self.asked, self.got, self.unsent = 0, 0, b""

    def ask(self, most, first):
        """Keeps `most` reads outstanding, as far as the socket takes the requests."""
        while self.asked - self.got // MIB < most:
            self.unsent += header(READ, self.asked, (first + self.asked) * MIB % IMAGE, MIB)
            self.asked += 1
        try:
            while self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass

    def take(self, count):
        try:
            self.got += len(self.socket.recv(count))
        except (BlockingIOError, ssl.SSLWantReadError):
            pass


class Server:
    def __init__(self, binary, engine, certificates, where, images, extra):
        self.log = open(where + "/log", "ab")
        self.path = where + "/socket"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [binary, "serve", "--engine", engine, "-U", self.path, "--stall-timeout", "60s"]
        if certificates:
            command += ["--tls", "require", "--tls-certificates", certificates]
        command += ["-p", str(self.port)]
        command += extra + [f"a=file:path={images[0]}", f"b=file:path={images[1]},weight=1000"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 20
        while not os.path.exists(self.path):
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server did not start: see {where}/log")
            time.sleep(0.02)
        time.sleep(0.1)
        self.certificates = certificates
        self.scheme = "nbds" if certificates else "nbd"

    def uri(self, name, tcp):
        ending = f"?tls-certificates={self.certificates}" if self.certificates else ""
        if tcp:
            return f"{self.scheme}://localhost:{self.port}/{name}{ending}"
        return f"{self.scheme}+unix:///{name}?socket={self.path}" + ending.replace("?", "&") + ("&tls-hostname=localhost" if ending else "")

    def rss(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmRSS"))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def paced_reads(reader, seconds):
    """Reads 4 KiB every 20 ms; the longest read in ms, and the number of reads."""
    reader.socket.settimeout(seconds + 200)
    longest, reads, end = 0, 0, time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        reader.socket.sendall(header(READ, reads, reads * 4096 % IMAGE, 4096))
        reader.receive(16 + 4096)
        longest, reads = max(longest, time.monotonic() - began), reads + 1
        time.sleep(0.02)
    return longest * 1e3, reads


def longest_read(server, binary, seconds, count, links, other, paced=False):
    """The longest read in ms, the number of reads, and how much memory the server has taken since it started."""
    name, address = "b" if other else "a", ("127.0.0.1", server.port) if links else server.path
    uri, stop = server.uri(name, links), threading.Event()
    # Both images into the cache: what is measured is the wait for buffers and for the thread, not for the disk.
    for image in ("a", "b"):
        warm = [binary, "bench", "--uri", server.uri(image, False), "--rw", "read", "--bs", "1M", "--iodepth", "4", "--runtime", "500ms"]
        subprocess.run(warm, check=True, capture_output=True)
    before = server.rss()
    reader = Client(address, name.encode(), server.certificates, MIB) if paced else None
    clients = [Client(address, b"a", server.certificates, 65536 if links else 4096) for _ in range(count)]
    for number, client in enumerate(clients):
        client.ask(16 if links else 128, number)

    def take():
        while not stop.wait(0.1):
            for number, client in enumerate(clients):
                client.take(RATE // 10)
                client.ask(16, number)

    taker = threading.Thread(target=take)
    if links:
        taker.start()
    # The pool is used up, and the first data are old.
    time.sleep(0.3)
    bench = [binary, "bench", "--uri", uri, "--rw", "randread", "--bs", "4k", "--iodepth", "1", "--json", "--runtime", f"{seconds}s"]
    if paced:
        longest, reads = paced_reads(reader, seconds)
        reader.socket.close()
    else:
        done = subprocess.run(bench, capture_output=True, text=True, timeout=seconds + 200)
        if done.returncode:
            sys.exit(f"{' '.join(bench)}: {done.stderr}")
        read = json.loads(done.stdout)["read"]
        longest, reads = read["latency_ns"]["max"] / 1e6, read["ios"]
    rss = server.rss() - before
    stop.set()
    if links:
        taker.join()
    for client in clients:
        client.socket.close()
    return longest, reads, rss


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=str(ROOT / "target/dist/headworks"))
    parser.add_argument("--server", help="another binary as the server, for a comparison")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--no-tls", action="store_true")
    parser.add_argument("--paced", action="store_true", help="the reader reads every 20 ms instead of without a pause")
    parser.add_argument("--tls-only", action="store_true")
    parser.add_argument("serve", nargs="*", help="options of `headworks serve`, after --")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    cases = [(f"{count} unread" if count else "alone", count, False, False) for count in (0, 40, 60, 100)]
    cases += [("40 unread, other export", 40, False, True), ("100 links of 100 KB/s", 100, True, False)]
    missed = False
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as where, tempfile.TemporaryDirectory() as short:
        images = [where + "/a.img", where + "/b.img"]
        for image in images:
            with open(image, "wb") as file:
                for _ in range(IMAGE // MIB):
                    file.write(os.urandom(MIB))
        subprocess.run([str(ROOT / "tests/interop/certificates.sh"), short], check=True, capture_output=True)
        print(f"{'engine':8} {'wire':6} {'beside':26} {'longest read, ms':24} {'reads':>8} {'rss':>9}")
        for engine in ("uring", "threads"):
            for certificates in ([] if options.tls_only else [""]) + ([] if options.no_tls else [short + "/pki"]):
                for label, count, links, other in cases:
                    longest, reads, rss = [], [], []
                    for _ in range(options.rounds):
                        server = Server(options.server or options.binary, engine, certificates, short, images, options.serve)
                        found = longest_read(server, options.binary, options.seconds, count, links, other, options.paced)
                        for values, value in zip((longest, reads, rss), found):
                            values.append(value)
                        server.stop()
                    cell = " / ".join(f"{value:.1f}" for value in (min(longest), statistics.median(longest), max(longest)))
                    # The reader alone shows what the machine adds.
                    verdict = f"  MISSED: {GOAL_MS} ms" if count and max(longest) > GOAL_MS else ""
                    missed |= bool(verdict)
                    wire = "TLS" if certificates else "plain"
                    print(f"{engine:8} {wire:6} {label:26} {cell:24} {min(reads):8} {max(rss):5} MiB{verdict}", flush=True)
    sys.exit(missed)


if __name__ == "__main__":
    main()
