"""https://github.com/dobek/fstrimDaemon/issues/5

A trim of 100 GB made the target's host run out of memory.

It would fail if tens of thousands of discards that are sent at once took memory beyond the server's buffers and tables.
"""

from museum import *

server = Server(f"file:path={file('disk', size=100 * GIB)}")


def rss():
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) >> 10


server.alive()
before = rss()


def client(number):
    raw = server.raw()
    count = 2500 * LONG
    sender = threading.Thread(target=lambda: raw.send(b"".join(header(TRIM, at, (number * count + at) * 65536 % (99 * GIB), 65536) for at in range(count))))
    sender.start()
    for _ in range(count):
        error, _ = raw.reply()
        assert error == 0
    sender.join()


together([lambda number=number: client(number) for number in range(8)])
check("20,000 discards at once take no memory", rss() - before < 150, f"{rss() - before} MiB more")
check("and the server serves", server.alive())
server.stop()
done()
