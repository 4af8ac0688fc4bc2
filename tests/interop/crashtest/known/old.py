"""Stores with known faults, for `headworks crashtest`: old.py PROGRAM load|check DIR. `load` prints a line for each promise.

leveldb  LevelDB 1.15 (the module leveldb 0.193), sync=True, values that fill several logs
lmdb     LMDB 0.9 in a file that it makes itself
git      commits in a new repository
"""

import os
import subprocess
import sys

COUNT = 8


def value(number):
    return ("v%d-" % number) * 8000


def fail(sentence):
    print(sentence)
    sys.exit(1)


def leveldb(folder):
    import leveldb

    store = leveldb.LevelDB(folder + "/level", write_buffer_size=65536)
    return (lambda key, text: store.Put(key, text, sync=True)), lambda key: bytes(store.Get(key))


def lmdb(folder):
    import lmdb

    store = lmdb.open(folder + "/data.mdb", map_size=1 << 22, subdir=False, lock=False)

    def put(key, text):
        with store.begin(write=True) as transaction:
            transaction.put(key, text[:1000])

    def get(key):
        with store.begin() as transaction:
            return transaction.get(key)

    return put, get


def git(folder):
    repository = folder + "/r"

    def run(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "gc.auto=0", "-c", "safe.directory=*"]
        done = subprocess.run(["git", *who, "-C", repository, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise OSError("git %s: %s" % (words[0], (done.stdout.strip().splitlines() or ["fails"])[-1]))
        return done.stdout

    if not os.path.exists(repository):
        os.mkdir(repository)
        run("init", "-q")

    def put(key, text):
        with open(repository + "/" + key.decode(), "w") as file:
            file.write(key.decode())
            file.flush()
            os.fsync(file.fileno())
        run("add", "-A")
        run("commit", "-qm", key.decode())

    def get(key):
        return run("cat-file", "-p", "HEAD:" + key.decode()).encode()

    return put, get


def main():
    program, step, folder = sys.argv[1:]
    numbers = range(1, (3 if program == "git" else COUNT) + 1)
    promised = [int(line.split()[1]) for line in sys.stdin if line.startswith("ok ")] if step == "check" else []
    if program == "git" and step == "check" and not promised:
        return
    try:
        put, get = globals()[program](folder)
        for number in numbers:
            key, text = b"key%d" % number, value(number).encode()
            if step == "load":
                put(key, text)
                os.write(1, b"ok %d\n" % number)
            elif number in promised:
                try:
                    found = get(key)
                except KeyError:
                    found = None
                if found != {"git": key, "lmdb": text[:1000]}.get(program, text):
                    fail("promised key %d is not there" % number)
    except Exception as error:
        fail("%s: %s" % (program, error))


main()
