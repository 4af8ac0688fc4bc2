"""https://github.com/e2b-dev/infra/issues/3385

One bad block behind a memory mapping killed the server, and with it every client of the machine.

It would fail if an image that became shorter under the server gave more than an error for what is missing, to any client.
"""

from museum import *

path, other = file("disk", blob(11, 4 * MIB)), file("other", blob(12, MIB))
headworks("image", "create", "--base", file("base", blob(13, 4 * MIB)), f"{DIR}/top.hwo")
server = Server(f"d=file:path={path}", f"other=file:path={other}", f"top=overlay:path={DIR}/top.hwo")
good = server.connect("other")
for name, shortened in (("d", path), ("top", f"{DIR}/base")):
    handle = server.connect(name)
    handle.pread(4096, 0)
    os.truncate(shortened, MIB)
    try:
        handle.pread(MIB, 2 * MIB)
    except nbd.Error:
        pass
    try:
        handle.pread(4096, 3 * MIB + 4096)
    except nbd.Error:
        pass
    same_bytes(bytes(good.pread(MIB, 0)), blob(12, MIB))
check("the server and its other clients go on", server.alive())
server.kill()
server = Server(f"d=error:rate=1,op=read,cache=none,of=file:path={other}", f"other=mem:size=1M")
equal("a read of a bad disk is EIO", refused(lambda: server.connect("d").pread(4096, 0)), "EIO")
check("and others go on", bool(server.connect("other").pread(4096, 0)))
server.kill()
done()
