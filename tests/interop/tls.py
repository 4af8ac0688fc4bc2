"""TLS by hand and by libnbd: what comes before it is forgotten, what is glued to it never looked at, what is cut lets go.

The server requires TLS and clients' certificates; a handshake may take 2 s there, what is allowed here is 10 s.
"""

import os
import ssl
import struct
import sys

import nbd

from rawnbd import *
from tap import case, done, same_bytes

SOCKET, DIRECTORY = sys.argv[1], sys.argv[2]
PKI = DIRECTORY + "/pki"
URI = "nbd+unix:///a?socket=" + SOCKET
MIB = 1 << 20
REP_ERR_TLS_REQD = 0x80000005


def context(version=ssl.TLSVersion.TLSv1_3):
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = made.maximum_version = version
    made.load_verify_locations(PKI + "/ca-cert.pem")
    made.load_cert_chain(PKI + "/client-cert.pem", PKI + "/client-key.pem")
    return made


def asked(timeout=20):
    """A connection that was promised TLS."""
    raw = Raw(URI, timeout).greet()
    raw.option(OPT_STARTTLS)
    assert raw.option_reply() == (OPT_STARTTLS, REP_ACK, b"")
    return raw


def encrypted(**arguments):
    raw = asked()
    raw.socket = context(**arguments).wrap_socket(raw.socket, server_hostname="localhost")
    return raw


def chosen(**arguments):
    raw = encrypted(**arguments)
    raw.option(OPT_GO, struct.pack(">I", 1) + b"a" + b"\0\0")
    while raw.option_reply()[1] == REP_INFO:
        pass
    return raw


def by_libnbd(name, tls=nbd.TLS_REQUIRE):
    h = nbd.NBD()
    h.set_tls(tls)
    h.set_tls_certificates(PKI)
    h.set_export_name(name)
    h.connect_unix(SOCKET)
    return h


@case
def _():
    """before TLS every option but ABORT is refused, and the old way to choose ends it"""
    raw = Raw(URI).greet()
    for option in [OPT_LIST, OPT_STRUCTURED_REPLY, 99]:
        raw.option(option)
        assert raw.option_reply()[1] == REP_ERR_TLS_REQD
    raw.option(OPT_GO, struct.pack(">I", 1) + b"a" + b"\0\0")
    assert raw.option_reply()[1] == REP_ERR_TLS_REQD
    raw.option(OPT_EXPORT_NAME, b"a")
    assert raw.socket.recv(1) == b""


@case
def _():
    """STARTTLS takes no data, and there is no second one"""
    raw = Raw(URI).greet()
    raw.option(OPT_STARTTLS, b"x")
    assert raw.option_reply()[1] == REP_ERR_INVALID
    raw.close()
    raw = encrypted()
    raw.option(OPT_STARTTLS)
    assert raw.option_reply()[1] == REP_ERR_INVALID
    raw.option(OPT_LIST)
    assert raw.option_reply()[1] == REP_SERVER


@case
def _():
    """TLS 1.2 works, and the end is said in both directions"""
    raw = chosen(version=ssl.TLSVersion.TLSv1_2)
    assert raw.socket.version() == "TLSv1.2"
    raw.write(MIB, b"twelve!!" * 1024)
    same_bytes(raw.read(MIB, 8192), b"twelve!!" * 1024)
    raw.request(DISC, 1, 0, 0)
    # Without close_notify this raises.
    raw.socket.suppress_ragged_eofs = False
    assert raw.socket.recv(1) == b""


@case
def _():
    """a request and the goodbye behind it: the answer, then the end"""
    raw = chosen()
    raw.send(header(READ, 7, 0, 4096) + header(DISC, 8, 0, 0))
    assert raw.reply() == (0, 7) and len(raw.receive(4096)) == 4096
    raw.socket.suppress_ragged_eofs = False
    assert raw.socket.recv(1) == b""


@case
def _():
    """an option glued to STARTTLS in the clear ends the connection and is not obeyed"""
    for glued in [struct.pack(">QII", OPTION_MAGIC, OPT_LIST, 0), b"\x16"]:
        raw = Raw(URI, timeout=10).greet()
        raw.send(struct.pack(">QII", OPTION_MAGIC, OPT_STARTTLS, 0) + glued)
        said = b""
        try:
            while piece := raw.socket.recv(4096):
                said += piece
        except ConnectionError:
            pass
        assert len(said) <= 20, said


@case
def _():
    """garbage instead of a ClientHello ends the connection"""
    for garbage in [b"GET / HTTP/1.0\r\n\r\n", bytes(1000), os.urandom(50000), struct.pack(">QII", OPTION_MAGIC, OPT_LIST, 0)]:
        raw = asked(timeout=10)
        try:
            raw.send(garbage)
        except ConnectionError:
            pass
        assert raw.hung_up()


def hello():
    """What a client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


@case
def _():
    """a handshake of TLS that stops is let go when its time is over"""
    silent, half, whole = asked(timeout=10), asked(timeout=10), asked(timeout=10)
    half.send(hello()[:100])
    whole.send(hello())
    for raw in [silent, half, whole]:
        assert raw.hung_up()


@case
def _():
    """a client that is cut off in the middle of a write changes nothing"""
    raw = chosen()
    before = raw.read(2 * MIB, 65536)
    raw.request(WRITE, 1, 2 * MIB, 65536, b"\xee" * 40000)
    # The socket below, without a word of TLS.
    os.close(raw.socket.detach())
    h = by_libnbd("a")
    same_bytes(h.pread(65536, 2 * MIB), bytearray(before))


@case
def _():
    """a changed byte of a record ends the connection"""
    raw = chosen()
    fd = raw.socket.detach()
    os.write(fd, b"\x17\x03\x03\x00\x40" + bytes(64))
    raw.socket = socket.socket(fileno=fd)
    raw.socket.settimeout(10)
    assert raw.hung_up()


@case
def _():
    """libnbd: the largest requests, and more in flight than a connection may have"""
    h = by_libnbd("c")
    assert h.get_tls_negotiated()
    data = os.urandom(16 * MIB) * 2
    h.pwrite(data, 0)
    same_bytes(h.pread(32 * MIB, 0), bytearray(data))
    buffers = [(at * 4096, nbd.Buffer(4096)) for at in range(1000)]
    for offset, buffer in buffers:
        h.aio_pread(buffer, offset, lambda error: 1)
    while h.aio_in_flight():
        h.poll(10000)
    for offset, buffer in buffers:
        same_bytes(buffer.to_bytearray(), bytearray(data[offset : offset + 4096]))


@case
def _():
    """requests that came in one record are all answered, though nothing more comes from the socket"""
    raw = chosen()
    want = raw.read(0, 512)
    raw.send(b"".join(header(READ, cookie, 0, 512) for cookie in range(500)))
    answers = set()
    for _ in range(500):
        error, cookie = raw.reply()
        assert error == 0
        same_bytes(raw.receive(512), want)
        answers.add(cookie)
    assert answers == set(range(500))


@case
def _():
    """a client that reads slowly gets everything, while others are served"""
    slow = chosen()
    for cookie in range(16):
        slow.request(READ, cookie, 0, 2 * MIB)
    quick = by_libnbd("a")
    want = bytes(quick.pread(2 * MIB, 0))
    for _ in range(16):
        for _ in range(20):
            quick.pread(4096, 0)
        assert slow.reply()[0] == 0
        same_bytes(slow.receive(2 * MIB), want)


done()
