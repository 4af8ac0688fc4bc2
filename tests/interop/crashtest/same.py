"""same.py DIR OTHER SEED: random operations in both directories have the same results and leave the same files.

DIR is a directory of `headworks crashtest`, OTHER one of the kernel's tmpfs: names, links, unlinked open files, holes, appends, mappings,
renames over files and directories, each error number.
"""

import mmap
import os
import random
import stat
import sys

one, other, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
draw = random.Random(seed)
NAMES = ["a", "b", "d", "e", "d/a", "d/b", "e/a", "d/e", "d/e/a"]
handles = {one: {}, other: {}}


def act(root, word, name, new, number, data, slot):
    path, target, opened = root + "/" + name, root + "/" + new, handles[root]
    if word == "open":
        if slot in opened:
            os.close(opened.pop(slot))
        opened[slot] = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_APPEND if number % 2 else 0), 0o640)
    elif word == "write":
        return os.pwrite(opened[slot], data, number) if slot in opened else None
    elif word == "append":
        return os.write(opened[slot], data) if slot in opened else None
    elif word == "read":
        return os.pread(opened[slot], 9000, number) if slot in opened else None
    elif word == "truncate":
        return os.truncate(path, number)
    elif word == "map":
        if slot in opened and os.fstat(opened[slot]).st_size >= 4096:
            with mmap.mmap(opened[slot], 4096) as mapped:
                mapped[number % 4000 : number % 4000 + 4] = b"MMAP"
                mapped.flush()
                return mapped[:]
    elif word == "hole":
        if slot in opened:
            return os.lseek(opened[slot], 0, os.SEEK_DATA) if os.fstat(opened[slot]).st_size else None
    elif word == "mkdir":
        os.mkdir(path, 0o750)
    elif word == "unlink":
        os.unlink(path)
    elif word == "rmdir":
        os.rmdir(path)
    elif word == "rename":
        os.rename(path, target)
    elif word == "link":
        os.link(path, target)
    elif word == "symlink":
        os.symlink(new, path)
    elif word == "readlink":
        return os.readlink(path)
    elif word == "chmod":
        os.chmod(path, 0o600 | number % 64, follow_symlinks=True)
    elif word == "list":
        return sorted(os.listdir(path))
    elif word == "sync":
        if slot in opened:
            os.fsync(opened[slot])
    elif word == "stat":
        found = os.lstat(path)
        # Sizes of directories and their link counts are each file system's own.
        folder = stat.S_ISDIR(found.st_mode)
        return found.st_mode, None if folder else (found.st_size, found.st_nlink)


WORDS = "open write write append read truncate map hole mkdir unlink rmdir rename link symlink readlink chmod list sync stat".split()


def result(root, *words):
    try:
        return act(root, *words)
    except OSError as error:
        return "errno %d" % error.errno


def files(root):
    found = {}
    for path, folders, names in os.walk(root):
        for name in folders + names:
            full = os.path.join(path, name)
            info = os.lstat(full)
            text = open(full, "rb").read() if stat.S_ISREG(info.st_mode) else b""
            found[full[len(root) :]] = (info.st_mode, text)
    return found


os.umask(0o022)
for step in range(1500):
    words = (draw.choice(WORDS), draw.choice(NAMES), draw.choice(NAMES), draw.randrange(9000), bytes([draw.randrange(1, 255)]) * draw.randrange(1, 6000), draw.randrange(4))
    left, right = result(one, *words), result(other, *words)
    if left != right:
        sys.exit("step %d, %s: %.200r instead of %.200r" % (step, words[:4], left, right))
if files(one) != files(other):
    sys.exit("other files are left")
print("same")
