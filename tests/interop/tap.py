"""One line for each check: `ok - WHAT` or `not ok - WHAT` with the reason; `done()` ends with 1 when one failed."""

import sys
import time
import traceback

_failed = 0


def ok(what):
    print("ok - " + what, flush=True)


def not_ok(what, why=""):
    global _failed
    _failed += 1
    print("not ok - " + what, flush=True)
    for line in str(why).splitlines():
        print("#   " + line, flush=True)


def check(what, condition, why=""):
    if condition:
        ok(what)
    else:
        not_ok(what, why)
    return condition


def equal(what, found, wanted):
    return check(what, found == wanted, f"found {found!r}, wanted {wanted!r}")


def case(function):
    """Runs a function as one check: it returns, or raises to fail."""
    what = (function.__doc__ or function.__name__).strip()
    try:
        function()
        ok(what)
    except Exception:
        not_ok(what, traceback.format_exc(limit=-3))
    return function


def same_bytes(found, wanted):
    """Raises with the place of the first difference, instead of printing megabytes."""
    if found == wanted:
        return
    assert len(found) == len(wanted), f"{len(found)} bytes instead of {len(wanted)}"
    at = next(i for i in range(len(found)) if found[i] != wanted[i])
    wrong = sum(1 for a, b in zip(found, wanted) if a != b)
    raise AssertionError(
        f"{wrong} bytes differ, the first at {at}: {found[at:at + 8].hex()} instead of {wanted[at:at + 8].hex()}"
    )


def slowdown():
    """How much longer work takes now than on a quiet machine, at least 1: time by processor time of this thread. Limits of time that tell
    a fault from none are multiplied by it."""
    begin, work = time.monotonic(), time.thread_time()
    while time.thread_time() - work < 0.05:
        pass
    return max(1.0, (time.monotonic() - begin) / 0.05)


def done():
    sys.exit(1 if _failed else 0)
