"""https://github.com/ydb-platform/nbs/issues/7070

A write that had stalled with its connection was carried out later, over newer data that a second connection had written and got acknowledged.

It would fail if a write of a connection that is gone, whole or half, changed a block after a newer write to it was acknowledged.
"""

from museum import *

for options in (["cache=none"], ["cache=writeback"]):
    server = Server(f"d=delay:write=300ms,{options[0]},of=file:path={DIR}/disk,size=1M")
    for round_ in range(2 * LONG):
        stale = server.raw(b"d")
        stale.request(WRITE, 1, 0, 4096, b"1" * 4096)
        stale.send(header(WRITE, 2, 8192, 4096) + b"1" * 2048)
        time.sleep(0.05)
        stale.close()
        handle = server.connect("d")
        for version in (b"1", b"2", b"3"):
            handle.pwrite(version * 4096, 0)
            handle.pwrite(version * 4096, 8192)
        # As long as the stale one may take.
        for _ in range(8):
            same_bytes(bytes(handle.pread(4096, 0)), b"3" * 4096)
            same_bytes(bytes(handle.pread(4096, 8192)), b"3" * 4096)
            time.sleep(0.05)
    server.stop()
    same_bytes(content(f"{DIR}/disk", 0, 4096), b"3" * 4096)
    same_bytes(content(f"{DIR}/disk", 8192, 4096), b"3" * 4096)
    check(f"the newest write stays ({options[0]})", True)
    os.unlink(f"{DIR}/disk")
done()
