"""Sequential small reads that come in one write become one large request, turn by turn, with the bytes that are there.

What the server made of a turn is in its counters: the row of the turn's size grew by it, the device got so many requests.
How much of a write a turn sees is the kernel's business, so turns are told by their size and judged by it: every turn of
16 is one request of 64 KiB, every turn of two connections' 32 is two, and a smaller part merges with itself.
"""

import os
import signal
import sys
import time

from ctl_client import Client
from rawnbd import CHUNK_DATA, CHUNK_DONE, READ, Raw, header
from tap import case, check, done, same_bytes

URI, CONTROL, SERVER, IMAGE = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
READS, BLOCK, ROUNDS = 16, 4096, 50
SPAN = READS * BLOCK
CONTENT = open(IMAGE, "rb").read()
control = Client(CONTROL)


def counters():
    stats = control.ask("stats")["result"]
    (export,), (device,) = stats["exports"].values(), stats["devices"].values()
    read = export["ops"].get("read", {})
    turns = {row["bios_in_turn"]: (row["turns"], row["bios"], row["merges"]) for row in stats["turns"]}
    names = ["bios", "requests", "merges", "bytes"]
    return turns, {**{name: read.get(name, 0) for name in names}, "issued": device["queue"]["issued"]}


def grown(before, after):
    """What happened in between: turns by size, and totals."""
    rows = {size: tuple(b - a for a, b in zip(before[0][size], after[0][size])) for size in after[0]}
    return {size: row for size, row in rows.items() if row[0]}, {name: after[1][name] - before[1][name] for name in after[1]}


def burst(place):
    """Sixteen reads in a row, as one piece of bytes; the cookie says which block is meant."""
    first = place * SPAN
    return b"".join(header(READ, first // BLOCK + i, first + i * BLOCK, BLOCK) for i in range(READS))


def answers(connection, place):
    """Takes the answers to a burst, in whatever order, and compares every byte."""
    wanted = set(range(place * READS, (place + 1) * READS))
    while wanted:
        flags, kind, cookie, data = connection.chunk()
        assert (flags, kind) == (CHUNK_DONE, CHUNK_DATA), (flags, kind)
        wanted.remove(cookie)
        offset = int.from_bytes(data[:8], "big")
        assert offset == cookie * BLOCK, (offset, cookie)
        same_bytes(data[8:], CONTENT[offset : offset + BLOCK])


def connect():
    connection, size = Raw(URI).go(structured=True)
    assert size == len(CONTENT), size
    return connection


seen = {}  # The server's row of turns -> turns, bios, merges


def judge(turns, totals, bursts):
    assert totals["bios"] == bursts * READS and totals["bytes"] == bursts * SPAN, totals
    assert totals["issued"] == totals["requests"] == totals["bios"] - totals["merges"], totals
    assert sum(row[2] for row in turns.values()) <= totals["merges"], (turns, totals)
    for size, (count, bios, merges) in turns.items():
        seen[size] = tuple(a + b for a, b in zip(seen.get(size, (0, 0, 0)), (count, bios, merges)))
        # A turn has a request for each connection that it heard, no more.
        assert bios - merges <= count * bursts, f"{count} turns of {bios} bios in all merged {merges}"
    return sum(row[0] for row in turns.values()) == 1


one, other = connect(), connect()
# Every other one, so that no burst continues another.
places = iter(range(0, len(CONTENT) // SPAN, 2))


def stopped():
    states = [open(f"/proc/{SERVER}/task/{task}/stat").read().rpartition(")")[2].split()[0] for task in os.listdir(f"/proc/{SERVER}/task")]
    return all(state == "T" for state in states)


@case
def _():
    """50 times 16 reads in one write(): a turn of 16 is one request of 64 KiB, and the bytes are right"""
    whole = 0
    for place in (next(places) for _ in range(ROUNDS)):
        before = counters()
        one.send(burst(place))
        answers(one, place)
        turns, totals = grown(before, counters())
        if judge(turns, totals, 1):
            assert totals["requests"] == 1, totals
            whole += 1
    assert whole >= ROUNDS // 2, f"only {whole} of {ROUNDS} came in one turn"


@case
def _():
    """two connections, each with its own 16, halves sent by turns: each merges with its own"""
    for a, b in ((next(places), next(places)) for _ in range(ROUNDS)):
        before = counters()
        half = len(burst(a)) // 2
        for part in (slice(0, half), slice(half, None)):
            one.send(burst(a)[part])
            other.send(burst(b)[part])
        answers(one, a)
        answers(other, b)
        turns, totals = grown(before, counters())
        judge(turns, totals, 2)
        # A half merges with itself at least.
        assert totals["requests"] <= 4, totals


@case
def _():
    """the same while the server is held, so that it finds both at once: 32 reads in a turn are two requests"""
    both = 0
    for a, b in ((next(places), next(places)) for _ in range(ROUNDS)):
        before = counters()
        os.kill(SERVER, signal.SIGSTOP)
        try:
            while not stopped():
                time.sleep(0.0001)
            quarter = len(burst(a)) // 4
            for part in range(4):
                one.send(burst(a)[part * quarter :][:quarter])
                other.send(burst(b)[part * quarter :][:quarter])
        finally:
            os.kill(SERVER, signal.SIGCONT)
        answers(one, a)
        answers(other, b)
        turns, totals = grown(before, counters())
        judge(turns, totals, 2)
        assert totals["requests"] == 2, totals
        both += "32-63" in turns
    assert both > 0, "no turn brought both"


check("turns of 16 and of 32 were seen", "16-31" in seen and "32-63" in seen, seen)
print("#   bios in turn   turns    bios  merges  requests")
for size, (count, bios, merges) in sorted(seen.items(), key=lambda row: row[1][1] / row[1][0]):
    print(f"#   {size:>12}  {count:6}  {bios:6}  {merges:6}  {bios - merges:8}")
done()
