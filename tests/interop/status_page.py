"""The status page: what it answers, and what a browser shows of it, against what ctl says."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import urllib.parse

import browser

BAD = False


def check(what, good, detail=""):
    global BAD
    print(("ok" if good else "not ok"), "-", what)
    if not good:
        BAD = True
        print("#  ", str(detail)[:2000])


def ctl(binary, control, *words):
    out = subprocess.run([binary, "ctl", control, *words, "--json"], check=True, capture_output=True)
    return json.loads(out.stdout)


def ask(page, method, path, **fields):
    """Status, header fields and body of an answer."""
    where = urllib.parse.urlsplit(page)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=10)
    connection.request(method, path, headers=fields)
    answer = connection.getresponse()
    said = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return said


def requests(page):
    status, fields, body = ask(page, "GET", "/")
    policy = fields.get("Content-Security-Policy", "")
    check("the page is HTML", status == 200 and fields["Content-Type"].startswith("text/html") and b"<title>Headworks" in body, (status, fields))
    check("its policy allows its own files alone", "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy, policy)
    check("it is not kept, guessed at, framed or sent on",
          fields["Cache-Control"] == "no-store" and fields["X-Content-Type-Options"] == "nosniff"
          and "frame-ancestors 'none'" in policy and fields["Referrer-Policy"] == "no-referrer", fields)
    status, fields, body = ask(page, "HEAD", "/")
    check("HEAD has the head alone", status == 200 and int(fields["Content-Length"]) > 1000 and body == b"", (status, fields))
    told = {method: ask(page, method, "/status.json")[0] for method in ["POST", "PUT", "DELETE", "OPTIONS"]}
    check("nothing but GET and HEAD is served", set(told.values()) == {405}, told)
    told = [ask(page, "GET", path, Host="evil.example")[0] for path in ["/", "/status.json", "/metrics"]]
    check("a foreign host name gets the metrics alone", told == [421, 421, 200], told)
    status, fields, body = ask(page, "GET", "/status.json", Host="localhost:9100")
    data = json.loads(body)
    check("localhost gets the data", status == 200 and fields["Content-Type"] == "application/json" and len(data["exports"]) == 4, data)


# The text of the page whose colour is too close to what is behind it: WCAG's contrast of 4.5.
CONTRAST = """(() => {
  const numbers = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (c) => { const f = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2]; };
  const behind = (e) => { for (; e; e = e.parentElement) { const c = numbers(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; } return [255, 255, 255]; };
  const bad = []; let seen = 0;
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim() !== '');
    if (!own || !e.checkVisibility() || e.closest('noscript')) continue;
    seen += 1;
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push([e.tagName, e.className, e.textContent.slice(0, 30), ratio]);
  }
  return { bad, seen };
})()"""
# Whether the canvas of each chart has something on it in the colour of its first line.
DRAWN = """[...document.querySelectorAll('.chart')].filter((f) => f.querySelector('.legend li')).map((f) => {
  const c = f.querySelector('canvas');
  const all = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
  const colours = new Set();
  for (let i = 0; i < all.length; i += 4) if (all[i + 3] > 100) colours.add((all[i] << 16) | (all[i + 1] << 8) | all[i + 2]);
  return [f.id, colours.size];
})"""
# Columns of the exports that are right of the edge of a window.
CUT = """[...document.querySelectorAll('#export-table thead th')].filter((c) => ['Export', 'State', 'MiB/s', 'p99 ms', 'Errors', 'Oldest'].includes(c.textContent))
  .filter((c) => c.clientWidth === 0 || c.getBoundingClientRect().right > innerWidth).map((c) => c.textContent)"""
OVERFLOW = "[document.documentElement.scrollWidth, innerWidth]"
CELLS = "Object.fromEntries([...document.querySelectorAll('#export-table tbody tr')].map((r) => [r.querySelector('button').textContent, [...r.cells].map((c) => c.textContent)]))"
FACTS = "Object.fromEntries([...document.querySelectorAll('#detail dd')].map((d) => [d.dataset.key, d.textContent]))"
SUMS = """(() => { const sums = {};
  for (const sample of state.samples) for (const [name, row] of sample.rows) {
    const sum = sums[name] = sums[name] || [0, 0, 0, 0, 0];
    row.slice(0, 5).forEach((value, index) => { sum[index] += value; });
  } return sums; })()"""


def page(binary, control, address, socket, folder, hostile):
    seen = browser.Browser(folder)
    try:
        seen.size(1600, 1000)
        seen.scheme("light")
        seen.open(address)
        live = seen.until("document.getElementById('connection')?.textContent === 'Live' && state.data !== null")
        check("the page is live", live, seen.problems)
        at = lambda name: f"nbd+unix:///{name}?socket={socket}"
        bench = [binary, "bench", "--overwrite", "--runtime", "60", "--uri"]
        loads = [subprocess.Popen([*bench, at(name), *words.split()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                 for name, words in [("db", "--rw randrw --bs 4k --iodepth 4"), ("slow", "--rw randread --bs 16k --iodepth 4")]]
        try:
            shown(seen, binary, control, hostile)
            appearance(seen, folder)
            keyboard(seen)
        finally:
            for load in loads:
                load.terminate()
                load.wait()
        subprocess.run([sys.executable, "-c", FAILING, at("bad")], check=True)
        subprocess.run([sys.executable, "-c", FLUSHING, at("db")], check=True)
        equal(seen, binary, control)
        check("the console is silent, and nothing violates the policy", seen.problems == [], seen.problems)
        foreign = [url for url in seen.urls if not url.startswith((address, "about:"))]
        check("no other origin is asked", foreign == [] and len(seen.urls) > 8, foreign)
    finally:
        seen.close()


FAILING = """import sys, nbd
handle = nbd.NBD()
handle.connect_uri(sys.argv[1])
for _ in range(5):
    try:
        handle.pread(512, 0)
    except nbd.Error:
        pass
"""


FLUSHING = """import sys, nbd
handle = nbd.NBD()
handle.connect_uri(sys.argv[1])
for number in range(3):
    handle.pwrite(b"x" * 4096, 4096 * number)
    handle.flush()
handle.trim(65536, 0)
handle.zero(65536, 0)
"""


def shown(seen, binary, control, hostile):
    """While a load runs: rates in the table, lines in the charts, names as text."""
    loaded = seen.until("state.samples.length >= 3 && state.samples.slice(-2).every((s) => s.rows.get('db')?.[0] > 0 && s.rows.get('slow')?.[0] > 0)")
    check("samples arrive while a load runs", loaded, seen.run("state.samples.length"))
    top = subprocess.Popen([binary, "top", control, "--batch", "2", "--json"], stdout=subprocess.PIPE)
    cells = seen.run(CELLS)
    slow = cells["slow"]
    number = lambda text: float(text.replace("k", "e3").replace("M", "e6"))
    check("the table has the rates", number(slow[2]) > 50 and number(slow[3]) == number(slow[4]) == 0 and number(slow[7]) >= 2, slow)
    near = abs(number(slow[5]) - number(slow[2]) * 16384 / 2**20) <= 0.02 * number(slow[5]) + 0.01
    check("and its bytes are its requests", near and slow[9] in ("device", "tag", "sched"), slow)
    drawn = dict(seen.run(DRAWN))
    check("the charts are drawn", set(drawn) == {"throughput", "requests", "latency", "stages", "device", "dirty"} and min(drawn.values()) > 2, drawn)
    # In one expression, so that no sample arrives meanwhile.
    listed = seen.run("""[...document.querySelectorAll('#device .legend li')].map((li) => [li.querySelector('.value').textContent,
        format.short((state.samples.at(-1).rows.get(li.querySelector('.name').textContent)?.[5] || 0) / 1e9 / state.samples.at(-1).seconds)])""")
    check("the lists below the charts have the last values", len(listed) == 2 and all(a == b != "-" for a, b in listed), listed)
    tenants(seen)
    name = next((name for name in cells if hostile in name), None)
    check("markup in a name is text", name is not None and cells[name][1] == "absent" and seen.run("document.querySelectorAll('img').length") == 0, list(cells))
    top = json.loads(top.communicate(timeout=30)[0].splitlines()[1])
    rates = seen.run("state.samples.slice(-2).map((s) => s.rows.get('slow')[0] / s.seconds)")
    # A load on a busy machine is not even: the rate that top shows lies among those of the page, or near them.
    check("top shows about the same rates", min(rates) / 3 < top["slow"]["r/s"] < max(rates) * 3, (rates, top["slow"]))


def tenants(seen):
    """What the exports of a tenant do together, with its share and limits; the charts by tenant."""
    row = "[...document.querySelectorAll('#tenant-table tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    told = seen.run(row)
    check("each tenant has a row", [cells[0] for cells in told] == ["acme", "idle"], told)
    acme, idle = told
    check("with its share, limits and target", (acme[1], acme[7], idle[1], idle[7]) == ("300", "iops-read 90000, target 50.0 ms", "100", "-"), told)
    both = seen.run(f"({{ tenant: {row}[0], one: {CELLS}.slow }})")
    check("and what its export does", both["tenant"][4] == both["one"][5] and both["tenant"][6] == both["one"][9], both)
    seen.run("document.getElementById('grouped').click()")
    names = seen.run("[...document.querySelectorAll('#requests .legend .name')].map((one) => one.textContent).sort()")
    title = seen.run("document.getElementById('requests-title').textContent")
    check("the charts can be by tenant", (title, names) == ("Requests by tenant", ["acme", "no tenant"]), (title, names))
    seen.run("document.getElementById('grouped').click()")
    check("and by export again", seen.run("document.getElementById('requests-title').textContent") == "Requests by export")


def appearance(seen, folder):
    pictures = []
    for scheme in ["light", "dark"]:
        seen.scheme(scheme)
        for width in [1600, 400]:
            seen.size(width, 1000)
            fits = f"innerWidth === {width} && document.querySelector('.plot canvas').clientWidth <= {width}"
            check(f"{scheme}, {width} pixels: it is laid out", seen.until(fits), seen.run("innerWidth"))
            used, room = seen.run(OVERFLOW)
            check(f"{scheme}, {width} pixels: nothing is wider than the window", used <= room, (used, room))
            if width == 400:
                hidden = seen.run(CUT)
                check(f"{scheme}: state, load, latency, errors and age of an export are in view", hidden == [], hidden)
            contrast = seen.run(CONTRAST)
            check(f"{scheme}, {width} pixels: text has contrast", contrast["bad"] == [] and contrast["seen"] > 60, contrast)
            pictures.append(f"{folder}/{scheme}-{width}.png")
            seen.picture(pictures[-1])
    back = "getComputedStyle(document.body).backgroundColor"
    dark = seen.run(back)
    seen.scheme("light")
    check("the themes differ", seen.run(back) != dark, dark)
    check("a picture of each was taken", all(os.path.getsize(path) > 20_000 for path in pictures), pictures)
    seen.size(1600, 1000)


def keyboard(seen):
    """Tab reaches the exports, Enter chooses one, the arrows read a chart."""
    focused = "document.activeElement.closest('#export-table tbody') !== null"
    seen.run("document.activeElement.blur()")
    for _ in range(12):
        if seen.run(focused):
            break
        seen.press("Tab", number=9)
    check("Tab reaches the exports", seen.run(focused), seen.run("document.activeElement.outerHTML"))
    outline = seen.run("getComputedStyle(document.activeElement).outlineStyle")
    check("the focus is visible", outline == "solid", outline)
    name = seen.run("document.activeElement.textContent")
    seen.press("Enter", number=13, text="\r")
    chosen = seen.until("document.activeElement.getAttribute('aria-pressed') === 'true'", 5)
    titles = seen.run("['detail-title', 'stages-title'].map((id) => document.getElementById(id).textContent)")
    check("Enter chooses an export", chosen and all(name in title for title in titles), (name, titles))
    # It stays chosen, and focused, while rows are brought up to date.
    before = seen.run("state.next")
    seen.until(f"state.next > {before}")
    check("it keeps the focus", seen.run(focused) and seen.run("document.activeElement.textContent") == name)
    # Down and up: only a row that moves up is taken out of its place.
    seen.run("(() => { const body = document.querySelector('#export-table tbody'); for (let turn = 0; turn < 2; turn += 1) arrange(body, [...body.rows].reverse()); })()")
    check("also when its row moves", seen.run(focused) and seen.run("document.activeElement.textContent") == name)
    seen.run("document.querySelector('#latency .plot').focus()")
    for _ in range(2):
        seen.press("ArrowLeft", number=37)
    unit = "document.querySelector('#latency figcaption .quiet').textContent"
    check("arrows read a chart", seen.until(f"{unit}.includes(' at ')", 5), seen.run(unit))
    seen.press("Escape", number=27)


def equal(seen, binary, control):
    """Nothing happens any more: the totals of the page are those of ctl, and its samples add up to them."""
    end = time.monotonic() + 20
    while ctl(binary, control, "connections") and time.monotonic() < end:
        time.sleep(0.02)
    stats = ctl(binary, control, "stats")
    # A sample that was taken after it.
    seen.until(f"state.data.uptime > {stats['seconds']}")
    stats = stats["exports"]
    for name in ["db", "slow", "bad"]:
        histograms = ctl(binary, control, "latency", name)["ops"]
        op = lambda kind: histograms.get(kind, {"count": 0, "bytes": 0})
        counted = {kind: stats[name]["latency"].get(kind, {}).get("total", {}).get("count", 0) for kind in ["read", "write"]}
        seen.run(f"choose({json.dumps(name)})")
        facts = seen.run(FACTS)
        told = {"read": int(facts["reads"].replace(",", "")), "write": int(facts["writes"].replace(",", ""))}
        check(f"{name}: requests on the page are those of ctl stats", told == counted, (told, counted))
        one = seen.run(f"state.data.exports.find((one) => one.name === {json.dumps(name)})")
        bytes_told = (one["read_bytes"], one["write_bytes"])
        check(f"{name}: and bytes those of the histograms", bytes_told == (op("read")["bytes"], op("write")["bytes"]), bytes_told)
        sums = seen.run(SUMS).get(name, [0] * 5)
        whole = [one["reads"], one["read_bytes"], one["writes"], one["write_bytes"], one["errors"]]
        check(f"{name}: its samples add up to its totals", sums == whole, (sums, whole))
    seen.run("choose('db')")
    facts, of = seen.run(FACTS), stats["db"]["latency"]
    told = (facts["flushes"], facts["others"], seen.run("format.ms(1e3 * %f) + ' ms'" % of["flush"]["total"]["p99_us"]))
    check("flushes, trims and zeroes are counted apart", told == ("3", "2", facts["flush_p99"]) and of["trim"]["total"]["count"] == 1, (told, facts))
    drawn = seen.until("[...document.querySelectorAll('#flushes .legend .name')].some((one) => one.textContent === 'db')")
    check("and flushes have a chart", drawn, seen.run("document.getElementById('flushes').innerText"))
    total = stats["slow"]["latency"]["read"]["total"]
    times = seen.run("(({ p50_ns, p99_ns }) => [p50_ns / 1e3, p99_ns / 1e3])(state.data.exports.find((one) => one.name === 'slow'))")
    check("percentiles are those of ctl stats", times == [total["p50_us"], total["p99_us"]], (times, total))
    check("errors are counted", seen.run("state.data.exports.find((one) => one.name === 'bad').errors") == 5)
    states = {one["name"]: one["state"] for one in seen.run("state.data.exports")}
    told = {one["name"]: one["state"] for one in ctl(binary, control, "exports")}
    check("states are those of ctl exports", states == told, (states, told))
    answers = seen.run("[...document.querySelectorAll('#device-table tbody tr')].map((row) => row.cells[1].textContent)")
    check("every device has its state", answers == ["answers"] * 3, answers)


def lost(binary, address, server, folder):
    """A server that stops is said to be gone; its successor is shown without a reload."""
    seen = browser.Browser(folder)
    try:
        seen.open(address)
        seen.until("document.getElementById('connection')?.textContent === 'Live' && state.samples.length > 1")
        os.kill(int(server), signal.SIGTERM)
        said = seen.until("document.getElementById('connection').className === 'lost'")
        check("a server that is gone is said to be gone", said, seen.run("document.getElementById('connection').textContent"))
        port = urllib.parse.urlsplit(address).port
        with open(f"{folder}/second", "wb") as log:
            second = subprocess.Popen([binary, "serve", "-U", f"{folder}/second.sock", "--metrics", f"127.0.0.1:{port}", "other=null:size=1M"],
                                      stdout=log, stderr=log)
        try:
            cells = f"document.getElementById('connection').textContent === 'Live' && 'other' in {CELLS}"
            check("its successor is shown without a reload", seen.until(cells), seen.run("document.body.innerText"))
            check("with its exports alone", list(seen.run(CELLS)) == ["other"], seen.run(CELLS))
            ages = seen.run("[state.data.uptime, ...state.samples.map((sample) => sample.at)]")
            check("and nothing of the time before it", max(ages[1:], default=0) <= ages[0], ages)
        finally:
            second.terminate()
            second.wait()
    finally:
        seen.close()


{"requests": requests, "page": page, "lost": lost}[sys.argv[1]](*sys.argv[2:])
sys.exit(1 if BAD else 0)
