"""https://github.com/openzfs/zfs/issues/4603 and https://github.com/koverstreet/bcachefs/issues/1174

One write of 4 KiB with its sync waited 1.5 minutes beside the large fsync of another file.

It would fail if a small write with its flush, or a read, waited 5 s beside another export's flush of 64 MiB on a slow disk.
"""

from museum import *

server = Server("--cache", "256M", f"a=delay:write=3ms,of=file:path={DIR}/a,size=128M", f"b=file:path={DIR}/b,size=128M")
large = server.connect("a")
for at in range(64 * LONG):
    large.pwrite(b"l" * MIB, at % 128 * MIB)
flush = large.aio_flush()
large.poll(0)
small, longest = server.connect("b"), [0.0, 0.0]
for step in range(20):
    since = time.monotonic()
    small.pwrite(b"s" * 4096, step * 65536)
    small.flush()
    longest[0] = max(longest[0], time.monotonic() - since)
    since = time.monotonic()
    small.pread(4096, 64 * MIB + step * 65536)
    longest[1] = max(longest[1], time.monotonic() - since)
check("a small flush beside a large one", longest[0] < 5, f"{longest[0]:.1f} s")
check("a read beside it", longest[1] < 5, f"{longest[1]:.1f} s")
while not large.aio_command_completed(flush):
    large.poll(1000)
server.stop()
done()
