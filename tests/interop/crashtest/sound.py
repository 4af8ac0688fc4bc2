"""Are the states that file systems of this kernel leave states of the models of `headworks crashtest`?

sound.py run HEADWORKS FS SEED COUNT CUTS   programs SEED to SEED+COUNT-1 on ext4, xfs or btrfs, each with CUTS power cuts; prints one line with
                                            the sums, and before it each state that the model lacks, with the command that repeats it
sound.py setup DIR, sound.py load SEED DIR  a program: up to 8 operations of 12 kinds on three names in two directories, with syncs between
                                            (a program whose seed is a multiple of 4 has up to 3 operations, as most known bugs need no more)

Exit 0: no stranger; 1: some.
"""

import json
import os
import random
import shlex
import subprocess
import sys

SIZES = [1, 100, 4095, 4096, 4097, 6000, 9000]
OFFSETS = [0, 0, 1, 4000, 4096, 5000, 8192]


def write(path, offset, size, letter):
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.pwrite(file, letter * size, os.fstat(file).st_size if offset is None else offset)
    os.close(file)


def with_file(path, call, flags=os.O_RDWR):
    file = os.open(path, flags)
    try:
        call(file)
    finally:
        os.close(file)


def punch(file, offset, size):
    import ctypes

    keep_size, punch_hole = 1, 2
    ctypes.CDLL(None).fallocate(file, keep_size | punch_hole, ctypes.c_long(offset), ctypes.c_long(size))


def load(seed, folder):
    draw = random.Random(seed)
    names = [folder + "/a", folder + "/b", folder + "/d/c"]
    for number in range(draw.randint(1, 3) if seed % 4 == 0 else draw.randint(3, 8)):
        name, other = draw.choice(names), draw.choice(names)
        kind = draw.choice("create write write append append truncate punch rename rename link unlink mkdir rmdir symlink replace".split())
        offset, size = draw.choice(OFFSETS), draw.choice(SIZES)
        letter = b"%c" % (ord("A") + number)
        try:
            if kind == "create":
                with_file(name, lambda file: None, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            elif kind == "write":
                write(name, offset, size, letter)
            elif kind == "append":
                write(name, None, size, letter)
            elif kind == "truncate":
                os.truncate(name, size)
            elif kind == "punch":
                with_file(name, lambda file: punch(file, offset, size))
            elif kind == "rename":
                os.rename(name, other)
            elif kind == "link":
                os.link(name, other)
            elif kind == "unlink":
                os.unlink(name)
            elif kind == "mkdir":
                os.mkdir(folder + "/e")
            elif kind == "rmdir":
                os.rmdir(folder + "/e")
            elif kind == "symlink":
                os.symlink("to-%d" % number, name)
            elif kind == "replace":
                with_file(name, lambda file: os.write(file, letter * size), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        except OSError:
            pass
        sync = draw.choice("none none none file data directory inner".split())
        try:
            if sync == "file":
                with_file(name, os.fsync)
            elif sync == "data":
                with_file(name, os.fdatasync)
            elif sync in ("directory", "inner"):
                with_file(folder + ("/d" if sync == "inner" else ""), os.fsync, os.O_RDONLY)
        except OSError:
            pass
        # A step that changes nothing but the number of promises.
        os.write(1, b"done %d\n" % number)
    # A record needs a change.
    write(folder + "/last", 0, 1, b"l")
    os.write(1, b"ended\n")


def run(headworks, kind, first, count, cuts):
    own = "%s -S %s" % (shlex.quote(sys.executable), shlex.quote(os.path.abspath(__file__)))
    sums = dict(states=0, members=0, strangers=0, unknown=0, cuts=0)
    failed = 0
    for seed in range(first, first + count):
        command = [
            headworks, "crashtest", "--json", "--model", "journal", "--cuts", "1", "--jobs", "1", "--time", "300s",
            "--setup", own + " setup $dir", "--run", "%s load %d $dir" % (own, seed), "--check", "[ -e $dir/kept ]",
            "--fs", kind, "--fs-cuts", str(cuts), "--seed", str(seed),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode == 2 or not done.stdout:
            print("seed %d: %s" % (seed, done.stderr.strip().splitlines()[-1:]))
            failed += 1
            continue
        opinion = json.loads(done.stdout)["fs"][0]
        for name in sums:
            sums[name] += opinion[name]
        for one in opinion["described"]:
            print("seed %d, %s: %s" % (seed, kind, one))
        if opinion["strangers"]:
            print("    " + " ".join(shlex.quote(word) for word in command))
        sys.stdout.flush()
    print(
        "%s: %d programs, %d cuts, %d states seen, %d in the model, %d not in it, %d cannot be told, %d programs failed"
        % (kind, count, sums["cuts"], sums["states"], sums["members"], sums["strangers"], sums["unknown"], failed)
    )
    return 1 if sums["strangers"] or failed else 0


def main():
    step, rest = sys.argv[1], sys.argv[2:]
    if step == "run":
        return run(rest[0], rest[1], *map(int, rest[2:5]))
    if step == "setup":
        os.mkdir(rest[0] + "/d")
        for name, size in (("kept", 10), ("a", 5000), ("d/c", 9000)):
            write(rest[0] + "/" + name, 0, size, b"s")
        return 0
    load(int(rest[0]), rest[1])
    return 0


sys.exit(main())
