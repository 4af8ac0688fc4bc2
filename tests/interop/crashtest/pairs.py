"""Verdicts of programs and settings under the models of `headworks crashtest`, against a table; with --fs also what this kernel confirms.

pairs.py HEADWORKS [--seeds N] [--cuts N] [--fs FS --fs-cuts N] [--table FILE] [NAME...]   NAME: a program, or PROGRAM/MODE

One line a pair. Exit 0: each has the verdicts of the table with each seed. A program that is not installed is skipped; bbolt is the program
that `go build` makes in bbolt/, named by the variable BBOLT. --seeds 0: no verdicts, for --fs alone. With more than one seed, all states of a run that
should hold are looked at, which no seed can change; only if they are too many, those that each seed draws. --table appends a line a pair and model:
how it was looked at, verdicts that differ, and the states until the first broken one, median and most of the seeds.
"""

import json
import os
import shutil
import subprocess
import sys

# Broken under journal, log-tree, any: `b`; holds: `-`.
TABLE = """
config/none bbb
config/file bbb
config/directory bbb
config/both ---
log/none bbb
log/file --b
log/both ---
sqlite/OFF bbb
sqlite/NORMAL bbb
sqlite/FULL bbb
sqlite/EXTRA ---
sqlite/WAL-OFF bbb
sqlite/WAL-NORMAL bbb
sqlite/WAL-FULL ---
lmdb/default ---
lmdb/nometasync bbb
lmdb/nosync bbb
lmdb/mapasync bbb
leveldb/sync --b
leveldb/nosync bbb
redis/always bbb
redis/everysec bbb
postgres/full ---
postgres/async bbb
postgres/off bbb
bbolt/default bbb
bbolt/nosync bbb
"""
MODELS = ["journal", "log-tree", "any"]
# Broken in few of many states, which draws would miss: all are looked at.
ALL_STATES = ["bbolt"]
# Of the 430 steps of PostgreSQL's run those between a promise and the write of its log are broken, ten at a time: 60 draws, a step in seven,
# do not miss them; 12 missed them with 4 of 20 seeds.
LEAST_CUTS = {"postgres": 60}
# Time for looking at all states of a run.
ALL_TIME = "100s"
WITH_SETUP = ["sqlite", "lmdb", "postgres"]


def module(name):
    return subprocess.run([sys.executable, "-c", "import " + name], stderr=subprocess.DEVNULL).returncode == 0


def has(program):
    needed = dict(lmdb=lambda: module("lmdb"), leveldb=lambda: module("plyvel"), redis=lambda: shutil.which("redis-server"))
    needed["postgres"] = lambda: os.path.isdir("/usr/lib/postgresql") and os.geteuid() == 0
    needed["bbolt"] = lambda: os.environ.get("BBOLT")
    return needed.get(program, lambda: True)()


def commands(program, mode):
    here = os.path.dirname(os.path.abspath(__file__))
    own = "%s %s/stores.py %s" % (sys.executable, here, program)
    if program == "bbolt":
        own = os.environ["BBOLT"]
        return ["--run", "%s %s load $dir 8" % (own, mode), "--check", "%s %s check $dir 8" % (own, mode)]
    words = ["--run", "%s %s load $dir" % (own, mode), "--check", "%s %s check $dir" % (own, mode)]
    return (["--setup", "%s x setup $dir" % own] if program in WITH_SETUP else []) + words


def looks(program, options):
    cuts = max(int(options["--cuts"]), LEAST_CUTS.get(program, 0))
    return ["--exhaustive"] if program in ALL_STATES else ["--cuts", str(cuts)]


def crashtest(headworks, words):
    done = subprocess.run([headworks, "crashtest", "--json", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not done.stdout:
        return None, done.stderr.strip().splitlines()[-1:]
    return json.loads(done.stdout), None


def verdicts(headworks, words, drawn, should_break, seeds):
    """What was found with each seed, or once for all of them; and an error."""
    if seeds > 1 and not should_break:
        found, error = crashtest(headworks, words + ["--exhaustive", "--time", ALL_TIME])
        if error:
            return [], error
        if found["causes"] or not found["beyond"] and not found["timed_out"]:
            return [dict(found, seed=1, all=True)], None
    tried = []
    for seed in range(1, seeds + 1):
        first = ["--stop-at-first"] if should_break and seeds > 1 else []
        found, error = crashtest(headworks, words + ["--seed", str(seed)] + first + drawn)
        if error:
            return tried, error
        tried.append(dict(found, seed=seed, all="--exhaustive" in drawn))
    return tried, None


def row(name, model, broken, tried, others):
    whole = tried[0]["all"] and broken != "b"
    looked = "all %d states" % tried[0]["distinct"] if whole else "%d seeds" % len(tried)
    states = sorted(found["distinct"] for found in tried)
    until = "%d\t%d" % (states[len(states) // 2], states[-1]) if broken == "b" else "-\t-"
    return "%s\t%s\t%s\t%s\t%d\t%s\n" % (name, model, "broken" if broken == "b" else "holds", looked, others, until)


def main():
    headworks, rest = sys.argv[1], sys.argv[2:]
    options = {"--seeds": "1", "--cuts": "300", "--fs": "", "--fs-cuts": "200", "--table": ""}
    while rest and rest[0] in options:
        options[rest[0]], rest = rest[1], rest[2:]
    bad = 0
    for line in TABLE.split("\n"):
        if not line or rest and not any(line.split()[0].startswith(name) for name in rest):
            continue
        name, expected = line.split()
        program, mode = name.split("/")
        if not has(program):
            print("skip %s: not installed" % name)
            continue
        flips, error, causes, rows = 0, None, [], []
        seeds = int(options["--seeds"])
        for model, broken in zip(MODELS, expected):
            if error or not seeds:
                break
            tried, error = verdicts(headworks, commands(program, mode) + ["--model", model], looks(program, options), broken == "b", seeds)
            others = [found for found in tried if bool(found["causes"]) != (broken == "b")]
            flips += len(others)
            for found in others:
                why = "; ".join(found["causes"][0]["why"]) if found["causes"] else "none broken of %d" % found["distinct"]
                print("    %s, %s, seed %d: %s" % (name, model, found["seed"], why))
            if tried:
                causes = tried[-1]["causes"] if model == "journal" or not causes else causes
                rows.append(row(name, model, broken, tried, len(others)))
        if options["--table"] and rows:
            with open(options["--table"], "a") as table:
                table.writelines(rows)
        text = error or ("as in the table" if not flips else "%d VERDICTS ARE OTHERS" % flips)
        for kind in filter(None, options["--fs"].split(",")):
            words = looks(program, options) + ["--fs", kind, "--fs-cuts", options["--fs-cuts"], "--time", "100s"]
            found, error = crashtest(headworks, commands(program, mode) + words)
            if error:
                text = "%s; %s" % (text, error)
                continue
            opinion = found["fs"][0]
            text = "%s; %s: %d cuts, %d broken, %d states, %d not in the model" % (
                text, kind, opinion["cuts"], opinion["broken"], opinion["states"], opinion["strangers"])
            for cause in found["causes"]:
                shown = ["%d (%d undisturbed)" % (one["cuts"], one["undisturbed"]) for one in cause["confirmed"]]
                print("    %s: %s | %s | %s" % (name, cause["model"], "; ".join(cause["why"])[:150], shown or "NOT SEEN"))
        print("%s %s: %s" % (expected, name, text), flush=True)
        bad += bool(flips or error)
    return 1 if bad else 0


sys.exit(main())
