"""https://github.com/NetworkBlockDevice/nbd/issues/13 and https://github.com/NetworkBlockDevice/nbd/issues/44

The difference of a copy-on-write disk stopped at 4 GiB, and sizes above 1 TiB were called insane.

It would fail if an offset or a length of an overlay on a disk of 2 TiB were cut to 32 bits.
"""

from museum import *

SIZE = 2 * TIB + 3 * MIB
headworks("image", "create", "--base", file("base", size=SIZE), f"{DIR}/disk.hwo")
server = Server(f"overlay:path={DIR}/disk.hwo")
PLACES = [0, 4 * GIB - 2048, 8 * GIB - 512, TIB - 100, 2 * TIB - 2048, SIZE - 4096]


def holds():
    handle = server.connect(strict=False)
    for place in PLACES:
        same_bytes(bytes(handle.pread(4096, place)), blob(place, 4096))
    for place in (4096, 4 * GIB + 4096, 8 * GIB + 65536):
        assert not any(handle.pread(2048, place)), place
    return handle.get_size() == SIZE


handle = server.connect(strict=False)
for place in PLACES:
    handle.pwrite(blob(place, 4096), place)
handle.flush()
check("blocks on both sides of 4 GiB and at the end", holds())
server.stop()
server = Server(f"overlay:path={DIR}/disk.hwo")
check("and after a restart", holds())
handle = server.connect(contexts=["base:allocation"])
found = []
handle.block_status(1 * GIB, 4 * GIB, lambda *told: found.append(told[2]) or 0)
check("block status beyond 4 GiB is answered", found and found[0][0] > 0, found)
server.stop()
done()
