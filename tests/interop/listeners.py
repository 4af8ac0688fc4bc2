"""Listeners with exports of their own, by hand: what each socket tells, while configuration, tenants and processes change."""

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import nbd

import rawnbd
from ctl_client import Client
from tap import case, done, equal, same_bytes

WHAT, DIR, CONTROL, CONFIG, IMAGES = sys.argv[1:6]
OPT_LIST_META, OPT_SET_META = 9, 10
BLOCK = 4096


def until(what, holds, seconds=60):
    """Waits for a condition; the limit only turns a hang into a failure."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"after {seconds} s still not: {what}"
        time.sleep(0.01)


def path(name):
    return os.path.join(DIR, name + ".sock")


def uri(name, export=""):
    return f"nbd+unix:///{export}?socket={path(name)}"


def must(method, **params):
    answer = Client(CONTROL).ask(method, **params)
    assert "result" in answer, (method, params, answer)
    return answer["result"]


def names(listener):
    """What LIST tells, by hand."""
    raw = rawnbd.Raw(uri(listener)).greet()
    raw.option(rawnbd.OPT_LIST)
    found = []
    while True:
        _, kind, data = raw.option_reply()
        if kind == rawnbd.REP_ACK:
            raw.close()
            return found
        length = struct.unpack(">I", data[:4])[0]
        found.append(data[4 : 4 + length].decode())


def counted(name):
    return struct.pack(">I", len(name)) + name


def answers(listener, option, name):
    """Everything that one option about an export is answered with, its name replaced by X."""
    raw = rawnbd.Raw(uri(listener)).greet()
    name = name.encode()
    if option in (OPT_LIST_META, OPT_SET_META):
        raw.option(rawnbd.OPT_STRUCTURED_REPLY)
        assert raw.option_reply()[1] == rawnbd.REP_ACK
        data = counted(name) + struct.pack(">I", 1) + counted(b"base:allocation")
    elif option == rawnbd.OPT_EXPORT_NAME:
        data = name
    else:
        data = counted(name) + b"\0\1\0\3"
    raw.option(option, data)
    if option == rawnbd.OPT_EXPORT_NAME:
        # There is no error for it: the session ends, and nothing is said.
        data = raw.socket.recv(65536)
        raw.close()
        return data
    _, kind, data = raw.option_reply()
    raw.close()
    return kind, data.replace(name, b"X")


def same_as_unknown(listener, hidden):
    for option in (rawnbd.OPT_INFO, rawnbd.OPT_GO, rawnbd.OPT_EXPORT_NAME, OPT_LIST_META, OPT_SET_META):
        found, wanted = answers(listener, option, hidden), answers(listener, option, "no-such-export")
        assert found == wanted, (listener, hidden, option, found, wanted)


class Writer(threading.Thread):
    """A client that writes and verifies blocks until it is told to stop."""

    def __init__(self, listener, export):
        super().__init__(daemon=True)
        self.handle = nbd.NBD()
        self.handle.connect_uri(uri(listener, export))
        self.random, self.ends, self.wrong, self.rounds = random.Random(export), False, None, 0

    def run(self):
        known = {}
        try:
            while not self.ends:
                block = self.random.randrange(256)
                known[block] = self.random.randbytes(BLOCK)
                self.handle.pwrite(known[block], block * BLOCK)
                block = self.random.choice(list(known))
                same_bytes(bytes(self.handle.pread(BLOCK, block * BLOCK)), known[block])
                self.rounds += 1
        except Exception as wrong:
            self.wrong = wrong

    def went_on(self, rounds=20):
        before = self.rounds
        until("the client goes on", lambda: self.wrong or self.rounds >= before + rounds)
        assert not self.wrong, self.wrong

    def stop(self):
        self.ends = True
        self.join(30)
        assert not self.wrong and not self.is_alive(), self.wrong
        self.handle.shutdown()


def configured(text):
    with open(CONFIG + ".new", "w") as file:
        file.write(text)
    os.replace(CONFIG + ".new", CONFIG)


def reload(pid, said, log):
    """SIGHUP, and waits for a line that the reload logs."""
    before = os.path.getsize(log)
    os.kill(pid, signal.SIGHUP)

    def is_said():
        with open(log) as file:
            file.seek(before)
            text = file.read()
        return "configuration reloaded" in text and said in text

    until(f"the log says {said}", is_said)


def peer_pid(name):
    """The process that listens at a socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path(name))
        credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return struct.unpack("3i", credentials)[0]


def live():
    @case
    def neighbours():
        """a neighbour's export is refused in the words for an unknown name, by every option"""
        for hidden in ("g-db", "default"):
            same_as_unknown("acme", hidden)
        for hidden in ("a-db", "a-web", "shared", "a-gone"):
            same_as_unknown("globex", hidden)
        kind, data = answers("acme", rawnbd.OPT_GO, "a-gone")
        assert kind == rawnbd.REP_ERR_UNKNOWN and b"is not available" in data, "its owner is told"
        assert b"gone.img" not in data, "and no path"

    @case
    def default():
        """the default export is the first one that the listener offers"""
        for listener, wanted in (("acme", "a-db"), ("globex", "g-db")):
            handle = nbd.NBD()
            handle.set_full_info(True)
            handle.connect_uri(uri(listener))
            found = handle.get_canonical_export_name()
            assert found == wanted, (listener, found)
            handle.shutdown()

    @case
    def moved():
        """an export that is added, or moved between tenants, is seen where it belongs at once"""
        must("add", spec="a-new=mem:size=1M,tenant=globex")
        equal("a new export by its tenant", (names("acme"), names("globex")), (["a-db", "a-web", "shared"], ["g-db", "a-new"]))
        must("set", path="exports/a-new/tenant", value="acme")
        equal("after its move", (names("acme"), names("globex")), (["a-db", "a-web", "shared", "a-new"], ["g-db"]))
        same_as_unknown("globex", "a-new")
        must("remove", export="a-new")

    @case
    def told():
        """ctl names the listener of a connection, and counts it"""
        handle = nbd.NBD()
        handle.connect_uri(uri("globex", "g-db"))
        until("it is named", lambda: [row["listener"] for row in must("connections")] == ["globex"])
        rows = {row["name"]: row for row in must("listeners")}
        assert rows["globex"]["connections"] == 1 and rows["acme"]["connections"] == 0, rows
        assert rows["all"]["exports"] == ["a-db", "a-web", "g-db", "shared"], rows
        handle.shutdown()

    @case
    def reloaded():
        """a reload adds and removes a tenant with its socket while another tenant's client writes"""
        log, pid = os.path.join(DIR, "log"), peer_pid("acme")
        with open(CONFIG) as file:
            first = file.read()
        writer = Writer("acme", "a-db")
        writer.start()
        mine = nbd.NBD()
        mine.connect_uri(uri("globex", "g-db"))
        waits = rawnbd.Raw(uri("globex")).greet()
        # initech comes, globex goes: its client in transmission stays, the one in its handshake does not.
        without = first.split("[[listen]]")
        without = [part for part in without if 'name = "globex"\nunix' not in part]
        image = os.path.join(IMAGES, "initech.img")
        with open(image, "wb") as file:
            file.truncate(1 << 20)
        more = f'''
[[tenant]]
name = "initech"
exports = ["i-*"]
[[listen]]
name = "initech"
unix = "{path("initech")}"
tenant = "initech"
[[export]]
name = "i-db"
file = {{ path = "{image}" }}
'''
        configured("[[listen]]".join(without) + more)
        reload(pid, "listener initech listens at", log)
        assert names("initech") == ["i-db"] and names("acme") == ["a-db", "a-web", "shared"]
        assert not os.path.exists(path("globex")), "its socket goes with it"
        assert waits.hung_up()
        mine.pwrite(b"x" * BLOCK, 0)
        assert bytes(mine.pread(BLOCK, 0)) == b"x" * BLOCK
        writer.went_on()
        # What a listener offers changes without its socket.
        inode = os.stat(path("acme")).st_ino
        configured(("[[listen]]".join(without) + more).replace('exports = ["shared"]', 'exports = ["shared", "g-*"]'))
        reload(pid, "listener acme was changed", log)
        assert names("acme") == ["a-db", "a-web", "g-db", "shared"], names("acme")
        assert os.stat(path("acme")).st_ino == inode
        mine.shutdown()
        # One that cannot be opened is a line in the log, and the rest goes on.
        os.mkdir(os.path.join(DIR, "dir.sock"))
        configured(first + f'[[listen]]\nname = "wrong"\nunix = "{path("dir")}"\n')
        reload(pid, "listener wrong not opened: ", log)
        os.rmdir(path("dir"))
        assert names("globex") == ["g-db"] and names("acme") == ["a-db", "a-web", "shared"]
        assert not os.path.exists(path("initech"))
        writer.went_on()
        configured(first)
        reload(pid, "", log)
        writer.stop()


def upgrade():
    """Starts servers of its own."""
    server, engine = os.environ["HW_SERVER"], os.environ["HW_ENGINE"]
    log = os.path.join(DIR, "upgrade.log")

    def sections(*listeners):
        text = f'[server]\ncontrol = "{CONTROL}"\ncache = "8M"\ncache-file = "off"\n'
        for name in listeners:
            text += f'[[tenant]]\nname = "{name}"\nexports = ["{name}-*"]\n'
            text += f'[[listen]]\nname = "{name}"\nunix = "{path(name)}"\ntenant = "{name}"\n'
        for name in ("one", "two", "three"):
            image = os.path.join(IMAGES, f"up-{name}.img")
            if not os.path.exists(image):
                with open(image, "wb") as file:
                    file.truncate(1 << 20)
            text += f'[[export]]\nname = "{name}-db"\nfile = {{ path = "{image}" }}\n'
        return text

    @case
    def handed_over():
        """an upgrade under load hands several listeners over, those of a reload too; the ones that are not configured any more go"""
        configured(sections("one", "two"))
        with open(log, "wb") as out:
            process = subprocess.Popen([server, "serve", "--engine", engine, "--config", CONFIG], stdout=out, stderr=out)
        until("it serves", lambda: os.path.exists(path("two")) and os.path.exists(CONTROL))
        pid = process.pid
        configured(sections("one", "two", "three"))
        reload(pid, "listener three listens at", log)
        writers = [Writer(name, f"{name}-db") for name in ("one", "two", "three")]
        for writer in writers:
            writer.start()
        inodes = {name: os.stat(path(name)).st_ino for name in ("one", "two", "three")}
        for step in range(3):
            if step == 2:
                # Changed in the file, and taken over without a reload.
                configured(sections("one", "three"))
            answer = must("upgrade")
            if step == 0:
                process.wait(30)
            pid = answer["pid"]
            for writer in writers:
                writer.went_on()
            left = [name for name in inodes if os.path.exists(path(name))]
            assert left == (["one", "three"] if step == 2 else ["one", "two", "three"]), left
            for name in left:
                assert os.stat(path(name)).st_ino == inodes[name], "the sockets stay"
                assert names(name) == [f"{name}-db"], names(name)
            # The connections that only asked for names end a moment later.
            through = lambda: sorted(row["listener"] for row in must("connections"))
            until("every client is named by its listener", lambda: through() == ["one", "three", "two"])
        for writer in writers:
            writer.stop()
        os.kill(pid, signal.SIGTERM)
        until("its sockets are gone", lambda: not any(os.path.exists(path(name)) for name in inodes))


{"live": live, "upgrade": upgrade}[WHAT]()
done()
