"""https://github.com/spdk/spdk/issues/972 and https://github.com/elemental-lf/benji/issues/12

A client sent 1 KiB at sector 2 of a device with blocks of 4 KiB, and the last block of a disk of odd size was beyond its end.

It would fail if a small request at the tail of an odd image, or inside a block, changed a byte beside it or were answered wrongly.
"""

from museum import *

SIZE = 64 * 4096 + 512
for options in (["--cache", "0"], ["--cache", "16M"]):
    path = file("disk", blob(16, SIZE))
    server, model = Server(f"file:path={path}", *options), bytearray(blob(16, SIZE))
    handle = server.connect(strict=False)
    equal(f"the size is the file's ({options[1]})", handle.get_size(), SIZE)
    for offset, length in [(1024, 1024), (SIZE - 512, 512), (SIZE - 1024, 1024), (4096 - 512, 1024), (0, 512), (SIZE - 4608, 4608)]:
        data = blob(offset, length)
        handle.pwrite(data, offset)
        model[offset:offset + length] = data
        same_bytes(bytes(handle.pread(length, offset)), data)
    refused(lambda: handle.pread(1024, SIZE - 512))
    refused(lambda: handle.pwrite(bytes(512), SIZE))
    same_bytes(bytes(handle.pread(SIZE, 0)), bytes(model))
    server.stop()
    same_bytes(content(path), bytes(model))
    check(f"small requests change what they name ({options[1]})", True)
done()
