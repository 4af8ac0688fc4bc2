"""Exports behind other NBD servers. Every case starts its own remote and its own server, and ends both."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import rawnbd
import tap
from tap import done, same_bytes

SERVER, ENGINE = os.environ["HW_SERVER"], os.environ["HW_ENGINE"]
DIR, IMAGES = os.environ["HW_DIR"], os.environ["HW_IMAGES"]
MIB = 1 << 20
SIZE = 32 * MIB
EIO, EPERM, SHUTDOWN = 5, 1, 108


RUNNING = []


def case(function):
    """A check, after which nothing runs."""
    tap.case(function)
    for one in RUNNING:
        one.make_sure()
    RUNNING.clear()
    return function


def until(what, holds, seconds=60, pause=0.01):
    """Waits for a condition; the limit only turns a hang into a failure."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"after {seconds} s still not: {what}"
        time.sleep(pause)


class Remote:
    """A server that serves one image file on one unix socket, until it is killed, and again."""

    def __init__(self, name, kind, *options, size=SIZE):
        self.kind, self.options = kind, options
        self.image, self.socket = os.path.join(IMAGES, name + ".img"), os.path.join(DIR, name + ".remote")
        with open(self.image, "wb") as image:
            image.truncate(size)
        self.process = None
        RUNNING.append(self)
        self.start()

    def command(self):
        if self.kind == "qemu-nbd":
            return ["qemu-nbd", "-f", "raw", "-t", "-x", "", "-k", self.socket, *self.options, self.image]
        if self.kind == "nbdkit":
            return ["nbdkit", "-f", "-U", self.socket, *self.options, "file", self.image]
        # Its clients keep what it has not flushed, and nobody else uses it: a loss of its memory is none.
        spec = f"file:path={self.image},on-unclean=serve"
        return [SERVER, "serve", "--engine", ENGINE, "-U", self.socket, "--cache", "0", *self.options, spec]

    def start(self):
        with open(os.path.join(DIR, "remotes.log"), "ab") as log:
            if os.path.exists(self.socket):
                os.unlink(self.socket)
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        # A connection that is only tried takes the one place of a qemu-nbd for a moment.
        until(f"{self.kind} serves", lambda: os.path.exists(self.socket) or self.process.poll() is not None)
        assert self.process.poll() is None, open(os.path.join(DIR, "remotes.log")).read()

    def kill(self, by=signal.SIGKILL):
        self.process.send_signal(by)
        self.process.wait(30)

    def signal(self, number):
        self.process.send_signal(number)

    def uri(self, scheme="nbd+unix"):
        return f"{scheme}:///?socket={self.socket}"

    def bytes(self, offset=0, length=SIZE):
        with open(self.image, "rb") as image:
            image.seek(offset)
            return image.read(length)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill(signal.SIGTERM)


    def make_sure(self):
        if self.process.poll() is None:
            self.kill()


class Server:
    """headworks in front of remotes."""

    def __init__(self, name, *specs, options=(), cache="16M"):
        self.socket, self.control = os.path.join(DIR, name + ".sock"), os.path.join(DIR, name + ".ctl")
        self.pid_file, self.log = os.path.join(DIR, name + ".pid"), os.path.join(DIR, name + ".log")
        command = [SERVER, "serve", "--engine", ENGINE, "--cache", cache, "-U", self.socket, "--control", self.control]
        command += ["-P", self.pid_file, "--metrics", "127.0.0.1:0", *options, *specs]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until("it serves", lambda: os.path.exists(self.pid_file) or self.process.poll() is not None)
        assert self.process.poll() is None, self.said()
        self.pid = self.process.pid
        RUNNING.append(self)

    def make_sure(self):
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
            until("it has ended", lambda: not self.alive())
        for path in (self.socket, self.control, self.pid_file, self.log):
            if os.path.exists(path):
                os.unlink(path)

    def said(self):
        with open(self.log) as log:
            return log.read()

    def ctl(self, *words, ok=True):
        answer = subprocess.run([SERVER, "ctl", self.control, *words, "--json"], capture_output=True, text=True, timeout=120)
        assert (answer.returncode == 0) == ok, (words, answer.stdout, answer.stderr, self.said()[-2000:])
        return json.loads(answer.stdout) if ok else answer.stderr

    def told(self, *words):
        return subprocess.run([SERVER, "ctl", self.control, *words], capture_output=True, text=True, timeout=60).stdout

    def remote(self, index=0):
        return self.ctl("exports")[index]["remote"]

    def client(self, export=b""):
        return rawnbd.Raw(f"nbd+unix:///?socket={self.socket}", 60).go(export)[0]

    def uri(self, export=""):
        return f"nbd+unix:///{export}?socket={self.socket}"

    def alive(self):
        try:
            with open(f"/proc/{self.pid}/stat") as stat:
                return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def stop(self, status=0, seconds=30):
        os.kill(self.pid, signal.SIGTERM)
        if self.pid == self.process.pid:
            found = self.process.wait(seconds)
            assert found == status, (found, self.said()[-2000:])
        until("it has ended", lambda: not self.alive(), seconds)
        assert "panicked" not in self.said(), self.said()


def status(client, command, offset=0, length=0, data=b"", flags=0):
    client.request(command, 5, offset, length, data, flags)
    error, cookie = client.reply()
    assert cookie == 5
    return error


def run(*command, ok=True):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode == 0) == ok, (command, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout if ok else done.stderr


def load(server, seconds, *options):
    command = [SERVER, "bench", "--uri", server.uri(), "--json", "--overwrite", "--rw", "randrw", "--verify", "--fill"]
    command += ["--threads", "4", "--iodepth", "8", "--size", "24M", "--runtime", f"{seconds}s", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def begun(process, server):
    """Until the load is there. On a slow machine it may have ended before it is seen: then what follows meets none."""
    until("the load has begun", lambda: server.ctl("exports")[0]["clients"] >= 4 or process.poll() is not None)


def ended_well(process, server):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, (err[-2000:], server.said()[-3000:])
    return json.loads(out)


def hostile():
    """Starts servers in front of remotes that hang up, send garbage or never answer; returns what waits for them."""
    def served(name, talk):
        path = os.path.join(DIR, name)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(8)

        def accept():
            while True:
                try:
                    talk(listener.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        return path

    kept = []
    cases = {
        "hangs-up": lambda client: client.close(),
        "garbage": lambda client: client.sendall(random.Random(3).randbytes(4096)),
        "silent": kept.append,
    }
    attempts = []
    for name, talk in cases.items():
        uri = f"nbd+unix:///?socket={served(name, talk)}"
        command = [SERVER, "serve", "-U", os.path.join(DIR, "never"), f"nbd:uri={uri}"]
        attempts.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def refused():
        """remotes that hang up, send garbage or never answer are refused in one line, in time"""
        for attempt in attempts:
            _, said = attempt.communicate(timeout=40)
            assert attempt.returncode != 0 and said.count("\n") == 1, said

    return refused


REFUSED = hostile() if ENGINE == "uring" else None
KINDS = [kind for kind in ("qemu-nbd", "nbdkit") if shutil.which(kind)] + ["headworks"]
# The other engine differs in how it watches sockets, not in what servers say.
EACH = KINDS if ENGINE == "uring" else KINDS[-1:]
if "nbdkit" not in KINDS:
    print("skip - nbdkit as a remote # there is no nbdkit: apt-get install nbdkit")


def contents(kind):
    """contents and block status are the remote's"""
    remote = Remote("contents", kind)
    server = Server("contents", f"nbd:uri={remote.uri()}")
    source, copy = os.path.join(DIR, "source"), os.path.join(DIR, "copy")
    with open(source, "wb") as file:
        file.write(random.Random(7).randbytes(8 * MIB) + bytes(16 * MIB) + random.Random(8).randbytes(8 * MIB))
    run("nbdcopy", "--flush", source, server.uri())
    with open(source, "rb") as file:
        wanted = file.read()
    same_bytes(remote.bytes(), wanted)
    run("nbdcopy", server.uri(), copy)
    with open(copy, "rb") as file:
        same_bytes(file.read(), wanted)
    run("qemu-io", "-f", "raw", "-c", "write -z 1M 3M", "-c", "discard 5M 1M", "-c", "write -P 9 7M 64k", "-c", "write -f -P 8 31M 512", "-c", "flush", server.uri())
    # A discard may keep the data.
    zeroed = remote.bytes()
    assert zeroed[MIB : 4 * MIB] == bytes(3 * MIB) and zeroed[7 * MIB : 7 * MIB + 65536] == b"\x09" * 65536
    assert zeroed[31 * MIB : 31 * MIB + 512] == b"\x08" * 512
    assert zeroed[: MIB] == wanted[: MIB] and zeroed[8 * MIB : 31 * MIB] == wanted[8 * MIB : 31 * MIB]
    server.stop()
    # Block status without a cache is the remote's.
    server = Server("contents", f"nbd:uri={remote.uri()}", cache="0")
    ours = json.loads(run("nbdinfo", "--json", "--map", server.uri()))
    server.stop()
    theirs = json.loads(run("nbdinfo", "--json", "--map", remote.uri()))
    joined = lambda extents: [(one["offset"], one["type"]) for one in merged(extents)]
    assert joined(ours) == joined(theirs), (joined(ours), joined(theirs))
    remote.end()


def merged(extents):
    all = []
    for one in extents:
        if not (all and all[-1]["type"] == one["type"]):
            all.append(one)
    return all


def each_kind(function, kinds=EACH):
    """A case for every kind of remote."""
    for kind in kinds:
        def one(kind=kind):
            function(kind)

        one.__doc__ = f"{function.__doc__}: {kind}"
        case(one)


each_kind(contents)


def killed(kind):
    """a remote is killed three times in mid-load: no error, no byte lost, and every reconnection is counted"""
    # The file is in the kernel's cache: what the remote has acknowledged outlives it.
    remote = Remote("killed", kind)
    server = Server("killed", f"nbd:uri={remote.uri()},stable=yes", cache="0")
    for times in range(1, 4):
        clients = load(server, 1)
        begun(clients, server)
        before = sum(server.remote()[name] for name in ("connections",))
        assert before >= 1
        remote.kill()
        until("it is down", lambda: server.remote()["state"] == "down")
        row = server.ctl("exports")[0]
        assert row["state"] in ("disconnected", "suspect"), row
        remote.start()
        until("it is up", lambda: server.remote()["state"] == "up" and server.remote()["reconnects"] == times)
        ended_well(clients, server)
    found = server.remote()
    assert found["reconnects"] == 3 and found["losses"] == 0, found
    assert f"{remote.uri()}: " in server.told("exports") and "3 reconnections" in server.told("exports")
    assert remote.uri() in server.told("why")
    metrics = page(server)
    line = f'headworks_remote_reconnects_total{{device="hw0",remote="{remote.uri()}"}} 3'
    assert line in metrics, [line for line in metrics.splitlines() if "remote" in line]
    server.stop()
    remote.end()


def page(server):
    port = next(line for line in server.said().splitlines() if line.startswith("metrics:")).split(":")[-1].split("/")[0]
    with socket.create_connection(("127.0.0.1", int(port)), 20) as http:
        http.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = b""
        while part := http.recv(65536):
            answer += part
    return answer.decode()


each_kind(killed)


@case
def server_killed():
    """a server that is killed in front of a remote loses nothing that the remote had, or that a flush covered"""
    for mode in ("none", "writethrough", "writeback"):
        remote = Remote("front", KINDS[0])
        spec = f"nbd:uri={remote.uri()},cache={mode}"
        server = Server("front", spec)
        client = server.client()
        client.write(0, b"f" * 65536)
        if mode == "writeback":
            assert status(client, rawnbd.FLUSH) == 0
            # This one is lost with the server's memory, and a client that comes back is not to take a flush for its own.
            client.write(1 << 20, b"l" * 65536)
        server.make_sure()
        server = Server("front", spec)
        client = server.client()
        assert client.read(0, 65536) == b"f" * 65536, mode
        if mode == "writeback":
            assert status(client, rawnbd.FLUSH) == EIO and "was killed, and its memory is gone" in server.said(), server.said()
            server.ctl("discard-failed", "", "--yes")
        assert status(client, rawnbd.FLUSH) == 0, mode
        server.stop()
        server = Server("front", spec)
        assert status(server.client(), rawnbd.FLUSH) == 0, "a clean stop has removed the mark"
        server.stop()
        remote.end()


@case
def loss_is_told():
    """a flush after the remote's restart fails when acknowledged writes may be gone, until the operator clears it"""
    remote = Remote("loss", KINDS[0])
    server = Server("loss", f"nbd:uri={remote.uri()},keep=0", cache="0")
    client = server.client()
    client.write(0, b"a" * 4096)
    assert status(client, rawnbd.FLUSH) == 0
    remote.kill()
    remote.start()
    until("it is up again", lambda: server.remote()["reconnects"] == 1)
    assert status(client, rawnbd.FLUSH) == 0, "what was flushed is not lost"
    client.write(0, b"b" * 4096)
    remote.kill()
    remote.start()
    until("it is up again", lambda: server.remote()["reconnects"] == 2)
    assert status(client, rawnbd.FLUSH) == EIO
    assert server.ctl("exports")[0]["state"] == "suspect" and server.remote()["losses"] == 1
    assert "may have lost writes that it had acknowledged" in server.said()
    assert status(client, rawnbd.WRITE, 4096, 512, b"c" * 512, flags=1) == EIO, "FUA fails, too"
    server.ctl("discard-failed", "", "--yes")
    assert status(client, rawnbd.FLUSH) == 0
    server.stop()
    remote.end()


@case
def kept():
    """a remote that loses what it did not flush, killed under load and by hand, gets it again: no byte is lost, no flush fails"""
    # Its cache dies with it.
    remote = Remote("kept", "headworks", "--cache", "32M")
    server = Server("kept", f"nbd:uri={remote.uri()},keep=4M", cache="0")
    for times in range(1, 4):
        clients = load(server, 1)
        begun(clients, server)
        remote.kill()
        remote.start()
        until("it is up again", lambda: server.remote()["reconnects"] == times)
        ended_well(clients, server)
    client = server.client()
    # What the load has left is flushed, by us and by the device, so nothing asks the remote to write what comes now.
    for _ in range(2):
        assert status(client, rawnbd.FLUSH) == 0
    for row in range(8):
        client.write(row * 4096, bytes([row + 1]) * 4096)
    remote.kill()
    assert remote.bytes(0, 4096) != bytes([1]) * 4096, "the remote had it in its memory alone"
    remote.start()
    for row in range(8):
        assert client.read(row * 4096, 4096) == bytes([row + 1]) * 4096
    assert status(client, rawnbd.FLUSH) == 0
    remote.kill()
    same_bytes(remote.bytes(0, 8 * 4096), b"".join(bytes([row + 1]) * 4096 for row in range(8)))
    assert server.remote()["losses"] == 0 and server.ctl("exports")[0]["state"] != "suspect", server.remote()
    remote.start()
    server.stop()
    remote.end()


@case
def stopped_remote():
    """a remote that stops for longer than timeout= is left, and the requests are sent again when it goes on"""
    remote = Remote("stopped", KINDS[-1])
    server = Server("stopped", f"nbd:uri={remote.uri()},timeout=500ms,stable=yes", cache="0")
    clients = load(server, 1)
    begun(clients, server)
    remote.signal(signal.SIGSTOP)
    until("its silence is noticed", lambda: server.remote()["state"] == "down")
    assert "did not answer for" in server.remote()["told"], server.remote()
    remote.signal(signal.SIGCONT)
    until("it is up", lambda: server.remote()["state"] == "up")
    ended_well(clients, server)
    server.stop()
    remote.end()


@case
def absent_remote():
    """requests fail after reconnect= without a remote, others go on, and the server stops in time"""
    remote, other = Remote("absent", KINDS[0]), Remote("other", KINDS[0])
    specs = [f"a=nbd:uri={remote.uri()},reconnect=300ms", f"b=nbd:uri={other.uri()}"]
    server = Server("absent", *specs, cache="0", options=["--stop-timeout", "5s"])
    client, neighbour = server.client(b"a"), server.client(b"b")
    remote.kill()
    assert status(client, rawnbd.READ, 0, 4096) == EIO
    neighbour.write(0, b"n" * 4096)
    assert neighbour.read(0, 4096) == b"n" * 4096
    remote.start()
    until("it is up", lambda: server.remote()["state"] == "up")
    assert client.read(0, 4096) == bytes(4096)
    remote.kill()
    began = time.monotonic()
    server.stop(status=1)
    assert "the final flush failed" in server.said() and time.monotonic() - began < 15
    remote.end()
    other.end()


@case
def stop_with_dirty_data():
    """a stop with dirty data and a dead remote ends within --stop-timeout, with status 1"""
    remote = Remote("dirty", KINDS[0])
    server = Server("dirty", f"nbd:uri={remote.uri()}", options=["--stop-timeout", "1s"])
    client = server.client()
    client.write(0, b"d" * 65536)
    remote.signal(signal.SIGSTOP)
    began = time.monotonic()
    server.stop(status=1)
    assert time.monotonic() - began < 10
    remote.end()


@case
def read_only():
    """a read-only remote is refused in one line, and served with read-only=on"""
    remote = Remote("readonly", KINDS[0], "-r")
    refused = run(SERVER, "serve", "-U", os.path.join(DIR, "never"), f"nbd:uri={remote.uri()}", ok=False)
    assert refused.count("\n") == 1 and "add read-only=on" in refused, refused
    server = Server("readonly", f"nbd:uri={remote.uri()},read-only=on")
    client = server.client()
    assert client.read(0, 512) == bytes(512)
    assert status(client, rawnbd.WRITE, 0, 512, bytes(512)) == EPERM
    server.stop()
    remote.end()


@case
def another_export():
    """another size after a restart bars the remote, until the export is removed and added"""
    remote = Remote("another", KINDS[-1])
    spec = f"a=nbd:uri={remote.uri()}"
    server = Server("another", spec, cache="0")
    client = server.client(b"a")
    client.write(0, b"a" * 512)
    remote.kill()
    os.truncate(remote.image, SIZE * 2)
    remote.start()
    until("it is barred", lambda: server.remote()["state"] == "barred")
    assert status(client, rawnbd.READ, 0, 512) == EIO
    assert "it had 33554432 bytes and has 67108864" in server.remote()["told"], server.remote()
    assert server.ctl("exports")[0]["state"] == "suspect"
    client.close()
    server.ctl("remove", "a", "--force", ok=False)
    server.ctl("discard-failed", "a", "--yes")
    server.ctl("remove", "a", "--force")
    server.ctl("add", spec)
    assert server.ctl("exports")[0]["size"] == SIZE * 2
    server.stop()
    remote.end()


@case
def live_changes():
    """exports behind remotes are checked, added, reloaded, frozen and removed live"""
    remotes = [Remote(f"live{number}", KINDS[0]) for number in range(2)]
    config = os.path.join(DIR, "live.toml")

    def write(*rows):
        with open(config, "w") as file:
            for name, remote, more in rows:
                file.write(f'[[export]]\nname = "{name}"\n{more}\nnbd = {{ uri = "{remote.uri()}", reconnect = "20s" }}\n')

    write(("a", remotes[0], ""))
    checked = run(SERVER, "check", config)
    assert remotes[0].uri() in checked, checked
    server = Server("live", options=["--config", config])
    client = server.client(b"a")
    client.write(0, b"1" * 4096)
    write(("a", remotes[0], "weight = 300"), ("b", remotes[1], 'cache = "writeback"'))
    server.ctl("reload")
    assert [row["name"] for row in server.ctl("exports")] == ["a", "b"]
    server.client(b"b").write(8192, b"2" * 4096)
    server.ctl("freeze", "a", "b")
    assert remotes[0].bytes(0, 4096) == b"1" * 4096 and remotes[1].bytes(8192, 4096) == b"2" * 4096
    server.ctl("thaw", "a", "b")
    server.client(b"b").write(8192, b"3" * 4096)
    write(("a", remotes[0], "weight = 300"))
    server.ctl("reload")
    assert remotes[1].bytes(8192, 4096) == b"3" * 4096, "a removal writes out"
    server.ctl("add", f"c=nbd:uri={remotes[1].uri()}")
    assert server.client(b"c").read(8192, 4096) == b"3" * 4096
    refused = server.ctl("add", f"d=nbd:uri=nbd+unix:///?socket={DIR}/nothing", ok=False)
    assert "cannot connect" in refused and refused.count("\n") == 1, refused
    client.close()
    server.stop()
    for remote in remotes:
        remote.end()


def upgraded(kind):
    """a server is replaced under load, and what is not flushed stays durable"""
    remote = Remote("upgraded", kind)
    server = Server("upgraded", f"nbd:uri={remote.uri()}")
    clients = load(server, 1)
    begun(clients, server)
    for _ in range(2):
        answer = server.ctl("upgrade")
        server.pid = answer["pid"]
        until("the remote is up", lambda: server.remote()["state"] == "up")
    ended_well(clients, server)
    client = server.client()
    client.write(28 * MIB, b"u" * 4096)
    server.pid = server.ctl("upgrade")["pid"]
    assert remote.bytes(28 * MIB, 4096) == b"u" * 4096, "flushed by the process that wrote it"
    assert client.read(28 * MIB, 4096) == b"u" * 4096
    server.stop()
    remote.end()


# The first permits one client at a time.
each_kind(upgraded, EACH[:1])


@case
def encrypted():
    """a remote through TLS, over a restart"""
    pki = os.path.join(DIR, "pki")
    if "nbdkit" not in KINDS:
        return print("skip - a remote through TLS # there is no nbdkit")
    remote = Remote("tls", "nbdkit", "--tls=require", f"--tls-certificates={pki}")
    uri = f"nbds+unix:///?socket={remote.socket}&tls-certificates={pki}&tls-hostname=localhost"
    server = Server("tls", f"nbd:uri={uri},stable=yes", cache="0")
    clients = load(server, 1)
    begun(clients, server)
    remote.kill()
    remote.start()
    until("it is up again", lambda: server.remote()["reconnects"] == 1)
    ended_well(clients, server)
    server.stop()
    refused = run(SERVER, "serve", "-U", os.path.join(DIR, "never"), f"nbd:uri={remote.uri()}", ok=False)
    assert refused.count("\n") == 1 and "TLS" in refused, refused
    remote.end()


def behind_cache(memory):
    remote = Remote("behind", "headworks", "--cache", "16M", "--cache-file", memory)
    server = Server("behind", f"nbd:uri={remote.uri()},stable=yes", cache="0")
    for times in range(1, 3):
        clients = load(server, 1)
        begun(clients, server)
        remote.kill()
        remote.start()
        until("it is up again", lambda: server.remote()["reconnects"] == times)
        ended_well(clients, server)
    server.stop()
    remote.end()


@case
def cache_behind():
    """a write-back cache behind, killed and restored: nothing is lost, no error"""
    memory = tempfile.mkdtemp(dir="/dev/shm", prefix="hw-nbd-device.")
    try:
        behind_cache(os.path.join(memory, "cache"))
    finally:
        shutil.rmtree(memory)



if REFUSED:
    case(REFUSED)
done()
