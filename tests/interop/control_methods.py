"""The methods of the control socket against their page, headworks-control(7): every method of the page exists, and its answers have
exactly the fields that the page lists."""
import json
import re
import socket
import sys

import nbd
import tap

control, page, uri = sys.argv[1:]


def table(path):
    """Methods of the page: the fields of each result, and whether it is a list."""
    methods = {}
    with open(path, encoding="utf-8") as opened:
        text = opened.read().replace("\\-", "-")
    body = text.split(".SH METHODS\n", 1)[1].split("\n.SH ", 1)[0]
    for section in body.split(".SS ")[1:]:
        name, rest = section.split("\n", 1)
        fields = set(re.findall(r"^\.B (\S+)$", rest, re.M))
        methods[name] = (fields, "The result is a list" in rest)
    return methods


class Control:
    def __init__(self, path):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(20)
        connection.connect(path)
        self.stream = connection.makefile("rw")

    def call(self, method, **params):
        self.stream.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + "\n")
        self.stream.flush()
        return json.loads(self.stream.readline())


CALLS = [
    ("get", {"path": "exports/db/weight"}),
    ("set", {"path": "exports/db/weight", "value": 200}),
    ("stats", {}),
    ("diskstats", {}),
    ("histograms", {"export": "db"}),
    ("why", {"export": "db", "op": "read", "seconds": 60}),
    ("connections", {}),
    ("listeners", {}),
    ("exports", {}),
    ("tenants", {}),
    ("add-tenant", {"tenant": "beta,weight=5"}),
    ("remove-tenant", {"tenant": "beta"}),
    ("add", {"spec": "new=mem:size=1M", "read_only": False, "cwd": "/"}),
    ("resize", {"export": "new", "size": "2M"}),
    ("drain", {"export": "new"}),
    ("refuse-clients", {"exports": ["new"]}),
    ("accept-clients", {"exports": ["*"]}),
    ("freeze", {"exports": ["n*"], "timeout": 60}),
    ("thaw", {"exports": ["new"]}),
    ("failed", {"export": "new"}),
    ("discard-failed", {"export": "new", "confirm": False}),
    ("remove", {"export": "new", "force": True}),
    ("diff", {}),
    ("reload", {}),
    ("log-level", {"level": "info"}),
]
methods = table(page)
server = Control(control)
# A connection to list.
client = nbd.NBD()
client.connect_uri(uri)
for name, params in CALLS:
    answer = server.call(name, **params)
    result = answer.get("result")
    fields, is_list = methods[name]
    what = f"{name} answers as its page says"
    if "error" in answer or isinstance(result, list) != is_list:
        tap.check(what, False, answer)
        continue
    shown = result[0] if is_list and result else result
    found = set(shown) if fields and shown else fields
    tap.check(what, found == fields, f"only in the answer: {sorted(found - fields)}, only on the page: {sorted(fields - found)}")
    wrong = server.call(name, nonsense=1)
    tap.check(f"{name} refuses an unknown parameter", wrong.get("error", {}).get("code") == -32602, wrong)
# It takes no parameters; an upgrade itself has tests of its own.
tap.check("upgrade refuses an unknown parameter", server.call("upgrade", nonsense=1).get("error", {}).get("code") == -32602)
# A cut ends the server; see crashtest.test.sh.
# A snapshot needs an overlay; see overlay.test.sh.
for name, params, error in [
    ("cut", {"export": "db"}, "EINVAL"),
    ("cut", {"export": "none"}, "ENOENT"),
    ("snapshot", {"export": "db", "file": "monday.hwo"}, "EINVAL"),
]:
    answer = server.call(name, **params).get("error", {})
    tap.check(f"{name} of {params['export']} is refused", answer.get("data", {}).get("errno") == error, answer)
for name in ("cut", "snapshot"):
    tap.check(f"{name} refuses an unknown parameter", server.call(name, nonsense=1).get("error", {}).get("code") == -32602)
tap.check("every method of the page is tried", set(methods) == {name for name, _ in CALLS} | {"cut", "snapshot", "upgrade"}, sorted(methods))
client.shutdown()
tap.done()
