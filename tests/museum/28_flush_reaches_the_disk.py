"""https://github.com/longhorn/longhorn/issues/8662

The target answered SYNCHRONIZE CACHE with success and sent nothing to its disks.

It would fail if a flush or FUA were answered with success without a flush of the device behind it, with or without a cache.
"""

from museum import *

for mode in ("writeback", "writethrough", "none"):
    server = Server(f"d=error:op=flush,cache={mode},of=file:path={DIR}/disk,size=1M")
    handle = server.connect("d")
    try:
        handle.pwrite(b"f" * 4096, 0)
    except nbd.Error:
        assert mode == "writethrough"
    refused(handle.flush)
    refused(lambda: handle.pwrite(b"f" * 4096, 4096, nbd.CMD_FLAG_FUA))
    check(f"a flush that the device refuses is not acknowledged (cache={mode})", True)
    server.kill()
    os.unlink(f"{DIR}/disk")
done()
