"""https://github.com/Open-CAS/open-cas-linux/issues/253

A block was written and flushed, the power failed, and the block was the old one.

It would fail if a block that a flush or FUA covers were not its newest version after the cut, with a cache of any mode.
"""

from museum import *

for mode in ("writeback", "writethrough", "none"):
    lost = 0
    for round_ in range(6 * LONG):
        path = file("disk", size=MIB)
        server = Server(f"d=powercut:seed={round_},cache={mode},of=file:path={path}")
        handle, random_, covered, open_ = server.connect("d"), random.Random(round_), {}, {}
        for step in range(random_.randrange(10, 120)):
            block, version = random_.randrange(64), bytes([step + 1]) * 4096
            if random_.random() < 0.3:
                handle.pwrite(version, block * 4096, nbd.CMD_FLAG_FUA)
                covered[block] = version
                open_.pop(block, None)
                continue
            handle.pwrite(version, block * 4096)
            open_.setdefault(block, set()).add(version)
            if random_.random() < 0.2:
                handle.flush()
                covered.update({at: None for at in open_})
                newest = {at: bytes(handle.pread(4096, at * 4096)) for at in open_}
                covered.update(newest)
                open_ = {}
        server.ctl("cut", "d", status=None)
        server.process.wait(20)
        for block, version in covered.items():
            found = content(path, block * 4096, 4096)
            # A later write that nothing covers may be there in part.
            if block not in open_:
                lost += found != version
    equal(f"nothing that was flushed is lost (cache={mode})", lost, 0)
done()
