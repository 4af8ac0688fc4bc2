"""The client of benches/limits.sh: reads at a fixed depth over NBD, and looks at when replies came.

rate   all windows of one second: one starts with the first request, and one after each reply
burst  what came within the length of the burst, and in the three seconds after it
share  a heavy client (64 KiB x 16) beside a light one (4 KiB x 1), then beside one that asks for less than its part
many   a heavy client beside fifty light ones, and a neighbour without a limit beside them and alone
"""

import argparse
import multiprocessing
import selectors
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


def flow(path, name, size, depth, seconds, _, result):
    """Reads at the start of the export; puts (time after the first request, replies) of each receive into the list.

    It looks at one header of each receive, so that it is faster than a server at a million requests a second.
    """
    peer, _ = connect(path, name)
    request, unit = REQUEST.pack(0x25609513, 0, 0, 0, 0, size), 16 + size
    requests, buffer = request * depth, bytearray(1 << 18)
    begin = time.monotonic()
    peer.sendall(requests)
    events, position, answered = [], 0, 0
    while True:
        count = peer.recv_into(buffer)
        now = time.monotonic() - begin
        header = -position % unit
        if not count or header + 16 <= count and struct.unpack_from(">II", buffer, header) != (0x67446698, 0):
            raise SystemExit("limits.py: error: a read failed")
        position += count
        done, answered = position // unit - answered, position // unit
        if done:
            events.append((now, done))
            if now >= seconds:
                break
            peer.sendall(requests[: done * len(request)])
    result.put(events)


def crowd(path, names, size, depth, seconds, begin, result):
    """Reads of each export at a depth; puts the replies of each export from `begin` on into the list."""
    unit, request, counts = 16 + size, REQUEST.pack(0x25609513, 0, 0, 0, 0, size), [0] * len(names)
    ready = selectors.DefaultSelector()
    for index, name in enumerate(names):
        peer, _ = connect(path, name)
        ready.register(peer, selectors.EVENT_READ, [index, 0])
        peer.sendall(request * depth)
    while (now := time.monotonic()) < begin + seconds:
        for key, _ in ready.select(0.1):
            received = key.data[1] + len(key.fileobj.recv(1 << 18))
            done, key.data[1] = divmod(received, unit)
            if done:
                counts[key.data[0]] += done if now >= begin else 0
                key.fileobj.sendall(request * done)
    result.put(counts)


def clients(path, runs, client=run):
    """Runs several clients at once, a process each; returns their replies. A run may name its own client last."""
    started = []
    for arguments in runs:
        result = multiprocessing.Queue()
        target = arguments[5] if len(arguments) > 5 else client
        process = multiprocessing.Process(target=target, args=(path, *arguments[:5], result))
        process.start()
        started.append((process, result))
    replies = [result.get() for _, result in started]
    for process, _ in started:
        process.terminate()
        process.join()
    return replies


def told(options, goal, met, text):
    verdict = ("MET" if met else "MISSED") if options.judge else ""
    print(f"{goal:<34} {options.server:<20} {text} {verdict}".rstrip(), flush=True)
    return met or not options.judge


def rate(options):
    unit = options.size if options.unit == "bps" else 1
    [events] = clients(options.socket, [("e", options.size, options.depth, options.seconds, 0)], flow)
    error = lambda count: (count * unit / options.rate - 1) * 100
    first = error(sum(count for at, count in events if at < 1))
    end, within, most, least = 0, 0, -100.0, 100.0
    for at, count in events:
        if at + 1 > options.seconds:
            break
        while end < len(events) and events[end][0] < at + 1:
            within += events[end][1]
            end += 1
        # With the replies at its start, and without: the window just after them.
        most, least = max(most, error(within)), min(least, error(within - count))
        within -= count
    # One request is the granularity of both ends of a window.
    grain = unit / options.rate * 100
    met = max(abs(first), most, -least) <= 1 + grain
    goal = f"{options.unit} {options.rate} by {options.size} B"
    text = f"first second {first:+.2f} %, any {least:+.2f}..{most:+.2f} %, one request {grain:.2f} %"
    return told(options, goal, met, text)


def burst(options):
    unit = options.size if options.unit == "bps" else 1
    seconds = options.length + 3
    [events] = clients(options.socket, [("e", options.size, options.depth, seconds, 0)], flow)
    within = sum(count for at, count in events if at < options.length) * unit
    after = sum(count for at, count in events if options.length <= at < options.length + 3) * unit
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


def many(options):
    lights = [f"l{index}" for index in range(50)]
    neighbour = ("free", 4096, 1, options.seconds, 0.001)
    [alone], [again] = clients(options.socket, [neighbour]), clients(options.socket, [neighbour])
    # All are connected and at work by then.
    begin = time.monotonic() + 2
    crowds = [(["heavy"], 65536, 16, options.seconds, begin, crowd), (lights, 4096, 1, options.seconds, begin, crowd)]
    [large], counts, beside = clients(options.socket, [*crowds, neighbour])
    part = options.rate / 51
    errors = [(count * 4096 / options.seconds / part - 1) * 100 for count in [large * 16, *counts]]
    grain = 65536 / options.seconds / part * 100
    text = f"heavy {errors[0]:+.2f} % (one request {grain:.2f} %), light {min(errors[1:]):+.2f}..{max(errors[1:]):+.2f} %"
    told_parts = told(options, "each of 51 its part", max(map(abs, errors[1:])) <= 2 and abs(errors[0]) <= 2 + grain, text)
    ratio, spread = p99(beside) / p99(alone), abs(p99(again) / p99(alone) - 1)
    text = f"p99 {p99(beside):.3f} ms, alone {p99(alone):.3f} and {p99(again):.3f} ms"
    return told(options, "a neighbour without a limit", ratio <= 1.01 + spread, text) and told_parts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["rate", "burst", "share", "many"])
    parser.add_argument("--socket", required=True)
    parser.add_argument("--server", default="")
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--unit", choices=["iops", "bps"], default="iops")
    for name in ["rate", "max", "length", "size", "depth", "seconds"]:
        parser.add_argument(f"--{name}", type=int, default=0)
    options = parser.parse_args()
    sys.exit(0 if {"rate": rate, "burst": burst, "share": share, "many": many}[options.what](options) else 1)


if __name__ == "__main__":
    main()
