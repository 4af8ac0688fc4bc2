"""https://github.com/AOSC-Dev/aosc-os-abbs/issues/3917 (CVE-2022-26495 and CVE-2022-26496)

A length of 0xffffffff in the handshake wrapped around in nbd-server, and what followed overflowed the heap or the stack.

It would fail if a length in an option that is larger than the option, or near 2^32, were believed, or ended the server.
"""

import struct

from museum import *

server = Server("mem:size=1M")
for option in range(1, 12):
    for length in (0xFFFFFFFF, 0xFFFFFFFE, 0x80000000, 0x7FFFFFFF, 0x10000):
        raw = Raw(server.uri()).greet()
        raw.option(option, b"", length=length)
        try:
            raw.send(b"A" * 64)
            raw.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        assert raw.hung_up()
for option in (OPT_INFO, OPT_GO, 9, 10):
    for inner in (0xFFFFFFFF, 0xFFFFFFF0, 0x80000000, 100, 9):
        raw = Raw(server.uri()).greet()
        raw.option(option, struct.pack(">I", inner) + b"\0\0" + struct.pack(">I", 0xFFFFFFFF))
        _, kind, _ = raw.option_reply()
        assert kind & 0x80000000, (option, inner, kind)
        raw.close()
check("wrong lengths in the handshake are refused and do no harm", server.alive())
server.stop()
done()
