"""Writes more than the disk has memory for, lets the kernel find out, and asks for durability.  sync_error.py URI"""

import os
import sys

from rawnbd import FLUSH, WRITE, Raw
from tap import done, equal

FUA = 1
EIO = 5
client, size = Raw(sys.argv[1]).go()


def ask(command, offset=0, data=b"", flags=0):
    client.request(command, 5, offset, len(data), data, flags)
    return client.reply()[0]


first, piece = b"\1" * 4096, b"\2" * (4 << 20)
equal("a durable write is one while there is room", ask(WRITE, 0, first, FUA), 0)
writes = [ask(WRITE, at, piece) for at in range(16 << 20, 64 << 20, len(piece))]
equal("the page cache takes more than there is memory", writes, [0] * 12)
# All of it is written back, or lost, when this returns.
os.sync()
equal("durable writes fail from then on", [ask(WRITE, 0, first, FUA) for _ in range(3)], [EIO] * 3)
equal("no flush is good after what was acknowledged is lost", [ask(FLUSH) for _ in range(3)], [EIO] * 3)
done()
