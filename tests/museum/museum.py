"""What every exhibit uses: a server, its clients, and the checks of the interop tests.

The runner sets HEADWORKS (the binary), DIR (a scratch folder) and LONG (how often what is repeated is repeated, 1 in the ordinary run).
An exhibit prints `ok - WHAT` or `not ok - WHAT`, and ends with 1 when a check failed.
"""

import atexit
import os
import random
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))

import nbd  # noqa: E402
from rawnbd import *  # noqa: E402,F401,F403
from tap import case, check, done, equal, same_bytes  # noqa: E402,F401

HEADWORKS, DIR, LONG = os.environ["HEADWORKS"], os.environ["DIR"], int(os.environ.get("LONG", "1"))
SOCKET, CONTROL = f"{DIR}/sock", f"{DIR}/ctl"
KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


def headworks(*words, status=0):
    told = subprocess.run([HEADWORKS, *words], capture_output=True, text=True, timeout=120)
    assert status is None or told.returncode == status, (words, told)
    return told


def until(what, holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what} within {seconds} s"
        time.sleep(0.005)


def file(name, data=b"", size=None):
    path = f"{DIR}/{name}"
    with open(path, "wb") as out:
        out.write(data)
        if size is not None:
            out.truncate(size)
    return path


def content(path, offset=0, length=-1):
    with open(path, "rb") as data:
        data.seek(offset)
        return data.read(length)


class Server:
    """`headworks serve`; it is up when this returns."""

    def __init__(self, *words, socket=SOCKET, control=CONTROL):
        self.socket, self.control, self.out = socket, control, f"{DIR}/log.{random.getrandbits(32)}"
        log = open(self.out, "w")
        words = [HEADWORKS, "serve", "-U", socket, "--control", control, "--cache", "16M", *words]
        self.process = subprocess.Popen(words, stdout=log, stderr=log)
        atexit.register(self.kill)
        until("the server starts", lambda: "uri" in self.said().lower() or self.process.poll() is not None)
        assert self.process.poll() is None, self.said()

    def said(self):
        with open(self.out) as log:
            return log.read()

    def uri(self, name=""):
        return f"nbd+unix:///{name}?socket={self.socket}"

    def connect(self, name="", strict=True, contexts=()):
        handle = nbd.NBD()
        for context in contexts:
            handle.add_meta_context(context)
        if not strict:
            handle.set_strict_mode(0)
        handle.connect_uri(self.uri(name))
        return handle

    def raw(self, name=b""):
        return Raw(self.uri()).go(name)[0]  # noqa: F405

    def ctl(self, *words, status=0):
        return headworks("ctl", self.control, *words, status=status)

    def upgrade(self):
        """Upgrades. A reload that a signal began may still be in progress: then again after it."""
        def done():
            told = self.ctl("upgrade", status=None)
            assert told.returncode == 0 or "EBUSY" in told.stderr, told
            return told.returncode == 0
        until("the server is upgraded", done)

    def alive(self):
        """Whether another client is served, which every exhibit may ask after its mischief."""
        assert self.process.poll() is None, self.said()
        assert "panicked" not in self.said(), self.said()
        self.connect(*self.names()[:1]).pread(512, 0)
        return True

    def names(self):
        return [line.split()[0] for line in self.ctl("exports").stdout.splitlines()[1:] if "default" not in line]

    def stop(self, seconds=30):
        self.process.terminate()
        status = self.process.wait(seconds)
        assert status == 0 and "panicked" not in self.said(), (status, self.said())

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def extents(handle, offset, length, context="base:allocation"):
    """Block status of a range as a list of lengths and flags."""
    found, end = [], offset + length
    while offset < end:
        got = []
        handle.block_status(end - offset, offset, lambda name, at, entries, error: got.extend(entries) if name == context else None)
        for size, flags in zip(got[::2], got[1::2]):
            found.append((size, flags))
            offset += size
    return found


def refused(call, *errors):
    """The errno of a request that has to fail."""
    try:
        call()
    except nbd.Error as error:
        assert not errors or error.errno in errors, error
        return error.errno
    raise AssertionError("it was answered with success")


def together(workers):
    """Runs functions side by side; the first exception is raised here."""
    wrong = []

    def run(worker):
        try:
            worker()
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=run, args=[worker]) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]


def blob(seed, length):
    return random.Random(seed).randbytes(length)
