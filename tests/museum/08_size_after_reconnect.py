"""https://github.com/ydb-platform/nbs/issues/4363

The NBD device of a volume that had grown shrank back when its client connected again.

It would fail if a client saw the old size after a resize: at once, after a reload, an upgrade, a restart or a kill.
"""

from museum import *

path = file("disk", size=16 * MIB)
server = Server(f"d=file:path={path}", "--pid-file", f"{DIR}/pid")
old = server.connect("d")
server.ctl("resize", "d", "+16M")


def size():
    return server.connect("d").get_size()


equal("a new client sees it", size(), 32 * MIB)
old.pwrite(b"o" * 4096, 0)
server.process.send_signal(signal.SIGHUP)
equal("after a reload", size(), 32 * MIB)
server.upgrade()
equal("after an upgrade", size(), 32 * MIB)
successor = int(content(f"{DIR}/pid"))
os.kill(successor, signal.SIGKILL)
until("it is gone", lambda: not os.path.exists(f"/proc/{successor}"))
for end in ("kill", "stop"):
    server = Server(f"d=file:path={path}")
    equal(f"after a start ({end} follows)", size(), 32 * MIB)
    getattr(server, end)()
done()
