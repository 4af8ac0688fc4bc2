"""https://github.com/openvstorage/volumedriver/issues/283

A read right after a write's acknowledgement returned the old data.

It would fail if a second connection, on the same export or on another one of the image, read anything but what was acknowledged before.
"""

from museum import *

for shards in ("1", "3"):
    server = Server("--shards", shards, f"a=file:path={DIR}/disk,size=4M", f"b=file:path={DIR}/disk")
    writer, readers = server.connect("a"), [server.connect("a"), server.connect("b")]
    for step in range(300 * LONG):
        data, offset = step.to_bytes(8, "big") * 512, step * 7919 % 1024 * 4096
        [writer.pwrite, lambda data, offset: writer.pwrite(data, offset, nbd.CMD_FLAG_FUA)][step % 2](data, offset)
        for reader in readers:
            same_bytes(bytes(reader.pread(4096, offset)), data)
    check(f"acknowledged is visible everywhere ({shards} threads)", True)
    server.stop()
    os.unlink(f"{DIR}/disk")
done()
