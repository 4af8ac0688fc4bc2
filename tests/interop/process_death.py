"""kill -9 of a server under clients that reconnect and verify every byte.

    process_death.py --server BIN --image PATH --memory DIR --kills N [--engine E] [--clients 16] [--cache 24M] [--seed S]
        [--overlays N] [--mode MODE]

A client owns a part of the image and keeps a journal of what it was told. Every block carries its number and a version, in each
16 bytes; so a block that is not of one version is mixed, and one of an older version than was acknowledged is lost. Clients
write single blocks, runs, and parts of blocks (in sectors, which carry versions of their own), overwrite a few hot blocks all
the time, zero, discard, and send FUA and flushes; up to 16 requests of one client are in flight, never two for one block. When
the connection breaks, what was in flight may be old or new; the client connects again, reads its part back and goes on.
The server is killed at random moments, with its memory in DIR. Exit 0: nothing lost, nothing mixed.

With --overlays the image is the base of a chain of so many, the highest of which is served, and between kills snapshots add more while
clients write. In the end, where no memory has blocks that are not in the files, the chain is flattened after a last kill, and the clients find
their bytes there.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import rawnbd

BLOCK, SECTOR = 4096, 512
BLOCKS = 320  # of one client: the first ones are hot, the last ones written in sectors
HOT, SECTORED = 16, 32
DEPTH = 16
WRITE, FLUSH, TRIM, ZEROES = rawnbd.WRITE, rawnbd.FLUSH, rawnbd.TRIM, rawnbd.WRITE_ZEROES
FUA = 1
ANY = "any version so far"


def stamp(unit, version, length):
    return struct.pack(">QQ", unit, version) * (length // 16) if version else bytes(length)


class Unit:
    """A block, or a sector of a sectored block: what it may contain."""

    __slots__ = ("number", "length", "may", "new", "busy")

    def __init__(self, number, length):
        self.number, self.length = number, length
        self.may, self.new, self.busy = {0}, set(), False

    def version(self, data):
        number, version = struct.unpack_from(">QQ", data)
        if data == stamp(self.number, version, self.length):
            return version
        return 0 if not any(data) else None


class Client:
    def __init__(self, index, path, seed, sectored):
        self.plain = BLOCKS - sectored
        self.path, self.random = path, random.Random(seed * 1000 + index)
        self.base = index * BLOCKS
        self.units = []
        for block in range(BLOCKS):
            if block < self.plain:
                self.units.append([Unit((self.base + block) * 8, BLOCK)])
            else:
                self.units.append([Unit((self.base + block) * 8 + at, SECTOR) for at in range(8)])
        self.next, self.done, self.checked, self.connection = 1, 0, 0, None

    def connect(self, deadline):
        while True:
            try:
                self.connection, _ = rawnbd.Raw(f"nbd+unix:///?socket={self.path}", 60).go()
                return True
            except (OSError, EOFError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def verify(self):
        """Reads everything back; what is found is what it is from now on."""
        for first in range(0, BLOCKS, 32):
            data = self.read((self.base + first) * BLOCK, 32 * BLOCK)
            for block in range(first, first + 32):
                at = (block - first) * BLOCK
                for unit in self.units[block]:
                    self.check(unit, data[at : at + unit.length], block)
                    at += unit.length

    def read(self, offset, length):
        self.connection.request(rawnbd.READ, 7, offset, length)
        error, _ = self.connection.reply()
        assert error == 0, f"a read failed: {error}"
        return self.connection.receive(length)

    def check(self, unit, data, block):
        version = unit.version(data)
        may = unit.may | unit.new
        self.checked += 1
        if version is None:
            found = sorted({struct.unpack_from(">QQ", data, at) for at in range(0, len(data), 16)})
            raise AssertionError(f"MIXED: block {self.base + block} has {found[:6]}, may have {sorted(map(str, may))}")
        if version not in may and not (ANY in may and version < self.next):
            raise AssertionError(f"LOST: block {self.base + block} has version {version}, may have {sorted(map(str, may))}")
        unit.may, unit.new, unit.busy = {version}, set(), False

    def batch(self):
        """Requests for blocks that nothing is in flight for: (bytes to send, cookie, units, what they may be after)."""
        wire, sent = [], []
        for cookie in range(self.random.randrange(1, DEPTH + 1)):
            kind, flags = self.random.random(), FUA if self.random.random() < 0.02 else 0
            if kind < 0.01:
                wire.append(rawnbd.header(FLUSH, cookie, 0, 0))
                sent.append((cookie, [], None))
                continue
            block = self.random.randrange(HOT if kind < 0.5 else BLOCKS)
            count = 1 if kind < 0.8 else self.random.randrange(1, 17)
            if block >= self.plain:
                units, offset = self.sectors(block)
            else:
                blocks = range(block, min(block + count, self.plain))
                units = [unit for block in blocks for unit in self.units[block]]
                offset = (self.base + block) * BLOCK
            if any(unit.busy for unit in units):
                continue
            length = sum(unit.length for unit in units)
            for unit in units:
                unit.busy = True
            if kind > 0.97:
                wire.append(rawnbd.header(TRIM, cookie, offset, length, flags))
                after = None
                for unit in units:
                    unit.new = {0, ANY}
            elif kind > 0.93:
                wire.append(rawnbd.header(ZEROES, cookie, offset, length, flags))
                after = 0
                for unit in units:
                    unit.new = {0}
            else:
                after, self.next = self.next, self.next + 1
                wire.append(rawnbd.header(WRITE, cookie, offset, length, flags))
                wire += [stamp(unit.number, after, unit.length) for unit in units]
                for unit in units:
                    unit.new = {after}
            sent.append((cookie, units, after))
        return b"".join(wire), sent

    def sectors(self, block):
        first = self.random.randrange(8)
        last = self.random.randrange(first, 8)
        return self.units[block][first : last + 1], (self.base + block) * BLOCK + first * SECTOR

    def work(self):
        data, sent = self.batch()
        self.connection.send(data)
        waiting = {cookie: (units, after) for cookie, units, after in sent}
        while waiting:
            error, cookie = self.connection.reply()
            assert error == 0, f"a request failed: {error}"
            units, after = waiting.pop(cookie)
            self.done += 1
            for unit in units:
                # A discard leaves zeros, or what was there.
                unit.may = unit.may | {0} if after is None else {after}
                unit.new, unit.busy = set(), False

    def run(self, stop):
        breaks = 0
        while True:
            self.connect(time.monotonic() + 60)
            try:
                self.verify()
                while not stop.is_set():
                    self.work()
                self.verify()
                return self.done, self.checked, breaks
            except (OSError, EOFError):
                breaks += 1
            finally:
                self.connection.close()


def client(index, path, seed, sectored, stop, results):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    one = Client(index, path, seed, sectored)
    try:
        results.put((index, *one.run(stop), None))
    except Exception as error:  # told to the parent, which ends the test
        results.put((index, one.done, one.checked, 0, f"client {index}: {type(error).__name__}: {error}"))


class Server:
    def __init__(self, arguments):
        self.arguments, self.log = arguments, arguments.image + ".log"
        self.socket, self.control, self.served = arguments.socket, arguments.image + ".ctl", arguments.image
        self.process = None

    def make_chain(self):
        for number in range(self.arguments.overlays):
            new = f"{self.arguments.image}.{number}.hwo"
            self.image("create", "--base", self.served, new)
            self.served = new

    def image(self, *arguments):
        subprocess.run([self.arguments.server, "image", *arguments], check=True, stdout=subprocess.DEVNULL)

    def snapshot(self, number):
        command = [self.arguments.server, "ctl", self.control, "snapshot", "default", f"kept-{number}.hwo"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def start(self):
        a = self.arguments
        spec = f"overlay:path={self.served}" if a.overlays else f"file:path={self.served}"
        command = [a.server, "serve", f"{spec},cache={a.mode}", "--control", self.control, "-U", self.socket, "--engine", a.engine, "--cache", a.cache]
        command += ["--cache-file", os.path.join(a.memory, "cache"), "--buffers", "64M", *a.extra]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_up(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with open(self.log, "rb") as log:
                text = log.read()
            if b"uri: " in text:
                return text.decode()
            if self.process.poll() is not None:
                # A busy kernel closes the files of a killed server later than the server is patient.
                if b"in use by another process" not in text:
                    break
                self.start()
            time.sleep(0.002)
        raise SystemExit(f"not ok - the server does not start: {text.decode()}")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(120)


def flat_differs(server):
    """Kills the server and flattens what it served; it is started again. Returns what is wrong."""
    path, flat = server.socket, server.arguments.image + ".flat"
    connection, _ = rawnbd.Raw(f"nbd+unix:///?socket={path}", 60).go()
    connection.write(0, b"first   " * (BLOCK // 8))
    size = server.arguments.clients * BLOCKS * BLOCK
    seen = b"".join(connection.read(at, min(1 << 20, size - at)) for at in range(0, size, 1 << 20))
    connection.close()
    server.kill()
    server.image("flatten", server.served, flat)
    with open(flat, "rb") as file:
        same = file.read() == seen
    os.unlink(flat)
    server.start()
    server.wait_up()
    return [] if same else ["a chain that is flattened after a kill has other bytes than clients saw"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--image", required=True)
    parser.add_argument("--memory", required=True)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--engine", default="uring")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--cache", default="24M")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest", type=float, default=0.25, help="seconds from a start to its kill")
    parser.add_argument("--overlays", type=int, default=0, help="overlays over the image, the highest of which is served")
    parser.add_argument("--mode", default="writeback", choices=["writeback", "stream", "writethrough", "none"])
    parser.add_argument("extra", nargs="*", help="more arguments of serve")
    a = parser.parse_args()
    with open(a.image, "wb") as image:
        image.truncate(a.clients * BLOCKS * BLOCK)
    server, rng = Server(a), random.Random(a.seed)
    server.make_chain()
    # Eight layers are the most.
    snapshots = {a.kills * (number + 1) // 6 for number in range(8 - a.overlays)} if a.overlays else set()
    server.start()
    server.wait_up()
    stop, results = multiprocessing.Event(), multiprocessing.Queue()
    # Without a cache an overlay takes whole blocks.
    sectored = 0 if a.overlays and a.mode == "none" else SECTORED
    start = (a.socket, a.seed, sectored, stop, results)
    clients = [multiprocessing.Process(target=client, args=(index, *start)) for index in range(a.clients)]
    for one in clients:
        one.start()
    restored, failures = 0, []
    for number in range(a.kills):
        time.sleep(rng.uniform(0.01, a.longest))
        if number in snapshots:
            server.snapshot(number)
            time.sleep(rng.uniform(0.01, a.longest))
        server.kill()
        if not results.empty():
            break
        server.start()
        restored += "restored" in server.wait_up()
    stop.set()
    done = checked = breaks = 0
    for _ in clients:
        _, requests, units, broke, error = results.get(timeout=120)
        done, checked, breaks = done + requests, checked + units, breaks + broke
        failures += [error] if error else []
    for one in clients:
        one.join()
    if a.overlays and a.mode in ("writethrough", "none") and not failures:
        failures += flat_differs(server)
    status = server.stop()
    left = os.listdir(a.memory) + [name for name in os.listdir(os.path.dirname(a.image)) if ".headworks-" in name]
    what = f"{a.kills} kills, {restored} starts restored data, {breaks} connections broke, {done} requests, {checked} units checked"
    for failure in failures[:5]:
        print(f"not ok - {failure}")
    name = f"{a.mode}, a chain of {a.overlays} overlays" if a.overlays else a.mode
    print(f"{'not ok' if failures else 'ok'} - {name}: no acknowledged write lost and no block mixed: {what}")
    restores = a.mode != "writeback" or restored or not a.kills
    if a.mode == "writeback":
        print(f"{'ok' if restores else 'not ok'} - a killed server left data to restore")
    print(f"{'ok' if status == 0 else 'not ok'} - the last server stops with 0")
    print(f"{'not ok' if left else 'ok'} - a clean stop leaves no memory, mark or recovery file {left or ''}")
    return 1 if failures or status or left or not restores else 0


if __name__ == "__main__":
    sys.exit(main())
