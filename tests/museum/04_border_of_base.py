"""https://github.com/NetworkBlockDevice/nbd/pull/177 and https://github.com/datto/dattobd/issues/286

Copy-on-write sent wrong data for reads across the border between what was written and the file below, although the disk was right.

It would fail if a read of any alignment across the borders of three overlays differed from the model, or block status called data zero.
"""

from museum import *

SIZE = 6 * MIB
model = bytearray(blob(4, SIZE))
below = file("base", bytes(model))
for depth, stride in enumerate([3, 5, 7]):
    path = f"{DIR}/{depth}.hwo"
    headworks("image", "create", "--base", below, path)
    server = Server(f"overlay:path={path}")
    handle = server.connect(strict=False)
    for block in range(depth, SIZE // 4096, stride):
        data = blob((depth, block).__hash__(), 4096)
        handle.pwrite(data, block * 4096)
        model[block * 4096:block * 4096 + 4096] = data
    if depth < 2:
        server.stop()
    below = path
handle = server.connect(strict=False, contexts=["base:allocation"])
random_ = random.Random(4)
for step in range(60 * LONG):
    wanted = []
    for _ in range(16):
        offset = random_.randrange(SIZE - 1)
        length = min(SIZE - offset, random_.choice([1, 511, 3073, 4096, 65537, MIB]))
        buffer = nbd.Buffer(length)
        flags = nbd.CMD_FLAG_DF if handle.can_df() and random_.random() < 0.3 else 0
        wanted.append((offset, length, buffer, handle.aio_pread(buffer, offset, flags=flags)))
    while handle.aio_in_flight():
        handle.poll(1000)
    for offset, length, buffer, cookie in wanted:
        assert handle.aio_command_completed(cookie)
        same_bytes(bytes(buffer.to_bytearray()), bytes(model[offset:offset + length]))
check("reads across borders are the model's", True)
offset = 0
for length, flags in extents(handle, 0, SIZE):
    if flags & nbd.STATE_ZERO:
        assert not any(model[offset:offset + length]), f"data at {offset} are said to be zero"
    offset += length
equal("block status covers the disk and calls no data zero", offset, SIZE)
server.stop()
done()
