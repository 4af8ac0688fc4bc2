"""https://github.com/e2b-dev/infra/issues/1500

Writes of 32 MiB deadlocked a server whose buffer had 4 MiB.

It would fail if requests of the largest size from four clients, with the least of buffers and cache, waited for each other without end.
"""

from museum import *

LARGE = 32 * MIB
server = Server("--buffers", "64M", "--cache", "2M", f"file:path={DIR}/disk,size=256M")


def client(number):
    handle = server.connect(strict=False)
    for round_ in range(LONG):
        data = blob(number, LARGE)
        handle.pwrite(data, number * LARGE)
        same_bytes(bytes(handle.pread(LARGE, number * LARGE)), data)


def small():
    handle = server.connect()
    for step in range(20):
        handle.pwrite(b"s" * 4096, 200 * MIB)
        handle.pread(4096, 200 * MIB)


together([lambda number=number: client(number) for number in range(4)] + [small])
check("32 MiB requests with 64 MiB of buffers and 2 MiB of cache", True)
handle = server.connect(strict=False)
refused(lambda: handle.pwrite(bytes(64 * MIB), 0))
check("a larger one harms no other client", server.alive())
server.stop()
done()
