"""https://github.com/dfinity/ic/issues/11162 and https://github.com/lxc/incus/issues/2896

Zeroes that were written above a backing file became holes, through which the file below showed again after a snapshot or a move.

It would fail if a trimmed or zeroed range of an overlay showed the base, now or after a snapshot, a kill, a flatten or a commit.
"""

from museum import *

SIZE = 8 * MIB + 512
base = file("base", blob(1, SIZE))
headworks("image", "create", "--base", base, f"{DIR}/disk.hwo")
server = Server(f"overlay:path={DIR}/disk.hwo")
RANGES = [(0, MIB), (MIB, MIB), (2 * MIB, MIB), (4 * MIB + 100, 5000), (SIZE - 700, 700)]


def ranges():
    handle = server.connect(contexts=["base:allocation"])
    return [bytes(handle.pread(length, offset)) for offset, length in RANGES] + [extents(handle, 0, SIZE)]


handle = server.connect(strict=False)
handle.trim(MIB, 0)
handle.zero(MIB, MIB)
handle.zero(MIB, 2 * MIB, nbd.CMD_FLAG_NO_HOLE)
handle.zero(5000, 4 * MIB + 100)
handle.zero(700, SIZE - 700)
handle.flush()
before = ranges()
# An overlay has whole blocks.
expected = blob(1, SIZE) + bytes(handle.get_size() - SIZE)
for (offset, length), found in list(zip(RANGES, before))[1:]:
    same_bytes(found, bytes(length))
    expected = expected[:offset] + bytes(length) + expected[offset + length:]
assert before[0] in (bytes(MIB), expected[:MIB]), "a trim gives zeroes or leaves the bytes"
expected = before[0] + expected[MIB:]
server.ctl("snapshot", "default", f"{DIR}/kept.hwo")
check("a snapshot leaves zeroes zeroes", ranges() == before)
server.kill()
server = Server(f"overlay:path={DIR}/disk.hwo")
check("and so does a kill", ranges()[:-1] == before[:-1])
server.stop()
headworks("image", "flatten", f"{DIR}/disk.hwo", f"{DIR}/flat")
same_bytes(content(f"{DIR}/flat"), expected)
headworks("image", "commit", f"{DIR}/kept.hwo")
same_bytes(content(base, 0, SIZE), expected[:SIZE])
check("a flatten and a commit give the same bytes", True)
done()
