"""https://github.com/abbbi/virtnbdbackup/issues/163 and https://github.com/xapi-project/xen-api/issues/6021

The next server on the same socket failed, because the one before had not gone yet.

It would fail if a start right after a stop found the socket or the image in use, or a flushed write was lost between two servers.
"""

from museum import *

path = file("disk", size=MIB)
for round_ in range(8 * LONG):
    server = Server(f"file:path={path}")
    handle = server.connect()
    if round_:
        same_bytes(bytes(handle.pread(512, 0)), bytes([round_ % 256]) * 512)
    handle.pwrite(bytes([(round_ + 1) % 256]) * 512, 0, nbd.CMD_FLAG_FUA)
    if round_ == 0:
        second = headworks("serve", "-U", SOCKET, f"file:path={path}", status=None)
        assert second.returncode == 1 and "in use" in second.stderr, second
    server.stop()
check("stop and start on one socket and one image, without a pause", True)
server = Server(f"file:path={path}")
server.kill()
Server(f"file:path={path}").stop()
check("a socket that a killed server left is taken over", True)
done()
