"""A device that does not answer, beside one that does, both of one shard's thread.

    hang.py many|large URI PID CTL LOG [CLIENTS]

The export `slow` answers no read, `v` is memory; --io-timeout is 2 s. The ratio of latencies is printed and judged generously: this
machine does other things, too. docs/PERFORMANCE.md has figures of a quiet one.
"""

import json
import os
import selectors
import struct
import subprocess
import sys
import time

from rawnbd import *
from tap import case, check, done, slowdown

WHAT, URI, PID, CTL, LOG = sys.argv[1:6]
CLIENTS = int(sys.argv[6]) if len(sys.argv) > 6 else 0
HEADWORKS = os.environ["HEADWORKS"]
TIMEOUT = 2
MIB = 1 << 20


def rss():
    with open(f"/proc/{PID}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) >> 10


def ctl(*words):
    told = subprocess.run([HEADWORKS, "ctl", CTL, "--json", *words], capture_output=True, check=True)
    return json.loads(told.stdout)


def state():
    return {row["name"]: row["device_state"] for row in ctl("exports")}


def latencies(client, seconds):
    """Sorted times of 4 KiB reads of `v`, one after the other."""
    times, end, cookie = [], time.monotonic() + seconds, 0
    while (start := time.monotonic()) < end:
        cookie += 1
        client.request(READ, cookie, cookie % 1000 * 4096, 4096)
        assert client.reply() == (0, cookie)
        client.receive(4096)
        times.append(time.monotonic() - start)
    return sorted(times)


def p99(times):
    return times[len(times) * 99 // 100]


def read_of(client, length):
    """Seconds that a read of `v` takes."""
    start = time.monotonic()
    client.request(READ, 7, 0, length)
    assert client.reply() == (0, 7)
    client.receive(length)
    return time.monotonic() - start


def collect(clients, asked, since, deadline):
    """Takes `asked` error replies from each client; returns the last one's age and how many are missing."""
    selector = selectors.DefaultSelector()
    left = {}
    for client in clients:
        client.socket.setblocking(False)
        left[client] = asked * 16
        selector.register(client.socket, selectors.EVENT_READ, client)
    last = since
    while selector.get_map() and time.monotonic() < deadline:
        for key, _ in selector.select(0.1):
            data = key.fileobj.recv(1 << 16)
            assert data, "the server hung up"
            left[key.data] -= len(data)
            last = time.monotonic()
            if left[key.data] <= 0:
                selector.unregister(key.fileobj)
    assert all(count >= 0 for count in left.values()), "a reply is no error"
    return last - since, sum(left.values()) // 16


def log_lines(words):
    with open(LOG) as log:
        return sum(words in line for line in log)


def many():
    reader = Raw(URI, timeout=30).go(b"v")[0]
    alone, before = latencies(reader, 1.5), rss()
    asked = 128 if CLIENTS <= 100 else 8
    clients = [Raw(URI, timeout=30).go(b"slow")[0] for _ in range(CLIENTS)]
    since = time.monotonic()
    for client in clients:
        client.send(b"".join(header(READ, at, at * 4096, 4096) for at in range(asked)))
    sent = time.monotonic()
    beside = latencies(reader, 1.5)
    large = read_of(reader, 8 * MIB)
    ratio = p99(beside) / p99(alone)
    print(f"# {CLIENTS} clients x {asked}: 4 KiB reads of the other export take {p99(alone) * 1e6:.0f} us alone, "
          f"{p99(beside) * 1e6:.0f} us beside them (p99, {ratio:.2f}x); its 8 MiB read {large * 1e3:.1f} ms", flush=True)
    check(f"the other export is read beside {CLIENTS} clients", ratio < 10 or p99(beside) < 0.02, f"{ratio:.1f}x")
    check("it has room for a large read", large < 1.5 * slowdown(), f"{large:.1f} s")
    waited, missing = collect(clients, asked, since, sent + 2 * TIMEOUT + 8 * slowdown())
    print(f"# all {CLIENTS * asked} requests were answered {waited:.1f} s after the first was sent", flush=True)
    check("nothing is unanswered after twice the time-out", missing == 0 and waited < 2 * TIMEOUT + (sent - since) + 2 * slowdown(),
          f"{missing} missing, the last after {waited:.1f} s")
    check("ctl exports tell the device's state", state() == {"slow": "stuck", "v": "live"}, state())
    check("ctl stats tell it", ctl("stats")["devices"]["hw0"]["device_state"] == "stuck")
    check("ctl why tells it", "does not answer" in ctl("why", "slow")["sentence"])
    check("the log says it in one line", log_lines("the device does not answer") == 1, log_lines("the device does not answer"))
    start = time.monotonic()
    for client in clients[:50]:
        client.send(header(READ, 1, 0, 4096))
    # One of them may be a probe of the device, and fails after its time-out.
    took, missing = collect(clients[:50], 1, start, start + min(0.9 * slowdown(), 0.9 * TIMEOUT))
    check("new requests fail at once", missing <= 1, f"{missing} of 50 wait")
    again = latencies(reader, 1.0)
    print(f"# the same reads then take {p99(again) * 1e6:.0f} us", flush=True)
    for client in clients:
        client.close()
    grown = rss() - before
    print(f"# memory: {before} MiB before, {grown:+} MiB after", flush=True)
    check("memory is as before", grown < 64, f"{grown} MiB more")


def large():
    reader = Raw(URI, timeout=30).go(b"v")[0]
    alone = [read_of(reader, length) for length in (4096, MIB, 8 * MIB)]
    clients = [Raw(URI, timeout=30).go(b"slow")[0] for _ in range(4)]
    since = time.monotonic()
    for client in clients:
        client.send(b"".join(header(READ, at, at * MIB, MIB) for at in range(64)))
    time.sleep(0.2)
    beside = [read_of(reader, length) for length in (4096, MIB, 8 * MIB)]
    told = ", ".join(f"{one * 1e3:.1f} -> {two * 1e3:.1f}" for one, two in zip(alone, beside))
    print(f"# reads of 4 KiB, 1 and 8 MiB beside 4 x 64 reads of 1 MiB that hang: {told} ms", flush=True)
    check("reads of every size pass large reads that hang", max(beside) < 1.5 * slowdown(), told)
    waited, missing = collect(clients, 64, since, since + 2 * TIMEOUT + 8 * slowdown())
    check("large reads that wait for buffers are answered, too", missing == 0, f"{missing} missing after {waited:.1f} s")


case({"many": many, "large": large}[WHAT])
done()
