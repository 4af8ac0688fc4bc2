"""Programs that keep their data in files, for `headworks crashtest`.

stores.py PROGRAM MODE load|check DIR: `load` prints a line for each number that it promised; `check` reads the lines and looks for them.

config   replaces a file by a rename; MODE says what is synced: none, file, directory, both
sqlite   transactions of two rows; MODE is the level of PRAGMA synchronous: OFF, FULL, EXTRA
lmdb     transactions of two keys; MODE is default or nosync; `setup` makes the files
daemon   a check that leaves a process behind
"""

import os
import sys

COUNT = 8


def say(number):
    os.write(1, b"ok %d\n" % number)


def promised():
    return [int(line.split()[1]) for line in sys.stdin if line.startswith("ok ")]


def fail(sentence):
    print(sentence)
    sys.exit(1)


def value(number):
    return ("v%d-" % number) * 60


def sync_directory(path):
    directory = os.open(path, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def config(mode, step, folder):
    path, new = folder + "/config", folder + "/config.tmp"
    if step == "load":
        for number in range(1, COUNT + 1):
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.write(file, value(number).encode() * 30)
            if mode in ("file", "both"):
                os.fsync(file)
            os.close(file)
            os.rename(new, path)
            if mode in ("directory", "both"):
                sync_directory(folder)
            say(number)
        return
    numbers = promised()
    text = open(path).read() if os.path.exists(path) else None
    found = int(text[1 : text.index("-")]) if text and text.startswith("v") else 0
    if numbers and not text:
        fail("config is %s" % ("gone" if text is None else "empty"))
    if text and (not found or text != value(found) * 30):
        fail("config is torn")
    if numbers and found < numbers[-1]:
        fail("version %d was promised, %d is there" % (numbers[-1], found))


def sqlite(mode, step, folder):
    import sqlite3

    db = sqlite3.connect(folder + "/db", isolation_level=None)
    if step == "setup":
        db.execute("create table t(i integer primary key, v text)")
        return
    if step == "load":
        db.execute("pragma synchronous=" + mode)
        for number in range(1, COUNT + 1):
            db.execute("begin")
            for row in (number, number + 1000):
                db.execute("insert into t values(?, ?)", (row, value(number)))
            db.execute("commit")
            say(number)
        os._exit(0)
    try:
        state = db.execute("pragma integrity_check").fetchone()[0]
        rows = dict(db.execute("select i, v from t"))
    except sqlite3.Error as error:
        fail("sqlite: %s" % error)
    if state != "ok":
        fail("sqlite: " + state.splitlines()[0])
    for number in promised():
        if rows.get(number) != value(number) or rows.get(number + 1000) != value(number):
            fail("promised row %d is not there" % number)
    for row in rows:
        if row % 1000 not in rows or row % 1000 + 1000 not in rows:
            fail("half a transaction: row %d" % row)


def lmdb(mode, step, folder):
    import lmdb

    try:
        store = lmdb.open(folder, map_size=8 << 20, sync=(mode != "nosync" or step != "load"))
        if step == "setup":
            return
        if step == "load":
            for number in range(1, COUNT + 1):
                with store.begin(write=True) as change:
                    for key in (b"%d", b"x%d"):
                        change.put(key % number, value(number).encode())
                say(number)
            os._exit(0)
        with store.begin() as reader:
            rows = dict(reader.cursor())
    except lmdb.Error as error:
        fail("lmdb: %s" % error)
    for number in promised():
        if rows.get(b"%d" % number) != value(number).encode():
            fail("promised key %d is not there" % number)
    for key in rows:
        if not key.startswith(b"x") and b"x" + key not in rows:
            fail("half a transaction")


def daemon(mode, step, folder):
    if os.fork() == 0:
        os.setsid()
        os.execvp("sleep", ["sleep", mode])


program, mode, step, folder = sys.argv[1:5]
{"config": config, "sqlite": sqlite, "lmdb": lmdb, "daemon": daemon}[program](mode, step, folder)
