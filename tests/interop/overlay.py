"""Overlays under clients that know what they may find.

    overlay.py kill SERVER ENGINE SOCKET BASE OVERLAY DIR    a server that is killed: what was flushed is there
    overlay.py reconnect SERVER ENGINE SOCKET BASE IMAGES MEMORY   clients that outlive a killed server find what was acknowledged
    overlay.py snapshot SERVER CONTROL URI OVERLAY DIR       layers that are kept while clients write: each is of one point in time
    overlay.py many URI CONTROL BASE IMAGES COUNT            exports t1, t2...: each has its own blocks, when others come and go, too
    overlay.py again URI BASE COUNT                          what `many` has flushed is there
    overlay.py full URI FILLER                               a disk without room: nothing that was acknowledged is lost
"""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import ctl_client
import rawnbd
import tap

BLOCK = 4096
WRITE, FLUSH, TRIM, ZEROES, FUA = rawnbd.WRITE, rawnbd.FLUSH, rawnbd.TRIM, rawnbd.WRITE_ZEROES, 1
# Whatever hangs is a failure of this file.
signal.alarm(120)


def contents(version):
    return bytes(BLOCK) if version == 0 else version.to_bytes(8, "big") * (BLOCK // 8)


class Blocks:
    """What each block may contain: bytes, of which the last ones are the newest."""

    def __init__(self, base, count, seed):
        self.may = [[base[at * BLOCK:(at + 1) * BLOCK]] for at in range(count)]
        self.random, self.version = random.Random(seed), 0

    def change(self, connection):
        """One request and its answer; what it changes may be old or new until the answer to a flush."""
        first = self.random.randrange(len(self.may))
        count = min(self.random.randrange(1, 5), len(self.may) - first)
        kind = self.random.random()
        if kind < 0.05:
            connection.request(FLUSH, 1, 0, 0)
            assert connection.reply() == (0, 1)
            self.may = [may[-1:] for may in self.may]
            return
        flags = FUA if self.random.random() < 0.1 else 0
        self.version += 1
        command, version = (WRITE, self.version) if kind < 0.85 else (self.random.choice([TRIM, ZEROES]), 0)
        for block in range(first, first + count):
            self.may[block].append(contents(version))
        data = contents(version) * count if command == WRITE else b""
        connection.request(command, 2, first * BLOCK, count * BLOCK, data, flags)
        assert connection.reply() == (0, 2)
        if flags:
            for block in range(first, first + count):
                self.may[block] = self.may[block][-1:]

    def verify(self, connection):
        for block, may in enumerate(self.may):
            found = connection.read(block * BLOCK, BLOCK)
            assert found in may, f"block {block} begins with {found[:8].hex()}, may with {[one[:8].hex() for one in may]}"
            self.may[block] = [found]


def kill(server, engine, socket, base, overlay, folder):
    subprocess.run([server, "image", "create", "--base", base, overlay], check=True, stdout=subprocess.DEVNULL)
    with open(base, "rb") as file:
        blocks = Blocks(file.read(256 * BLOCK), 256, 7)
    with open(base, "rb") as file:
        before = file.read()

    def start():
        with open(folder + "/kill.log", "wb") as log:
            command = [server, "serve", "overlay:path=" + overlay, "-U", socket, "--engine", engine, "--cache", "0"]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        limit = time.monotonic() + 20
        while True:
            try:
                return process, rawnbd.Raw("nbd+unix:///?socket=" + socket).go()[0]
            except OSError:
                if process.poll() is not None or time.monotonic() > limit:
                    with open(folder + "/kill.log") as log:
                        raise AssertionError(log.read()) from None
                time.sleep(0.005)

    @tap.case
    def kills():
        """eight killed servers: what was flushed or written with FUA is there, and the rest is old or new"""
        chance = random.Random(3)
        for _ in range(8):
            process, connection = start()
            blocks.verify(connection)
            threading.Timer(chance.uniform(0.02, 0.2), process.kill).start()
            try:
                while True:
                    blocks.change(connection)
            except (OSError, EOFError):
                pass
            process.wait()
        process, connection = start()
        blocks.verify(connection)
        connection.close()
        process.terminate()
        assert process.wait(20) == 0 and blocks.version > 20, blocks.version
        with open(base, "rb") as file:
            tap.same_bytes(file.read(), before)


def reconnect(server, engine, socket, base, images, memory):
    pattern = b"\xaa" * (1 << 20)

    def start(overlay, mode):
        command = [server, "serve", f"overlay:path={overlay},cache={mode}", "-U", socket, "--engine", engine]
        command += ["--cache", "16M", "--buffers", "64M", "--cache-file", memory + "/reconnect.cache"]
        command += ["--set", "vm/dirty_expire_centisecs=10", "--set", "vm/dirty_writeback_centisecs=5"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def until_up(process):
        lines = iter(process.stdout.readline, "")
        return next((line for line in lines if line.startswith("uri: ")), None) or "it does not start"

    def own_bytes(overlay):
        found = subprocess.run([server, "image", "info", "--json", overlay], capture_output=True, check=True)
        return json.loads(found.stdout)["layers"][0]["own_bytes"]

    def is_written_out(overlay):
        limit = time.monotonic() + 20
        while own_bytes(overlay) < 2 << 20:
            assert time.monotonic() < limit, own_bytes(overlay)
            time.sleep(0.02)

    def one(mode):
        overlay = f"{images}/reconnect-{mode}.hwo"
        subprocess.run([server, "image", "create", "--base", base, overlay], check=True, stdout=subprocess.DEVNULL)
        process = start(overlay, mode)
        until_up(process)
        image = f"driver=nbd,server.type=unix,server.path={socket},reconnect-delay=20"
        guest = subprocess.Popen(["qemu-io", "-t", "writeback", "--image-opts", image], text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        guest.stdin.write("write -P 0xaa 0 1M\n")
        guest.stdin.flush()
        while "wrote 1048576" not in guest.stdout.readline():
            assert guest.poll() is None
        raw = rawnbd.Raw("nbd+unix:///?socket=" + socket).go()[0]
        raw.write(2 << 20, pattern)
        is_written_out(overlay)
        process.kill()
        process.wait()
        flat = images + "/reconnect.flat"
        subprocess.run([server, "image", "flatten", overlay, flat], check=True, stdout=subprocess.DEVNULL)
        with open(flat, "rb") as file:
            found = file.read(3 << 20)
            tap.same_bytes(found[:1 << 20] + found[2 << 20:], pattern * 2)
        os.unlink(flat)
        process = start(overlay, mode)
        until_up(process)
        output, _ = guest.communicate("flush\nread -P 0xaa 0 1M\nquit\n", timeout=60)
        assert "read 1048576/1048576" in output and "failed" not in output, output
        raw = rawnbd.Raw("nbd+unix:///?socket=" + socket).go()[0]
        raw.request(FLUSH, 1, 0, 0)
        assert raw.reply() == (0, 1)
        tap.same_bytes(raw.read(2 << 20, 1 << 20), pattern)
        raw.close()
        process.terminate()
        assert process.wait(20) == 0

    for mode in ["writeback", "writethrough", "none"]:
        def survives():
            one(mode)
        survives.__doc__ = f"{mode}: qemu-io and a client that connect again after kill -9 find their first writes, and so does flatten"
        tap.case(survives)


SLOTS = 64


class Records(threading.Thread):
    """Writes numbered blocks, one after the other, until it is told to stop; `acked` is the newest that was answered."""

    def __init__(self, uri):
        super().__init__(daemon=True)
        self.connection, self.acked, self.stopping, self.failure = rawnbd.Raw(uri).go(b"t")[0], 0, False, None

    def run(self):
        try:
            while not self.stopping:
                number = self.acked + 1
                self.connection.write(number % SLOTS * BLOCK, contents(number))
                self.acked = number
        except Exception as failure:
            self.failure = failure

    def end(self):
        self.stopping = True
        self.join(20)
        assert not self.is_alive() and self.failure is None, self.failure


class Reader(threading.Thread):
    """Reads a block that was written before the snapshots, and blocks of the base, all the time."""

    def __init__(self, uri, expected):
        super().__init__(daemon=True)
        self.connection, self.expected, self.rounds = rawnbd.Raw(uri).go(b"t")[0], expected, 0
        self.stopping, self.failure = False, None

    def run(self):
        try:
            while not self.stopping:
                assert self.connection.read(SLOTS * BLOCK, len(self.expected)) == self.expected
                self.rounds += 1
        except Exception as failure:
            self.failure = failure

    end = Records.end


def newest(copy):
    """The newest record of a copy; all before it must be there, whole."""
    numbers = [int.from_bytes(copy[at * BLOCK:][:8], "big") for at in range(SLOTS)]
    last = max(numbers)
    for slot, number in enumerate(numbers):
        assert number == max(last - (last - slot) % SLOTS, 0), f"slot {slot} has record {number}, the last is {last}"
        assert copy[slot * BLOCK:(slot + 1) * BLOCK] == contents(number), f"slot {slot} is torn"
    return last


def snapshot(server, control, uri, overlay, folder):
    """The first blocks of the export are zeros, the others its base's."""
    first = rawnbd.Raw(uri).go(b"t")[0]
    first.write(SLOTS * BLOCK, contents(1 << 40) * 2)
    expected = first.read(SLOTS * BLOCK, 16 * BLOCK)
    records, reader = Records(uri), Reader(uri, expected)
    records.start()
    reader.start()
    kept = []

    def flat(path):
        out = folder + "/kept.img"
        subprocess.run([server, "image", "flatten", path, out], check=True, stdout=subprocess.DEVNULL)
        with open(out, "rb") as image:
            bytes_ = image.read()
        os.unlink(out)
        return bytes_

    @tap.case
    def snapshots():
        """five snapshots under load: each has all that was acknowledged, in order, and does not change"""
        for number in range(5):
            goal, limit = records.acked + 50, time.monotonic() + 20
            while records.acked < goal:
                assert time.monotonic() < limit and records.failure is None, records.failure or "no new records"
                time.sleep(0.002)
            before = records.acked
            answer = ctl_client.Client(control).ask("snapshot", export="t", file=f"monday-{number}.hwo")
            assert "result" in answer, answer
            after = records.acked
            kept.append((answer["result"]["file"], flat(answer["result"]["file"])))
            assert before <= newest(kept[-1][1]) <= after + 1, (before, newest(kept[-1][1]), after)
        for path, bytes_ in kept:
            tap.same_bytes(flat(path), bytes_)

    @tap.case
    def load():
        """reads and writes went on"""
        records.end()
        reader.end()
        assert reader.rounds > 10, reader.rounds
        assert newest(first.read(0, SLOTS * BLOCK)) == records.acked


def own_block(number):
    return number * 5


def verify_one(connection, number, base):
    """The block of this overlay, and that of the next one, which is the base's here."""
    assert connection.read(own_block(number) * BLOCK, BLOCK) == contents(number), f"t{number}"
    at = own_block(number + 1) * BLOCK
    assert connection.read(at, 2 * BLOCK) == base[at:at + 2 * BLOCK], f"t{number}"


def connect_all(uri, base, count):
    with open(base, "rb") as file:
        bytes_ = file.read((own_block(count + 1) + 2) * BLOCK)
    return {number: rawnbd.Raw(uri).go(b"t%d" % number)[0] for number in range(1, count + 1)}, bytes_


def many(uri, control, base, images, count):
    connections, base = connect_all(uri, base, int(count))

    @tap.case
    def each():
        """all at once: each overlay reads its base, is written and flushed, and has its own block"""
        at = own_block(7) * BLOCK
        for connection in connections.values():
            connection.request(rawnbd.READ, 1, at, BLOCK)
        for connection in connections.values():
            assert connection.reply() == (0, 1) and connection.receive(BLOCK) == base[at:at + BLOCK]
        for number, connection in connections.items():
            connection.request(WRITE, 2, own_block(number) * BLOCK, BLOCK, contents(number))
        for connection in connections.values():
            assert connection.reply() == (0, 2)
            connection.request(FLUSH, 3, 0, 0)
        for connection in connections.values():
            assert connection.reply() == (0, 3)
        for number, connection in connections.items():
            verify_one(connection, number, base)

    @tap.case
    def come_and_go():
        """one is removed and added again while all others have requests in flight"""
        gone = len(connections) // 2
        connections.pop(gone).close()
        for number, connection in connections.items():
            connection.request(WRITE, 4, own_block(number) * BLOCK, BLOCK, contents(number))
        client = ctl_client.Client(control)
        answer = client.ask("remove", export=f"t{gone}", force=True)
        assert "result" in answer, answer
        answer = client.ask("add", spec=f"t{gone}=overlay:path={images}/t{gone}.hwo")
        assert "result" in answer, answer
        for connection in connections.values():
            assert connection.reply() == (0, 4)
            connection.request(FLUSH, 5, 0, 0)
        for connection in connections.values():
            assert connection.reply() == (0, 5)
        connections[gone] = rawnbd.Raw(uri).go(b"t%d" % gone)[0]
        for number, connection in connections.items():
            verify_one(connection, number, base)


def again(uri, base, count):
    connections, base = connect_all(uri, base, int(count))

    @tap.case
    def flushed():
        """after a kill -9 each has what was flushed"""
        for number, connection in connections.items():
            verify_one(connection, number, base)


def full(uri, filler):
    connection = rawnbd.Raw(uri).go(b"a")[0]
    model = {}

    def fill(seed, limit):
        """Writes until there is no room, in the write or in the flush; returns whether there was none."""
        chance = random.Random(seed)
        for step in range(limit):
            block = chance.randrange(16384)
            data = contents(seed * 100000 + step + 1)
            connection.request(WRITE, 3, block * BLOCK, BLOCK, data)
            error, _ = connection.reply()
            assert error in (0, errno.ENOSPC), error
            if error:
                return True
            model[block] = data
            if step % 64 == 63 and flush():
                return True
        return False

    def flush():
        connection.request(FLUSH, 4, 0, 0)
        error, _ = connection.reply()
        assert error in (0, errno.ENOSPC, errno.EIO), error
        return error

    def verify():
        for block, data in model.items():
            assert connection.read(block * BLOCK, BLOCK) == data, f"block {block}"

    @tap.case
    def no_room():
        """a disk without room: ENOSPC, everything acknowledged is read, and with room again it is written"""
        assert fill(1, 20000), "the disk was never full"
        verify()
        os.unlink(filler)
        limit = time.monotonic() + 30
        while flush():
            assert time.monotonic() < limit, "flushes fail although there is room"
            time.sleep(0.05)
        verify()
        assert not fill(2, 200)
        assert not flush()
        verify()


{"kill": kill, "reconnect": reconnect, "snapshot": snapshot, "many": many, "again": again, "full": full}[sys.argv[1]](*sys.argv[2:])
tap.done()
