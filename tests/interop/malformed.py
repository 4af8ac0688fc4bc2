"""Clients that break the rules: each loses its own connection at most, while an honest one goes on working."""

import os
import random
import struct
import sys
import time

from rawnbd import *
from tap import case, check, done, same_bytes

URI, SERVER, LOG = sys.argv[1], int(sys.argv[2]), sys.argv[3]
RANDOM = random.Random(4)
KIB, MIB = 1024, 1 << 20

witness, SIZE = Raw(URI).go()


def honest():
    """The honest client's own block, written anew and read back: it must notice nothing."""
    global witness
    data = RANDOM.randbytes(8 * KIB)
    try:
        witness.write(8 * MIB, data)
        same_bytes(witness.read(8 * MIB, len(data)), data)
    except Exception:
        # The next case shall fail for its own reasons only.
        witness, _ = Raw(URI).go()
        raise


def log_lines():
    with open(LOG) as log:
        return len(log.readlines())


def resident_mib():
    # Memory of its own: pages of a mapped image are the image.
    with open(f"/proc/{SERVER}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:")) // 1024


def harmful(function):
    """A case after which the honest client is asked, too."""

    def with_witness():
        function()
        honest()

    with_witness.__doc__ = function.__doc__
    case(with_witness)


@harmful
def _():
    """a request with bad magic ends the connection, with one line in the log"""
    bad, _ = Raw(URI).go()
    before = log_lines()
    bad.request(READ, 1, 0, 4096, magic=0xDEADBEEF)
    assert bad.hung_up()
    deadline = time.monotonic() + 5
    while log_lines() == before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert log_lines() == before + 1, f"{log_lines() - before} lines in the log"


@harmful
def _():
    """bad magic after good requests: the good ones are answered first or the connection ends"""
    bad, _ = Raw(URI).go()
    for cookie in range(8):
        bad.request(READ, cookie, 0, 4096)
    bad.send(b"\xff" * 28)
    assert bad.hung_up()


@harmful
def _():
    """a write of more than 32 MiB is refused or ends the connection; its bytes are not kept"""
    for length in [33 * MIB, 1 << 31, (1 << 32) - 1]:
        before = resident_mib()
        bad, _ = Raw(URI).go()
        bad.request(WRITE, 1, 0, length)
        try:
            piece = bytes(MIB)
            for _ in range(min(length // MIB, 64)):
                bad.send(piece)
            error, cookie = bad.reply() if length == 33 * MIB else (EINVAL, 1)
            assert cookie == 1 and error != 0
        except (ConnectionError, EOFError):
            pass
        bad.close()
        assert resident_mib() - before < 40, f"{resident_mib() - before} MiB more in memory"


@harmful
def _():
    """reads of more than 32 MiB, and past the end by a wrapping offset, are refused"""
    bad, _ = Raw(URI).go()
    for offset, length in [(0, 33 * MIB), (0, (1 << 32) - 4096), ((1 << 64) - 4096, 8192), ((1 << 63), 4096)]:
        bad.request(READ, 5, offset, length)
        try:
            error, cookie = bad.reply()
            assert error != 0 and cookie == 5
        except (ConnectionError, EOFError):
            bad, _ = Raw(URI).go()
    bad.close()


@harmful
def _():
    """a client that dies in the middle of a payload has changed nothing"""
    before = RANDOM.randbytes(64 * KIB)
    witness.write(0, before)
    for sent in [0, 1, 4096, 32 * KIB, 64 * KIB - 1]:
        bad, _ = Raw(URI).go()
        bad.request(WRITE, 1, 0, 64 * KIB, b"\xee" * sent)
        bad.close()
        # The answer on a connection made later comes after the server has seen the end of the earlier one.
        later, _ = Raw(URI).go()
        same_bytes(later.read(0, 64 * KIB), before)
        later.close()
    same_bytes(witness.read(0, 64 * KIB), before)


@harmful
def _():
    """half a request header, then the end"""
    for n in [1, 4, 27]:
        bad, _ = Raw(URI).go()
        bad.send(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, READ, 1, 0, 4096)[:n])
        bad.close()


@harmful
def _():
    """unknown commands say EINVAL and the connection lives"""
    bad, _ = Raw(URI).go()
    for command in [8, 99, 0x7FFF, 0xFFFF]:
        bad.request(command, 3, 0, 0)
        assert bad.reply() == (EINVAL, 3), command
    assert len(bad.read(0, 4096)) == 4096
    bad.close()


@harmful
def _():
    """unknown options say ERR_UNSUP, broken ones ERR_INVALID, unknown exports ERR_UNKNOWN; GO still works"""
    odd = Raw(URI).greet()
    for option in [4, 99, 0xFFFFFFFF]:
        odd.option(option, b"whatever")
        assert odd.option_reply()[:2] == (option, REP_ERR_UNSUP), option
    odd.option(OPT_STRUCTURED_REPLY, b"data where none belongs")
    assert odd.option_reply()[1] == REP_ERR_INVALID
    for data in [b"", b"\0\0", struct.pack(">I", 5000) + b"x" * 10, struct.pack(">IH", 0, 9), struct.pack(">I", 0xFFFFFFFF) + b"\0\0"]:
        odd.option(OPT_INFO, data)
        kind = odd.option_reply()[1]
        assert kind in (REP_ERR_INVALID, REP_ERR_UNKNOWN, 0x80000009), (data, hex(kind))
    odd.option(OPT_GO, struct.pack(">I", 7) + b"nowhere" + b"\0\0")
    assert odd.option_reply()[1] == REP_ERR_UNKNOWN
    odd.option(OPT_GO, struct.pack(">IH", 0, 0))
    while odd.option_reply()[1] == REP_INFO:
        pass
    assert len(odd.read(0, 4096)) == 4096
    odd.close()


@harmful
def _():
    """EXPORT_NAME works for the default export, and ends the connection for an unknown one"""
    old = Raw(URI).greet(flags=1)
    old.option(OPT_EXPORT_NAME, b"")
    size, _ = struct.unpack(">QH", old.receive(10))
    assert size == SIZE
    assert not any(old.receive(124))
    assert len(old.read(0, 4096)) == 4096
    old.close()
    old = Raw(URI).greet()
    old.option(OPT_EXPORT_NAME, b"nowhere")
    assert old.hung_up()


@harmful
def _():
    """ABORT and DISC end a connection in peace"""
    quiet = Raw(URI).greet()
    quiet.option(OPT_ABORT)
    assert quiet.hung_up()
    quiet, _ = Raw(URI).go()
    quiet.request(DISC, 0, 0, 0)
    assert quiet.hung_up()


@harmful
def _():
    """garbage instead of a handshake: unknown client flags, bad option magic, an option of 4 GiB"""
    for flags in [0x80, 0xFFFFFFFF]:
        assert Raw(URI).greet(flags=flags).hung_up()
    bad = Raw(URI).greet()
    bad.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert bad.hung_up()
    before = resident_mib()
    bad = Raw(URI).greet()
    bad.option(OPT_GO, b"x" * 1000, length=(1 << 32) - 1)
    try:
        for _ in range(64):
            bad.send(bytes(MIB))
    except ConnectionError:
        pass
    assert resident_mib() - before < 20, f"{resident_mib() - before} MiB more in memory"
    bad.close()


@harmful
def _():
    """options without end are cut off, or at least answered without growth"""
    before = resident_mib()
    chatty = Raw(URI).greet()
    try:
        for _ in range(5000):
            chatty.option(OPT_LIST)
            while chatty.option_reply()[1] == REP_SERVER:
                pass
    except (ConnectionError, EOFError):
        pass
    chatty.close()
    assert resident_mib() - before < 20


@harmful
def _():
    """200 connections of seeded noise, before and after the handshake"""
    for i in range(200):
        noisy = Raw(URI)
        try:
            if i % 2:
                noisy.go()
            noise = RANDOM.randbytes(RANDOM.randrange(1, 3000))
            if i % 4 == 1:
                # Half right is worse than all wrong: a good magic, then noise; but never onto the honest blocks.
                command = RANDOM.choice([READ, FLUSH, BLOCK_STATUS, CACHE, RANDOM.randrange(8, 65536)])
                noise = struct.pack(">IHH", REQUEST_MAGIC, RANDOM.randrange(65536), command) + noise
            noisy.send(noise)
        except (ConnectionError, EOFError):
            pass
        noisy.close()
        if i % 20 == 0:
            honest()


@harmful
def _():
    """a client that never reads its replies waits alone, in bounded memory"""
    before = resident_mib()
    deaf, _ = Raw(URI, timeout=3).go()
    sent = 0
    try:
        for _ in range(4000):
            deaf.request(READ, sent, 0, MIB)
            sent += 1
    except TimeoutError:
        pass
    for _ in range(50):
        honest()
    grown = resident_mib() - before
    deaf.close()
    assert grown < 160, f"{sent} reads of 1 MiB unread, and the server grew by {grown} MiB"


@harmful
def _():
    """30 connections that come and go in mid-request"""
    for i in range(30):
        brief, _ = Raw(URI).go()
        for cookie in range(16):
            brief.request(READ, cookie, cookie * MIB, 256 * KIB)
            brief.request(WRITE, 100 + cookie, 64 * MIB + cookie * MIB, 64 * KIB, bytes(64 * KIB))
        if i % 3 == 0:
            brief.reply()
        brief.close()


check("the server is the same process still", os.path.exists(f"/proc/{SERVER}/status"))
done()
