#!/usr/bin/env python3
"""Numbers the blocks of a disk and reads them back in another order, by cffi: blocks.py SPEC [LIBRARY]."""
import ctypes.util
import pathlib
import re
import sys

import cffi

BYTES, DEPTH = 4096, 16
HEADERS = [pathlib.Path(__file__).parent.parent / "include", pathlib.Path("/usr/local/include"), pathlib.Path("/usr/include")]


def load(library):
    """The calls of headworks.h, and the constants that are numbers."""
    header = next(path for folder in HEADERS if (path := folder / "headworks.h").exists()).read_text()
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header, flags=re.S)
    constants = re.findall(r"^#define (\w+) (\d+)$", text, re.M)
    text = re.sub(r"^#.*$|extern \"C\" \{|^\}\s*$", "", text, flags=re.M)
    ffi = cffi.FFI()
    ffi.cdef("struct iovec { void *iov_base; size_t iov_len; };" + "".join(f"\n#define {name} {value}" for name, value in constants) + text)
    return ffi, ffi.dlopen(library)


def main():
    ffi, hw = load(sys.argv[2] if len(sys.argv) > 2 else ctypes.util.find_library("headworks_c"))

    def check(code):
        if code < 0:
            raise OSError(-code, ffi.string(hw.hw_error()).decode())
        return code

    options = ffi.new("struct hw_options *", {"size": ffi.sizeof("struct hw_options"), "depth": DEPTH, "cache_bytes": 1 << 24})
    place = ffi.new("struct hw_disk **")
    check(hw.hw_open(sys.argv[1].encode(), options, place))
    queue = hw.hw_queue_at(place[0], 0)
    blocks = check(hw.hw_capacity(place[0])) // BYTES
    buffers = [ffi.new("char[]", BYTES) for _ in range(DEPTH)]  # kept until the completions
    done = ffi.new("struct hw_completion[]", DEPTH)

    def each(order, begin, end):
        """Keeps up to DEPTH I/Os in flight: `begin(block, buffer)` puts one, `end(block, buffer)` has its result."""
        free, flying, order = list(range(DEPTH)), {}, iter(order)
        while True:
            while free and (block := next(order, None)) is not None:
                flying[block] = free.pop()
                check(begin(block, buffers[flying[block]]))
            if not flying:
                return
            check(hw.hw_wait(queue, -1))
            for one in done[0 : check(hw.hw_reap(queue, done, DEPTH))]:
                check(one.result)
                free.append(flying[one.user_data])
                end(one.user_data, buffers[flying.pop(one.user_data)])

    def write(block, buffer):
        ffi.memmove(buffer, block.to_bytes(8, "little") * (BYTES // 8), BYTES)
        return hw.hw_write(queue, block * BYTES, buffer, BYTES, 0, block)

    def compare(block, buffer):
        assert ffi.unpack(buffer, BYTES) == block.to_bytes(8, "little") * (BYTES // 8), f"block {block} is another"

    each(range(blocks), write, lambda block, buffer: None)
    check(hw.hw_fsync(queue))
    each(reversed(range(blocks)), lambda block, buffer: hw.hw_read(queue, block * BYTES, buffer, BYTES, 0, block), compare)
    check(hw.hw_close(place[0]))
    print(f"{blocks} blocks are what was written")


main()
