"""Many clients at once, and many that come to nothing: everybody is served, and nothing of them stays.

    crowd.py crowd|limit|files|half|keys|garbage|visits|knock URI SERVER LOG [CERTIFICATES]
"""

import os
import random
import select
import ssl
import struct
import subprocess
import sys
import time

from rawnbd import *
from tap import case, done, same_bytes

WHAT, URI, SERVER, LOG = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
CERTIFICATES = "".join(sys.argv[5:])
RANDOM = random.Random(200)
KIB, MIB = 1024, 1 << 20


def open_files():
    return len(os.listdir(f"/proc/{SERVER}/fd"))


def resident_kib():
    with open(f"/proc/{SERVER}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))


def until(what, condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def lines_with(words):
    with open(LOG) as log:
        return sum(words in line for line in log)


def works(client, place):
    """A client's own 8 KiB, written and read back."""
    data = RANDOM.randbytes(8 * KIB)
    client.write(place * 8 * KIB, data)
    same_bytes(client.read(place * 8 * KIB, len(data)), data)


def crowd():
    def round_of(count):
        clients = [Raw(URI).go()[0] for _ in range(count)]
        data = [RANDOM.randbytes(16 * KIB) for _ in clients]
        # Everybody has several requests under way before anybody takes an answer.
        for place, client in enumerate(clients):
            half = 8 * KIB
            for part in range(2):
                client.request(WRITE, part, place * 16 * KIB + part * half, half, data[place][part * half :][:half])
        for client in clients:
            assert sorted(client.reply() for _ in range(2)) == [(0, 0), (0, 1)]
        for place, client in enumerate(clients):
            # Each reads what another has written.
            for cookie in range(4):
                other = (place + cookie * 50) % count
                client.request(READ, cookie, other * 16 * KIB, 16 * KIB)
        for place, client in enumerate(clients):
            for _ in range(4):
                error, cookie = client.reply()
                assert error == 0
                same_bytes(client.receive(16 * KIB), data[(place + cookie * 50) % count])
        assert open_files() >= count
        for client in clients:
            client.close()

    @case
    def _():
        """200 clients at once, three times and more: each has its answers, and the bytes are those of whoever wrote them"""
        before, sizes = open_files(), []
        # Buffers that were used stay, as many as were used at once; how many that is is the machine's business, and no round needs
        # more than all. What is lost is lost in every round.
        while len(sizes) < 3 or sizes[-1] - sizes[-2] >= 1024:
            assert len(sizes) < 10, f"memory in KiB after each round: {sizes}"
            round_of(200)
            until("files stay open", lambda: open_files() <= before)
            sizes.append(resident_kib())


def outlive(stopped, *honest):
    """How many rounds of requests the honest ones have answered until all that stopped are let go."""
    waiting, rounds = {client.socket: client for client in stopped}, 0
    while waiting:
        for number, client in enumerate(honest):
            works(client, 100 * number + rounds % 100)
        rounds += 1
        for ready in select.select(list(waiting), [], [], 0.01)[0]:
            try:
                if not ready.recv(65536):
                    waiting.pop(ready).close()
            except ConnectionError:
                waiting.pop(ready).close()
        assert rounds < 20_000, f"{len(waiting)} are still there"
    return rounds


def limit():
    @case
    def _():
        """one client more than --connections is refused at once and told in the log; nobody else notices"""
        present = [Raw(URI).go()[0] for _ in range(64)]
        for extra in range(1, 4):
            refused = Raw(URI, timeout=10)
            assert refused.hung_up()
            until("nothing in the log", lambda: lines_with("too many connections") == extra)
        for place, client in enumerate(present):
            works(client, place)
        # A loop of them fills no disk: 5000 lines and two a second, then a count.
        began = time.monotonic()
        for _ in range(5200):
            Raw(URI, timeout=10).socket.close()
        until("nothing is left out", lambda: lines_with("more messages about clients suppressed") > 0)
        assert lines_with("too many connections") <= 5010 + 2 * (time.monotonic() - began), lines_with("too many connections")
        present.pop().close()
        # Its place is free when the server has heard of it.
        deadline = time.monotonic() + 10
        while True:
            try:
                next_one = Raw(URI).go()[0]
                break
            except (EOFError, ConnectionError):
                assert time.monotonic() < deadline, "the free place is given to nobody"
        works(next_one, 63)
        for place, client in enumerate(present):
            works(client, place)


def files():
    @case
    def _():
        """with no file descriptor left clients wait to be accepted, those who are in go on, and a leaving one makes room"""
        present = []
        while True:
            waits = Raw(URI, timeout=30)
            # It is greeted, or the log says why it is not.
            greeted = lambda: select.select([waits.socket], [], [], 0)[0]
            until("nothing in the log", lambda: greeted() or lines_with("cannot accept") > 0)
            if not greeted():
                break
            present.append(waits.go()[0])
            assert len(present) < 100
        for place, client in enumerate(present):
            works(client, place)
        present.pop().close()
        waits.go()
        works(waits, 99)


def half():
    stages = {
        "nothing": lambda c: None,
        "half of its flags": lambda c: (c.receive(18), c.send(b"\0\0")),
        "half of an option": lambda c: c.greet().send(struct.pack(">Q", OPTION_MAGIC)),
        "an option without its data": lambda c: c.greet().option(OPT_GO, length=64),
        "no option": lambda c: c.greet(),
    }

    @case
    def _():
        """100 clients that stop in their handshakes are let go, each of them, while an honest one works"""
        before = open_files()
        honest, _ = Raw(URI).go()
        stopped, late = [Raw(URI, timeout=20) for _ in range(100)], 0
        for number, client in enumerate(stopped):
            try:
                list(stages.values())[number % len(stages)](client)
            except (EOFError, ConnectionError):
                # On a slow machine its time was over already.
                late += 1
        rounds = outlive(stopped, honest)
        assert rounds > 10 or late, rounds
        honest.close()
        until("files stay open", lambda: open_files() <= before)
        until("the log says too little", lambda: lines_with("connection ended") >= 100)


def keys():
    """The same in the handshake of TLS, whose answers cost the server a signature each."""
    # It ends with the first words, before any certificate is looked at.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def asked(timeout=20):
        raw = Raw(URI, timeout).greet()
        raw.option(OPT_STARTTLS)
        assert raw.option_reply() == (OPT_STARTTLS, REP_ACK, b"")
        return raw

    def hello():
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return outgoing.read()

    def encrypted():
        return Raw(URI).go(certificates=CERTIFICATES)[0]

    def long_hello():
        """One that is announced as the longest that is waited for, and does not end."""
        body = b"\x01\x00\xff\xff" + bytes(60000)
        return b"".join(b"\x16\x03\x01" + struct.pack(">H", len(piece)) + piece for piece in [body[at : at + 16384] for at in range(0, len(body), 16384)])

    words = [
        lambda: b"",
        lambda: hello()[:100],
        hello,
        hello,
        lambda: b"\x16\x03\x01\x40\x00\x01",
        long_hello,
        lambda: RANDOM.randbytes(50000),
        lambda: hello() + RANDOM.randbytes(500),
    ]

    def crowd_of(count, honest):
        stopped = [asked() for _ in range(count)]
        for number, client in enumerate(stopped):
            try:
                client.send(words[number % len(words)]())
            except ConnectionError:
                pass
        works(honest, 0)
        late = encrypted()
        works(late, 1)
        largest = resident_kib()
        rounds = outlive(stopped, honest, late)
        assert rounds > 1, rounds
        late.close()
        return largest

    @case
    def _():
        """200 clients that stop in their handshakes of TLS or send garbage, three times: two honest ones work, nothing stays"""
        before = open_files()
        honest, _ = Raw(URI).go()
        memory, after = resident_kib(), []
        for _ in range(3):
            largest = crowd_of(200, honest)
            until("files stay open", lambda: open_files() <= before + 1)
            # What is kept of each is a message of 64 KiB at most, and some of TLS's own.
            assert largest - memory < 200 * 96, f"{largest - memory} KiB for 200"
            after.append(resident_kib())
        # What was used at most stays with the allocator, and two rounds come to it; then 5 KiB for each of 200 would be found.
        assert after[2] - after[1] < 1024, f"memory in KiB after each round: {after}"
        until("the log says too little", lambda: lines_with("connection ended") >= 600)


def session():
    """All that a well-behaved client says, in pieces; its export is the first one."""
    name = struct.pack(">I", 0) + b"\0\0"
    context = b"base:allocation"
    contexts = struct.pack(">III", 0, 1, len(context)) + context
    info = struct.pack(">I", 0) + struct.pack(">HHHH", 3, 0, 1, 3)
    pieces = [struct.pack(">I", 3)]
    for option, data in [(OPT_STRUCTURED_REPLY, b""), (OPT_LIST, b""), (9, contexts), (OPT_INFO, info), (10, contexts), (OPT_GO, name)]:
        pieces.append(struct.pack(">QII", OPTION_MAGIC, option, len(data)) + data)
    for cookie, (command, length, data) in enumerate(
        [(WRITE, 4096, b"\x5a" * 4096), (READ, 8192, b""), (FLUSH, 0, b""), (TRIM, 4096, b""), (WRITE_ZEROES, 4096, b""), (CACHE, 4096, b""), (BLOCK_STATUS, 65536, b"")]
    ):
        pieces.append(header(command, cookie, 4096 * cookie, length) + data)
    return pieces + [header(DISC, 99, 0, 0)]


def damaged(draw):
    """A session with something wrong in it."""
    pieces = session()
    at = draw.randrange(len(pieces))
    piece = bytearray(pieces[at])
    how = draw.randrange(8)
    if how == 0:
        for _ in range(draw.choice([1, 1, 2, 8])):
            place = draw.randrange(len(piece))
            piece[place] ^= 1 << draw.randrange(8)
    elif how == 1:
        place = draw.randrange(len(piece))
        number = draw.choice([b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x02\0\0\1", b"\x80\0\0\0"])
        piece[place : place + 4] = number
    elif how == 2:
        del piece[draw.randrange(len(piece)) :]
    elif how == 3:
        piece += draw.randbytes(draw.randrange(1, 200))
    elif how == 4:
        piece = bytearray(draw.choice([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"{}\n", b"\0" * 300, b"\xff" * 300]))
    elif how == 5:
        piece += piece * draw.randrange(1, 20)
    elif how == 6:
        piece = bytearray()
    else:
        other = draw.randrange(len(pieces))
        pieces[other], piece = bytes(piece), bytearray(pieces[other])
    pieces[at] = bytes(piece)
    return pieces


def garbage():
    honest, _ = Raw(URI).go(b"honest")

    @case
    def _():
        """what a well-behaved client says is taken"""
        client = Raw(URI, timeout=10)
        client.send(b"".join(session()))
        heard = b""
        while piece := client.socket.recv(65536):
            heard += piece
        answers = heard.count(struct.pack(">I", STRUCTURED_MAGIC)) + heard.count(struct.pack(">I", SIMPLE_MAGIC))
        assert answers >= 7, answers

    @case
    def _():
        """1500 sessions with damage of every kind at every place: an honest client notices nothing, and nothing stays"""
        before, memory = open_files(), resident_kib()
        for seed in range(1500):
            draw = random.Random(seed)
            client = Raw(URI, timeout=5)
            try:
                # In one piece or in many.
                pieces = damaged(draw)
                for piece in [b"".join(pieces)] if draw.random() < 0.5 else pieces:
                    client.send(piece)
            except (ConnectionError, TimeoutError):
                pass
            # Some wait for what the server says, some do not.
            if draw.random() < 0.3:
                client.socket.settimeout(0.02)
                try:
                    while client.socket.recv(65536):
                        pass
                except (ConnectionError, TimeoutError):
                    pass
            client.close()
            if seed % 15 == 0:
                works(honest, seed // 15)
        until("files stay open", lambda: open_files() <= before)
        # Buffers that were used stay; there are 64 MiB of them at most.
        assert resident_kib() - memory < 70 * 1024, resident_kib() - memory


def visits():
    def visit(number):
        client = Raw(URI)
        kind = number % 4
        if kind == 1:
            client.greet().option(OPT_LIST)
        elif kind == 2:
            client.go()
            client.request(READ, 1, 0, 64 * KIB)
        elif kind == 3:
            client.go()
            works(client, 3)
            client.request(DISC, 0, 0, 0)
        client.close()

    @case
    def _():
        """5000 clients that come and go, in four manners: no file stays open, memory does not grow"""
        before = open_files()
        for number in range(1000):
            visit(number)
        until("files stay open", lambda: open_files() <= before)
        memory = resident_kib()
        for number in range(5000):
            visit(number)
        until("files stay open", lambda: open_files() <= before)
        grown = resident_kib() - memory
        assert grown < 1024, f"{grown} KiB more"


# Comes and goes until it is ended.
KNOCKER = """
import socket, sys, time
end = time.monotonic() + 60
while time.monotonic() < end:
    with socket.socket(socket.AF_UNIX) as one:
        try:
            one.connect(sys.argv[1])
        except OSError:
            pass
"""


def knock():
    @case
    def _():
        """four that come and go without end hold up nobody: a client has its answers meanwhile"""
        client, _ = Raw(URI).go()
        knockers = [subprocess.Popen([sys.executable, "-c", KNOCKER, path_of(URI)]) for _ in range(4)]
        time.sleep(0.5)
        for _ in range(100):
            client.read(0, 4 * KIB)
        left = [knocker for knocker in knockers if knocker.poll() is None]
        for knocker in knockers:
            knocker.kill()
            knocker.wait()
        assert len(left) == 4, f"{4 - len(left)} had ended before 100 reads were answered"


{"crowd": crowd, "knock": knock, "limit": limit, "files": files, "half": half, "keys": keys, "garbage": garbage, "visits": visits}[WHAT]()
done()
