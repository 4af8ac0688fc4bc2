#!/usr/bin/env python3
"""System calls of the server for requests over NBD, for benches/counts.sh.

  benches/calls.py HEADWORKS FOLDER     prints a line for each kind of request: name, calls

A server of a null device with one connection runs under valgrind, which writes each system call down. The client does something only while
every thread of the server sleeps, and on its processor, so that none runs before it has done that: the calls of a request are the same however
late a thread runs. A figure is the median of several requests; reading the clock is no call outside of valgrind.

  calls-*       all calls for one request, over a unix socket
  sends-tcp-*, receives-tcp-*   calls that send and that receive for one request, or for 32 of 4 KiB that the client sends at once, over TCP to 127.0.0.1
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
# Bytes of the client's buffers: as many as any kernel allows.
BUFFER = 212992
# Turns a server that does not answer into an error.
LIMIT = 60
CALL = re.compile(rb"^SYSCALL\[\d+,\d+\]\(\s*(\d+)\) (?!\.\.\.)", re.M)
X86 = os.uname().machine == "x86_64"
CLOCK_GETTIME = 228 if X86 else 113
# sendto, sendmsg, writev; recvfrom, recvmsg, readv. A server uses read and write for its eventfds, too.
SENDS = {44, 46, 20} if X86 else {206, 211, 66}
RECEIVES = {45, 47, 19} if X86 else {207, 212, 65}


def be_patient():
    """No thread of the server takes the processor from the client when it wakes up."""
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class Server:
    def __init__(self, program, folder, tcp):
        self.tcp, self.path = tcp, os.path.join(folder, "calls.sock")
        self.trace, self.port = os.path.join(folder, "calls.trace"), None
        words = ["serve", "--cache", "0", "--shards", "1", "--engine", "threads", "--poll-us", "0", "null:size=1G"]
        words += ["-i", "127.0.0.1", "-p", "0"] if tcp else ["-U", self.path]
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
        try:
            if not self.tcp:
                client = socket.socket(socket.AF_UNIX)
                client.connect(self.path)
                return client
            self.output.seek(0)
            listens = re.search(rb"^uri: nbd://127.0.0.1:(\d+)/", self.output.read(), re.M)
            if not listens:
                return None
            client = socket.socket()
            # Before it connects: a window that the kernel does not adapt to how fast this client is.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.connect(("127.0.0.1", int(listens[1])))
            return client
        except (FileNotFoundError, ConnectionRefusedError):
            return None

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
        """The numbers of the calls so far."""
        with open(self.trace, "rb") as trace:
            return [int(number) for number in CALL.findall(trace.read())]


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


def measured(server, client, kinds):
    """Yields the name of each kind of requests, and the calls of each time that they are made."""
    for op, size, together, name in kinds:
        command = rawnbd.READ if op == "read" else rawnbd.WRITE
        data = bytes(size) if op == "write" else b""
        calls = []
        for at in range(REQUESTS):
            server.rest()
            before = len(server.calls())
            out = b"".join(rawnbd.header(command, each, at * size, size) + data for each in range(together))
            exchange(server, client, out, together * (16 + (size if op == "read" else 0)))
            calls.append(server.calls()[before:])
        yield f"{op}-{name}", calls


def run(tcp, report):
    server = Server(*sys.argv[1:], tcp)
    try:
        client = rawnbd.Raw("", LIMIT, server.until("it takes a client", server.connect)).go()[0].socket
        # As much as any kernel allows, so that its default does not count.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        client.setblocking(False)
        report(server, client)
    finally:
        server.process.kill()
        server.process.wait()


def all_calls(server, client):
    kinds = [(op, size, 1, name) for size, name in ((4 << 10, "4k"), (1 << 20, "1m")) for op in ("read", "write")]
    for name, calls in measured(server, client, kinds):
        print(f"calls-{name}", statistics.median(sum(call != CLOCK_GETTIME for call in each) for each in calls))


def of_tcp(server, client):
    kinds = [(op, size, many, name) for size, many, name in ((4 << 10, 32, "4k-32"), (64 << 10, 1, "64k"), (1 << 20, 1, "1m")) for op in ("read", "write")]
    for name, calls in measured(server, client, kinds):
        for what, numbers in (("sends", SENDS), ("receives", RECEIVES)):
            counts = [sum(call in numbers for call in each) for each in calls]
            print(f"{what}-tcp-{name}", statistics.median(counts), *([counts] if os.environ.get("SHOW") else []))


def main():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    run(False, all_calls)
    run(True, of_tcp)


main()
