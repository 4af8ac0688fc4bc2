#!/usr/bin/env python3
"""Mutants of cargo-mutants in random functions: functions.py SEED FUNCTIONS, in a copy of the sources, as scripts/mutants has it.

Every function of the crates below is as likely as any other, and in it every mutant. All mutants of a crate are compiled at once: a function has both
bodies, and the variable MUTANT says which mutant it is that runs.

    fn f(..) { body }   -->   fn f(..) { if crate::mutant_is(7) { mutated body } else { body } }

So a crate is compiled once for its unit tests, once for its other tests and, if it is the core, once for smoke. Each is run without a mutant first. A mutant that does not compile so (a constant
function, an opaque type) is left out, and the next function of the draw takes its place.

A mutant is found by the unit tests beside it, or all of its crate, or the crate's other tests, or for headworks-core a minute of smoke: the first that fails
or does not end. A line says which; the last is `mutants: N passed, N failed, 0 skipped`.
"""

import json
import os
import pathlib
import random
import subprocess
import sys
import time

CRATES = ["headworks-core", "headworks", "headworks-server"]
# A test that takes so many seconds does not end; without a mutant they take two minutes on a machine that is shared by many.
LIMIT = 300
SWITCH = """
/// Whether this is the mutant that runs.
#[doc(hidden)]
pub fn mutant_is(mutant: u32) -> bool {
    static MUTANT: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    let number = || std::env::var("MUTANT").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    *MUTANT.get_or_init(number) == mutant
}
"""


def draw(seed, functions):
    """Mutants in the order of the draw, twice as many as are wanted."""
    words = [word for crate in CRATES for word in ("-p", crate)]
    listed = subprocess.run(["cargo", "mutants", "--list", "--json", *words], check=True, stdout=subprocess.PIPE)
    by_function = {}
    for mutant in json.loads(listed.stdout):
        # Others are in constants, say.
        if function := mutant.get("function"):
            by_function.setdefault((mutant["package"], mutant["file"], function["span"]["start"]["line"]), []).append(mutant)
    prng = random.Random(seed)
    chosen = prng.sample(sorted(by_function), min(2 * functions, len(by_function)))
    # Not two functions of which one is in the other.
    mutants = [prng.choice(by_function[key]) for key in chosen]
    mutants = [mutant for mutant in mutants if not any(is_in(mutant, other) for other in mutants)]
    print(f"mutants: {len(by_function)} functions", flush=True)
    return [dict(mutant, number=index + 1) for index, mutant in enumerate(mutants)]


def is_in(mutant, other):
    own, theirs = (each["function"]["span"] for each in (mutant, other))
    return mutant["file"] == other["file"] and theirs["start"]["line"] < own["start"]["line"] <= theirs["end"]["line"]


def place(text, at):
    """The index of a line and column."""
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[: at["line"] - 1]) + at["column"] - 1


def body_of(text, start, end):
    """The index of the brace that opens the body of a function, whose item is text[start:end]."""
    depth, at, seen = 0, start, False
    while at < end:
        if text.startswith("//", at):
            at = text.index("\n", at)
        elif text[at] == '"':
            at += 1
            while text[at] != '"':
                at += 2 if text[at] == "\\" else 1
        elif text[at] in "([":
            depth += 1
        elif text[at] in ")]":
            depth -= 1
        elif depth == 0 and text.startswith("fn ", at):
            seen = True
        elif depth == 0 and seen and text[at] == "{":
            return at
        at += 1
    raise ValueError("a function without a body")


def with_both(text, mutant):
    """The text with both bodies of one function."""
    function, span = mutant["function"]["span"], mutant["span"]
    end = place(text, function["end"])
    begin = body_of(text, place(text, function["start"]), end)
    first, last = place(text, span["start"]), place(text, span["end"])
    mutated = text[begin:first] + mutant["replacement"] + " " + text[last:end]
    return f"{text[:begin]}{{ if crate::mutant_is({mutant['number']}) {mutated} else {text[begin:end]} }}{text[end:]}"


class Crate:
    """A crate with some mutants in its sources."""

    def __init__(self, name, mutants):
        self.name, self.mutants = name, mutants
        root = pathlib.Path("crates") / name / "src/lib.rs"
        self.texts = {path: path.read_text() for path in {root, *(pathlib.Path(mutant["file"]) for mutant in mutants)}}
        self.root = root

    def restore(self):
        for path, text in self.texts.items():
            path.write_text(text)

    def write(self):
        """Writes the sources with the mutants that are left; returns their ranges of lines, by path."""
        places = {}
        for path, text in self.texts.items():
            own = [mutant for mutant in self.mutants if pathlib.Path(mutant["file"]) == path]
            # From the end, so that earlier places stay as they are.
            for mutant in sorted(own, key=lambda mutant: -mutant["function"]["span"]["start"]["line"]):
                text = with_both(text, mutant)
            lines = text.split("\n")
            for mutant in own:
                at = next(index for index, line in enumerate(lines) if f"mutant_is({mutant['number']})" in line)
                places.setdefault(str(path), []).append((at + 1, mutant))
            path.write_text(text + SWITCH if path == self.root else text)
        return {path: sorted(own, key=lambda entry: entry[0]) for path, own in places.items()}

    def wrong(self, places, message):
        """The mutant that an error is in."""
        for span in message["spans"]:
            own = [mutant for line, mutant in places.get(span["file_name"], []) if line <= span["line_start"]]
            if own:
                return own[-1]
        return None

    def build(self, *words):
        """Compiles, without the mutants that do not."""
        while True:
            places = self.write()
            command = ["cargo", *words, "--locked", "-q", "--message-format=json"]
            built = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if built.returncode == 0:
                return
            messages = [json.loads(line).get("message") for line in built.stdout.splitlines() if line.startswith("{")]
            errors = [message for message in messages if message and message["level"] == "error" and message["spans"]]
            wrong = [mutant for mutant in (self.wrong(places, error) for error in errors) if mutant]
            if not wrong:
                sys.exit(f"mutants: error: {self.name} does not compile:\n{built.stderr[-2000:]}")
            for mutant in wrong:
                mutant["compiles"] = False
            self.mutants = [mutant for mutant in self.mutants if mutant.get("compiles", True)]

    def other_tests(self):
        """Words of cargo for each test program of the crate."""
        folder = pathlib.Path("crates") / self.name / "tests"
        programs = [path.stem for path in folder.glob("*.rs")] + [path.parent.name for path in folder.glob("*/main.rs")]
        return [["--test", name] for name in sorted(programs)]

    def run(self, mutant, command):
        """None if the command succeeds, or what became of it."""
        started = time.monotonic()
        environment = dict(os.environ, MUTANT=str(mutant["number"]) if mutant else "0")
        try:
            status = subprocess.run(command, env=environment, timeout=LIMIT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
        except subprocess.TimeoutExpired:
            return "does not end"
        return f"{time.monotonic() - started:.0f} s" if status else None


def modules(file):
    """The modules that a file is in, as a filter of tests."""
    path = pathlib.PurePath(file)
    return "::".join(path.parts[3:-1] or (path.stem,)) + "::"


def fails_anyway(crate, command):
    """Whether a command fails without a mutant, and so finds none: tests that count allocations see those of the switch."""
    failed = crate.run(None, command)
    if failed:
        print(f"left out: {' '.join(command)} fails without a mutant ({failed})", flush=True)
    return failed is not None


def judge(crate):
    """Finds the mutants of a crate."""
    test = ["cargo", "test", "--locked", "-q", "-p", crate.name]
    crate.build("test", "-p", crate.name, "--lib", "--no-run")
    left = list(crate.mutants)
    if left and (failed := crate.run(None, [*test, "--lib"])):
        sys.exit(f"mutants: error: the tests of {crate.name} fail without a mutant ({failed})")

    def look(what, command_of):
        for mutant in list(left):
            if found := crate.run(mutant, command_of(mutant)):
                left.remove(mutant)
                print(f"found  {mutant['number']:3} by {what} ({found}): {mutant['name']}", flush=True)

    look("tests beside it", lambda mutant: [*test, "--lib", "--", modules(mutant["file"])])
    look("unit tests", lambda mutant: [*test, "--lib"])
    if left:
        crate.build("test", "-p", crate.name, "--tests", "--no-run")
        others = [words for words in crate.other_tests() if not fails_anyway(crate, [*test, *words])]
        if others:
            look("other tests", lambda mutant: [*test, *(word for words in others for word in words)])
    if left and crate.name == "headworks-core":
        crate.build("build", "-p", "headworks-lab")
        smoke = [os.path.join(os.environ["CARGO_TARGET_DIR"], "debug/headworks-lab"), "run", "smoke", "--minutes", "1"]
        if not fails_anyway(crate, smoke):
            look("smoke", lambda mutant: smoke)
    for mutant in left:
        print(f"FAIL   {mutant['number']:3} SURVIVED: {mutant['name']}", flush=True)
    return len(left)


def main():
    seed, functions = int(sys.argv[1]), int(sys.argv[2])
    drawn = draw(seed, functions)
    crates = [Crate(name, [mutant for mutant in drawn if mutant["package"] == name]) for name in CRATES]
    try:
        # What does not compile first, so that the others are the first of the draw.
        for crate in crates:
            if crate.mutants:
                crate.build("check", "-p", crate.name)
            crate.restore()
        chosen = [mutant["number"] for mutant in drawn if mutant.get("compiles", True)][:functions]
        for mutant in drawn[: max(chosen, default=0)]:
            if mutant["number"] not in chosen:
                print(f"none   {mutant['number']:3} does not compile: {mutant['name']}", flush=True)
        failed = 0
        for crate in crates:
            crate.mutants = [mutant for mutant in crate.mutants if mutant["number"] in chosen]
            if crate.mutants:
                failed += judge(crate)
            crate.restore()
    finally:
        for crate in crates:
            crate.restore()
    print(f"\nmutants: {len(chosen) - failed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


main()
