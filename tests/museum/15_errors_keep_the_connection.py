"""https://github.com/xapi-project/nbd/issues/105

The server hung up after a write had failed.

It would fail if a request that fails ended the connection, or the reply to the next one were out of step.
"""

from museum import *

server = Server(f"d=error:rate=30%,cache=none,of=file:path={DIR}/disk,size=4M", f"ro=file:path={file('ro', blob(15, MIB))},read-only=on", "--cache", "0")
handle = server.connect("d", strict=False)
failed, model = 0, {}
for step in range(300 * LONG):
    block = step % 64
    try:
        handle.pwrite(bytes([step % 251]) * 4096, block * 4096)
        model[block] = bytes([step % 251]) * 4096
    except nbd.Error as error:
        failed += 1
        model.pop(block, None)
        assert error.errno == "EIO", error
    try:
        found = bytes(handle.pread(4096, block * 4096))
        assert block not in model or found == model[block], "out of step"
    except nbd.Error:
        failed += 1
check("a connection survives its errors", failed > 20, failed)
raw = server.raw(b"ro")
for command in (WRITE, TRIM, WRITE_ZEROES):
    raw.request(command, command, 0, 512, b"x" * 512 if command == WRITE else b"")
    error, cookie = raw.reply()
    assert error == 1 and cookie == command, (error, cookie)
raw.request(READ, 9, 2 * MIB, 512)
assert raw.reply()[0] == EINVAL
same_bytes(raw.read(0, 512), blob(15, MIB)[:512])
check("a read-only export refuses in step", True)
server.kill()
done()
