"""Overlays under clients that know what they may find.

    overlay.py kill SERVER ENGINE SOCKET BASE OVERLAY DIR    a server that is killed: what was flushed is there
    overlay.py full URI FILLER                               a disk without room: nothing that was acknowledged is lost
"""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time

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


{"kill": kill, "full": full}[sys.argv[1]](*sys.argv[2:])
tap.done()
