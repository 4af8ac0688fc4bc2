"""The methods of the control socket against their page, headworks-control(7): every method of the page exists, and its answers have
exactly the fields that the page lists, of the kinds that it says, down to the last object."""
import json
import os
import re
import socket
import sys

import nbd
import tap

control, page, uri = sys.argv[1:]


def part(text, name):
    """The sections of a part of the page: by name their text."""
    body = text.split(f".SH {name}\n", 1)[1].split("\n.SH ", 1)[0]
    return dict(section.split("\n", 1) for section in ("\n" + body).split("\n.SS ")[1:])


def table(path):
    """Methods and objects of the page: the fields of each with their kinds, and of methods whether the result is a list."""
    with open(path, encoding="utf-8") as opened:
        text = opened.read().replace("\\-", "-")
    fields = lambda rest: dict(re.findall(r"^\.B (\S+)\n(.*)$", rest, re.M))
    methods = {name: (fields(rest), "The result is a list" in rest) for name, rest in part(text, "METHODS").items()}
    return methods, {name: fields(rest) for name, rest in part(text, "OBJECTS").items()}


SIMPLE = {"string": str, "number": (int, float), "boolean": bool, "any value": object}


def wrong(value, kind):
    """What of a value is not as a kind of the page says; none if all is."""
    if kind.endswith(" or null"):
        return None if value is None else wrong(value, kind.removesuffix(" or null"))
    for words, of in (("lists?", list), ("objects? by name", dict)):
        found = re.match(f"{words} of (.*)", kind)
        if found:
            if not isinstance(value, of):
                return f"{value} is no {kind}"
            items = value.values() if of is dict else value
            return next(filter(None, (wrong(one, found[1]) for one in items)), None)
    if kind in ("pair of numbers", "pairs of numbers"):
        return None if len(value) == 2 else f"{value} is no pair"
    known = SIMPLE.get(kind) or SIMPLE.get(kind.removesuffix("s"))
    if known:
        return None if isinstance(value, known) else f"{value} is no {kind}"
    return wrong_object(value, objects[kind])


def wrong_object(value, fields):
    """What of an object is not as its fields on the page say."""
    needed = {name for name, about in fields.items() if "left out" not in about}
    found = set(value)
    if not needed <= found <= set(fields):
        return f"only in the answer: {sorted(found - set(fields))}, only on the page: {sorted(needed - found)}"
    told = ((name, wrong(value[name], fields[name].split(": ", 1)[0])) for name in found)
    return next((f"{name}: {what}" for name, what in told if what), None)


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
    ("add-listener", {"listener": "name=late,unix=late.sock", "cwd": os.path.dirname(control)}),
    ("remove-listener", {"listener": "late"}),
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
methods, objects = table(page)
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
    told = [wrong_object(one, fields) for one in (result if is_list else [result]) if fields]
    tap.check(what, not any(told), told)
    refused = server.call(name, nonsense=1)
    tap.check(f"{name} refuses an unknown parameter", refused.get("error", {}).get("code") == -32602, refused)
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
