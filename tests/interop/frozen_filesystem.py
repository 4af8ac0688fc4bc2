"""Changes of exports beside a frozen filesystem.

    frozen_filesystem.py CONTROL DIRECTORY SERVER      with HEADWORKS of the runner; exports cold and gone are there, ok is elsewhere
"""

import os
import subprocess
import sys
import time

from tap import case, done

CONTROL, DIRECTORY, SERVER = sys.argv[1:]
CTL = [os.environ["HEADWORKS"], "ctl", CONTROL]
LIMIT = 20


def ctl(*words):
    told = subprocess.run([*CTL, *words], capture_output=True, text=True, timeout=LIMIT)
    assert told.returncode == 0, told
    return told.stdout


def waiting_threads():
    """Threads of the server that wait for the filesystem."""
    found = 0
    for task in os.listdir(f"/proc/{SERVER}/task"):
        with open(f"/proc/{SERVER}/task/{task}/stat") as stat:
            found += stat.read().rsplit(")", 1)[1].split()[0] == "D"
    return found


def until(what, holds):
    end = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < end, f"{what} within {LIMIT} s"
        time.sleep(0.01)


def beside(words, again):
    """Changes other exports while `words` wait for the filesystem, which then succeed; the same once more is refused meanwhile."""
    subprocess.run(["fsfreeze", "-f", DIRECTORY], check=True)
    try:
        waiting = subprocess.Popen([*CTL, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        until("the change waits", waiting_threads)
        ctl("add", f"new-{words[0]}=mem:size=1M")
        ctl("freeze", "ok", "--run", "true")
        ctl("resize", "ok", "+1M")
        told = subprocess.run([*CTL, *words], capture_output=True, text=True, timeout=LIMIT)
        assert told.returncode == 1 and again in told.stderr, told
        assert waiting.poll() is None, "it waits for the filesystem"
    finally:
        subprocess.run(["fsfreeze", "-u", DIRECTORY], check=True)
    said, _ = waiting.communicate(timeout=LIMIT)
    assert waiting.returncode == 0, said


@case
def resize_waits_alone():
    """a resize that waits for its filesystem delays no change of others, and another resize of it is refused"""
    beside(["resize", "cold", "+1M"], "cold is being resized; try again when that is done (EBUSY)")


@case
def removal_waits_alone():
    """a removal whose mark waits for its filesystem delays no change of others"""
    beside(["remove", "gone"], "gone")


done()
