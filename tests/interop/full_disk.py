"""A disk without space: who hears of it, what may be lost (nothing that was acknowledged), and what goes on elsewhere.

    full_disk.py MODE A B CONTROL FILLER IMAGE

A is an export of IMAGE, 64 MiB on a filesystem of a few, of which FILLER takes half; B is one on another disk. MODE is what A's
writes mean: writeback (writers may be ahead of the disk), retry (that, with on-error=retry), through or none.
"""

import errno
import os
import random
import signal
import sys
import threading
import time

import nbd

from ctl_client import Client
from tap import case, done, same_bytes

MODE, A, B, CONTROL, FILLER, IMAGE = sys.argv[1:]
# Whether a write may be acknowledged that finds no space later, and is held then.
AHEAD = MODE in ("writeback", "retry")
PIECE = 64 << 10
PIECES = (64 << 20) // PIECE
RANDOM = random.Random(28)
# Whatever hangs is a failure of this file.
signal.alarm(120)

control = Client(CONTROL)


def connect(uri):
    handle = nbd.NBD()
    handle.set_strict_mode(0)
    handle.connect_uri(uri)
    return handle


class Neighbour(threading.Thread):
    """A client of B that writes, flushes and reads what it wrote, as long as the test lasts."""

    def __init__(self):
        super().__init__(daemon=True)
        self.handle, self.rounds, self.trouble, self.stop = connect(B), 0, None, False

    def run(self):
        try:
            while not self.stop:
                data = random.Random(self.rounds).randbytes(PIECE)
                offset = self.rounds % 64 * PIECE
                self.handle.pwrite(data, offset)
                self.handle.flush()
                same_bytes(self.handle.pread(PIECE, offset), data)
                self.rounds += 1
        except Exception as trouble:
            self.trouble = trouble

    def goes_on(self):
        """Two more rounds from now on: one may have been under way."""
        wanted = self.rounds + 2
        until(lambda: self.trouble or self.rounds >= wanted)
        assert self.trouble is None, self.trouble


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "not within 20 s"
        time.sleep(0.01)


def number(act):
    """The errno of a request; 0 when it succeeds."""
    try:
        act()
        return 0
    except nbd.Error as error:
        return error.errnum


def held():
    """Bytes that could not be written out."""
    return sum(place["bytes"] for place in control.ask("failed", export="a")["result"]["ranges"])


h, neighbour = connect(A), Neighbour()
neighbour.start()
model = {}  # What was acknowledged: piece -> bytes


def write_until_full(first):
    """Writes pieces from `first` on; ends at the first refusal, or where a disk of this size would long be full."""
    for piece in range(first, first + 256):
        data = RANDOM.randbytes(PIECE)
        refusal = number(lambda: h.pwrite(data, piece * PIECE))
        if refusal:
            return refusal, piece
        model[piece] = data
    return 0, first + 256


def all_there():
    for piece, data in model.items():
        same_bytes(h.pread(PIECE, piece * PIECE), data)


@case
def _():
    """the disk fills up, and what the writer hears, if anything, is ENOSPC"""
    refusal, piece = write_until_full(0)
    print(f"#   {piece} pieces of 64 KiB were acknowledged, then {errno.errorcode.get(refusal, 'no refusal')}")
    assert refusal == errno.ENOSPC or AHEAD and refusal == 0, errno.errorcode.get(refusal)


@case
def _():
    """what was acknowledged reads as it was written"""
    all_there()


@case
def _():
    """a flush says ENOSPC, again and again, where there is something that is not written; else at most once"""
    if not AHEAD:
        # What a cache could not write through it tells its flush, too.
        number(h.flush)
    for _ in range(3):
        found = number(h.flush)
        assert found == (errno.ENOSPC if AHEAD else 0), errno.errorcode.get(found)
    # What is just tried again is not held.
    until(lambda: held() > 0) if AHEAD else None
    assert AHEAD or held() == 0, held()


@case
def _():
    """another connection hears of it, too, and reads the same"""
    other = connect(A)
    found = number(other.flush)
    assert found == (errno.ENOSPC if AHEAD else 0), errno.errorcode.get(found)
    last = max(model)
    same_bytes(other.pread(PIECE, last * PIECE), model[last])
    other.shutdown()


@case
def _():
    """a FUA write where there is no space says ENOSPC; one where there is some succeeds"""
    found = number(lambda: h.pwrite(RANDOM.randbytes(PIECE), 63 << 20, nbd.CMD_FLAG_FUA))
    assert found == errno.ENOSPC, errno.errorcode.get(found)


@case
def _():
    """the export on the other disk goes on"""
    neighbour.goes_on()


@case
def _():
    """with space again everything is written: by a flush, or by itself where it is tried again"""
    os.unlink(FILLER)
    if MODE == "retry":
        until(lambda: held() == 0)
        # Who had not heard of the error yet hears of it once.
        number(h.flush)
    elif number(h.flush):
        # The flush tried again what it found; the error of before was due to this connection.
        pass
    assert number(h.flush) == 0
    assert held() == 0, held()
    all_there()


@case
def _():
    """and writes work where they were refused"""
    data = RANDOM.randbytes(PIECE)
    h.pwrite(data, 63 << 20, nbd.CMD_FLAG_FUA)
    model[(63 << 20) // PIECE] = data
    all_there()


def give_up():
    """Whether a flush succeeds then: what was just tried again is held once more."""
    lost = control.ask("failed", export="a")["result"]["ranges"]
    given = control.ask("discard-failed", export="a", confirm=True)["result"]["failed_bytes"]
    for place in lost:
        first, last = place["offset"] // PIECE, (place["offset"] + place["bytes"] - 1) // PIECE
        for piece in range(first, last + 1):
            model.pop(piece, None)
    # What came back between the two questions was given up, too, and nothing but that.
    unlisted = given - sum(place["bytes"] for place in lost)
    if unlisted > 0:
        wrong = [piece for piece, data in model.items() if h.pread(PIECE, piece * PIECE) != data]
        assert len(wrong) * 4096 <= unlisted, (wrong, unlisted)
        for piece in wrong:
            del model[piece]
    # The first may tell of an error of before.
    number(h.flush)
    return number(h.flush) == 0


@case
def _():
    """full once more, and given up: flushes work again, reads of what the disk has are right"""
    space = max(piece for piece in model if piece < 900) + 1
    refusal, _ = write_until_full(space)
    assert refusal == errno.ENOSPC or AHEAD and refusal == 0, errno.errorcode.get(refusal)
    if AHEAD:
        assert number(h.flush) == errno.ENOSPC
        until(give_up)
    else:
        number(h.flush)
    assert number(h.flush) == 0
    all_there()


@case
def _():
    """discarding gives space back, and the disk is as good as before"""
    h.trim(32 << 20, 0)
    h.flush()
    for piece in [piece for piece in model if piece < 512]:
        del model[piece]
    refusal = number(lambda: h.pwrite(b"\x77" * PIECE, 0, nbd.CMD_FLAG_FUA))
    assert refusal == 0, errno.errorcode.get(refusal)
    model[0] = b"\x77" * PIECE
    all_there()


@case
def _():
    """the other export has gone on all the time"""
    neighbour.goes_on()
    neighbour.stop = True
    neighbour.join()
    assert neighbour.trouble is None, neighbour.trouble


@case
def _():
    """what was flushed is in the image"""
    h.flush()
    with open(IMAGE, "rb") as image:
        for piece, data in model.items():
            same_bytes(os.pread(image.fileno(), PIECE, piece * PIECE), data)


h.shutdown()
done()
