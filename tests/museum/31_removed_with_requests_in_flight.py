"""https://github.com/spdk/spdk/issues/3163

A device that was removed while its requests were in flight was used after it was freed.

It would fail if a forced removal under load ended the server, or a request of it were answered by, or changed, the export that came next.
"""

from museum import *

other = file("other", blob(31, MIB))
server = Server(f"other=file:path={other}")
for round_ in range(5 * LONG):
    path = file(f"disk{round_}", size=4 * MIB)
    server.ctl("add", f"d=delay:all=20ms,cache={['none', 'writeback'][round_ % 2]},of=file:path={path}")
    handle = server.connect("d")
    for at in range(64):
        handle.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(b"d" * 4096)), at * 8192)
        handle.aio_pread(nbd.Buffer(4096), at * 8192 + 4096)
    handle.poll(0)
    server.ctl("remove", "d", "--force")
    server.ctl("add", f"d=file:path={DIR}/next{round_},size=4M")
    assert not any(server.connect("d").pread(4 * MIB, 0)), "bytes of the export before"
    server.ctl("remove", "d")
    same_bytes(bytes(server.connect("other").pread(MIB, 0)), blob(31, MIB))
check("exports are removed with requests in flight", server.alive())
server.stop()
done()
