"""A hole in a file that has just grown: hole.py setup DIR, hole.py load DIR. ext4 gives such a file the hole's end as its length first."""

import ctypes
import os
import sys
import time

what, folder = sys.argv[1:]
file = os.open(folder + "/a", os.O_RDWR | os.O_CREAT, 0o644)
if what == "setup":
    os.pwrite(file, b"s" * 9000, 0)
    os.sync()
else:
    keep_size, punch_hole = 1, 2
    os.pwrite(file, b"x" * 8192, 12288)
    ctypes.CDLL(None).fallocate(file, keep_size | punch_hole, ctypes.c_long(1), ctypes.c_long(9000))
    os.write(1, b"pierced\n")
    # Commits the journal and not the bytes of the other one.
    os.fsync(os.open(folder + "/b", os.O_RDWR | os.O_CREAT, 0o644))
    # Cuts come by time, too.
    time.sleep(0.3)
