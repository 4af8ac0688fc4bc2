"""A client of the control socket that knows JSON and little else."""

import json
import socket


class Client:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(30)
        self.socket.connect(path)
        self.file = self.socket.makefile("rb")

    def send(self, data):
        self.socket.sendall(data)
        return self

    def line(self):
        """One answer; none when the server hung up."""
        line = self.file.readline()
        return json.loads(line) if line else None

    def say(self, value):
        return self.send(json.dumps(value).encode() + b"\n").line()

    def ask(self, method, **params):
        answer = self.say({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
        assert answer["id"] == 7, answer
        return answer

    def hung_up(self):
        try:
            return self.file.readline() == b""
        except ConnectionError:
            return True
