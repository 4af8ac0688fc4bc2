"""A hostile client of one tenant beside an honest client of another: what it tries to reach, guess and stall through its own socket.

What the options of the handshake say of a neighbour's name is tried in listeners.py, damaged bytes in malformed.py and crowd.py."""

import os
import struct
import subprocess
import sys

import nbd
import tap
from rawnbd import *

folder, control = sys.argv[1:]
ACME, GLOBEX = (f"nbd+unix:///?socket={folder}/{name}.sock" for name in ("acme", "globex"))
BLOCK, HOSTILE, SET_META = 4096, 64, 10
SIZE = 8 << 20


def set_meta(name, *queries):
    data = struct.pack(">I", len(name)) + name + struct.pack(">I", len(queries))
    return data + b"".join(struct.pack(">I", len(query)) + query for query in queries)


def go_data(name):
    return struct.pack(">I", len(name)) + name + b"\0\0"


def answers(raw):
    """The kinds of an option's replies, up to the one that ends it."""
    kinds = []
    while not kinds or kinds[-1] in (REP_INFO, REP_SERVER, 4):
        kinds.append(raw.option_reply()[1])
    return kinds


def structured():
    raw = Raw(ACME).greet()
    raw.option(OPT_STRUCTURED_REPLY)
    assert raw.option_reply()[1] == REP_ACK
    return raw


@tap.case
def changed_between_options():
    """a name that is changed between SET_META_CONTEXT and GO reaches neither the neighbour's export nor its contexts"""
    raw = structured()
    raw.option(SET_META, set_meta(b"a-db", b"base:allocation"))
    assert answers(raw) == [4, REP_ACK]
    for name in (b"g-db", b"a-db\0", b"a-db/../g-db", b"A-DB"):
        raw.option(OPT_GO, go_data(name))
        assert answers(raw) == [REP_ERR_UNKNOWN], name
    # Contexts of the neighbour's name, by wildcards and by the name of the context, do not exist, and set nothing for the own export.
    for queries in ((b"base:allocation",), (b"base:",), ()):
        raw.option(SET_META, set_meta(b"g-db", *queries))
        assert answers(raw) == [REP_ERR_UNKNOWN], queries
    raw.option(OPT_GO, go_data(b"a-db"))
    assert answers(raw)[-1] == REP_ACK
    raw.request(BLOCK_STATUS, 9, 0, BLOCK)
    flags, kind, cookie, data = raw.chunk()
    assert kind >> 15 and cookie == 9, "block status without a context of this export is an error"
    assert struct.unpack(">I", data[:4])[0] == EINVAL, data
    raw.close()


@tap.case
def guessed_status():
    """block status tells of the own export alone, at its end and beyond"""
    own = nbd.NBD()
    own.add_meta_context("base:allocation")
    own.connect_uri(ACME.replace("///?", "///a-db?"))
    extents = []
    own.block_status(SIZE, 0, lambda context, offset, entries, error: extents.append(entries) or 0)
    assert sum(extents[0][::2]) <= SIZE, extents
    own.set_strict_mode(0)
    for offset, length in ((SIZE, BLOCK), (SIZE - BLOCK, 2 * BLOCK), (1 << 62, BLOCK), ((1 << 64) - BLOCK, BLOCK)):
        for ask in (lambda: own.block_status(length, offset, lambda *entry: 0), lambda: own.pread(length, offset)):
            try:
                ask()
                raise AssertionError(f"bytes beyond the end were told: {offset}")
            except nbd.Error as error:
                assert error.errnum is not None, error
    own.shutdown()


@tap.case
def libnbd_names():
    """libnbd lists and opens the own exports alone"""
    client = nbd.NBD()
    client.set_opt_mode(True)
    client.connect_uri(ACME)
    names = []
    client.opt_list(lambda name, description: names.append(name) or 0)
    assert names == ["a-db"], names
    refusals = []
    for name in ("g-db", "no-such"):
        client.set_export_name(name)
        try:
            client.opt_info()
            raise AssertionError(f"{name} was described")
        except nbd.Error as error:
            refusals.append((error.errnum, str(error).replace(name, "X")))
    assert refusals[0] == refusals[1], refusals
    client.opt_abort()


@tap.case
def equal_cookies():
    """the same cookies in both tenants' connections, and twice in one, are answered each with its own bytes"""
    clients = [(Raw(ACME).go(b"a-db")[0], b"A"), (Raw(GLOBEX).go(b"g-db")[0], b"G")]
    for _ in range(20):
        for client, _ in clients:
            client.send(b"".join(header(READ, cookie, 0, BLOCK) for cookie in (0, 7, 7, (1 << 64) - 1)))
        for client, letter in clients:
            cookies = []
            for _ in range(4):
                error, cookie = client.reply()
                assert error == 0 and client.receive(BLOCK) == letter * BLOCK
                cookies.append(cookie)
            assert sorted(cookies) == [0, 7, 7, (1 << 64) - 1], cookies
    for client, _ in clients:
        client.close()


@tap.case
def stalled_neighbour():
    """64 clients that read no replies and 64 that send half a request keep no request of a neighbour from its end"""
    hostile = []
    for number in range(HOSTILE):
        silent = Raw(ACME).go(b"a-db")[0]
        silent.send(b"".join(header(READ, cookie, 0, 1 << 20) for cookie in range(32)))
        half = Raw(ACME).go(b"a-db")[0]
        whole = header(WRITE, 1, 0, 1 << 20)
        half.send((whole[:13], whole, whole + b"x" * 500_000)[number % 3])
        hostile += [silent, half]
    honest, done = Raw(GLOBEX).go(b"g-db")[0], 0
    for number in range(400):
        block = struct.pack(">I", number) * (BLOCK // 4)
        honest.write((1 + number % 64) * BLOCK, block)
        assert honest.read((1 + number % 64) * BLOCK, BLOCK) == block
        done += 2
    honest.request(FLUSH, 3, 0, 0)
    assert honest.reply() == (0, 3) and done == 800
    # New clients of the neighbour come in, too, and the hostile ones were not just thrown out.
    assert Raw(GLOBEX).go(b"g-db")[0].read(0, BLOCK) == b"G" * BLOCK
    # The last of them gets a buffer when the first ones have left their replies unread for a tenth of a second.
    silent.socket.settimeout(10)
    assert silent.socket.recv(16)[:4] == struct.pack(">I", SIMPLE_MAGIC)
    for client in hostile:
        client.close()


@tap.case
def control_socket():
    """the control socket does not answer another user, and an NBD socket no request of the control protocol"""
    raw = Raw(ACME)
    raw.receive(18)
    raw.send(b'{"jsonrpc":"2.0","id":1,"method":"exports"}\n')
    assert raw.hung_up()
    assert os.stat(control).st_mode & 0o077 == 0, oct(os.stat(control).st_mode)
    if os.getuid() != 0:
        return
    # A wrong mode alone does not let another user in.
    os.chmod(control, 0o666)
    code = ("import os, socket, sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "s = socket.socket(socket.AF_UNIX)\n"
            "try:\n s.connect(sys.argv[1]); s.sendall(b'{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"exports\"}\\n'); print(s.recv(4096))\n"
            "except OSError as error: print(error)\n")
    said = subprocess.run([sys.executable, "-c", code, control], capture_output=True, text=True, timeout=20).stdout
    os.chmod(control, 0o600)
    assert said and "result" not in said and "g-db" not in said, said


tap.done()
