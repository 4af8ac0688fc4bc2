"""https://github.com/os-migrate/vmware-migration-kit/issues/179 and https://github.com/oVirt/ovirt-imageio/issues/21

Copies that trusted zeroes left old data behind, and a second question for block status got another answer than the first.

It would fail if what is only in the cache were called zero or data wrongly, by the first or the second question, or nbdcopy's copy differed.
"""

from museum import *

SIZE = 8 * MIB
server = Server(f"from=file:path={file('from', blob(14, SIZE))}", f"to=file:path={file('to', blob(15, SIZE))}")
handle = server.connect("from", contexts=["base:allocation"])
model = bytearray(blob(14, SIZE))
handle.zero(2 * MIB, MIB)
handle.trim(MIB, 5 * MIB)
handle.pwrite(b"d" * 4096, MIB + 4096)
model[MIB:3 * MIB] = bytes(2 * MIB)
model[5 * MIB:6 * MIB] = handle.pread(MIB, 5 * MIB)
model[MIB + 4096:MIB + 8192] = b"d" * 4096
first, second = extents(handle, 0, SIZE), extents(handle, 0, SIZE)
check("both questions have one answer", first == second, (first, second))
offset = 0
for length, flags in first:
    assert not flags & nbd.STATE_ZERO or not any(model[offset:offset + length]), f"data at {offset} are said to be zero"
    offset += length
subprocess.run(["nbdcopy", server.uri("from"), f"{DIR}/copy"], check=True)
same_bytes(content(f"{DIR}/copy"), bytes(model))
check("a copy from the server", True)
subprocess.run(["nbdcopy", server.uri("from"), server.uri("to")], check=True)
same_bytes(bytes(server.connect("to").pread(SIZE, 0)), bytes(model))
check("a copy onto a disk with old data", True)
server.stop()
done()
