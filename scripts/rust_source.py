"""Reads Rust source as text: which lines ship, which are tests, what a file declares. For scripts/limits and scripts/circles.

Lines are told by rustfmt's layout; no macro is expanded.
"""
import os
import re

TEST_FILE = re.compile(r"(^|/)(tests?|benches|examples)/|(^|[/_])(tests?|testing)\.rs$")
TEST_ITEM = re.compile(r"\s*#\[cfg\((all\(|any\()?test\b")
STRING = re.compile(r'"(\\.|[^"\\])*"', re.S)


def root():
    """Changes to the folder of the project."""
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))


def files(crate):
    """All Rust files of a crate, tests included."""
    for folder, folders, names in os.walk(f"crates/{crate}"):
        folders[:] = sorted(name for name in folders if name != "target")
        for name in sorted(names):
            if name.endswith(".rs"):
                yield os.path.join(folder, name)


def crates():
    return sorted(name for name in os.listdir("crates") if os.path.exists(f"crates/{name}/Cargo.toml"))


def is_test(path):
    return not re.match(r"crates/(?!headworks-testing/)[^/]+/src/", path) or bool(TEST_FILE.search(path.split("/src/", 1)[1]))


def test_lines(lines):
    """For each line whether it belongs to an item that only tests compile."""
    marks, at = [False] * len(lines), 0
    while at < len(lines):
        if not TEST_ITEM.match(lines[at]):
            at += 1
            continue
        begin = at
        at += 1
        while at < len(lines) and lines[at].strip().startswith(("#[", "//")):
            at += 1
        depth, opened = 0, False
        while at < len(lines):
            line = STRING.sub('""', re.sub(r"//.*", "", lines[at]))
            line = re.sub(r"'(\\.|[^'\\])'", "", line)
            depth += line.count("{") - line.count("}")
            opened = opened or "{" in line
            at += 1
            if depth <= 0 if opened else line.rstrip().endswith((";", ",")):
                break
        marks[begin:at] = [True] * (at - begin)
    return marks


def shipped(path):
    """The lines of a file that ship: with their comments, without tests."""
    with open(path, encoding="utf-8") as opened:
        lines = opened.read().splitlines()
    return [line for line, test in zip(lines, test_lines(lines)) if not test]


def code(lines):
    """Lines that are neither blank nor comments."""
    return [line for line in lines if line.strip() and not line.strip().startswith("//")]


def end_of(text, at, opening, closing):
    """The place behind the bracket that closes the one at `at`."""
    depth = 0
    while at < len(text):
        depth += {opening: 1, closing: -1}.get(text[at], 0)
        at += 1
        if depth == 0:
            return at
    return at


def plain(lines):
    """Text of code without comments and strings."""
    return STRING.sub('""', re.sub(r"//[^\n]*", "", "\n".join(lines)))


def structs(text):
    """Names and numbers of fields. A struct that is only made and taken apart again has as many."""
    for found in re.finditer(r"\bstruct\s+(\w+)[^;{(]*\{", text):
        body = text[found.end() : end_of(text, found.end() - 1, "{", "}") - 1]
        body = re.sub(r"#\[[^\]]*\]", "", body)
        # A name and a colon at the start of a line, as rustfmt has it.
        yield found.group(1), len(re.findall(r"^\s*(?:pub(?:\([^)]*\))?\s+)?\w+\s*:[^:]", body, re.M))


def impls(text):
    """Names of the types that have an impl here, of a trait or of their own: it reaches the same fields."""
    for found in re.finditer(r"^\s*(?:unsafe\s+)?impl\b", text, re.M):
        at = found.end()
        while at < len(text) and text[at].isspace():
            at += 1
        if text[at : at + 1] == "<":
            # Arrows of function types do not close a list of parameters.
            at = end_of(text.replace("->", "  "), at, "<", ">")
        head = text[at : text.find("{", at)]
        target = re.split(r"\bfor\s+", head)[-1] if re.search(r"\bfor\s", head) else head
        name = re.match(r"\s*(?:&\s*(?:'\w+\s+)?)?(?:\w+\s*::\s*)*(\w+)", target)
        if name:
            yield name.group(1)


FUNCTION = re.compile(r'\s*(?:pub(?:\([a-z: ]+\))? )?(?:const |unsafe |async |extern "C" )*fn \w')


def functions(lines):
    """The bodies of functions: lists of lines, head and closing brace included. A declaration without a body is none."""
    at = 0
    while at < len(lines):
        if not FUNCTION.match(lines[at]):
            at += 1
            continue
        begin, depth, opened = at, 0, False
        while at < len(lines):
            line = STRING.sub('""', re.sub(r"//.*", "", lines[at]))
            depth += line.count("{") - line.count("}")
            opened = opened or "{" in line
            at += 1
            if depth <= 0 if opened else line.rstrip().endswith(";"):
                break
        if opened:
            yield lines[begin:at]
