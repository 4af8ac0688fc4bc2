"""Exports that come, go and grow under clients that check every byte."""

import os
import random
import sys
import threading
import time

import nbd

from ctl_client import Client
from tap import case, done, same_bytes

WHAT, CONTROL, SOCKET, IMAGES = sys.argv[1:5]
BLOCK = 4096
MIB = 1 << 20


def uri(name):
    return f"nbd+unix:///{name}?socket={SOCKET}"


def connect(name):
    handle = nbd.NBD()
    handle.set_full_info(True)
    handle.connect_uri(uri(name))
    return handle


def image(name):
    return os.path.join(IMAGES, name)


def make(name, size=4 * MIB):
    with open(image(name), "wb") as file:
        file.truncate(size)
    return image(name)


def ask(method, **params):
    """What the server answers; a refusal is its errno and its sentence."""
    client = Client(CONTROL)
    client.socket.settimeout(90)
    answer = client.ask(method, **params)
    if "error" in answer:
        return answer["error"]["data"]["errno"], answer["error"]["message"]
    return answer["result"]


def must(method, **params):
    result = ask(method, **params)
    assert not isinstance(result, tuple), (method, params, result)
    return result


def refused(errno, word, method, **params):
    result = ask(method, **params)
    assert isinstance(result, tuple) and result[0] == errno and word in result[1], (method, params, result)


def rows():
    return {row["name"]: row for row in must("exports")}


def wait_for(what, condition):
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit, "never: " + what
        time.sleep(0.005)


class Load(threading.Thread):
    """Writes and reads blocks of an export (one in `step`, from the `first` on) until it is told to stop, and checks each byte
    that it reads."""

    def __init__(self, name, seed, first=0, step=1):
        super().__init__(daemon=True)
        self.handle, self.first, self.stride = connect(name), first, step
        self.random, self.blocks, self.count = random.Random(seed), {}, 0
        self.stopped, self.error = threading.Event(), None
        # Whoever holds it holds the load up.
        self.turn = threading.Lock()
        self.start()

    def run(self):
        try:
            while not self.stopped.is_set():
                with self.turn:
                    self.step()
        except Exception as error:
            self.error = error

    def step(self):
        places = self.handle.get_size() // BLOCK
        at = self.random.randrange(self.first, places, self.stride)
        if self.random.random() < 0.6:
            data = self.random.randbytes(BLOCK)
            self.handle.pwrite(data, at * BLOCK)
            self.blocks[at] = data
        else:
            same_bytes(bytes(self.handle.pread(BLOCK, at * BLOCK)), self.blocks.get(at, bytes(BLOCK)))
        if self.random.random() < 0.02:
            self.handle.flush()
        self.count += 1

    def finish(self):
        self.stopped.set()
        self.join(30)
        assert self.error is None, self.error
        for at, data in self.blocks.items():
            same_bytes(bytes(self.handle.pread(BLOCK, at * BLOCK)), data)
        self.handle.shutdown()
        return self.blocks


def gone(handle):
    """The server closed it: whatever is asked fails."""
    try:
        handle.pread(512, 0)
    except nbd.Error:
        return True
    return False


def absent(name):
    try:
        connect(name)
    except nbd.Error:
        return True
    return False


def file_has(name, blocks):
    with open(image(name), "rb") as file:
        for at, data in blocks.items():
            file.seek(at * BLOCK)
            same_bytes(file.read(len(data)), data)


def changes():
    load = Load("base", 1)

    @case
    def _():
        """an export is added, written, removed, and its image has every byte"""
        for turn in range(6):
            name = f"one{turn}"
            must("add", spec=f"{name}={make(name)}")
            other = Load(name, turn)
            wait_for("requests", lambda: other.count > 50)
            blocks = other.finish()
            wait_for("the client has gone", lambda: rows()[name]["clients"] == 0)
            must("remove", export=name)
            assert absent(name) and name not in rows()
            file_has(name, blocks)

    @case
    def _():
        """another image under the same name has its own bytes, not those that were cached of the one before"""
        for value in (b"a", b"b", b"c"):
            path = make("same", MIB)
            with open(path, "r+b") as file:
                file.write(value * MIB)
            must("add", spec=f"same={path}")
            handle = connect("same")
            same_bytes(bytes(handle.pread(MIB, 0)), value * MIB)
            handle.pwrite(value.upper() * BLOCK, 0)
            handle.shutdown()
            wait_for("the client has gone", lambda: rows()["same"]["clients"] == 0)
            must("remove", export="same")
            os.unlink(path)

    @case
    def _():
        """a client keeps its export unless --force says otherwise; what it was told is written is written"""
        make("busy")
        must("add", spec=f"busy=file:path={image('busy')},weight=400,ioprio=rt:1")
        handle = connect("busy")
        handle.pwrite(b"x" * BLOCK, BLOCK)
        row = rows()["busy"]
        assert (row["clients"], row["weight"], row["ioprio"], row["state"]) == (1, 400, "rt,1", "serving"), row
        refused("EBUSY", "--force", "remove", export="busy")
        same_bytes(bytes(handle.pread(BLOCK, BLOCK)), b"x" * BLOCK)
        assert must("remove", export="busy", force=True)["clients"] == 1
        assert gone(handle) and absent("busy")
        file_has("busy", {1: b"x" * BLOCK})

    @case
    def _():
        """clients in the middle of their work are closed, and every write that was answered is in the image"""
        for turn in range(4):
            make("cut")
            must("add", spec=f"cut={image('cut')}")
            loads = [Load("cut", 10 * turn + n, n, 3) for n in range(3)]
            wait_for("requests", lambda: all(load.count > 30 for load in loads))
            assert must("remove", export="cut", force=True)["clients"] == 3
            with open(image("cut"), "rb") as file:
                content = file.read()
            for load in loads:
                load.join(30)
                assert isinstance(load.error, nbd.Error), "the client was closed"
                # The write that was under way may be there without an answer, over one that had its own.
                wrong = [at for at, data in load.blocks.items() if content[at * BLOCK:(at + 1) * BLOCK] != data]
                assert len(wrong) <= 1, wrong

    @case
    def _():
        """an image grows under its client, who reads and writes up to the new end"""
        make("grow", MIB)
        must("add", spec=f"grow=file:path={image('grow')},describe=on")
        old = connect("grow")
        old.set_strict_mode(0)
        old.pwrite(b"1" * BLOCK, MIB - BLOCK)
        assert must("resize", export="grow", size="3M") == {"export": "grow", "size": 3 * MIB, "before": MIB}
        assert os.stat(image("grow")).st_size == 3 * MIB
        old.pwrite(b"2" * BLOCK, 3 * MIB - BLOCK)
        new = connect("grow")
        assert (new.get_size(), old.get_size()) == (3 * MIB, MIB)
        same_bytes(bytes(new.pread(BLOCK, MIB - BLOCK)), b"1" * BLOCK)
        same_bytes(bytes(new.pread(BLOCK, 3 * MIB - BLOCK)), b"2" * BLOCK)
        same_bytes(bytes(new.pread(BLOCK, 2 * MIB)), bytes(BLOCK))
        assert "3 MiB" in new.get_export_description(), new.get_export_description()
        refused("EINVAL", "shrink", "resize", export="grow", size="2M")
        refused("EINVAL", "size", "resize", export="grow", size="2X")
        # Somebody else made it longer.
        os.truncate(image("grow"), 5 * MIB)
        assert must("resize", export="grow")["size"] == 5 * MIB
        old.pwrite(b"3" * BLOCK, 5 * MIB - BLOCK)
        assert connect("grow").get_size() == rows()["grow"]["size"] == 5 * MIB
        must("remove", export="grow", force=True)
        file_has("grow", {255: b"1" * BLOCK, 767: b"2" * BLOCK, 1279: b"3" * BLOCK})

    @case
    def _():
        """mem and null grow, too"""
        for kind in ("mem", "null"):
            must("add", spec=f"fake={kind}:size=1M")
            old = connect("fake")
            old.set_strict_mode(0)
            refused("EINVAL", "say which", "resize", export="fake")
            must("resize", export="fake", size=2 * MIB)
            old.pwrite(b"4" * BLOCK, 2 * MIB - BLOCK)
            wanted = b"4" * BLOCK if kind == "mem" else bytes(BLOCK)
            same_bytes(bytes(connect("fake").pread(BLOCK, 2 * MIB - BLOCK)), wanted)
            must("remove", export="fake", force=True)

    @case
    def _():
        """a drain leaves nothing dirty that was dirty, and its bytes are in the image"""
        make("wet")
        must("add", spec=f"wet={image('wet')}")
        handle = connect("wet")
        blocks = {at: bytes([at]) * BLOCK for at in range(64)}
        # With nothing else dirty the server does not begin by itself.
        with load.turn:
            must("drain")
            for at, data in blocks.items():
                handle.pwrite(data, at * BLOCK)
            dirty = rows()["wet"]["dirty"]
            result = must("drain", export="wet")
            assert result["bytes"] == dirty == 64 * BLOCK and result["seconds"] >= 0, (result, dirty)
        assert rows()["wet"]["dirty"] == 0
        file_has("wet", blocks)
        assert len(must("drain")["exports"]) == len(rows())
        refused("ENOENT", "there is no export `dry`", "drain", export="dry")
        handle.shutdown()
        must("remove", export="wet", force=True)

    @case
    def _():
        """exports of one image share it: the first that goes leaves it open, the last closes it"""
        make("both")
        must("add", spec=f"both={image('both')}")
        must("add", spec=f"reader={image('both')}", read_only=True)
        writer, reader = connect("both"), connect("reader")
        writer.pwrite(b"5" * BLOCK, 0)
        same_bytes(bytes(reader.pread(BLOCK, 0)), b"5" * BLOCK)
        assert must("remove", export="both", force=True)["closed"] is False
        same_bytes(bytes(reader.pread(BLOCK, 0)), b"5" * BLOCK)
        must("add", spec=f"both={image('both')}")
        connect("both").pwrite(b"6" * BLOCK, 0)
        same_bytes(bytes(reader.pread(BLOCK, 0)), b"6" * BLOCK)
        must("remove", export="reader", force=True)
        assert must("remove", export="both", force=True)["closed"] is True
        file_has("both", {0: b"6" * BLOCK})

    @case
    def _():
        """the clients of the other export have noticed nothing"""
        assert load.count > 100
        load.finish()


def coming():
    """Clients that come while exports go: each is served or refused, none is left hanging."""

    @case
    def _():
        """clients that come while their export goes are served or refused"""
        over, served = threading.Event(), {seed: 0 for seed in range(1, 5)}

        def visitor(seed):
            while not over.is_set():
                try:
                    handle = connect("door")
                    handle.pwrite(bytes([seed]) * 512, 512 * seed)
                    served[seed] += 1
                except nbd.Error:
                    pass

        make("door", MIB)
        must("add", spec=f"door={image('door')}")
        visitors = [threading.Thread(target=visitor, args=[seed], daemon=True) for seed in served]
        for thread in visitors:
            thread.start()
        for _ in range(25):
            must("remove", export="door", force=True)
            must("add", spec=f"door={image('door')}")
        # The last word belongs to visitors: the export is there, so each of them is served.
        before = dict(served)
        wait_for("everybody is served", lambda: all(served[seed] > before[seed] for seed in served))
        over.set()
        for thread in visitors:
            thread.join(20)
            assert not thread.is_alive(), "a client hangs"
        must("remove", export="door", force=True)


def figures(pid):
    with open(f"/proc/{pid}/status") as file:
        resident = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    # Of its control clients the server closes the last when the next one comes.
    targets = [os.path.realpath(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    return resident, sum("socket:" not in target for target in targets), len(targets)


def rounds(pid):
    """50 exports come and go, again and again."""

    @case
    def _():
        """after five rounds of 50 exports memory and files are as after the first"""
        seen = []
        _, files, all_files = figures(pid)
        # An allocator's arenas fill up once, and then a leak would grow on: five rounds more are asked before it is one.
        for turn in range(11):
            if turn == 6 and seen[5] <= seen[1] + 1024:
                break
            for n in range(50):
                name = f"many{n}"
                spec = f"{name}=mem:size=1M" if n % 5 == 0 else f"{name}={make(name, MIB)}"
                must("add", spec=spec)
                handle = connect(name)
                handle.pwrite(b"7" * BLOCK, BLOCK * (n % 256))
                handle.shutdown()
            assert len(rows()) == 51, len(rows())
            for n in range(50):
                must("remove", export=f"many{n}", force=True)
            wait_for("all files are closed", lambda: figures(pid)[1] == files and figures(pid)[2] <= all_files + 2)
            seen.append(figures(pid)[0])
        print(f"# KiB resident after each round: {seen}")
        assert seen[-1] <= seen[-5] + 1024, seen

    @case
    def _():
        """more than there are queues for is refused, and nothing is left of it"""
        there = len(rows())
        added = []
        while True:
            result = ask("add", spec=f"q{len(added)}=null:size=1M")
            if isinstance(result, tuple):
                break
            added.append(result["export"])
        assert result[0] == "ENOSPC" and "64" in result[1], result
        assert len(rows()) == there + len(added)
        for name in added:
            must("remove", export=name)
        must("add", spec="q=null:size=1M")
        must("remove", export="q")


def slow():
    @case
    def _():
        """a request in the device is answered before its client is closed"""
        must("add", spec="slow=delay:cache=none,write=300ms,of=mem:size=1M")
        handle = connect("slow")
        cookie = handle.aio_pwrite(b"8" * BLOCK, 0)
        while handle.aio_in_flight() and not handle.aio_is_ready():
            handle.poll(100)

        def taken():
            # What is in the socket only may be cut off.
            device, = [row for row in must("diskstats") if row["name"] == rows()["slow"]["device"]]
            return device["fields"]["in_flight"] + device["fields"]["wr_ios"] >= 1

        wait_for("the server has it", taken)
        must("remove", export="slow", force=True)
        # The answer is on its way; then the end.
        answered = False
        try:
            while not answered:
                answered = handle.aio_command_completed(cookie)
                if not answered:
                    handle.poll(-1)
        except nbd.Error as error:
            raise AssertionError(f"no answer: {error}")
        assert gone(handle)

    @case
    def _():
        """what cannot be written out keeps its export until it is given up"""
        must("add", spec="bad=error:cache=writeback,rate=100%,errno=EIO,op=write,of=mem:size=1M")
        handle = connect("bad")
        handle.pwrite(b"9" * BLOCK, 0)
        handle.shutdown()
        wait_for("the client has gone", lambda: rows()["bad"]["clients"] == 0)
        refused("EIO", "bad", "remove", export="bad")
        wait_for("it shows", lambda: rows()["bad"]["state"] == "suspect")
        refused("EIO", "discard-failed", "remove", export="bad")
        refused("EIO", "bad", "drain", export="bad")
        # It serves as before.
        same_bytes(bytes(connect("bad").pread(BLOCK, 0)), b"9" * BLOCK)

        def given_up():
            # What was on its way when it was given up fails once more.
            must("discard-failed", export="bad", confirm=True)
            return not isinstance(ask("remove", export="bad", force=True), tuple)

        wait_for("it is given up", given_up)
        assert "bad" not in rows()


def empty():
    @case
    def _():
        """the last export may go; the server serves nothing until one is added"""
        for name in list(rows()):
            must("remove", export=name, force=True)
        assert rows() == {} and absent("") and absent("base")
        assert must("drain")["bytes"] == 0 and must("stats")["exports"] == {}
        make("first", MIB)
        must("add", spec=f"first=file:path={image('first')},describe=on")
        # The first that serves is the default.
        assert connect("").get_export_description() == connect("first").get_export_description()
        must("add", spec="second=null:size=2M")
        must("remove", export="first", force=True)
        must("add", spec="third=null:size=3M")
        assert connect("").get_size() == 2 * MIB


def record():
    """Work for a record: exports come and go beside a load."""
    load = Load("base", 3)
    for turn in range(8):
        for name in ("x", "y"):
            make(name, MIB)
            must("add", spec=f"{name}={image(name)}" if name == "x" else f"{name}=mem:cache=writeback,size=1M")
            other = Load(name, turn)
            wait_for("requests", lambda: other.count > 40)
            other.finish()
        must("resize", export="x", size="2M")
        must("drain", export="x")
        must("remove", export="x", force=True)
        must("remove", export="y", force=True)
    load.finish()


if WHAT == "rounds":
    rounds(int(sys.argv[5]))
else:
    {"changes": changes, "coming": coming, "slow": slow, "empty": empty, "record": record}[WHAT]()
done()
