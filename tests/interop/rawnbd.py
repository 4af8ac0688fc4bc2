"""NBD by hand over a socket, for what no honest client library would send."""

import socket
import ssl
import struct
import urllib.parse

READ, WRITE, DISC, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS = range(8)
OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_STARTTLS, OPT_INFO, OPT_GO, OPT_STRUCTURED_REPLY = 1, 2, 3, 5, 6, 7, 8
REP_ACK, REP_SERVER, REP_INFO = 1, 2, 3
REP_ERR_UNSUP, REP_ERR_INVALID, REP_ERR_UNKNOWN = 0x80000001, 0x80000003, 0x80000006
OPTION_MAGIC, REPLY_MAGIC = 0x49484156454F5054, 0x3E889045565A9
REQUEST_MAGIC, SIMPLE_MAGIC, STRUCTURED_MAGIC = 0x25609513, 0x67446698, 0x668E33EF
CHUNK_DONE, CHUNK_DATA, CHUNK_HOLE = 1, 1, 2
EINVAL = 22


def path_of(uri):
    return urllib.parse.parse_qs(urllib.parse.urlparse(uri).query)["socket"][0]


def header(command, cookie, offset, length, flags=0, magic=REQUEST_MAGIC):
    return struct.pack(">IHHQQI", magic, flags, command, cookie, offset, length)


class Raw:
    """A connection that has done nothing yet; every wait ends after `timeout` seconds with an error."""

    def __init__(self, uri, timeout=20, connected=None):
        self.socket = connected or socket.socket(socket.AF_UNIX)
        self.socket.settimeout(timeout)
        if not connected:
            self.socket.connect(path_of(uri))

    def send(self, data):
        self.socket.sendall(data)

    def receive(self, n):
        data = b""
        while len(data) < n:
            piece = self.socket.recv(n - len(data))
            if not piece:
                raise EOFError(f"the server hung up after {len(data)} of {n} bytes")
            data += piece
        return data

    def hung_up(self):
        """Reads until the server closes; whatever it still says does not matter."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        return True

    def close(self):
        self.socket.close()

    def greet(self, flags=3):
        greeting = self.receive(18)
        assert greeting[:16] == b"NBDMAGICIHAVEOPT", greeting
        self.send(struct.pack(">I", flags))
        return self

    def option(self, option, data=b"", length=None):
        self.send(struct.pack(">QII", OPTION_MAGIC, option, len(data) if length is None else length) + data)

    def option_reply(self):
        magic, option, kind, length = struct.unpack(">QIII", self.receive(20))
        assert magic == REPLY_MAGIC, hex(magic)
        return option, kind, self.receive(length)

    def encrypt(self, certificates):
        """TLS, after the greeting; `certificates` is the folder of ca-cert.pem."""
        self.option(OPT_STARTTLS)
        assert self.option_reply() == (OPT_STARTTLS, REP_ACK, b"")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(certificates + "/ca-cert.pem")
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")

    def go(self, name=b"", structured=False, certificates=""):
        """Into transmission, with simple replies unless told otherwise, by TLS if there are certificates; returns the size."""
        self.greet()
        if certificates:
            self.encrypt(certificates)
        if structured:
            self.option(OPT_STRUCTURED_REPLY)
            assert self.option_reply()[1] == REP_ACK
        self.option(OPT_GO, struct.pack(">I", len(name)) + name + b"\0\0")
        size = None
        while True:
            _, kind, data = self.option_reply()
            if kind == REP_INFO and data[:2] == b"\0\0":
                size = struct.unpack(">Q", data[2:10])[0]
            elif kind != REP_INFO:
                assert kind == REP_ACK, hex(kind)
                return self, size

    def request(self, command, cookie, offset, length, data=b"", flags=0, magic=REQUEST_MAGIC):
        self.send(header(command, cookie, offset, length, flags, magic) + data)

    def chunk(self):
        """A chunk of a structured reply: the flags, its type, the cookie and what it carries."""
        magic, flags, kind, cookie, length = struct.unpack(">IHHQI", self.receive(20))
        assert magic == STRUCTURED_MAGIC, hex(magic)
        return flags, kind, cookie, self.receive(length)

    def reply(self):
        magic, error, cookie = struct.unpack(">IIQ", self.receive(16))
        assert magic == SIMPLE_MAGIC, hex(magic)
        return error, cookie

    def read(self, offset, length, cookie=77):
        self.request(READ, cookie, offset, length)
        assert self.reply() == (0, cookie)
        return self.receive(length)

    def write(self, offset, data, cookie=78):
        self.request(WRITE, cookie, offset, len(data), data)
        assert self.reply() == (0, cookie)
