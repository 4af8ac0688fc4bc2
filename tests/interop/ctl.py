"""Clients of the control socket that know JSON and little else, and some that mean harm."""

import json
import os
import signal
import sys
import time

from ctl_client import Client
from tap import case, done

WHAT, SOCKET = sys.argv[1:3]
CLIENTS_MAX = 16
LINE_MAX = 64 << 10


def admitted():
    """A client that is let in: places of those that have gone are free a little later."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        client = Client(SOCKET)
        try:
            answer = client.say({"jsonrpc": "2.0", "id": 1, "method": "get", "params": {"path": "hw0/queue/nomerges"}})
        except ConnectionError:
            continue
        if answer and "result" in answer:
            return client
        time.sleep(0.001)
    raise AssertionError("nobody is let in any more")


def refused(answer, code, errno=None):
    error = answer["error"]
    assert error["code"] == code and error["message"], answer
    assert error.get("data", {}).get("errno") == errno, answer
    return error


def rpc():
    @case
    def _():
        """get lists every name once, with numbers as numbers and choices as sysfs shows them"""
        values = Client(SOCKET).ask("get")["result"]
        assert values["hw0/queue/nr_requests"] == 256, values
        assert values["hw0/queue/scheduler"] == "[none] mq-deadline bfq", values
        assert values["exports/default/weight"] == 100, values
        only = Client(SOCKET).ask("get", path="hw0/queue/nr_requests")["result"]
        assert only == {"hw0/queue/nr_requests": 256}, only

    @case
    def _():
        """what is refused names its errno and what would be right, and changes nothing"""
        client = Client(SOCKET)
        before = client.ask("get")["result"]
        for path, value, errno, accepted in [
            ("hw0/queue/nr_requests", 0, "EINVAL", "1..=4096"),
            ("hw0/queue/nr_requests", 4097, "EINVAL", "1..=4096"),
            ("hw0/queue/nr_requests", "many", "EINVAL", "1..=4096"),
            ("hw0/queue/nr_requests", 1.5, "EINVAL", "1..=4096"),
            ("hw0/queue/scheduler", "cfq", "EINVAL", "none, mq-deadline, bfq"),
            ("exports/default/weight", 0, "EINVAL", "1..=10000"),
            ("exports/default/ioprio", "best", "EINVAL", None),
            ("exports/default/queue/max_sectors_kb", 3, "EINVAL", "4..=32768"),
            ("hw0/queue/fua", 1, "EACCES", None),
            ("exports/default/device", "hw1", "EACCES", None),
            ("hw0/queue/nr_request", 1, "ENOENT", None),
            ("hw0/queue", 1, "EISDIR", None),
            ("hw1/queue/nr_requests", 1, "ENOENT", None),
            ("connections/4000000/ioprio", "rt", "ENOENT", None),
            ("connections/x/ioprio", "rt", "ENOENT", None),
            ("", 1, "EISDIR", None),
        ]:
            error = refused(client.ask("set", path=path, value=value), -32000, errno)
            if accepted:
                assert error["data"]["accepted"] == accepted, error
        assert client.ask("get")["result"] == before

    @case
    def _():
        """the standard's codes for what is no request, on one connection that goes on"""
        client = Client(SOCKET)
        for line, code in [
            (b"nonsense", -32700),
            (b"\xff\xfe\x00", -32700),
            (b"{}", -32600),
            (b'{"jsonrpc":"2.0","id":1}', -32600),
            (b"[]", -32600),
        ]:
            refused(client.send(line + b"\n").line(), code)
        refused(client.ask("frobnicate"), -32601)
        refused(client.ask("get", pfad="hw0"), -32602)
        refused(client.ask("get", path=1), -32602)
        refused(client.ask("set", path="hw0/queue/nomerges"), -32602)
        refused(client.say({"jsonrpc": "2.0", "id": 1, "method": "get", "params": ["hw0"]}), -32602)
        assert client.ask("get", path="hw0/queue/nomerges")["result"]

    @case
    def _():
        """notifications are not answered, empty lines are nothing, a batch is answered as one"""
        client = Client(SOCKET)
        weight = {"jsonrpc": "2.0", "method": "set", "params": {"path": "exports/default/weight", "value": 50}}
        client.send(b"\n\r\n" + json.dumps(weight).encode() + b"\n")
        read = {"jsonrpc": "2.0", "id": "a", "method": "get", "params": {"path": "exports/default/weight"}}
        answers = client.say([read, weight, dict(read, id="b")])
        assert [answer["id"] for answer in answers] == ["a", "b"], answers
        assert answers[0]["result"] == {"exports/default/weight": 50}, answers
        weight["params"]["value"] = 100
        client.say(dict(weight, id=1))


def harm():
    @case
    def _():
        """a line that is too long is refused and its client closed"""
        client = Client(SOCKET)
        try:
            client.send(b"x" * (2 * LINE_MAX))
        except ConnectionError:
            pass
        refused(client.line(), -32600)
        assert client.hung_up()

    @case
    def _():
        """200 clients that send half a line and go away, 200 that ask and do not wait, leave nothing behind"""
        for part in [b'{"jsonrpc":"2.0","id":1,"method":"ge', b'{"jsonrpc":"2.0","id":1,"method":"get"}\n'] * 200:
            try:
                Client(SOCKET).send(part)
            except ConnectionError:
                pass  # Too many at once; that is another test.
        assert admitted().ask("get")["result"]

    @case
    def _():
        """one client too many is told so, and let in when another has gone"""
        present = [admitted() for _ in range(CLIENTS_MAX)]
        extra = Client(SOCKET).line()
        assert "16 clients" in refused(extra, -32600)["message"]
        assert all("result" in client.ask("connections") for client in present)
        gone = present.pop()
        gone.file.close()
        gone.socket.close()
        assert admitted().ask("connections")

    @case
    def _():
        """a client that reads none of its answers holds up nobody"""
        deaf = admitted()
        deaf.socket.setblocking(False)
        request = b'{"jsonrpc":"2.0","id":1,"method":"get"}\n'
        try:
            for _ in range(100_000):
                deaf.socket.send(request)
        except BlockingIOError:
            pass
        assert admitted().ask("diskstats")["result"]


def stop():
    """A client that waits for a switch which waits for a slow write; then the server is told to stop."""

    @case
    def _():
        """SIGTERM ends the wait of a client for a switch that a slow write holds up, and tells it why"""
        client = Client(SOCKET)
        switch = {"path": "hw0/queue/scheduler", "value": "mq-deadline"}
        request = {"jsonrpc": "2.0", "id": 1, "method": "set", "params": switch}
        client.send(json.dumps(request).encode() + b"\n")
        # The answer to a later question, by another connection, shows that the server goes on meanwhile.
        assert Client(SOCKET).ask("diskstats")["result"][0]["fields"]["in_flight"] >= 1
        client.socket.settimeout(1)
        try:
            raise AssertionError(f"the switch did not wait: {client.file.peek()}")
        except TimeoutError:
            pass
        client.socket.settimeout(20)
        client.file = client.socket.makefile("rb")
        os.kill(int(sys.argv[3]), signal.SIGTERM)
        refused(client.line(), -32000, "ESHUTDOWN")
        assert Client(SOCKET).ask("diskstats")["result"], "a stop that takes long can be looked at"


{"rpc": rpc, "harm": harm, "stop": stop}[WHAT]()
done()
