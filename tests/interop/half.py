"""An honest client of export a beside clients of export b that begin what they do not end.

    half.py senders|links|handshakes|copies|atomic SOCKET SERVER [CERTIFICATES]

An honest request must be answered within 5 s, and as much more as it takes ten times alone: a loaded machine answers in that time, and a
request that waits for a client that sends nothing does not. No client is disconnected meanwhile: the server's --stall-timeout is 600 s.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

from half_senders import *
from tap import case, done

WHAT, SOCKET, SERVER = sys.argv[1], sys.argv[2], int(sys.argv[3])
CERTIFICATES = "".join(sys.argv[4:])
URI = f"nbd+unix:///?socket={SOCKET}"
KIB = 1 << 10
SIZES = (4 * KIB, 64 * KIB, 2 * MIB, 32 * MIB)
BOUND = 5
BUFFERS = 128 * MIB
# What the server may take beside its buffers: connections and their bytes.
FIXED = 64 * MIB


def honest_clients():
    return [
        Honest(URI, b"a", write, size, (at * 2 + write) * 32 * MIB, CERTIFICATES, timeout=3600)
        for at, size in enumerate(SIZES)
        for write in (False, True)
    ]


def bounds():
    """The time that each request may take: measured alone, one after the other."""
    clients = honest_clients()
    for client in clients:
        client.run(count=2)
        assert client.failed is None, client.failed
        client.raw.close()
    return [BOUND + 10 * max(client.times) for client in clients]


def served_beside(limits, requests=3):
    """Every size is read and written at once; returns what is not served in time, in words."""
    clients = honest_clients()
    threads = [threading.Thread(target=client.run, args=(requests,), daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    end = time.monotonic() + requests * max(limits)
    while time.monotonic() < end and any(thread.is_alive() for thread in threads):
        time.sleep(0.02)
        now = time.monotonic()
        late = [client for client, limit in zip(clients, limits) if client.waits_since and now - client.waits_since > limit]
        if late:
            break
    wrong = []
    for client, limit, thread in zip(clients, limits, threads):
        since = client.waits_since
        if client.failed:
            wrong.append(f"{client.name()}: {client.failed}")
        elif max(client.times, default=0) > limit:
            wrong.append(f"{client.name()}: {max(client.times):.1f} s")
        elif thread.is_alive() and since:
            wrong.append(f"{client.name()}: no answer for {time.monotonic() - since:.1f} s")
        client.raw.close()
    return wrong


class Beside:
    """Senders that run while the honest client is tried."""

    def __init__(self, senders):
        self.crowd, self.senders = Crowd(senders), senders

    def settled(self):
        """Waits until the server takes no more than what trickles."""
        trickle = sum(sender.rate for sender in self.senders)
        before, deadline = -1 << 40, time.monotonic() + 10
        while (now := sum(sender.sent for sender in self.senders)) - before > trickle and time.monotonic() < deadline:
            before = now
            time.sleep(0.2)

    def __enter__(self):
        self.settled()
        return self

    def __exit__(self, *_):
        self.crowd.close()


def ends_well(senders):
    """The senders send the rest at last, and are answered."""
    for sender in senders:
        sender.finish()
    deadline = time.monotonic() + 30
    while any(sender.replies == 0 and not sender.left for sender in senders) and time.monotonic() < deadline:
        time.sleep(0.02)
    wrong = [f"{sender.sent} of {sender.size} bytes sent, left: {sender.left}" for sender in senders if sender.replies != 1 or sender.errors]
    assert not wrong, f"{len(wrong)} writes are not answered, the first: {wrong[0]}"


def senders():
    for name in (b"a", b"b"):
        allocate(URI, name, 256 * MIB, CERTIFICATES)
    limits, most = bounds(), rss(SERVER) + BUFFERS + FIXED
    for count, size, part, rate in [
        (4, 32 * MIB, MIB, 0),
        (4, 32 * MIB, 4 * KIB, KIB),
        (8, 32 * MIB, 32 * MIB - 1, 0),
        (8, 8 * MIB, MIB + 1, 64),
        (100, 32 * MIB, 256 * KIB, KIB),
        (100, MIB, 64 * KIB, 0),
        (130, MIB, 4 * KIB, 64),
        (100, MIB, MIB - 1, 0),
    ]:
        rest = "all but a byte" if part == size - 1 else f"{part // KIB} KiB"
        what = f"beside {count} writes of {size // MIB} MiB, {rest} sent" + (f", {rate} B/s then" if rate else "")

        def beside_them(count=count, size=size, part=part, rate=rate):
            with Beside(half_senders(URI, b"b", count, size, part, rate, CERTIFICATES)) as beside:
                wrong = served_beside(limits)
                assert not wrong, "; ".join(wrong)
                left = sum(sender.left for sender in beside.senders)
                assert left == 0, f"{left} senders were disconnected"
                assert rss(SERVER) <= most, f"{rss(SERVER) // MIB} MiB of memory, at most {most // MIB}"
                # Those that are long to send are left alone.
                ends_well([sender for sender in beside.senders if size <= 8 * MIB or part == size - 1][:20])

        beside_them.__doc__ = what
        case(beside_them)


def links():
    limits = bounds()

    @case
    def _():
        """links of 100 KB/s with writes of 1 MiB: honest requests are served, and the links get their bytes"""
        # Sealing costs this side time.
        count, rate = 50 if CERTIFICATES else 200, 100_000
        with Beside(slow_links(URI, b"b", count, rate, certificates=CERTIFICATES)) as beside:
            wrong = served_beside(limits, requests=10)
            assert not wrong, "; ".join(wrong)
            # Each link sends a write in 10 s; a loaded machine is slower.
            deadline = time.monotonic() + 60
            while any(sender.replies < 1 and not sender.left for sender in beside.senders) and time.monotonic() < deadline:
                time.sleep(0.05)
            behind = [sender.sent for sender in beside.senders if sender.replies < 1]
            assert not behind, f"{len(behind)} links have no answer, the least has sent {min(behind)} bytes"
            assert not any(sender.errors for sender in beside.senders)


def handshakes():
    limits = bounds()

    @case
    def _():
        """beside 200 clients that stop in their handshakes"""
        clients = half_handshakes(URI, 200)
        wrong = served_beside(limits)
        for client in clients:
            client.close()
        assert not wrong, "; ".join(wrong)


def copies():
    limits = bounds()

    @case
    def _():
        """beside six suspended copies of 32 MiB requests, which go on in the end"""
        with tempfile.TemporaryDirectory() as where:
            source = where + "/source"
            with open(source, "wb") as file:
                for at in range(200):
                    file.write(bytes([at + 1]) * MIB)
            command = ["nbdcopy", "-C", "1", "--requests=4", f"--request-size={32 * MIB}", source, URI.replace("///", "///b")]
            copies = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(6)]
            try:
                began = time.monotonic()
                while time.monotonic() - began < 0.5 and any(copy.poll() is None for copy in copies):
                    time.sleep(0.01)
                for copy in copies:
                    copy.send_signal(signal.SIGSTOP)
                wrong = served_beside(limits)
            finally:
                for copy in copies:
                    copy.send_signal(signal.SIGCONT)
            assert not wrong, "; ".join(wrong)
            status = [copy.wait(120) for copy in copies]
            assert status == [0] * 6, status


def atomic():
    @case
    def _():
        """a write of 64 KiB whose client vanishes changes nothing; a longer one leaves each block old or new"""
        reader = connect(URI, b"b")
        for size in (64 * KIB, 8 * MIB):
            old = bytes([1]) * size
            reader.write(0, old)
            for sent in (1, 4 * KIB, size // 2 + 100, size - 1):
                raw = connect(URI, b"b")
                raw.send(header(WRITE, 9, 0, size))
                raw.send(bytes([2]) * sent)
                raw.close()
                # What the server read of it is decided when the connection is gone.
                gone_from_server()
                found = reader.read(0, size)
                if size <= 64 * KIB:
                    assert found == old, f"{sent} of {size} bytes changed something"
                blocks = {found[at : at + 4 * KIB] for at in range(0, size, 4 * KIB)}
                assert blocks <= {bytes([1]) * 4 * KIB, bytes([2]) * 4 * KIB}, "a block is neither old nor new"
                reader.write(0, old)


def open_files():
    return len(os.listdir(f"/proc/{SERVER}/fd"))


BEFORE = open_files()


def gone_from_server():
    deadline = time.monotonic() + 20
    while open_files() > BEFORE + 1:
        assert time.monotonic() < deadline, "the connection is not gone"
        time.sleep(0.01)


{"senders": senders, "links": links, "handshakes": handshakes, "copies": copies, "atomic": atomic}[WHAT]()
done()
