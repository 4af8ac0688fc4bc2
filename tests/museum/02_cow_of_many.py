"""https://github.com/cloud-hypervisor/cloud-hypervisor/issues/8621 and https://github.com/cloud-hypervisor/cloud-hypervisor/issues/8624

Several queues wrote one copy-on-write image, and a hole that was punched late erased a cluster that had been given out again.

It would fail if a write, trim or zero of one client changed the block beside it, or came back after the server was killed and flushed.
"""

from museum import *

BLOCKS, CLIENTS = 2048, 8
initial = blob(2, BLOCKS * 4096)
base = file("base", initial)
headworks("image", "create", "--base", base, f"{DIR}/disk.hwo")
server = Server(f"overlay:path={DIR}/disk.hwo", "--set", "vm/dirty_expire_centisecs=20", "--set", "vm/dirty_writeback_centisecs=10")
model = [bytearray(initial[at * 4096:at * 4096 + 4096]) for at in range(BLOCKS)]


def client(number):
    random_ = random.Random(number)
    handle = server.connect(strict=False)
    for step in range(400 * LONG):
        block = random_.randrange(BLOCKS // CLIENTS) * CLIENTS + number
        at, what = block * 4096, random_.random()
        if what < 0.45:
            offset = random_.randrange(8) * 512
            data = random_.randbytes(min(4096 - offset, random_.choice([512, 4096])))
            handle.pwrite(data, at + offset)
            model[block][offset:offset + len(data)] = data
        elif what < 0.6:
            handle.zero(4096, at)
            model[block][:] = bytes(4096)
        elif what < 0.7:
            handle.trim(4096, at)
            model[block][:] = handle.pread(4096, at)
        elif what < 0.75:
            handle.flush()
        else:
            same_bytes(bytes(handle.pread(4096, at)), bytes(model[block]))
    handle.flush()


together([lambda number=number: client(number) for number in range(CLIENTS)])
check("every client reads its own blocks beside the others", True)
server.kill()
headworks("image", "check", f"{DIR}/disk.hwo")
headworks("image", "flatten", f"{DIR}/disk.hwo", f"{DIR}/flat")
same_bytes(content(f"{DIR}/flat"), b"".join(model))
check("what was flushed is there after kill -9", True)
done()
