"""https://github.com/NetworkBlockDevice/nbd/issues/126

With a limit of one connection the place was used up without end after an orderly disconnect.

It would fail if the one place of a server stayed taken after its client said goodbye, hung up, reset or was killed.
"""

import struct

from museum import *

server = Server("--connections", "1", "mem:size=1M")


def again():
    until("the place is free", lambda: not isinstance(attempt(), Exception), 10)


def attempt():
    try:
        server.connect().shutdown()
        return None
    except nbd.Error as error:
        return error


again()
check("after a goodbye", True)
raw = server.raw()
raw.close()
again()
check("after hanging up", True)
raw = server.raw()
raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
raw.send(header(WRITE, 1, 0, 4096) + b"half")
raw.close()
again()
check("after hanging up in the middle of a write", True)
raw = Raw(server.uri()).greet()
raw.send(b"IHAVE")
raw.close()
again()
check("after hanging up in the middle of the handshake", True)
child = subprocess.Popen([sys.executable, "-c", f"import nbd, time\nh = nbd.NBD(); h.connect_uri({server.uri()!r}); print(1, flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
child.stdout.readline()
assert isinstance(attempt(), nbd.Error), "there is one place"
child.kill()
child.wait()
again()
check("after its client was killed", True)
server.stop()
done()
