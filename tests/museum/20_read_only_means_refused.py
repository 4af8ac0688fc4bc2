"""https://github.com/mirendev/runtime/pull/257 and https://github.com/NetworkBlockDevice/nbd/issues/67

A read-only export swallowed writes with success, to be compatible with clients that write anyway.

It would fail if a write to a read-only export of any kind were answered with success, changed a byte, or ended the connection.
"""

from museum import *

path = file("disk", blob(20, MIB))
headworks("image", "create", "--base", path, f"{DIR}/top.hwo")
subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", path, f"{DIR}/q.qcow2"], check=True)
server = Server(f"file=file:path={path},read-only=on", f"overlay=overlay:path={DIR}/top.hwo,read-only=on", f"qcow2=qcow2:path={DIR}/q.qcow2")
for name in ("file", "overlay", "qcow2"):
    handle = server.connect(name, strict=False)
    assert handle.is_read_only()
    for call in (lambda: handle.pwrite(b"x" * 512, 0), lambda: handle.zero(512, 0), lambda: handle.trim(512, 0), lambda: handle.pwrite(b"x" * 512, 0, nbd.CMD_FLAG_FUA)):
        refused(call, "EPERM")
    same_bytes(bytes(handle.pread(MIB, 0)), blob(20, MIB))
    check(f"{name}: refused, unchanged and connected", True)
server.stop()
same_bytes(content(path), blob(20, MIB))
done()
