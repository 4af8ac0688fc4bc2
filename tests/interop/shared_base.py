"""Overlays that share what is cached of their base, under clients that know every byte of theirs."""

import json
import os
import random
import signal
import subprocess
import threading
import time

import rawnbd
import tap

SERVER, ENGINE, MEMORY = os.environ["HW_SERVER"], os.environ["HW_ENGINE"], os.environ["HW_MEMORY"]
DIR, IMAGES = os.environ["HW_DIR"], os.environ["HW_IMAGES"]
BLOCK, MIB = 4096, 1 << 20
# The base ends within a block, so that an overlay on it does, too.
SIZE = 8 * MIB + 512
BASE = os.path.join(IMAGES, "golden.img")
# Whatever hangs is a failure of this file.
signal.alarm(150)


def overlay(name, base=BASE):
    path = os.path.join(IMAGES, name + ".hwo")
    subprocess.run([SERVER, "image", "create", "--base", base, path], check=True, stdout=subprocess.DEVNULL)
    return path


class Server:
    """A server of overlays by name, with a cache that holds all of them."""

    def __init__(self, exports, *options, cache="64M"):
        self.socket, self.control = os.path.join(DIR, "s"), os.path.join(DIR, "c")
        self.log, self.pid_file = os.path.join(DIR, "server.log"), os.path.join(DIR, "pid")
        self.uri = "nbd+unix:///?socket=" + self.socket
        command = [SERVER, "serve", "-U", self.socket, "--control", self.control, "-P", self.pid_file]
        command += ["--engine", ENGINE, "--cache", cache, *options]
        command += [f"{name}=overlay:path={path}" for name, path in exports.items()]
        environment = {**os.environ, "XDG_RUNTIME_DIR": MEMORY, "HEADWORKS_CACHE_FILE": "auto"}
        with open(self.log, "wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        limit = time.monotonic() + 20
        # The pid file comes before bases are shared, the announcement after it.
        while not os.path.exists(self.pid_file) or "uri: " not in self.said():
            assert process.poll() is None and time.monotonic() < limit, self.said()
            time.sleep(0.005)
        self.process = process

    def said(self):
        with open(self.log) as log:
            return log.read()

    def connect(self, name):
        return rawnbd.Raw(self.uri).go(name.encode())[0]

    def ctl(self, *words):
        answer = subprocess.run([SERVER, "ctl", self.control, *words], capture_output=True, text=True, timeout=60)
        assert answer.returncode == 0, (words, answer.stderr, self.said()[-2000:])
        return answer.stdout

    def stats(self):
        return json.loads(self.ctl("stats", "--json"))

    def cached(self):
        """Bytes in the cache."""
        line = next(line for line in self.ctl("stats").splitlines() if line.startswith("cache: "))
        return float(line.split()[1]) * MIB

    def read_bytes(self):
        """Bytes that all devices were asked for by reads."""
        return sum(int(line.split()[5]) * 512 for line in self.ctl("diskstats").splitlines())

    def stop(self):
        with open(self.pid_file) as file:
            pid = int(file.read())
        os.kill(pid, signal.SIGTERM)
        limit = time.monotonic() + 20
        while os.path.exists(self.pid_file):
            assert time.monotonic() < limit, self.said()[-2000:]
            time.sleep(0.005)
        if self.process.poll() is None:
            self.process.wait(20)


class Client(threading.Thread):
    """One overlay's client: random changes and reads, each compared with what the overlay must contain."""

    def __init__(self, server, name, number, contents):
        super().__init__(daemon=True)
        self.connection, self.contents = server.connect(name), bytearray(contents)
        self.random, self.number, self.version = random.Random(number), number, 0
        self.stopping, self.failure, self.done = False, None, 0

    def step(self):
        chance = self.random.random()
        offset = self.random.randrange(SIZE // 512) * 512
        length = min(self.random.choice([512, BLOCK, 3 * BLOCK, 128 << 10]), SIZE - offset)
        if chance < 0.15:
            self.version += 1
            # No other client writes such bytes.
            pattern = (self.number << 40 | self.version).to_bytes(8, "big")
            data = (pattern * (length // 8))[:length]
            self.connection.write(offset, data)
            self.contents[offset:offset + length] = data
        elif chance < 0.2:
            self.connection.request(rawnbd.WRITE_ZEROES, 5, offset, length)
            assert self.connection.reply() == (0, 5)
            self.contents[offset:offset + length] = bytes(length)
        elif chance < 0.23:
            self.connection.request(rawnbd.FLUSH, 6, 0, 0)
            assert self.connection.reply() == (0, 6)
        else:
            tap.same_bytes(self.connection.read(offset, length), bytes(self.contents[offset:offset + length]))
        self.done += 1

    def run(self):
        try:
            while not self.stopping:
                self.step()
        except Exception as failure:
            self.failure = failure

    def go_on(self, steps=200):
        """Waits until so many more requests were answered."""
        target = self.done + steps
        while self.done < target and self.failure is None:
            time.sleep(0.005)
        assert self.failure is None, f"client {self.number}: {self.failure!r}"

    def end(self):
        self.stopping = True
        self.join(20)
        assert not self.is_alive() and self.failure is None, f"client {self.number}: {self.failure!r}"
        found = b"".join(self.connection.read(at, min(MIB, SIZE - at)) for at in range(0, SIZE, MIB))
        tap.same_bytes(found, bytes(self.contents))
        return bytes(self.contents)


chance = random.Random(1)
golden = chance.randbytes(SIZE)
with open(BASE, "wb") as file:
    file.write(golden)


@tap.case
def once_for_all():
    """twenty overlays: their base is read once and cached once, also after some were changed"""
    names = [f"a{number}" for number in range(20)]
    server = Server({name: overlay(name) for name in names})
    for name in names:
        connection = server.connect(name)
        for at in range(0, SIZE, MIB):
            tap.same_bytes(connection.read(at, min(MIB, SIZE - at)), golden[at:at + MIB])
        connection.close()
    read, cached = server.read_bytes(), server.cached()
    assert SIZE <= read < 1.05 * SIZE, read
    assert cached < 1.1 * SIZE, cached
    for number, name in enumerate(names):
        connection = server.connect(name)
        connection.write(number * 64 * BLOCK, bytes([number + 1]) * BLOCK)
        connection.close()
    for number, name in enumerate(names):
        connection = server.connect(name)
        for other in range(20):
            at = other * 64 * BLOCK
            expected = bytes([number + 1]) * BLOCK if other == number else golden[at:at + BLOCK]
            tap.same_bytes(connection.read(at, BLOCK), expected)
        connection.close()
    assert server.read_bytes() < 1.05 * SIZE, "a changed block was not read before"
    server.stop()


@tap.case
def every_byte():
    """eight clients know every byte, through snapshots, upgrades, overlays that are added and removed; the base stays as it was"""
    names = [f"b{number}" for number in range(8)]
    server = Server({name: overlay(name) for name in names})
    clients = [Client(server, name, number + 1, golden) for number, name in enumerate(names)]
    for client in clients:
        client.start()
    for turn in range(3):
        for client in clients:
            client.go_on()
        server.ctl("snapshot", names[turn], f"kept{turn}.hwo")
        server.ctl("add", f"later{turn}=overlay:path=" + overlay(f"later{turn}"))
        late = Client(server, f"later{turn}", 100 + turn, golden)
        late.start()
        late.go_on()
        if turn == 1:
            server.ctl("upgrade")
        late.go_on()
        late.end()
        late.connection.close()
        server.ctl("remove", f"later{turn}", "--force")
    for client in clients:
        client.go_on()
    finals = [client.end() for client in clients]
    server.stop()
    # Without a cache: what the files contain.
    server = Server({name: os.path.join(IMAGES, name + ".hwo") for name in names}, cache="0")
    for name, final in zip(names, finals):
        # An overlay is of whole blocks.
        connection, size = rawnbd.Raw(server.uri).go(name.encode())
        found = b"".join(connection.read(at, min(MIB, size - at)) for at in range(0, size, MIB))
        tap.same_bytes(found[:SIZE], final)
    server.stop()
    with open(BASE, "rb") as file:
        tap.same_bytes(file.read(), golden)


@tap.case
def last_one_closes_the_base():
    """the base is closed with the last overlay on it, and shared again by the next one"""
    server = Server({"keep": overlay("keep")}, "--shards", "2")
    base = os.path.join(IMAGES, "other.img")
    with open(base, "wb") as file:
        file.write(golden)

    def is_open():
        pid = int(open(server.pid_file).read())
        links = (os.path.join(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd"))
        return base in [os.readlink(link) for link in links if os.path.islink(link)]

    paths = [overlay("one", base), overlay("two", base)]
    for _ in range(2):
        for name, path in zip(["one", "two"], paths):
            server.ctl("add", f"{name}=overlay:path={path}")
            connection = server.connect(name)
            tap.same_bytes(connection.read(0, MIB), golden[:MIB])
            connection.close()
        server.ctl("remove", "one", "--force")
        assert is_open()
        connection = server.connect("two")
        tap.same_bytes(connection.read(MIB, MIB), golden[MIB:2 * MIB])
        connection.close()
        server.ctl("remove", "two", "--force")
        assert not is_open(), server.said()[-2000:]
    server.stop()


tap.done()
