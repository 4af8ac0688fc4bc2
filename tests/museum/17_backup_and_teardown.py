"""https://github.com/lxc/incus/issues/3741 and https://github.com/moosefs/pve-moosefs/issues/58

The export of a snapshot could not be torn down, or a snapshot broke the device that was attached.

It would fail if a snapshot under load were not of one point in time, could not be served and removed, or harmed its writer.
"""

from museum import *

BLOCKS = 128
headworks("image", "create", "--base", file("base", size=BLOCKS * 4096), f"{DIR}/disk.hwo")
server, stop, acknowledged = Server(f"overlay:path={DIR}/disk.hwo"), threading.Event(), [0]


def writer():
    handle, number = server.connect(), 0
    while not stop.is_set():
        number += 1
        handle.pwrite(number.to_bytes(8, "big") * 512, number % BLOCKS * 4096)
        acknowledged[0] = number


def backups():
    try:
        for round_ in range(5 * LONG):
            least = acknowledged[0]
            kept = f"{DIR}/kept{round_}.hwo"
            server.ctl("snapshot", "default", kept)
            most = acknowledged[0] + 1
            other = Server(f"overlay:path={kept}", "--read-only", socket=f"{DIR}/s2", control=f"{DIR}/c2")
            found = bytes(other.connect().pread(BLOCKS * 4096, 0))
            numbers = sorted(int.from_bytes(found[at:at + 8], "big") for at in range(0, len(found), 4096))
            assert least <= numbers[-1] <= most, (least, numbers[-1], most)
            assert numbers[-1] < BLOCKS or numbers == list(range(numbers[-1] - BLOCKS + 1, numbers[-1] + 1)), "not of one point in time"
            other.stop()
            headworks("image", "flatten", kept, f"{DIR}/flat")
            same_bytes(content(f"{DIR}/flat"), found)
            os.unlink(f"{DIR}/flat")
            if round_ == 0:
                told = headworks("image", "commit", f"{DIR}/disk.hwo", status=None)
                assert told.returncode == 1 and "in use" in told.stderr, told
            # A chain has at most eight overlays.
            if round_ == 5:
                break
    finally:
        stop.set()


together([writer, backups])
check("snapshots under load are of one time, are served and torn down", True)
server.stop()
done()
