#!/usr/bin/env python3
"""System calls of the server for one request over NBD, for benches/counts.sh.

  benches/calls.py HEADWORKS FOLDER     prints a line for each kind of request: name, calls

A server of a null device with one connection runs under valgrind, which writes each system call down. The client does something only while
every thread of the server sleeps, and on its processor, so that none runs before it has done that: the calls of a request are the same however
late a thread runs. A figure is the median of several requests; reading the clock is no call outside of valgrind.
"""

import os
import re
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tests/interop"))
sys.dont_write_bytecode = True
import rawnbd  # noqa: E402

REQUESTS = 7
# What a client sends at once: it fits into the socket whatever pieces the kernel makes of it, which differ with the memory that is free.
SENT_AT_ONCE = 192 << 10
# Turns a server that does not answer into an error.
LIMIT = 60
CALL = re.compile(rb"^SYSCALL\[\d+,\d+\]\(\s*(\d+)\) (?!\.\.\.)", re.M)
CLOCK_GETTIME = 228 if os.uname().machine == "x86_64" else 113


def be_patient():
    """No thread of the server takes the processor from the client when it wakes up."""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class Server:
    def __init__(self, program, folder):
        self.path, self.trace = os.path.join(folder, "calls.sock"), os.path.join(folder, "calls.trace")
        words = ["serve", "--cache", "0", "--shards", "1", "--engine", "threads", "--poll-us", "0", "null:size=1G", "-U", self.path]
        tool = ["valgrind", "--tool=none", "--trace-syscalls=yes", f"--log-file={self.trace}"]
        self.output = open(os.path.join(folder, "calls.log"), "w+b")
        self.process = subprocess.Popen([*tool, program, *words], stdout=self.output, stderr=self.output, preexec_fn=be_patient)

    def until(self, what, holds):
        end = time.monotonic() + LIMIT
        while not (found := holds()):
            if self.process.poll() is not None or time.monotonic() > end:
                self.output.seek(0)
                sys.exit(f"calls: error: after {LIMIT} s still not: {what}\n{self.output.read().decode()}")
            time.sleep(0.001)
        return found

    def connect(self):
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(self.path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        return client

    def sleeps(self):
        folder = f"/proc/{self.process.pid}/task"
        states = set()
        try:
            for thread in os.listdir(folder):
                with open(f"{folder}/{thread}/stat") as stat:
                    states.add(stat.read().rsplit(")", 1)[1].split()[0])
        except (FileNotFoundError, ProcessLookupError):
            return False
        return states == {"S"}

    def rest(self):
        self.until("every thread sleeps", self.sleeps)

    def calls(self):
        with open(self.trace, "rb") as trace:
            return sum(int(number) != CLOCK_GETTIME for number in CALL.findall(trace.read()))


def exchange(server, client, out, reply_bytes):
    """Sends a request and receives its reply, as much of it at a time as the socket has."""
    out, left = memoryview(out), reply_bytes
    end = time.monotonic() + LIMIT
    while out or left:
        if time.monotonic() > end:
            sys.exit(f"calls: error: after {LIMIT} s {len(out)} bytes of a request are not sent or {left} of its reply not received")
        server.rest()
        if out:
            try:
                out = out[client.send(out[:SENT_AT_ONCE]):]
            except BlockingIOError:
                pass
        else:
            try:
                while left:
                    got = len(client.recv(left))
                    assert got, "the server hung up"
                    left -= got
            except BlockingIOError:
                pass
    server.rest()


def main():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    server = Server(*sys.argv[1:])
    try:
        client = rawnbd.Raw("", LIMIT, server.until("it takes a client", server.connect)).go()[0].socket
        # As much as any kernel allows, so that its default does not count.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212992)
        client.setblocking(False)
        for size, name in ((4 << 10, "4k"), (1 << 20, "1m")):
            for op, command in (("read", rawnbd.READ), ("write", rawnbd.WRITE)):
                counts = []
                for at in range(REQUESTS):
                    server.rest()
                    before = server.calls()
                    data = bytes(size) if op == "write" else b""
                    out = rawnbd.header(command, at, at * size, size) + data
                    exchange(server, client, out, 16 + (size if op == "read" else 0))
                    counts.append(server.calls() - before)
                print(f"calls-{op}-{name}", statistics.median(counts))
    finally:
        server.process.kill()
        server.process.wait()


main()
