"""The client of benches/limits.sh: reads at a fixed depth over NBD, and looks at when replies came.

rate   all windows of one second: one starts with the first request, and one after each reply
burst  what came within the length of the burst, and in the three seconds after it
share  a heavy client (64 KiB x 16) beside a light one (4 KiB x 1), then beside one that asks for less than its part
"""

import argparse
import multiprocessing
import socket
import struct
import sys
import time

REQUEST = struct.Struct(">IHHQQI")


def connect(path, name):
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    files = peer.makefile("rb")
    greeting = files.read(18)
    if greeting[:16] != b"NBDMAGICIHAVEOPT":
        raise SystemExit("limits.py: error: not an NBD server")
    peer.sendall(struct.pack(">I", 3))
    peer.sendall(b"IHAVEOPT" + struct.pack(">II", 1, len(name)) + name.encode())
    files.read(10)  # size and flags
    return peer, files


def run(path, name, size, depth, seconds, think, result):
    """Reads at the start of the export; puts (time after the first request, wait) of each reply into the list."""
    peer, files = connect(path, name)
    header = lambda cookie: REQUEST.pack(0x25609513, 0, 0, cookie, cookie % 1024 * size, size)
    begin = time.monotonic()
    sent = {cookie: begin for cookie in range(depth)}
    peer.sendall(b"".join(header(cookie) for cookie in range(depth)))
    replies, cookie = [], depth
    while sent:
        reply = files.read(16)
        _, error, answered = struct.unpack(">IIQ", reply)
        if error or len(files.read(size)) != size:
            raise SystemExit("limits.py: error: a read failed")
        now = time.monotonic()
        replies.append((now - begin, now - sent.pop(answered)))
        if now - begin < seconds:
            if think:
                time.sleep(think)
            sent[cookie] = time.monotonic()
            peer.sendall(header(cookie))
            cookie += 1
        else:
            break
    result.put(replies)


def clients(path, runs):
    """Runs several clients at once, a process each; returns their replies."""
    started = []
    for arguments in runs:
        result = multiprocessing.Queue()
        process = multiprocessing.Process(target=run, args=(path, *arguments, result))
        process.start()
        started.append((process, result))
    replies = [result.get() for _, result in started]
    for process, _ in started:
        process.terminate()
        process.join()
    return replies


def told(options, goal, met, text):
    verdict = ("MET" if met else "MISSED") if options.judge else ""
    print(f"{goal:<34} {options.who:<20} {text} {verdict}".rstrip(), flush=True)
    return met or not options.judge


def rate(options):
    unit = options.size if options.unit == "bps" else 1
    [replies] = clients(options.socket, [("e", options.size, options.depth, options.seconds, 0)])
    times = [at for at, _ in replies]
    error = lambda count: (count * unit / options.rate - 1) * 100
    first = error(sum(at < 1 for at in times))
    end, most, least = 0, -100.0, 100.0
    for start, at in enumerate(times):
        if at + 1 > options.seconds:
            break
        while end < len(times) and times[end] < at + 1:
            end += 1
        # With the reply at its start, and without: the window just after it.
        most, least = max(most, error(end - start)), min(least, error(end - start - 1))
    # One request is the granularity of both ends of a window.
    grain = unit / options.rate * 100
    met = max(abs(first), most, -least) <= 1 + grain
    goal = f"{options.unit} {options.rate} by {options.size} B"
    text = f"first second {first:+.2f} %, any {least:+.2f}..{most:+.2f} %, one request {grain:.2f} %"
    return told(options, goal, met, text)


def burst(options):
    unit = options.size if options.unit == "bps" else 1
    seconds = options.length + 3
    [replies] = clients(options.socket, [("e", options.size, options.depth, seconds, 0)])
    within = sum(at < options.length for at, _ in replies) * unit
    after = sum(options.length <= at < options.length + 3 for at, _ in replies) * unit
    allowed = options.max * options.length
    sum_error = (within / allowed - 1) * 100
    rate_error = (after / 3 / options.rate - 1) * 100
    # The end of the burst falls up to 0.5 % of its length beside its time.
    slack = (options.max - options.rate) * options.length * 0.005 / 3 / options.rate * 100
    met = abs(sum_error) <= 0.5 and abs(rate_error) <= 1 + slack
    goal = f"{options.unit} {options.rate}, {options.max} for {options.length} s"
    return told(options, goal, met, f"burst {sum_error:+.2f} %, then {rate_error:+.2f} %")


def p99(replies):
    waits = sorted(wait for _, wait in replies)
    return waits[len(waits) * 99 // 100] * 1e3


def share(options):
    heavy = ("heavy", 65536, 16, options.seconds, 0)
    busy, calm = ("light", 4096, 1, options.seconds, 0), ("light", 4096, 1, options.seconds, 0.003)
    [alone] = clients(options.socket, [calm])
    large, light = clients(options.socket, [heavy, busy])
    half = options.rate / 2
    part = len(light) * 4096 / options.seconds
    rest = len(large) * 65536 / options.seconds
    _, below = clients(options.socket, [heavy, calm])
    ratio = p99(below) / p99(alone)
    met = abs(part / half - 1) <= 0.03
    told_part = told(
        options,
        "64 KiB x 16 beside 4 KiB x 1",
        met,
        f"light {part / 1e6:.2f} MB/s ({len(light) / options.seconds:.0f} IOPS), heavy {rest / 1e6:.2f} MB/s",
    )
    text = f"light p99 {p99(below):.2f} ms, alone {p99(alone):.2f} ms"
    return told(options, "the light one below its part", ratio <= 1.2, text) and told_part


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["rate", "burst", "share"])
    parser.add_argument("--socket", required=True)
    parser.add_argument("--who", default="")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--unit", choices=["iops", "bps"], default="iops")
    for name in ["rate", "max", "length", "size", "depth", "seconds"]:
        parser.add_argument(f"--{name}", type=int, default=0)
    options = parser.parse_args()
    sys.exit(0 if {"rate": rate, "burst": burst, "share": share}[options.what](options) else 1)


if __name__ == "__main__":
    main()
