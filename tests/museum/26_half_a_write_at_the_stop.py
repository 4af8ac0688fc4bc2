"""https://github.com/vm0-ai/vm0/issues/15463

A clean shutdown hung while a connection waited for the rest of a write's payload.

It would fail if a stop waited for the payload of a half-sent write, applied a part of it, or lost what another client had written.
"""

from museum import *

path = file("disk", size=8 * MIB)
server = Server(f"file:path={path}")
half = []
for number in range(8):
    raw = server.raw()
    raw.send(header(WRITE, 1, number * MIB, MIB) + b"h" * (number * 1000 + 1))
    half.append(raw)
whole = server.connect()
whole.pwrite(b"w" * 4096, 8 * MIB - 4096)
since = time.monotonic()
server.stop()
check("the stop waits for nobody's payload", time.monotonic() - since < 15, f"{time.monotonic() - since:.1f} s")
assert all(raw.hung_up() for raw in half)
same_bytes(content(path), bytes(8 * MIB - 4096) + b"w" * 4096)
check("no part of a half-sent write is applied, and the whole one is there", True)
done()
