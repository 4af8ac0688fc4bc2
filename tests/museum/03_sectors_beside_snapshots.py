"""https://github.com/longhorn/longhorn/issues/4354 and https://github.com/harvester/harvester/issues/2906

File systems with sectors of 512 bytes were destroyed during rebuilds: unaligned writes were done as read-modify-write beside the copy.

It would fail if one of eight clients that write the eight sectors of one block lost a write to a neighbour or to a snapshot.
"""

from museum import *

BLOCKS = 64
headworks("image", "create", "--base", file("base", blob(3, BLOCKS * 4096)), f"{DIR}/disk.hwo")
for cache in ("writeback", "writethrough", "none"):
    server = Server(f"overlay:path={DIR}/disk.hwo,cache={cache}")
    last, stop = {}, threading.Event()

    def client(number):
        random_, handle = random.Random(number), server.connect(strict=False)
        while not stop.is_set():
            block = random_.randrange(BLOCKS)
            data = random_.randbytes(512)
            handle.pwrite(data, block * 4096 + number * 512)
            last[block, number] = data

    def snapshots():
        try:
            for number in range(6 * LONG):
                server.ctl("snapshot", "default", f"{DIR}/{cache}-{number}.hwo")
                if number % 6 == 5:
                    break
            # A slow disk writes few sectors beside six snapshots.
            until("more than 100 sectors", lambda: len(last) > 100, 60)
        finally:
            stop.set()

    together([snapshots] + [lambda number=number: client(number) for number in range(8)])
    handle = server.connect(strict=False)
    for (block, number), data in last.items():
        same_bytes(bytes(handle.pread(512, block * 4096 + number * 512)), data)
    check(f"each sector is its client's last version (cache {cache})", len(last) > 100, len(last))
    server.stop()
    headworks("image", "flatten", f"{DIR}/disk.hwo", f"{DIR}/flat")
    for (block, number), data in last.items():
        same_bytes(content(f"{DIR}/flat", block * 4096 + number * 512, 512), data)
    os.unlink(f"{DIR}/flat")
    os.unlink(f"{DIR}/disk.hwo")
    headworks("image", "create", "--base", file("base", blob(3, BLOCKS * 4096)), f"{DIR}/disk.hwo")
server = Server(f"overlay:path={DIR}/disk.hwo,strict-blocks=on", "--cache", "0")
handle = server.connect(strict=False)
equal("with strict-blocks=on clients are told the block", handle.get_block_size(nbd.SIZE_MINIMUM), 4096)
equal("and less is refused", refused(lambda: handle.pwrite(bytes(512), 512)), "EINVAL")
server.stop()
done()
