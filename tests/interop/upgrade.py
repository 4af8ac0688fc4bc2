"""Replaces servers while clients use them. Every case starts its own server and ends it."""

import json
import os
import random
import signal
import subprocess
import time

import rawnbd
from tap import case, check, done

SERVER, ENGINE = os.environ["HW_SERVER"], os.environ["HW_ENGINE"]
DIR, IMAGES, MEMORY = os.environ["HW_DIR"], os.environ["HW_IMAGES"], os.environ["HW_MEMORY"]
UPGRADES = int(os.environ["UPGRADES"])
BLOCK, MIB = 4096, 1 << 20


def until(what, holds, seconds=60, pause=0.005):
    """Waits for a condition; the limit only turns a hang into a failure."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"after {seconds} s still not: {what}"
        time.sleep(pause)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Server:
    """The processes that serve one image, one after the other."""

    def __init__(self, name, *options, kept=True, size=64 * MIB):
        self.image = os.path.join(IMAGES, name + ".img")
        if not os.path.exists(self.image):
            with open(self.image, "wb") as image:
                image.truncate(size)
        self.socket, self.control = os.path.join(DIR, name + ".sock"), os.path.join(DIR, name + ".ctl")
        self.pid_file, self.log = os.path.join(DIR, name + ".pid"), os.path.join(DIR, name + ".log")
        command = [SERVER, "serve", *options, "-U", self.socket, "--control", self.control, "-P", self.pid_file]
        command += ["--engine", ENGINE] + ([] if options and options[0] == "--config" else [self.image])
        environment = {**os.environ, "XDG_RUNTIME_DIR": MEMORY} if kept else without_runtime()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        until("it serves", lambda: os.path.exists(self.pid_file) or self.process.poll() is not None)
        assert self.process.poll() is None, self.said()
        self.pid = self.process.pid

    def said(self):
        with open(self.log) as log:
            return log.read()

    def ctl(self, *words, ok=True):
        answer = subprocess.run([SERVER, "ctl", self.control, *words, "--json"], capture_output=True, text=True, timeout=120)
        assert (answer.returncode == 0) == ok, (words, answer.stdout, answer.stderr, self.said()[-2000:])
        return json.loads(answer.stdout) if ok else answer.stderr

    def upgrade(self):
        answer = self.ctl("upgrade")
        self.follow(answer["pid"])
        return answer

    def follow(self, pid):
        """The first process is this one's child and leaves its status."""
        if self.pid == self.process.pid:
            assert self.process.wait(30) == 0, self.said()[-2000:]
        self.pid = pid
        until("the pid file names the new process", lambda: self.named_pid() == pid)

    def named_pid(self):
        try:
            with open(self.pid_file) as file:
                return int(file.read() or 0)
        except FileNotFoundError:
            return 0

    def client(self, export=b""):
        return rawnbd.Raw(f"nbd+unix:///?socket={self.socket}", 60).go(export)[0]

    def stop(self):
        os.kill(self.pid, signal.SIGTERM)
        if self.pid == self.process.pid:
            assert self.process.wait(60) == 0, self.said()[-2000:]
        until("it has ended", lambda: not alive(self.pid))
        left = [path for path in (self.socket, self.control, self.pid_file, self.image + ".headworks-dirty") if os.path.exists(path)]
        assert not left, f"a clean stop leaves {left}"

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident(self):
        with open(f"/proc/{self.pid}/status") as status:
            lines = [line.split() for line in status if line.startswith("RssAnon")]
        return int(lines[0][1]) * 1024


def without_runtime():
    return {name: value for name, value in os.environ.items() if name not in ("XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY")}


def bench(server, *options):
    command = [SERVER, "bench", "--uri", f"nbd+unix:///?socket={server.socket}", "--json", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@case
def under_load():
    """64 clients verify every byte through upgrades in a row, and nothing grows"""
    server = Server("load", "--cache", "64M")
    load = bench(server, "--rw", "randrw", "--verify", "--fill", "--threads", "64", "--iodepth", "2", "--size", "48M", "--runtime", f"{3 + UPGRADES}s")
    client = server.client()
    until("the load has begun", lambda: server.ctl("exports")[0]["clients"] == 65)
    descriptors, resident, pauses = [], [], []
    for _ in range(UPGRADES):
        answer = server.upgrade()
        pauses.append(answer["paused_ms"])
        until("all clients are there", lambda: server.ctl("exports")[0]["clients"] == 65)
        descriptors.append(server.descriptors())
        resident.append(server.resident())
    out, err = load.communicate(timeout=120)
    assert load.returncode == 0, (err, server.said()[-3000:])
    # A control client comes and goes, and so do its descriptors.
    assert max(descriptors[1:]) <= descriptors[0] + 4, descriptors
    assert max(resident[1:]) <= resident[0] * 1.25 + 4 * MIB, resident
    helpers = subprocess.run(["pgrep", "-f", f"serve-spawner .*{server.socket}"], capture_output=True, text=True).stdout.split()
    assert len(helpers) == 1, f"one helper of the last process, not {helpers}"
    assert len(os.listdir(MEMORY)) == 1, os.listdir(MEMORY)
    client.write(0, b"x" * BLOCK)
    client.close()
    server.stop()
    with open(server.image, "rb") as image:
        assert image.read(BLOCK) == b"x" * BLOCK
    assert os.listdir(MEMORY) == [], "a clean stop leaves no memory"
    result = json.loads(out)
    print(f"# {UPGRADES} upgrades, paused {min(pauses)} to {max(pauses)} ms; load: {json.dumps(result)[:400]}", flush=True)


@case
def cache_stays_warm():
    """The cache is as warm as before: no block that was cached is read again"""
    server = Server("warm", "--cache", "64M")
    client = server.client()
    for offset in range(0, 32 * MIB, MIB):
        client.read(offset, MIB)
    server.upgrade()
    for offset in range(0, 32 * MIB, MIB):
        client.read(offset, MIB)
    cache = server.ctl("stats")["cache"]
    assert cache["misses"] == 0 and cache["hits"] > 0, cache
    client.close()
    server.stop()


@case
def by_signal():
    """SIGUSR2 does the same; a half-sent request goes on at its next byte"""
    server = Server("signal")
    client = server.client()
    wire = rawnbd.header(rawnbd.WRITE, 7, 0, BLOCK) + b"s" * BLOCK
    client.send(wire[:1000])
    old = server.pid
    os.kill(old, signal.SIGUSR2)
    until("another process serves", lambda: server.named_pid() not in (0, old))
    server.follow(server.named_pid())
    client.send(wire[1000:])
    assert client.reply() == (0, 7)
    assert client.read(0, BLOCK) == b"s" * BLOCK
    client.close()
    server.stop()


@case
def without_memory():
    """Without memory that can be handed over everything is written out first"""
    server = Server("anonymous", kept=False)
    client = server.client()
    client.write(0, b"a" * BLOCK)
    server.upgrade()
    with open(server.image, "rb") as image:
        assert image.read(BLOCK) == b"a" * BLOCK
    assert client.read(0, BLOCK) == b"a" * BLOCK
    client.close()
    server.stop()


@case
def changes_stay():
    """What ctl has changed, and clients of an export that it has added, stay through two upgrades"""
    server = Server("changes")
    other = os.path.join(IMAGES, "changes-other.img")
    server.ctl("add", f"added=file:path={other},size=8M")
    server.ctl("set", "exports/added/weight", "300")
    client = server.client(b"added")
    for byte in (b"1", b"2"):
        client.write(0, byte * BLOCK)
        server.upgrade()
        assert client.read(0, BLOCK) == byte * BLOCK
        rows = {row["name"]: row for row in server.ctl("exports")}
        assert rows["added"]["weight"] == 300 and rows["added"]["dirty"] > 0, rows
    client.close()
    server.stop()
    with open(other, "rb") as image:
        assert image.read(BLOCK) == b"2" * BLOCK


@case
def refused():
    """A process that does not come up changes nothing: the old one says why, and serves on"""
    config = os.path.join(DIR, "refused.toml")
    image = os.path.join(IMAGES, "refused.img")

    def write(text):
        with open(config, "w") as file:
            file.write(text)

    export = f'[[export]]\nname = "disk"\n[export.file]\npath = "{image}"\n'
    write(export)
    server = Server("refused", "--config", config)
    client = server.client(b"disk")
    client.write(0, b"r" * BLOCK)
    for text, expected in (("nonsense = 1\n" + export, "nonsense"), ("[server]\ncache = \"8M\"\n" + export, "restart instead")):
        write(text)
        said = server.ctl("upgrade", ok=False)
        assert expected in said and "the old process serves on" in said, said
        assert client.read(0, BLOCK) == b"r" * BLOCK
        client.write(BLOCK, b"t" * BLOCK)
    write(export)
    server.upgrade()
    assert client.read(BLOCK, BLOCK) == b"t" * BLOCK
    client.close()
    server.stop()


def children(pid):
    """Processes that `pid` has started and not waited for; none if it is gone."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return []


def serves(client, block, data):
    try:
        return client.read(block * BLOCK, BLOCK) == data
    except (EOFError, ConnectionError):
        return False


@case
def killed_meanwhile():
    """kill -9 of the new process at any moment loses nothing: the old one serves on, or the next start has everything"""
    server = Server("killed", "--cache", "32M")
    choice, kept, recovered = random.Random(), 0, 0
    for round_ in range(12):
        client = server.client()
        data = bytes([round_ + 1]) * BLOCK
        client.write(round_ * BLOCK, data)
        (helper,) = children(server.pid)
        os.kill(server.pid, signal.SIGUSR2)
        found = []
        until("the helper has started a process", lambda: found.extend(children(helper)) or found, pause=0)
        (victim,) = found
        time.sleep(choice.uniform(0, 0.05))
        if alive(victim):
            os.kill(victim, signal.SIGKILL)
        # Its end is certain; whether the old process goes on or has left shows when it answers, or has ended.
        until("the victim has ended", lambda: not alive(victim))
        until("the old process has ended, or serves", lambda: not alive(server.pid) or serves(client, round_, data))
        # Either the old process is alive and serves, or it has left and the victim was the server.
        if alive(server.pid):
            kept += 1
            client.close()
            # It serves throughout a preparation; until it has noticed the end a further signal would be refused.
            until("the old process has given up", lambda: server.said().count("upgrade failed") == kept)
            continue
        recovered += 1
        client.close()
        os.path.exists(server.pid_file) and os.remove(server.pid_file)
        server = Server("killed", "--cache", "32M")
        with_all = server.client()
        for block in range(round_ + 1):
            assert with_all.read(block * BLOCK, BLOCK) == bytes([block + 1]) * BLOCK, f"block {block}"
        with_all.close()
    print(f"# of 12 kills the old process served on after {kept}, a new start recovered after {recovered}", flush=True)
    server.stop()


done()
