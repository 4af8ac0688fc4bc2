"""https://github.com/ydb-platform/nbs/issues/5386 and https://github.com/NetworkBlockDevice/nbd/issues/102

An upgrade dropped the new sockets of clients, and after a reload a client saw size 0.

It would fail if a client that never connects again saw an error, another size or other bytes through upgrades and reloads.
"""

from museum import *

path = file("disk", size=8 * MIB)
server = Server(f"d=file:path={path}", "--pid-file", f"{DIR}/pid")
stop, counts = threading.Event(), [0, 0]


def client(number):
    handle, block = server.connect("d"), 0
    while not stop.is_set():
        block = (block + 1) % 256
        data = bytes([counts[number] % 251]) * 4096
        handle.pwrite(data, (block * 2 + number) * 4096)
        same_bytes(bytes(handle.pread(4096, (block * 2 + number) * 4096)), data)
        assert handle.get_size() == 8 * MIB
        counts[number] += 1


def changes():
    try:
        for _ in range(4 * LONG):
            before = list(counts)
            server.upgrade()
            os.kill(int(content(f"{DIR}/pid")), signal.SIGHUP)
            until("both clients go on", lambda: all(now > then for now, then in zip(counts, before)))
            equal("a new client sees the size", server.connect("d").get_size(), 8 * MIB)
    finally:
        stop.set()


together([changes] + [lambda number=number: client(number) for number in range(2)])
check("clients go on through upgrades and reloads", min(counts) > 0, counts)
os.kill(int(content(f"{DIR}/pid")), signal.SIGTERM)
done()
