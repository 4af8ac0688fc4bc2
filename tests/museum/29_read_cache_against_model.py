"""https://github.com/akiradeveloper/dm-writeboost/issues/150

Data that were cached by reads came back after the disk below had newer ones, and destroyed file systems.

It would fail if a read through a cache much smaller than the disk gave other bytes than the newest write, from memory or from disk.
"""

from museum import *

BLOCKS = 8192
path = file("disk", size=BLOCKS * 4096)
server = Server("--cache", "4M", f"file:path={path}")
versions = [0] * BLOCKS


def contents(block):
    return (block * 65536 + versions[block]).to_bytes(8, "big") * 512 if versions[block] else bytes(4096)


def client(number):
    random_, handle = random.Random(number), server.connect()
    for step in range(700 * LONG):
        block = random_.randrange(BLOCKS // 4) * 4 + number
        if random_.random() < 0.5:
            versions[block] += 1
            handle.pwrite(contents(block), block * 4096)
        else:
            same_bytes(bytes(handle.pread(4096, block * 4096)), contents(block))
        if step % 100 == 0:
            # A stream of reads evicts what is there.
            handle.pread(2 * MIB, random_.randrange(8) * 4 * MIB)


together([lambda number=number: client(number) for number in range(4)])
check("every read is the newest write", True)
server.stop()
data = content(path)
for block in range(BLOCKS):
    same_bytes(data[block * 4096:block * 4096 + 4096], contents(block))
check("and so is the image", True)
done()
