"""Clients of tests/interop/limits.test.sh, by libnbd. Without a word first: the checks of rates and neighbours."""

import os
import signal
import subprocess
import sys
import time

import nbd


def connect(uri):
    handle = nbd.NBD()
    handle.set_uri_allow_local_file(True)
    handle.connect_uri(uri)
    return handle


def ask(handle, count, size=4096):
    """Asks for reads, which are under way at once."""
    return [handle.aio_pread(nbd.Buffer(size), index * size % (1 << 20)) for index in range(count)]


def finish(handle):
    """Waits for the replies of everything that is under way."""
    while handle.aio_in_flight() > 0:
        handle.poll(-1)


def check(what, holds):
    print(f"{'ok' if holds else 'not ok'} - {what}")


def rates(db, w, free):
    limited = connect(db)
    before = time.monotonic()
    ask(limited, 101)
    finish(limited)
    took = time.monotonic() - before
    # 4 ms of the rate pass at once, the rest needs half a second; a slow machine takes longer.
    check(f"100 reads at 200 a second take at least half a second ({took:.3f} s)", took >= 0.49)
    data = os.urandom(1 << 20)
    writer = connect(w)
    before = time.monotonic()
    for index in range(10):
        writer.pwrite(data, index << 20)
    took = time.monotonic() - before
    # A second at 8 MiB/s, of which half refills: 8 MiB pass in the first second; the eleventh MiB would wait.
    check(f"10 MiB at 4 MiB/s with a burst of 8 take at least 1.2 s ({took:.3f} s)", took >= 1.2)
    check("and are what was written", all(writer.pread(1 << 20, i << 20) == data for i in range(10)))
    last_read = ask(limited, 100)[-1]
    neighbour, other = connect(free), connect(free)
    ask(neighbour, 100)
    finish(neighbour)
    limited.poll(0)
    left = limited.aio_in_flight()
    check(f"100 reads of a neighbour end while {left} of a limited client wait", left > 0)
    other.flush()
    limited.flush()
    check("a flush passes reads that wait", not limited.aio_command_completed(last_read))
    finish(limited)


def together(least, *uris):
    """301 reads at 200 a second of all clients together; 8 ms of the rate, and a request on its way, may pass at once."""
    handles = [connect(uri) for uri in uris]
    before = time.monotonic()
    for handle in handles:
        ask(handle, 301 // len(handles) + 1)
    for handle in handles:
        finish(handle)
    took = time.monotonic() - before
    assert took >= float(least), f"301 reads took {took:.3f} s"


def handed_over(a, b, headworks, control):
    """Requests that wait for a limit of both shards are answered by the process that replaces the server."""
    subprocess.run([headworks, "ctl", control, "set", "tenants/acme/iops-total", "1"], check=True)
    handles = [connect(a), connect(b)]
    for handle in handles:
        ask(handle, 40)
        handle.poll(100)
    subprocess.run([headworks, "ctl", control, "upgrade"], check=True, timeout=90)
    left = [handle.aio_in_flight() for handle in handles]
    assert min(left) > 30, f"{left} of 40 wait after the upgrade"
    subprocess.run([headworks, "ctl", control, "set", "tenants/acme/iops-total", "1000"], check=True)
    before = time.monotonic()
    for handle in handles:
        finish(handle)
    took = time.monotonic() - before
    assert took < 20, f"{left} reads took {took:.1f} s"


def lifted(db, headworks, control):
    subprocess.run([headworks, "ctl", control, "set", "exports/db/iops-total", "1"], check=True)
    handle = connect(db)
    ask(handle, 50)
    before = time.monotonic()
    subprocess.run([headworks, "ctl", control, "set", "exports/db/iops-total", "0"], check=True)
    finish(handle)
    took = time.monotonic() - before
    assert took < 20, f"50 reads took {took:.1f} s after the limit of 1 a second was lifted"


def removed(db, headworks, control):
    handle = connect(db)
    ask(handle, 40)
    handle.poll(100)
    subprocess.run([headworks, "ctl", control, "remove", "--force", "db"], check=True, timeout=30)
    # What waited is answered before the connection is closed.
    while handle.aio_in_flight() > 0 and not handle.aio_is_closed() and not handle.aio_is_dead():
        handle.poll(100)
    left = handle.aio_in_flight()
    assert left == 0, f"{left} of 40 reads were not answered"


def stopped(w, server):
    handle = connect(w)
    waiting = [handle.aio_pwrite(nbd.Buffer(1 << 16), index << 16) for index in range(8)]
    handle.poll(100)
    before = time.monotonic()
    os.kill(int(server), signal.SIGTERM)
    while os.path.exists(f"/proc/{server}") and not is_zombie(server):
        assert time.monotonic() - before < 30, "the server waits for a limit"
        time.sleep(0.02)
    assert waiting


def is_zombie(server):
    with open(f"/proc/{server}/stat") as stat:
        return ") Z " in stat.read()


if __name__ == "__main__":
    words = {"lifted": lifted, "removed": removed, "stopped": stopped, "together": together, "handed-over": handed_over}
    if sys.argv[1] in words:
        words[sys.argv[1]](*sys.argv[2:])
    else:
        rates(*sys.argv[1:])
