"""http://expku.com/dos/7103.html and https://github.com/NetworkBlockDevice/nbd/issues/80

A client that asked for an export name of 3000 bytes smashed qemu-nbd's stack; nbd-server refused names of 24 bytes.

It would fail if a name of up to 4096 bytes did not work or was not refused in order, or a longer one did harm.
"""

import struct

from museum import *

server = Server("mem:size=1M", "x" * 255 + "=mem:size=2M")
equal("a name of 255 bytes is served", server.connect("x" * 255).get_size(), 2 * MIB)
for length in (23, 24, 256, 257, 3000, 4096, 4097, 65536):
    for option in (OPT_INFO, OPT_GO):
        raw = Raw(server.uri()).greet()
        name = b"a" * length
        raw.option(option, struct.pack(">I", length) + name + b"\0\0")
        try:
            _, kind, _ = raw.option_reply()
            assert kind & 0x80000000, (length, kind)
        except EOFError:
            assert length > 4096, f"{length} bytes are a name"
        raw.close()
    raw = Raw(server.uri()).greet()
    raw.option(OPT_EXPORT_NAME, b"a" * length)
    assert raw.hung_up()
check("long names are refused and do no harm", server.alive())
server.stop()
done()
