"""Programs that keep their data in files, for `headworks crashtest`.

stores.py PROGRAM MODE load|check DIR: `load` prints a line for each number that it promised; `check` reads the lines and looks for them.

config   replaces a file by a rename; MODE says what is synced: none, file, directory, both
log      appends to a log that begins a new file each four records; MODE says what is synced: none, file, both (a new file's directory, too)
sqlite   transactions of two rows; MODE is the level of PRAGMA synchronous: OFF, NORMAL, FULL, EXTRA, with WAL- before it in that journal mode
lmdb     transactions of two keys; MODE is default, nometasync, nosync or mapasync; `setup` makes the files
leveldb  batches of two keys in a new store; MODE is sync or nosync
redis    keys in a server with an append-only file; MODE is always or everysec
postgres rows in a server; MODE is full, async (synchronous_commit=off) or off (fsync=off); `setup` makes the cluster
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


def log(mode, step, folder):
    if step == "load":
        for number in range(1, COUNT + 1):
            new = number % 4 == 1
            if new:
                file = os.open("%s/log.%d" % (folder, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(file, (value(number) + "\n").encode())
            if mode != "none":
                os.fdatasync(file)
            if mode == "both" and new:
                sync_directory(folder)
            say(number)
        return
    files = sorted(name for name in os.listdir(folder) if name.startswith("log."))
    text = "".join(open(folder + "/" + name, errors="replace").read() for name in files)
    for number in promised():
        if value(number) + "\n" not in text:
            fail("promised record %d is not there" % number)


def sqlite(mode, step, folder):
    import sqlite3

    db = sqlite3.connect(folder + "/db", isolation_level=None)
    if step == "setup":
        db.execute("create table t(i integer primary key, v text)")
        return
    if step == "load":
        if mode.startswith("WAL-"):
            db.execute("pragma journal_mode=WAL")
        db.execute("pragma synchronous=" + mode.replace("WAL-", ""))
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
        settings = dict(nosync=dict(sync=False), nometasync=dict(metasync=False), mapasync=dict(writemap=True, map_async=True))
        settings = settings.get(mode, {}) if step == "load" else {}
        store = lmdb.open(folder, map_size=8 << 20, **settings)
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


def leveldb(mode, step, folder):
    import plyvel

    try:
        store = plyvel.DB(folder + "/db", create_if_missing=True, write_buffer_size=32 << 10)
        if step == "load":
            for number in range(1, 3 * COUNT + 1):
                with store.write_batch(transaction=True, sync=(mode == "sync")) as batch:
                    for key in (b"%d", b"x%d"):
                        batch.put(key % number, value(number).encode() * 4)
                say(number)
            os._exit(0)
        rows = dict(store.iterator())
    except plyvel.Error as error:
        fail("leveldb: %s" % str(error).split(":")[0])
    for number in promised():
        if rows.get(b"%d" % number) != value(number).encode() * 4:
            fail("promised key %d is not there" % number)
    for key in rows:
        if not key.startswith(b"x") and b"x" + key not in rows:
            fail("half a batch")


def wait_for(process, ready, seconds=20):
    """Whether a server is ready before it ends."""
    import time

    end = time.monotonic() + seconds
    while time.monotonic() < end and process.poll() is None:
        if ready():
            return True
        time.sleep(0.01)
    return False


def end(process):
    process.kill()
    process.wait()


def redis(mode, step, folder):
    # Here, not above: the other programs start faster without.
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(dir="/tmp") as own:
        socket = own + "/s"
        server = ["redis-server", "--port", "0", "--unixsocket", socket, "--appendonly", "yes", "--appendfsync", mode, "--save", "", "--dir", folder]
        client = ["redis-cli", "-s", socket]
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        process = subprocess.Popen(server + ["--loglevel", "warning"], **quiet)

        def ask(*words):
            return subprocess.run([*client, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()

        try:
            if not wait_for(process, lambda: os.path.exists(socket) and ask("ping") == "PONG"):
                fail("redis does not start")
            if step == "load":
                for number in range(1, COUNT + 1):
                    if ask("set", "k%d" % number, "v%d" % number) == "OK":
                        say(number)
                return
            for number in promised():
                if ask("get", "k%d" % number) != "v%d" % number:
                    fail("promised key %d is not there" % number)
        finally:
            end(process)


def postgres(mode, step, folder):
    import glob
    import pwd
    import subprocess
    import tempfile

    # The server refuses to be root.
    owner = pwd.getpwnam("postgres")
    programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
    data = folder + "/data"
    as_owner = dict(user=owner.pw_uid, group=owner.pw_gid, extra_groups=[], cwd="/", env=dict(PATH=os.environ["PATH"], LC_ALL="C"))
    if os.geteuid():
        fail("postgres: root is needed, to become its user")
    if step == "setup":
        os.mkdir(data, 0o700)
        os.chown(data, owner.pw_uid, owner.pw_gid)
        command = [programs + "/initdb", "-A", "trust", "-U", "postgres", "--wal-segsize=1", "-N", "-D", data]
        sys.exit(subprocess.run(command, stdout=subprocess.DEVNULL, **as_owner).returncode)
    with tempfile.TemporaryDirectory(dir="/tmp") as own:
        os.chown(own, owner.pw_uid, owner.pw_gid)
        options = "listen_addresses= shared_buffers=1MB max_connections=5 autovacuum=off max_wal_size=2MB min_wal_size=2MB dynamic_shared_memory_type=mmap"
        options = options.split() + ["unix_socket_directories=" + own]
        options += dict(off=["fsync=off"], async_=["synchronous_commit=off"]).get(mode.replace("async", "async_"), [])
        command = [programs + "/postgres", "-D", data] + [word for option in options for word in ("-c", option)]
        if step == "check" and os.path.exists(data + "/postmaster.pid"):
            os.unlink(data + "/postmaster.pid")
        with open(own + "/log", "w+") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, **as_owner)

            def ask(words):
                query = ["psql", "-h", own, "-U", "postgres", "-Atqc", words, "postgres"]
                return subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **as_owner).stdout.strip()

            try:
                if not wait_for(process, lambda: ask("select 1") == "1"):
                    log.seek(0)
                    said = [line for line in log if "PANIC" in line or "FATAL" in line]
                    fail("PostgreSQL does not start: " + (said[-1].split("  ")[-1].strip() if said else "it says nothing"))
                if step == "load":
                    ask("create table t(i int primary key, v text)")
                    for number in range(1, COUNT + 1):
                        if ask("insert into t values(%d, 'v'); select 'ok'" % number) == "ok":
                            say(number)
                    # What is not durable yet is there when the server ends, so that cuts alone lose it.
                    ask("checkpoint")
                    return
                numbers = promised()
                rows = ask("select i from t").split() if numbers else []
                for number in numbers:
                    if str(number) not in rows:
                        fail("promised row %d is not there" % number)
            finally:
                process.send_signal(3)
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    end(process)


def daemon(mode, step, folder):
    if os.fork() == 0:
        os.setsid()
        os.execvp("sleep", ["sleep", mode])


program, mode, step, folder = sys.argv[1:5]
{
    "config": config, "log": log, "sqlite": sqlite, "lmdb": lmdb, "leveldb": leveldb, "redis": redis, "postgres": postgres, "daemon": daemon,
}[program](mode, step, folder)
