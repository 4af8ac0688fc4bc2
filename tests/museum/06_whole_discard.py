"""https://github.com/systemd/systemd/issues/16242 and https://github.com/archiecobbs/s3backer/issues/230

The discard of a whole device failed for requests above 2 GiB, or took so long that the kernel's time-out of 30 s called it stuck.

It would fail if a trim or zero of 4 GiB were refused, took 30 s, or kept another client's read waiting for 5 s.
"""

from museum import *

BIG = 0xFFFFF000
DISK = 6 * GIB
for spec in (f"file:path={file('disk', size=DISK)}", f"mem:size={DISK}"):
    server = Server(spec)
    handle = server.connect(strict=False)
    handle.pwrite(blob(6, MIB), 0)
    longest, stop = [0.0], threading.Event()

    def reader():
        other = server.connect()
        while not stop.is_set():
            since = time.monotonic()
            other.pread(4096, DISK - MIB)
            longest[0] = max(longest[0], time.monotonic() - since)

    def discards():
        try:
            for call in (lambda: handle.trim(BIG, 0), lambda: handle.zero(BIG, 0), lambda: handle.flush()):
                since = time.monotonic()
                call()
                assert time.monotonic() - since < 30, "the kernel would have called it stuck"
            assert not any(handle.pread(MIB, 0))
        finally:
            stop.set()

    together([reader, discards])
    check(f"4 GiB are discarded and zeroed ({spec.split(':')[0]})", True)
    check("beside a client that reads", longest[0] < 5, f"{longest[0]:.1f} s")
    server.kill()
done()
