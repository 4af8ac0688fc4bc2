#!/usr/bin/env python3
"""Programs for a directory on a slow disk: dir.py sqlite|beside|append|create|overwrite DIRECTORY.

  sqlite   eight transactions, and their rows read again; prints the seconds of the transactions
  beside   reads of one file past the page cache while a thread syncs another one; prints how many ended meanwhile
  append, create, overwrite   twenty operations, each with its sync; overwrite needs a file `old` of 128 KiB
"""
import mmap
import os
import sqlite3
import sys
import threading
import time


def sqlite(directory):
    path = os.path.join(directory, "db")
    store = sqlite3.connect(path, isolation_level=None)
    store.execute("create table t (n integer)")
    begun = time.monotonic()
    for n in range(8):
        store.execute("insert into t values (?)", (n,))
    took = time.monotonic() - begun
    store.close()
    again = sqlite3.connect(path)
    assert again.execute("select count(*), sum(n) from t").fetchone() == (8, 28)
    assert again.execute("pragma integrity_check").fetchone() == ("ok",)
    print(took)


def beside(directory):
    read, written = os.path.join(directory, "read"), os.path.join(directory, "written")
    with open(read, "wb") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    dirty = os.open(written, os.O_RDWR | os.O_CREAT)
    for block in range(0, 8000, 2):
        os.pwrite(dirty, b"x" * 4096, block * 4096)
    ended = threading.Event()

    def sync():
        os.fsync(dirty)
        ended.set()

    reader = os.open(read, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 4096)
    syncing = threading.Thread(target=sync)
    syncing.start()
    count = 0
    while not ended.is_set():
        assert os.preadv(reader, [buffer], count % 256 * 4096) == 4096
        count += 1
    syncing.join()
    print(count)


def append(directory):
    log = os.open(os.path.join(directory, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for _ in range(20):
        os.write(log, b"x" * 100)
        os.fsync(log)


def create(directory):
    for n in range(20):
        new = os.open(os.path.join(directory, f"new{n}"), os.O_WRONLY | os.O_CREAT)
        os.write(new, b"x" * 4096)
        os.fsync(new)


def overwrite(directory):
    old = os.open(os.path.join(directory, "old"), os.O_WRONLY)
    for n in range(20):
        os.pwrite(old, b"y" * 4096, n * 4096)
        os.fdatasync(old)


programs = {"sqlite": sqlite, "beside": beside, "append": append, "create": create, "overwrite": overwrite}
programs[sys.argv[1]](sys.argv[2])
