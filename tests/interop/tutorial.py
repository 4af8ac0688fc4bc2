"""Runs the commands of a tutorial and compares what they print with what the page shows.

    tutorial.py PAGE SHIMS [PREFIX...]

A block ```sh is run by bash with -e; ```sh fails is to fail. A block ```text after it is what it prints, where numbers with their units
stand for any number, runs of blanks for one blank, `...` at the end of a line for any rest of it, and a line `...` for any lines.
SHIMS is a folder of programs that come first in PATH. PREFIX: a command that runs bash elsewhere, as chroot does.
"""

import os
import re
import subprocess
import sys

from tap import check, done

BLOCK_SECONDS = 120
NUMBER = re.compile(r"(?<![\w#])\d[\d.,]*(?: ?(?:%|[kKMGT]i?B?|bytes|IOPS|[mun]?s)\b|%)?")


def blocks_of(page):
    """(heading, line, fails, commands, expected lines or None) in order."""
    found, heading, lines = [], "", open(page).read().splitlines()
    place = 0
    while place < len(lines):
        line = lines[place]
        if line.startswith("## "):
            heading = line[3:]
        if line.startswith("```"):
            end = lines.index("```", place + 1)
            kind, body = line[3:], lines[place + 1:end]
            if kind in ("sh", "sh fails"):
                found.append([heading, place + 2, kind == "sh fails", "\n".join(body), None])
            elif kind == "text":
                assert found[-1][4] is None, f"line {place + 1}: two outputs of one block"
                found[-1][4] = body
            place = end
        place += 1
    return found


def plain(line):
    return re.sub(r"\s+", " ", NUMBER.sub("#", line)).strip()


def matches(expected, actual):
    """Whether the lines are as shown."""
    if not expected:
        return not actual
    if expected[0] == "...":
        return any(matches(expected[1:], actual[skipped:]) for skipped in range(len(actual) + 1))
    if not actual:
        return False
    wanted, found = plain(expected[0]), plain(actual[0])
    same = found.startswith(wanted[:-3].rstrip()) if wanted.endswith("...") else found == wanted
    return same and matches(expected[1:], actual[1:])


def run(block, shims, prefix):
    heading, line, fails, commands, expected = block
    environment = dict(os.environ, PATH=f"{shims}:{os.environ['PATH']}", HOME="/root", LANG="C.UTF-8")
    for name in [name for name in environment if name.startswith("HEADWORKS_")]:
        del environment[name]
    command = [*prefix, "bash", "-e", "-o", "pipefail", "-c", commands]
    ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                           text=True, timeout=BLOCK_SECONDS)
    printed = ended.stdout.rstrip().splitlines()
    where = f"{heading}: line {line}"
    as_told = (ended.returncode != 0) == fails
    fits = expected is None or matches(expected, printed)
    detail = "\n".join([f"exit {ended.returncode}: {commands}", "printed:", *printed, "shown:", *(expected or [])])
    check(where, as_told and fits, detail)
    return as_told


def main():
    page, shims, *prefix = sys.argv[1:]
    for block in blocks_of(page):
        if not run(block, shims, prefix):
            break
    done()


main()
