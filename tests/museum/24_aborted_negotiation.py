"""https://github.com/AOSC-Dev/aosc-os-abbs/issues/897 (CVE-2017-7539 and CVE-2017-10664)

A client that sent something unexpected during the negotiation, or hung up before it read a reply, ended qemu-nbd by an assertion or SIGPIPE.

It would fail if a stream of the handshake or of requests that is cut or changed at any byte ended the server.
"""

import struct

from museum import *

server = Server("mem:size=1M")
name = struct.pack(">I", 0) + b"\0\0"
option = struct.pack(">QII", OPTION_MAGIC, OPT_GO, len(name)) + name
stream = struct.pack(">I", 3) + option + header(WRITE, 1, 0, 512) + b"w" * 512 + header(READ, 2, 0, 65536)
random_ = random.Random(24)
for cut in list(range(0, len(stream), 9)) + [len(stream)]:
    raw = Raw(server.uri())
    raw.send(stream[:cut])
    raw.close()
for step in range(150 * LONG):
    changed = bytearray(stream)
    for _ in range(random_.randrange(1, 4)):
        changed[random_.randrange(len(changed))] ^= 1 << random_.randrange(8)
    raw = Raw(server.uri())
    try:
        raw.send(bytes(changed))
        raw.socket.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    if step % 3:
        raw.hung_up()
    raw.close()
check("streams that are cut and changed do no harm", server.alive())
server.stop()
done()
