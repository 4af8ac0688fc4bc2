"""https://github.com/open-iscsi/targetcli-fb/issues/185 and https://github.com/apache/skywalking/issues/14101

What was acknowledged shortly before the server was told to stop was only in its write cache, and was lost.

It would fail if a write that was acknowledged before SIGTERM were not in the image after it, in any cache mode, or a tenant's failing disk kept that of others.
"""

from museum import *

for round_ in range(3 * LONG):
    for mode in ("writeback", "writethrough", "none", "unsafe"):
        path = file("disk", size=8 * MIB)
        server = Server(f"good=file:path={path},cache={mode}", f"bad=error:op=write,cache=writeback,of=file:path={DIR}/bad,size=8M")
        server.connect("bad").pwrite(b"b" * 4096, 0)
        handle, random_, model = server.connect("good"), random.Random(round_), bytearray(8 * MIB)
        for step in range(random_.randrange(1, 200)):
            offset, data = random_.randrange(2048) * 4096, random_.randbytes(random_.choice([4096, 65536]))[:8 * MIB]
            data = data[:8 * MIB - offset]
            handle.pwrite(data, offset)
            model[offset:offset + len(data)] = data
        server.process.terminate()
        assert server.process.wait(30) == 1, "the failing disk is told"
        same_bytes(content(path), bytes(model))
check("what was acknowledged before SIGTERM is in the image", True)
done()
