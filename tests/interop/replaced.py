"""Servers that are replaced while they are used, and the part of a service manager that a restart needs."""

import array
import json
import os
import signal
import socket
import subprocess
import threading
import time

import rawnbd

SERVER, ENGINE = os.environ["HW_SERVER"], os.environ["HW_ENGINE"]
DIR, IMAGES, MEMORY = os.environ["HW_DIR"], os.environ["HW_IMAGES"], os.environ["HW_MEMORY"]
BLOCK, MIB = 4096, 1 << 20


def until(what, holds, seconds=60, pause=0.005):
    """Waits for a condition; the limit only turns a hang into a failure."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"after {seconds} s still not: {what}"
        time.sleep(pause)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Server:
    """The processes that serve one image, one after the other."""

    def __init__(self, name, *options, kept=True, size=64 * MIB, manager=None, spec=None):
        self.image = os.path.join(IMAGES, name + ".img")
        if not os.path.exists(self.image):
            with open(self.image, "wb") as image:
                image.truncate(size)
        self.socket, self.control = os.path.join(DIR, name + ".sock"), os.path.join(DIR, name + ".ctl")
        self.pid_file, self.log = os.path.join(DIR, name + ".pid"), os.path.join(DIR, name + ".log")
        command = [SERVER, "serve", *options, "-U", self.socket, "--control", self.control, "-P", self.pid_file]
        command += ["--engine", ENGINE] + ([] if options and options[0] == "--config" else [spec or self.image])
        environment = {**os.environ, "XDG_RUNTIME_DIR": MEMORY, "HEADWORKS_CACHE_FILE": "auto"} if kept else without_runtime()
        passed = {}
        if manager:
            environment["HEADWORKS_CACHE_FILE"] = "auto"
            passed = manager.start(environment)
            command = ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", *command]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, **passed)
        if manager:
            manager.started()
        until("it serves", lambda: os.path.exists(self.pid_file) or self.process.poll() is not None)
        assert self.process.poll() is None, self.said()
        self.pid = self.process.pid

    def said(self):
        with open(self.log) as log:
            return log.read()

    def ctl(self, *words, ok=True):
        answer = subprocess.run([SERVER, "ctl", self.control, *words, "--json"], capture_output=True, text=True, timeout=120)
        assert (answer.returncode == 0) == ok, (words, answer.stdout, answer.stderr, self.said()[-2000:])
        return json.loads(answer.stdout) if ok else answer.stderr

    def upgrade(self):
        answer = self.ctl("upgrade")
        self.follow(answer["pid"])
        return answer

    def follow(self, pid):
        """The first process is this one's child and leaves its status."""
        if self.pid == self.process.pid:
            assert self.process.wait(30) == 0, self.said()[-2000:]
        self.pid = pid
        until("the pid file names the new process", lambda: self.named_pid() == pid)

    def named_pid(self):
        try:
            with open(self.pid_file) as file:
                return int(file.read() or 0)
        except FileNotFoundError:
            return 0

    def client(self, export=b""):
        return rawnbd.Raw(f"nbd+unix:///?socket={self.socket}", 60).go(export)[0]

    def stop(self):
        os.kill(self.pid, signal.SIGTERM)
        if self.pid == self.process.pid:
            assert self.process.wait(60) == 0, self.said()[-2000:]
        until("it has ended", lambda: not alive(self.pid))
        left = [path for path in (self.socket, self.control, self.pid_file, self.image + ".headworks-dirty") if os.path.exists(path)]
        assert not left, f"a clean stop leaves {left}"

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident(self):
        with open(f"/proc/{self.pid}/status") as status:
            lines = [line.split() for line in status if line.startswith("RssAnon")]
        return int(lines[0][1]) * 1024


class Manager:
    """The part of a service manager that keeps descriptors, as systemd does, and passes them to the next process."""

    def __init__(self, name, most):
        self.path, self.most, self.kept = os.path.join(DIR, name + ".notify"), most, {}
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            text, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(16))
            fds = array.array("i")
            for _, _, data in ancillary:
                fds.frombytes(data[: len(data) - len(data) % 4])
            words = dict(line.split("=", 1) for line in text.decode().splitlines() if "=" in line)
            if words.get("FDSTORE") == "1" and len(self.kept) < self.most:
                self.kept[words["FDNAME"]] = fds.pop()
            if words.get("FDSTOREREMOVE") == "1" and words["FDNAME"] in self.kept:
                os.close(self.kept.pop(words["FDNAME"]))
            # What is not kept, and the descriptor of a barrier.
            for fd in fds:
                os.close(fd)

    def start(self, environment):
        """Arguments for Popen that pass what is kept, from descriptor 3 on; the manager still has it."""
        names = list(self.kept)
        fds = self.passed = [os.dup(self.kept[name]) for name in names]
        environment.update(NOTIFY_SOCKET=self.path, FDSTORE=str(self.most))
        if fds:
            environment.update(LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=":".join(names))

        def place():
            # Out of the way first: the targets may be among them.
            above = [os.dup(fd) for fd in fds]
            high = [fd for fd in above]
            while any(fd < 3 + len(fds) for fd in high):
                high = [os.dup(fd) if fd < 3 + len(fds) else fd for fd in high]
            for number, fd in enumerate(high, 3):
                os.dup2(fd, number)

        return {"pass_fds": tuple(range(3, 3 + len(fds))), "preexec_fn": place} if fds else {}

    def started(self):
        for fd in self.passed:
            os.close(fd)


def without_runtime():
    return {name: value for name, value in os.environ.items() if name not in ("XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY")}
