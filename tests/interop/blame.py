"""Staged cases for `ctl why`: while loads run, the slow requests of a victim must be blamed on the export that held what they waited for."""

import json
import os
import subprocess
import sys
import time

from tap import check, done

HEADWORKS = os.environ["HEADWORKS"]
DIR = os.environ["DIR"]
IMAGES = os.environ["IMAGES"]
SECONDS = 1.5
# Servers at once: they share one disk, and each waits for it.
AT_ONCE = 2
# Another program may stall the disk for a moment, and then a bystander is to blame. Later attempts are alone and run longer: what
# the loads do then outweighs what disturbed them.
ATTEMPTS = 8


class Case:
    """A server with exports `victim`, `bulk` and bystanders, and their loads: arguments of bench by export."""

    def __init__(self, name, stage, resource, guilty, server, victim, loads, images=("victim", "bulk", "other")):
        self.name, self.stage, self.resource, self.guilty = name, stage, resource, guilty
        self.server, self.victim, self.loads, self.images = server, victim, loads, images

    def path(self, name):
        return os.path.join(DIR, f"{self.number}.{name}")

    def image(self, name):
        return os.path.join(IMAGES, f"{self.number}.{name}.img")

    def start(self, number, seconds):
        self.number, self.children = number, []
        for name in self.images:
            with open(self.image(name), "wb") as image:
                # Data, not holes: reads of these do not reach the disk.
                image.write(os.urandom(1 << 20) * 16 if "read" in self.loads.get(name, self.victim) else b"")
                image.truncate(16 << 20)
        words = [word.format(**{name: self.image(name) for name in self.images}) for word in self.server]
        log = open(self.path("log"), "wb")
        self.serving = subprocess.Popen(
            [HEADWORKS, "serve", "-U", self.path("s"), "--control", self.path("c"), *words], stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not os.path.exists(self.path("c")):
            if self.serving.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(open(self.path("log")).read())
            time.sleep(0.02)
        # The loads are there while the victim runs, from its first request to its last.
        loads = [self.bench(export, words, 60, log) for export, words in self.loads.items()]
        deadline = time.monotonic() + 20
        while not self.under_load():
            if time.monotonic() > deadline or any(load.poll() is not None for load in loads):
                raise AssertionError(f"{self.name}: the loads do not start: {open(self.path('log')).read()}")
            time.sleep(0.02)
        self.running, self.children = self.bench("victim", self.victim, seconds, log), loads

    def bench(self, export, words, seconds, log):
        uri = f"nbd+unix:///{export}?socket={self.path('s')}"
        command = [HEADWORKS, "bench", "--uri", uri, "--runtime", f"{seconds}s", *words.split()]
        command += ["--overwrite"] if "write" in words else []
        return subprocess.Popen(command, stdout=log, stderr=log)

    def under_load(self):
        stats = json.loads(subprocess.run([HEADWORKS, "ctl", self.path("c"), "stats", "--json"], check=True, capture_output=True).stdout)
        return all(any(of["bytes"] for of in stats["exports"][export]["ops"].values()) for export in self.loads)

    def ask(self, *words):
        command = [HEADWORKS, "ctl", self.path("c"), "why", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def end(self):
        self.running.wait()
        for child in self.children:
            child.kill()
            child.wait()
        # The second in which the last requests ended is entered when it is over.
        time.sleep(1.1)
        text, told = self.ask("victim"), json.loads(self.ask("victim", "--json"))
        self.serving.terminate()
        self.serving.wait()
        for name in self.images:
            os.unlink(self.image(name))
        blame = told["by_whom"] or {}
        found = (told["hints"] or [""])[0].split(":")[0], blame.get("resource"), blame.get("guilty")
        wanted = self.stage, self.resource, self.guilty
        right = found[0] in wanted[0].split("|") and found[1] in wanted[1].split("|") and found[2] == wanted[2]
        named = "by whom: its own requests held" if self.guilty is None else f"by whom: export {self.guilty}"
        self.text = f"found {found}, wanted {wanted}\n{text}"
        return right and named in text and len(told["hints"]) == 1


def shared(*more, exports=("victim", "bulk", "other")):
    """Exports that share the disk, without a cache."""
    return ["--cache", "0", *more, *(f"{name}=file:path={{{name}}}" for name in exports)]


READ_BULK = "--rw randread --bs 1m --iodepth 32"
WRITE_BULK = "--rw randwrite --bs 1m --iodepth 32"
READ_SMALL = "--rw randread --bs 4k --iodepth 4"
WRITE_SMALL = "--rw randwrite --bs 4k --iodepth 4"
ONE_TAG = ("--nr-requests", "1", "--scheduler", "none")

# Disks that answer late keep the buffers of their requests; half of the pool is the most of one disk.
BUFFERS = ["--cache", "0", "--buffers", "64M", "bulk=delay:read=300ms,write=300ms,weight=1000,of=mem:size=16M",
           "other=delay:read=300ms,write=300ms,of=mem:size=64M", "victim=delay:read=1ms,write=1ms,of=mem:size=64M"]


def cached(*more, exports=("victim", "bulk", "other")):
    """Exports that share the disk and a cache whose dirty data are bounded."""
    return ["--cache", "32M", "--set", "vm/dirty_bytes=4M", "--set", "vm/dirty_background_bytes=2M", *more,
            *(f"{name}=file:path={{{name}}}" for name in exports)]


CASES = [
    Case("tags: large reads", "tag", "tags", "bulk", shared(*ONE_TAG), READ_SMALL, {"bulk": READ_BULK}),
    Case("tags: large writes", "tag", "tags", "bulk", shared(*ONE_TAG), READ_SMALL, {"bulk": WRITE_BULK}),
    Case("tags: many connections", "tag", "tags", "bulk", shared("--nr-requests", "2", "--scheduler", "none"), READ_SMALL,
         {"bulk": "--rw randread --bs 1m --iodepth 4 --threads 8"}),
    Case("tags: a bystander reads, too", "tag", "tags", "bulk", shared(*ONE_TAG), READ_SMALL,
         {"bulk": READ_BULK, "other": "--rw randread --bs 4k --iodepth 1"}),
    Case("tags: a writer among writers", "tag", "tags", "bulk", shared(*ONE_TAG), WRITE_SMALL,
         {"bulk": WRITE_BULK, "other": "--rw randwrite --bs 4k --iodepth 1"}),
    Case("tags: one connection of the victim", "tag|device", "tags|device time", "bulk", shared(*ONE_TAG), "--rw randread --bs 4k --iodepth 1", {"bulk": READ_BULK}),
    Case("device: large reads", "device|tag", "device time|tags", "bulk", shared("--scheduler", "none"), READ_SMALL, {"bulk": READ_BULK}),
    Case("device: large writes", "device|tag", "device time|tags", "bulk", shared("--scheduler", "none"), READ_SMALL, {"bulk": WRITE_BULK}),
    Case("device: eight readers", "device|tag", "device time|tags", "bulk", shared("--scheduler", "none"), READ_SMALL,
         {"bulk": "--rw randread --bs 1m --iodepth 4 --threads 8"}),
    Case("scheduler: mq-deadline", "sched|device", "device time", "bulk", shared("--scheduler", "mq-deadline", "--queue-depth", "2"),
         READ_SMALL, {"bulk": READ_BULK}),
    Case("scheduler: bfq", "sched|device", "device time", "bulk", shared("--scheduler", "bfq"), READ_SMALL, {"bulk": READ_BULK}),
    Case("slow device: nothing else runs", "device", "device time", None,
         ["--cache", "0", "victim=delay:read=20ms,of=file:path={victim}"], READ_SMALL, {}, ("victim",)),
    Case("slow device: others are busy on their own", "device", "device time", None,
         ["--cache", "0", "victim=delay:read=20ms,of=file:path={victim}", "bulk=mem:size=64M"], READ_SMALL, {"bulk": READ_BULK}, ("victim",)),
    Case("slow device: few tags", "tag", "tags", None,
         ["--cache", "0", "--nr-requests", "1", "victim=delay:read=5ms,of=file:path={victim}", "bulk=mem:size=64M"], READ_SMALL,
         {"bulk": READ_BULK}, ("victim",)),
    Case("dirty: a large writer", "dirty", "dirty data", "bulk", cached(), WRITE_SMALL, {"bulk": WRITE_BULK}),
    Case("dirty: many connections", "dirty", "dirty data", "bulk", cached(), WRITE_SMALL, {"bulk": "--rw randwrite --bs 256k --iodepth 8 --threads 4"}),
    Case("dirty: a bystander writes, too", "dirty", "dirty data", "bulk", cached(), WRITE_SMALL,
         {"bulk": WRITE_BULK, "other": "--rw randwrite --bs 4k --iodepth 1"}),
    Case("buffers: writes to slow disks", "buffer", "request buffers", "bulk", BUFFERS, "--rw randread --bs 4m --iodepth 16",
         {"bulk": "--rw randwrite --bs 1m --iodepth 32 --threads 4", "other": "--rw randwrite --bs 1m --iodepth 8"}, ()),
    Case("buffers: reads of slow disks", "buffer", "request buffers", "bulk", BUFFERS, "--rw randread --bs 4m --iodepth 16",
         {"bulk": "--rw randread --bs 1m --iodepth 32 --threads 4", "other": "--rw randread --bs 1m --iodepth 8"}, ()),
    Case("two shards: a neighbour", "tag", "tags", "bulk", shared(*ONE_TAG, "--shards", "2"), READ_SMALL, {"bulk": READ_BULK}),
]

def run(cases, at_once, seconds):
    """Runs cases, a few at once; returns those that were wrong."""
    wrong = []
    for first in range(0, len(cases), at_once):
        some = cases[first:first + at_once]
        for number, case in enumerate(some):
            case.start(first + number, seconds)
        for case in some:
            if case.end():
                check(case.name, True)
            else:
                wrong.append(case)
    return wrong


if __name__ == "__main__":
    left = [case for case in CASES if not sys.argv[1:] or any(word in case.name for word in sys.argv[1:])]
    for attempt in range(1, ATTEMPTS + 1):
        left = run(left, AT_ONCE if attempt == 1 else 1, SECONDS * attempt)
        print(f"attempt {attempt}: {len(left)} wrong")
        for case in left:
            print("\n".join("# " + line for line in f"{case.name}: {case.text}".splitlines()[:4]))
    for case in left:
        check(case.name, False, case.text)
    done()
