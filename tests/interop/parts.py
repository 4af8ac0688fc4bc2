#!/usr/bin/env python3
"""Exports of parts of an image, against a model of the image's bytes.

  parts.py model SOCKET IMAGE NAME=START...      every export begins at START of the image; random requests by all of them in turn
  parts.py unflushed SOCKET NAME   a write that is in the cache when the server is killed
  parts.py table SOCKET NAME FILE  the same of a table of partitions, the first sector of FILE
  parts.py upgrade IMAGE      clients go on while the server is replaced
"""

import errno
import os
import random
import sys

import nbd

import tap

FLAGS = nbd.CMD_FLAG_FUA


def connect(socket, name):
    handle = nbd.NBD()
    handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    handle.set_strict_mode(0)
    handle.set_export_name(name)
    handle.connect_unix(socket)
    return handle


def starts(words):
    return {name: int(start) for name, start in (word.split("=") for word in words)}


def fails(call, wanted):
    try:
        call()
    except nbd.Error as error:
        return error.errnum == wanted
    return False


def edges(handle, name):
    """Nothing behind the end of a part is reached."""
    size = handle.get_size()
    for offset, length in ((size, 1), (size - 1, 2), (size + 4096, 512), ((1 << 63) - 512, 512), (0, size + 1)):
        if length > 32 << 20:
            continue
        tap.check(f"{name}: reads beyond the end fail", fails(lambda: handle.pread(length, offset), errno.EINVAL), (offset, length))
        data = bytes(length)
        tap.check(f"{name}: writes beyond the end fail", fails(lambda: handle.pwrite(data, offset), errno.ENOSPC), (offset, length))
        tap.check(f"{name}: zeroing beyond the end fails", fails(lambda: handle.zero(length, offset), errno.ENOSPC), (offset, length))
        tap.check(f"{name}: trims beyond the end fail", fails(lambda: handle.trim(length, offset), errno.EINVAL), (offset, length))


def model(socket, image, words):
    with open(image, "rb") as file:
        bytes_now = bytearray(file.read())
    seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
    rng = random.Random(seed)
    handles = {name: connect(socket, name) for name in starts(words)}
    for name, handle in handles.items():
        edges(handle, name)
    wrong = None
    for _ in range(1500):
        name, start = rng.choice(list(starts(words).items()))
        handle = handles[name]
        size = handle.get_size()
        length = min(rng.choice((1, 512, 4096, rng.randrange(1, 20000), rng.randrange(1, 200000))), size)
        offset = rng.choice((0, size - length, rng.randrange(size - length + 1)))
        if name == "whole":
            # Its table stays.
            offset = max(offset, 17408)
            length = min(length, size - 20480 - offset)
            if length <= 0:
                continue
        at, op = start + offset, rng.choice("rrwwzs")
        if op == "r":
            if handle.pread(length, offset) != bytes_now[at:at + length]:
                wrong = (name, offset, length)
                break
        elif op == "s":
            told = []
            handle.block_status(length, offset, lambda _context, _offset, entries, _error: told.extend(entries))
            if sum(told[::2]) > length:
                wrong = (name, "status", offset, length, told)
                break
        elif at >= 17408 and at + length <= len(bytes_now) - 20480:
            flags = rng.choice((0, FLAGS))
            if op == "w":
                data = rng.randbytes(length)
                handle.pwrite(data, offset, flags)
            else:
                data = bytes(length)
                handle.zero(length, offset, flags)
            bytes_now[at:at + length] = data
    tap.check("every byte is where its part has it", wrong is None, f"SEED={seed}: {wrong}")
    for handle in handles.values():
        handle.flush()
        handle.shutdown()
    with open(image, "rb") as file:
        tap.check("the image has what was written", file.read() == bytes_now, f"SEED={seed}")
    with open(os.path.join(os.environ["DIR"], "model-whole"), "wb") as file:
        file.write(bytes_now)


def upgrade(image):
    """Clients go on with their part, and not with another one of its name."""
    from replaced import DIR, IMAGES, Server

    config = os.path.join(DIR, "parts-upgrade.toml")

    def configure(offset):
        with open(config, "w") as file:
            file.write('[server]\ncache = "16M"\n')
            for name, keys in (("part", f"offset = {offset}"), ("second", "partition = 2"), ("whole", "")):
                file.write(f'[[export]]\nname = "{name}"\nfile = {{ path = "{image}" }}\n{keys}\n')

    configure(32256)
    server = Server("parts-upgrade", "--config", config)
    clients = {name: connect(server.socket, name) for name in ("part", "second", "whole")}
    # The table is destroyed, and the next process finds its partitions nevertheless.
    table = clients["whole"].pread(17408, 0)
    clients["whole"].zero(17408, 0, nbd.CMD_FLAG_FUA)
    begin = {"part": 32256, "second": 34817 * 512}
    for number, (name, start) in enumerate(begin.items(), 1):
        clients[name].pwrite(bytes([number]) * 5000, (20 << 20) - start + 10000 * number + 7)

    def check():
        for name, start in begin.items():
            for number in (1, 2):
                own = clients[name].pread(5000, (20 << 20) - start + 10000 * number + 7)
                tap.check(f"{name} has its bytes", own == bytes([number]) * 5000)

    server.upgrade()
    check()
    configure(32768)
    why = server.ctl("upgrade", ok=False)
    tap.check("no client gets another part", "begins at byte 32768 of its image now and began at 32256" in why, why)
    check()
    clients["whole"].pwrite(table, 0, nbd.CMD_FLAG_FUA)
    for client in clients.values():
        client.shutdown()
    server.stop()
    os.unlink(os.path.join(IMAGES, "parts-upgrade.img"))


def unflushed(socket, name):
    handle = connect(socket, name)
    handle.pwrite(b"\x77" * 300000, 5000)
    tap.ok("a part is written and not flushed")


def table(socket, name, path):
    handle = connect(socket, name)
    with open(path, "rb") as file:
        handle.pwrite(file.read(512), 0)
    tap.ok("a table is written and not flushed")


if sys.argv[1] == "model":
    model(sys.argv[2], sys.argv[3], sys.argv[4:])
elif sys.argv[1] == "unflushed":
    unflushed(sys.argv[2], sys.argv[3])
elif sys.argv[1] == "table":
    table(sys.argv[2], sys.argv[3], sys.argv[4])
else:
    upgrade(sys.argv[2])
tap.done()
