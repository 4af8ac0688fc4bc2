"""Clients that stop in the middle, on a server that has nothing else to do: its own clock must let go of them.

The server's limits are 1 s; what is allowed here is 10 s, for slow machines.
"""

import struct
import sys
import time

from rawnbd import *
from tap import case, done

URI = sys.argv[1]
MIB = 1 << 20


def half_greeting(c):
    """says nothing"""


def half_flags(c):
    """sends half of its flags"""
    c.receive(18)
    c.send(b"\0\0")


def no_option(c):
    """sends no option"""
    c.greet()


def half_option(c):
    """sends half of an option's header"""
    c.greet().send(struct.pack(">Q", OPTION_MAGIC))


def half_data(c):
    """sends half of an option's data"""
    c.greet().option(OPT_GO, b"\0\0", length=100)


def haggle(c):
    """asks for the list and then for nothing"""
    c.greet().option(OPT_LIST)


def half_payload(c):
    """sends half of a write's payload"""
    c.go()
    c.request(WRITE, 1, 0, 64 * 1024, bytes(1000))


def half_request(c):
    """sends half of a request"""
    c.go()
    c.send(struct.pack(">IHHQQI", REQUEST_MAGIC, 0, READ, 1, 0, 4096)[:20])


for stall in [half_greeting, half_flags, no_option, half_option, half_data, haggle, half_payload, half_request]:

    def let_go(stall=stall):
        client = Raw(URI, timeout=10)
        stall(client)
        assert client.hung_up()

    let_go.__doc__ = f"a client that {stall.__doc__} is let go"
    case(let_go)


@case
def _():
    """a client that reads no replies is let go, though it goes on asking"""
    deaf, _ = Raw(URI, timeout=10).go()
    for cookie in range(32):
        deaf.request(READ, cookie, 0, MIB)
    deadline = time.monotonic() + 10
    try:
        while time.monotonic() < deadline:
            deaf.request(FLUSH, 99, 0, 0)
            time.sleep(0.1)
        raise AssertionError("still connected after 10 s")
    except ConnectionError:
        pass


@case
def _():
    """a client that has nothing to ask may stay as long as it likes"""
    quiet, _ = Raw(URI).go()
    quiet.read(0, 4096)
    quiet.socket.settimeout(3)
    try:
        assert not quiet.socket.recv(1), "the server spoke"
        raise AssertionError("the server hung up")
    except TimeoutError:
        pass
    quiet.socket.settimeout(10)
    quiet.read(0, 4096)


done()
