"""What top and the metrics page say, against what ctl says; and scrapers that behave badly."""

import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import urllib.request

import nbd

BAD = False


def check(what, good, detail=""):
    global BAD
    print(("ok" if good else "not ok"), "-", what)
    if not good:
        BAD = True
        print("#  ", detail)


def ctl(binary, control, *words):
    out = subprocess.run([binary, "ctl", control, *words, "--json"], check=True, capture_output=True)
    return json.loads(out.stdout)


def parse(text):
    """Families and samples of the exposition format: {name: type}, {(name, labels): value}."""
    types, samples = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} is there twice"
            types[name] = kind
        elif not line.startswith("#"):
            found = re.fullmatch(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)', line)
            assert found, f"no sample: {line}"
            labels = tuple(sorted(re.findall(r'([a-z]+)="((?:[^"\\]|\\.)*)"', found[2] or "")))
            family = re.sub(r"_(bucket|sum|count)$", "", found[1])
            assert found[1] in types or family in types, f"{found[1]} has no family"
            key = (found[1], labels)
            assert key not in samples, f"{key} is there twice"
            samples[key] = float(found[3])
    return types, samples


def histograms_hold(types, samples):
    """Every histogram is cumulative, and its +Inf is its count; how many there are."""
    series = {}
    for (name, labels), value in samples.items():
        if name.endswith("_bucket"):
            rest = tuple(pair for pair in labels if pair[0] != "le")
            le = dict(labels)["le"]
            series.setdefault((name[:-7], rest), []).append((float(le.replace("+Inf", "inf")), value))
    for (name, rest), buckets in series.items():
        assert types[name] == "histogram", name
        buckets.sort()
        counts = [count for _, count in buckets]
        assert counts == sorted(counts), f"{name} {rest} is not cumulative: {counts}"
        assert buckets[-1][0] == float("inf") and counts[-1] == samples[(name + "_count", rest)], (name, rest)
        assert samples[(name + "_sum", rest)] >= 0
    return len(series)


def scrape(page):
    with urllib.request.urlopen(page, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers
        return answer.read().decode()


NAMES = {
    "headworks_build_info": "gauge",
    "headworks_connections": "gauge",
    "headworks_requests_total": "counter",
    "headworks_bytes_total": "counter",
    "headworks_merges_total": "counter",
    "headworks_request_stage_seconds": "histogram",
    "headworks_tag_wait_seconds": "summary",
    "headworks_dirty_pause_seconds": "summary",
}


def page(binary, control, address):
    types, samples = parse(scrape(address))
    check("the page has the families that are promised", NAMES.items() <= types.items(), types)
    check("counters end in _total", all(name.endswith("_total") for name, kind in types.items() if kind == "counter"), types)
    found = histograms_hold(types, samples)
    # Nothing happens any more, so both say the same.
    stats = ctl(binary, control, "stats")
    wrong, right, waited = [], 0, 0
    for export, table in stats["exports"].items():
        for op, rows in table["latency"].items():
            labels = (("export", export), ("op", op))
            told = samples[("headworks_requests_total", labels)]
            if told != rows["total"]["count"]:
                wrong.append((export, op, told, rows["total"]["count"]))
            for stage, row in rows.items():
                # A stage at which nothing waited is not on the page.
                if stage != "total" and row["max_us"] == 0:
                    continue
                waited += 1
                key = ("headworks_request_stage_seconds_count", labels + (("stage", stage),))
                right += samples[key] == row["count"]
                if samples[key] != row["count"]:
                    wrong.append((key, samples[key], row["count"]))
    check("the page and ctl stats agree", not wrong and right == waited >= 4, wrong)
    check("histograms are cumulative and whole, of the stages at which requests waited", found == waited, (found, waited))
    states = {dict(labels)["export"]: dict(labels)["state"] for (name, labels), value in samples.items()
              if name == "headworks_export_state" and value == 1}
    check("every export has a state", states == {name: "serving" for name in ["slow", "fast", "idle"]}, states)
    held = {dict(labels)["export"]: value for (name, labels), value in samples.items() if name == "headworks_device_held_seconds_total"}
    busy = stats["exports"]["slow"]["latency"]["read"]["device"]
    check("what held the device is on the page", held["slow"] >= 0.05 * busy["count"] and held["idle"] == 0, held)
    check("and the process", samples[("process_resident_memory_bytes", ())] > 1e6 and samples[("process_cpu_seconds_total", ())] > 0, samples)
    promtool(scrape(address))
    gauges = {dict(labels)["export"]: value for (name, labels), value in samples.items() if name == "headworks_connections"}
    check("every export has its connections", gauges == {"slow": 0, "fast": 0, "idle": 0}, gauges)


def promtool(text):
    """The checks of Prometheus' own tool, where it is installed."""
    if shutil.which("promtool") is None:
        print("skip - promtool checks the page # promtool is not installed (Debian's prometheus)")
        return
    told = subprocess.run(["promtool", "check", "metrics"], input=text.encode(), capture_output=True)
    check("promtool has nothing to say against the page", told.returncode == 0, told.stderr.decode())
    here = os.path.dirname(os.path.abspath(__file__))
    rules = os.path.join(here, "../../packaging/prometheus/headworks.rules.yml")
    told = subprocess.run(["promtool", "check", "rules", rules], capture_output=True)
    check("and nothing against the alert rules", told.returncode == 0, told.stderr.decode())
    told = subprocess.run(["promtool", "test", "rules", os.path.join(here, "alerts.yml")], capture_output=True)
    check("slow flushes raise an alert, slow trims do not", told.returncode == 0, told.stdout.decode() + told.stderr.decode())


def failing(binary, control, address):
    """An export with errors: they are on the page by operation and error, and in no other's count."""
    _, samples = parse(scrape(address))
    errors = {(dict(labels)["export"], dict(labels)["op"], dict(labels)["error"]): value
              for (name, labels), value in samples.items() if name == "headworks_errors_total"}
    check("errors are counted by export, operation and error", set(errors) == {("bad", "read", "io")} and errors["bad", "read", "io"] == 8, errors)
    ops = {(dict(labels)["device"], dict(labels)["op"]) for (name, labels), value in samples.items() if name == "headworks_device_requests_total"}
    check("flushes and discards are apart", {("hw1", "flush"), ("hw1", "discard"), ("hw1", "write")} <= ops, ops)


def flushes(binary, control, address, uri):
    """Slow flushes are seen wherever slow writes are, and by their name."""
    handle = nbd.NBD()
    handle.connect_uri(uri)
    handle.pread(512, 0)
    for number in range(6):
        handle.pwrite(b"x" * 4096, 4096 * number)
        handle.flush()
    handle.trim(65536, 0)
    handle.zero(65536, 0)
    why = ctl(binary, control, "why", "db", "--op", "flush")
    check("why --op flush names the device", why["slow"] and why["requests"] == 6 and " 6 flushes " in why["sentence"]
          and {one["op"] for one in why["worst"]} == {"flush"} and max(why["shares"], key=why["shares"].get) == "device", why)
    count = {op: ctl(binary, control, "why", "db", "--op", op)["requests"] for op in ["read", "write", "trim", "zero"]}
    check("and other requests are not among them", count == {"read": 1, "write": 6, "trim": 1, "zero": 1}, count)
    told = subprocess.run([binary, "ctl", control, "latency", "db"], check=True, capture_output=True, text=True).stdout
    check("ctl latency has a histogram of each", all(f"db {op}: " in told for op in ["read", "write", "flush", "trim", "zero"]), told)
    text = subprocess.run([binary, "top", control, "--batch", "1"], check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in text.splitlines() if line.startswith(("export ", "db "))]
    row = dict(zip(*rows))
    check("top has their 99th percentile, and where they were", float(row["fl99"]) >= 30 and row["slowest"] == "device", text)
    _, samples = parse(scrape(address))
    ops = {dict(labels)["op"]: value for (name, labels), value in samples.items() if name == "headworks_requests_total"}
    check("the metrics have every operation", ops == {"read": 1, "write": 6, "flush": 6, "trim": 1, "zero": 1}, ops)
    key = ("headworks_request_stage_seconds_sum", (("export", "db"), ("op", "flush"), ("stage", "total")))
    check("and the times of flushes", samples[key] >= 6 * 0.03, samples[key])


def dashboard(address):
    """Every metric that the dashboard and the alert rules ask for is one of the page."""
    here = os.path.dirname(os.path.abspath(__file__))
    types, _ = parse(scrape(address))
    known = {name + suffix for name, kind in types.items()
             for suffix in (["_bucket", "_sum", "_count"] if kind in ("histogram", "summary") else [""])}
    with open(os.path.join(here, "../../packaging/grafana/headworks.json")) as file:
        board = json.load(file)
    asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    with open(os.path.join(here, "../../packaging/prometheus/headworks.rules.yml")) as file:
        asked += re.findall(r"expr: (.*)", file.read())
    names = {name for expr in asked for name in re.findall(r"\b(?:headworks|process)_[a-z_]+", expr)}
    check("the dashboard and the rules ask for metrics of the page", len(names) > 10 and names <= known, names - known)
    ids = [panel["id"] for panel in board["panels"]]
    placed = all({"x", "y", "w", "h"} <= panel["gridPos"].keys() for panel in board["panels"])
    check("its panels have a place and an id each", placed and len(ids) == len(set(ids)) > 8, ids)


def many(binary, control, address, socket_path, count):
    """More exports, and more clients of one, than a shard tells in one turn: each is told once, and whole."""
    count = int(count)

    def connect(name):
        handle = nbd.NBD()
        handle.connect_uri(f"nbd+unix:///{name}?socket={socket_path}")
        return handle

    stay = []
    for number in range(count):
        # Of each export one client goes and one stays; of the last many stay.
        connect(f"e{number}").pread(512, 0)
        stay += [connect(f"e{number}") for _ in range(1 if number < count - 1 else 40)]
    for handle in stay:
        handle.pread(512, 0)
    # The server hears a little later that those who left have left.
    end = time.monotonic() + 20
    while len(ctl(binary, control, "connections")) > len(stay) and time.monotonic() < end:
        time.sleep(0.02)
    _, samples = parse(scrape(address))
    of = {labels: value for (name, labels), value in samples.items() if name == "headworks_requests_total"}
    wanted = {(("export", f"e{number}"), ("op", "read")): 2 for number in range(count)}
    wanted[("export", f"e{count - 1}"), ("op", "read")] = 41
    check("every export is on the page once, with all its clients' requests", of == wanted, of)
    there = {dict(labels)["export"]: value for (name, labels), value in samples.items() if name == "headworks_connections"}
    check("and its clients", sum(there.values()) == len(stay) and there[f"e{count - 1}"] == 40, there)
    ids = [connection["id"] for connection in ctl(binary, control, "connections")]
    check("every connection is listed once", len(ids) == len(set(ids)) == len(stay), ids)


def top(binary, control):
    lines = subprocess.run([binary, "top", control, "--batch", "2", "--json"], check=True, capture_output=True, timeout=60)
    first, second = (json.loads(line) for line in lines.stdout.decode().splitlines())
    fast, slow = second["fast"], second["slow"]
    good = fast["w/s"] > 100 and fast["r/s"] == 0 and fast["wareq-sz"] == 4 and slow["r/s"] == 0
    check("the one that is written to has writes of 4 KiB, the others nothing", good, second)
    check("its bytes are its requests", abs(fast["wkB/s"] - 4 * fast["w/s"]) < 1, second)
    # Since the start: 50 ms each, as the device has it.
    check("a slow device's await is its delay", first["slow"]["r_await"] >= 50 and first["slow"]["dev50"] >= 50, first)
    for name in ["SIGTERM", "SIGHUP"]:
        check(f"a screen that {name} ends puts the terminal back", *put_back(binary, control, getattr(signal, name)))
    return 0


def silent(binary, control, server):
    """A server that stands still: the screen says so, and is no less ready to end."""
    for name in ["SIGTERM", "q"]:
        good, detail = put_back(binary, control, getattr(signal, name, None), int(server))
        check(f"a screen of a silent server says so, {name} ends it, and the terminal is put back", good, detail)


def put_back(binary, control, number, server=None):
    """Whether a terminal is as before when a signal, or q, has ended its screen, and what was shown; of a server that was stopped
    meanwhile if it is given."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 132))
    before = termios.tcgetattr(theirs)
    screen = subprocess.Popen([binary, "top", control], stdin=theirs, stdout=theirs, stderr=theirs)
    shown = b""
    while b"\x1b[?1049h" not in shown:
        shown += os.read(ours, 4096)
    # A frame of it: by then it is all set up.
    while b"quit" not in shown:
        shown += os.read(ours, 4096)
    if server:
        os.kill(server, signal.SIGSTOP)
        # What a screen writes is cut by moves of its cursor.
        deadline = time.monotonic() + 20
        while b"not" not in shown and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.05)[0]:
                shown += os.read(ours, 4096)
    if number is None:
        os.write(ours, b"q")
    else:
        screen.send_signal(number)
    status, deadline = None, time.monotonic() + 20
    while status is None and time.monotonic() < deadline:
        if select.select([ours], [], [], 0.05)[0]:
            shown += os.read(ours, 4096)
        status = screen.poll()
    if server:
        os.kill(server, signal.SIGCONT)
    if status is None:
        screen.kill()
    while select.select([ours], [], [], 0)[0]:
        shown += os.read(ours, 4096)
    good = status == 0 and (not server or b"not" in shown) and b"\x1b[?1049l" in shown and termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)
    return good, (status, shown[-200:])


def send(address, data, patience=10):
    """What a server says to these bytes, until it closes."""
    with socket.create_connection(address, timeout=patience) as peer:
        if data:
            peer.sendall(data)
        said = b""
        while True:
            try:
                more = peer.recv(65536)
            except ConnectionResetError:
                return said
            if not more:
                return said
            said += more


def counters(address, pid):
    """While a load runs no counter goes back, for Prometheus would take that for a new beginning."""
    last, back, count = {}, [], 0
    while count < 20 or os.path.exists(f"/proc/{pid}"):
        types, samples = parse(scrape(address))
        for (name, labels), value in samples.items():
            counts = types.get(name) == "counter" or re.search(r"_(bucket|count|sum)$", name)
            if counts and value < last.get((name, labels), 0):
                back.append((name, labels, last[name, labels], value))
            last[name, labels] = value
        count += 1
    check("no counter goes back under load", not back, (len(back), back[:3]))
    merged = {kind: last["headworks_merges_total", (("kind", kind),)] for kind in ["plug", "queue"]}
    check("there were merges of both kinds", min(merged.values()) > 0, merged)


def targets(address):
    types, samples = parse(scrape(address))
    db, bulk = (("export", "db"), ("tenant", "acme")), (("export", "bulk"),)
    of = lambda what, labels: samples.get((f"headworks_{what}", labels), 0)
    small, missed = of("target_requests_total", db), of("target_missed_total", db)
    check("requests of an export that missed its target", 0 < missed <= small, (small, missed))
    tenant = (("tenant", "acme"),)
    check("are those of its tenant", of("tenant_target_missed_total", tenant) == missed, samples)
    check("requests that waited for it", of("target_held_total", bulk) > 0 and of("target_held_total", db) == 0, samples)
    limit = of("device_bulk_limit_bytes", (("device", "hw0"),))
    check("the limit for it", 32768 <= limit < float("inf"), limit)
    kinds = {name: types.get(f"headworks_{name}") for name in ("device_bulk_limit_bytes", "tenant_limited_seconds_total")}
    check("as a gauge", kinds == {"device_bulk_limit_bytes": "gauge", "tenant_limited_seconds_total": "counter"}, kinds)


def hostile(address):
    host, port = re.fullmatch(r"http://([^:]+):(\d+)/metrics", address).groups()
    peer = (host, int(port))
    for what, data, status in [
        ("another path", b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        ("another method", b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405"),
        ("a head without end", b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 9000, b"431"),
        ("many fields", b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 100 + b"\r\n", b"431"),
        ("bytes that are no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9, b"400"),
    ]:
        said = send(peer, data)
        check(f"{what}: {status.decode()}", said.startswith(b"HTTP/1.1 " + status), said[:200])
    # Many more than there are places, half of which say nothing, and each that is closed comes again. Their time is 5 s.
    def half(say):
        one = socket.create_connection(peer, timeout=30)
        if say:
            one.sendall(b"GET /met")
        return one

    halves = [half(number % 2) for number in range(200)]
    ended = threading.Event()

    def come_again():
        while not ended.is_set():
            for one in select.select(halves, [], [], 0.05)[0]:
                one.close()
                halves.remove(one)
                halves.append(half(len(halves) % 2))

    hostile_side = threading.Thread(target=come_again)
    hostile_side.start()
    for what in ["a scrape", "a second one"]:
        began = time.monotonic()
        said = send(peer, b"GET /metrics HTTP/1.1\r\n\r\n", 30)
        took = time.monotonic() - began
        check(f"{what} beside 200 half requests that come again is answered before these time out", b"headworks_build_info" in said and took < 4, took)
    ended.set()
    hostile_side.join()
    for one in halves:
        one.close()
    silent = socket.create_connection(peer, timeout=30)
    check("a scraper that says nothing is closed without an answer", silent.recv(1) == b"")


if __name__ == "__main__":
    what = {"page": page, "many": many, "failing": failing, "flushes": flushes, "dashboard": dashboard, "top": top, "silent": silent, "counters": counters, "targets": targets, "hostile": hostile}
    what[sys.argv[1]](*sys.argv[2:])
    sys.exit(1 if BAD else 0)
