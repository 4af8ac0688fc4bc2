"""What a server leaves when it dies, and what the next one makes of it."""

import array
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import rawnbd

SERVER, ENGINE = os.environ["HW_SERVER"], os.environ["HW_ENGINE"]
DIR, IMAGES, MEMORY = os.environ["HW_DIR"], os.environ["HW_IMAGES"], os.environ["HW_MEMORY"]
BLOCK, SIZE = 4096, 8 << 20
bad = 0


def check(what, holds, seen=""):
    global bad
    bad += not holds
    print(f"{'ok' if holds else 'not ok'} - {what}")
    if not holds:
        print(f"#   {seen}")


class Server:
    """A server of one image; `fds` are passed as by a service manager."""

    def __init__(self, image, *options, environment=None, fds=()):
        self.socket, self.control = os.path.join(DIR, "kept.sock"), os.path.join(DIR, "kept.ctl")
        command = [SERVER, "serve", image, "-U", self.socket, "--control", self.control, "--engine", ENGINE]
        command += ["--cache", "8M", "--buffers", "64M", *options]
        environment = {**{k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"}, **(environment or {})}

        def pass_on():
            for number, fd in enumerate(fds, 3):
                os.dup2(fd, number)
            os.environ["LISTEN_PID"] = str(os.getpid())

        names = ":".join(name for _, name in FD_NAMES.items()) if fds else ""
        if fds:
            environment.update(LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=names)
            command = ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", *command]
        self.log = os.path.join(DIR, "kept.log")
        with open(self.log, "wb") as log:
            keep = tuple(range(3, 3 + len(fds)))
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, pass_fds=keep, preexec_fn=pass_on if fds else None
            )
        deadline = time.monotonic() + 30
        while "uri: " not in self.said() and self.process.poll() is None:
            if time.monotonic() > deadline:
                raise SystemExit(f"the server does not start: {self.said()}")
            time.sleep(0.01)

    def said(self):
        with open(self.log) as log:
            return log.read()

    @contextlib.contextmanager
    def client(self):
        raw, _ = rawnbd.Raw(f"nbd+unix:///?socket={self.socket}").go()
        yield raw
        raw.close()

    def write(self, block, byte, count=1):
        with self.client() as raw:
            raw.request(rawnbd.WRITE, 1, block * BLOCK, count * BLOCK, bytes([byte]) * BLOCK * count)
            assert raw.reply()[0] == 0

    def flush(self):
        with self.client() as raw:
            raw.request(rawnbd.FLUSH, 1, 0, 0)
            return raw.reply()[0]

    def byte(self, block):
        with self.client() as raw:
            raw.request(rawnbd.READ, 1, block * BLOCK, BLOCK)
            assert raw.reply()[0] == 0
            data = raw.receive(BLOCK)
            return data[0] if data == data[:1] * BLOCK else None

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(60)


FD_NAMES = {}


def new_image(name):
    path = os.path.join(IMAGES, name)
    with open(path, "wb") as image:
        image.truncate(SIZE)
    return path


def beside(image):
    folder, name = os.path.split(image)
    return sorted(other[len(name) :] for other in os.listdir(folder) if other.startswith(name + "."))


def kept_file():
    """A directory in memory: the default where there is a runtime directory."""
    image = new_image("kept-file.img")
    runtime = {"XDG_RUNTIME_DIR": MEMORY}
    server = Server(image, environment=runtime)
    check("with a runtime directory a kill loses nothing, and the start says so", "kill -9 loses: no acknowledged write" in server.said(), server.said())
    check("the image is marked while it is served", beside(image) == [".headworks-dirty"], beside(image))
    server.write(3, 7)
    server.kill()
    refused = subprocess.run(
        [SERVER, "serve", image, "-U", server.socket, "--read-only"], env={**os.environ, **runtime}, capture_output=True, text=True
    )
    check("a read-only start is refused while writes wait for the image", refused.returncode == 1 and "serve it once without read-only" in refused.stderr, refused.stderr)
    other = Server(new_image("kept-other.img"), environment=runtime)
    check("a server of another image leaves them where they are", "4 KiB of acknowledged writes to" in other.said(), other.said())
    check("it stops with 0", other.stop() == 0)
    server = Server(image, environment=runtime)
    check("the next server restores them", "restored 4 KiB of acknowledged writes" in server.said() and server.byte(3) == 7, server.said())
    server.write(4, 8)
    server.process.send_signal(signal.SIGSTOP)
    server.kill()
    server = Server(image, environment=runtime)
    check("also a second time, from the cache at once", server.byte(4) == 8 and server.byte(3) == 7 and "write-out follows" in server.said(), server.said())
    server.kill()
    server = Server(f"file:path={image},cache=writethrough", environment=runtime)
    with open(image, "rb") as written:
        data = written.read(5 * BLOCK)[3 * BLOCK :]
    check("a writethrough start has them on the image before it serves", data == b"\x07" * BLOCK + b"\x08" * BLOCK, server.said())
    check("it stops with 0", server.stop() == 0)
    check("a clean stop leaves nothing", beside(image) == [] and os.listdir(MEMORY) == [], (beside(image), os.listdir(MEMORY)))


def changed_image():
    image = new_image("kept-changed.img")
    option = ["--cache-file", os.path.join(MEMORY, "cache")]
    server = Server(image, *option)
    server.write(5, 9, 2)
    server.kill()
    shutil.copy(image, image + ".new")
    os.rename(image + ".new", image)
    server = Server(image, *option)
    check("an image that was replaced is not overwritten", server.byte(5) == 0 and "it is another file" in server.said(), server.said())
    found = beside(image)
    check("the data lie beside it", found == [".headworks-dirty", ".headworks-recovery", ".headworks-recovery.map"], found)
    with open(image + ".headworks-recovery", "rb") as recovery, open(image + ".headworks-recovery.map") as table:
        ranges = [tuple(map(int, line.split())) for line in table if not line.startswith("#")]
        recovery.seek(5 * BLOCK)
        check("at their places, with a map", ranges == [(5 * BLOCK, 2 * BLOCK)] and recovery.read(2 * BLOCK) == b"\x09" * 2 * BLOCK, ranges)
    check("its flushes fail", server.flush() == 5)
    told = subprocess.run([SERVER, "ctl", server.control, "discard-failed", "default", "--yes"], capture_output=True, text=True)
    check("until they are acknowledged", told.returncode == 0 and server.flush() == 0, told.stderr)
    check("it stops with 0", server.stop() == 0)


def grown_image():
    """A process that grows the image just before the kill; the server, which ends within a block, does not know yet."""
    image, sector = new_image("kept-grown.img"), 512
    os.truncate(image, SIZE + sector)
    option = ["--cache-file", os.path.join(MEMORY, "grown")]
    spec = f"file:path={image},direct=off"
    server = Server(spec, *option)
    # Every frame of the cache has been used once before the last block gets one.
    server.write(0, 10, SIZE // BLOCK)
    check("the cache is written out", server.flush() == 0)
    os.truncate(image, SIZE + BLOCK)
    with server.client() as raw:
        raw.write(SIZE, bytes([11]) * sector)
    server.kill()
    server = Server(spec, *option)
    with server.client() as raw:
        last = raw.read(SIZE, BLOCK)
    restored = "restored 4 KiB of acknowledged writes" in server.said()
    check("a block with the old end of an image that grew is restored", restored and last[:sector] == bytes([11]) * sector, server.said())
    check("with zeros behind it", last[sector:] == bytes(BLOCK - sector), set(last[sector:]))
    check("it stops with 0", server.stop() == 0)
    with open(image, "rb") as written:
        written.seek(SIZE)
        check("so has the image", written.read() == bytes([11]) * sector + bytes(BLOCK - sector))


def lost_memory():
    """No memory outlives the process; or the host went down."""
    image = new_image("kept-lost.img")
    server = Server(image, "--cache-file", "off")
    check("anonymous memory is said to go with a killed server", "which a killed server takes with it" in server.said(), server.said())
    server.write(1, 1)
    server.kill()
    server = Server(image, "--cache-file", "off")
    check("the next start says that writes may be lost", "was killed, and its memory is gone" in server.said(), server.said())
    check("and serves", server.flush() == 0)
    server.write(1, 1)
    server.kill()
    server = Server(f"file:path={image},on-unclean=refuse-flush", "--cache-file", "off")
    check("on-unclean=refuse-flush has flushes fail", server.flush() == 5 and "flushes fail until" in server.said(), server.said())
    server.kill()
    mark = image + ".headworks-dirty"
    with open(mark) as old:
        text = old.read().replace("boot-id ", "boot-id 0")
    with open(mark, "w") as new:
        new.write(text)
    server = Server(image, "--cache-file", "off")
    check("after a power failure the next start says it", "went down with its host" in server.said(), server.said())
    check("it stops with 0", server.stop() == 0)
    check("and removes the mark", beside(image) == [], beside(image))


class Manager:
    """The part of a service manager that keeps descriptors."""

    def __init__(self):
        self.path = os.path.join(DIR, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.setblocking(False)
        self.kept = {}

    def listen(self):
        while True:
            try:
                text, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(16))
            except BlockingIOError:
                return
            fds = array.array("i")
            for _, _, data in ancillary:
                fds.frombytes(data[: len(data) - len(data) % 4])
            words = dict(line.split("=", 1) for line in text.decode().splitlines() if "=" in line)
            if words.get("FDSTORE") == "1":
                self.kept[words["FDNAME"]] = fds[0]
            elif words.get("BARRIER") == "1":
                os.close(fds[0])
            if words.get("FDSTOREREMOVE") == "1":
                os.close(self.kept.pop(words["FDNAME"]))

    def keeps(self, count):
        """Waits until so many descriptors are kept."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            self.listen()
            if len(self.kept) == count:
                return True
            time.sleep(0.01)
        return False


def descriptor_store():
    image, manager = new_image("kept-store.img"), Manager()
    environment = {"NOTIFY_SOCKET": manager.path, "FDSTORE": "8"}
    server = Server(image, environment=environment)
    check("the memory is given to the service manager", manager.keeps(1), manager.kept)
    server.write(6, 5)
    server.kill()
    for round_ in range(2):
        FD_NAMES.clear()
        FD_NAMES.update({fd: name for name, fd in manager.kept.items()})
        server = Server(image, environment=environment, fds=list(FD_NAMES))
        check(f"start {round_ + 1} takes it back and restores", server.byte(6 + round_) == 5, server.said())
        check("and the manager keeps the new one alone", manager.keeps(1), manager.kept)
        server.write(7 + round_, 5)
        if round_ == 0:
            server.kill()
    server.process.terminate()
    check("a stop leaves memory and records for the next start", manager.keeps(3), manager.kept)
    # The answer to the barrier.
    while server.process.poll() is None:
        manager.listen()
    check("it stops with 0", server.process.wait(60) == 0)
    with open(image, "rb") as written:
        check("and has written everything out", written.read()[6 * BLOCK : 9 * BLOCK] == b"\x05" * (3 * BLOCK))
    check("and removes the mark", beside(image) == [], beside(image))


def cut_after_growth():
    """A volume that grew has its new size in memory: an image that is cut below it is another one."""
    image, option = new_image("kept-cut.img"), ["--cache-file", os.path.join(MEMORY, "cut")]
    server = Server(image, *option)
    told = subprocess.run([SERVER, "ctl", server.control, "resize", "default", str(2 * SIZE)], capture_output=True, text=True)
    check("a volume grows", told.returncode == 0, told.stderr)
    block = 3 * SIZE // 2 // BLOCK
    server.write(block, 4)
    server.kill()
    os.truncate(image, SIZE + SIZE // 4)
    server = Server(image, *option)
    check("an image that was cut below its new size is not the same", f"it had {2 * SIZE} bytes and has" in server.said(), server.said())
    with open(image + ".headworks-recovery", "rb") as recovery:
        recovery.seek(block * BLOCK)
        check("and what was behind the cut lies beside it", recovery.read(BLOCK) == b"\x04" * BLOCK)
    subprocess.run([SERVER, "ctl", server.control, "discard-failed", "default", "--yes"], capture_output=True, check=True)
    check("it stops with 0", server.stop() == 0)


def other_user():
    """A server that drops its privileges leaves a file of the other user, which its next start as root takes."""
    if os.geteuid() != 0:
        print("skip - the memory of a server with --user # needs root")
        return
    image, options = new_image("kept-user.img"), ["--cache-file", os.path.join(MEMORY, "user"), "--user", "nobody"]
    for path in (image, IMAGES, DIR, MEMORY):
        shutil.chown(path, "nobody")
    server = Server(image, *options)
    server.write(2, 6)
    server.kill()
    server = Server(image, *options)
    check("the memory of a killed server with --user is restored", "restored 4 KiB" in server.said() and server.byte(2) == 6, server.said())
    check("it stops with 0", server.stop() == 0)
    for path in (IMAGES, DIR, MEMORY):
        shutil.chown(path, "root")


def huge_pages(path, pages):
    """Mounts a hugetlbfs with so many pages of 2 MiB; returns how to undo it, or the reason why not."""
    if os.geteuid() != 0:
        return None, "needs root"
    number = "/proc/sys/vm/nr_hugepages"
    try:
        with open(number) as file:
            before = file.read()
        with open(number, "w") as file:
            file.write(str(int(before) + pages))
        with open("/proc/meminfo") as file:
            counts = dict(line.split(":") for line in file)
        free, unit = int(counts["HugePages_Free"]), counts["Hugepagesize"].split()[0]
        reason = "" if free >= pages and unit == "2048" else "the kernel has no huge pages of 2 MiB left"
    except OSError as error:
        return None, str(error)
    os.mkdir(path)
    if not reason and subprocess.run(["mount", "-t", "hugetlbfs", "none", path], capture_output=True).returncode != 0:
        reason = "no hugetlbfs can be mounted"

    def undo():
        subprocess.run(["umount", path], capture_output=True)
        os.rmdir(path)
        with open(number, "w") as file:
            file.write(before)

    if reason:
        undo()
    return None if reason else undo, reason


def huge_file():
    """A hugetlbfs, whose pages of 2 MiB are longer than the head of the file."""
    place = os.path.join(DIR, "huge")
    undo, reason = huge_pages(place, 120)
    if undo is None:
        print(f"skip - memory kept on hugetlbfs # {reason}")
        return
    try:
        image, options = new_image("kept-huge.img"), ["--cache-file", os.path.join(place, "cache"), "--cache", "33M"]
        for round_ in range(3):
            server = Server(image, *options)
            seen = [server.byte(block) for block in range(1, 1 + round_)]
            check(f"start {round_ + 1} on hugetlbfs has all that was acknowledged", seen == list(range(1, 1 + round_)), server.said())
            server.write(1 + round_, 1 + round_)
            server.kill()
        server = Server(image, *options)
        check("it says what it restored", "restored 12 KiB of acknowledged writes" in server.said(), server.said())
        check("it stops with 0", server.stop() == 0)
        check("a clean stop leaves nothing", os.listdir(place) == [], os.listdir(place))
    finally:
        undo()


for part in (kept_file, huge_file, changed_image, cut_after_growth, other_user, grown_image, lost_memory, descriptor_store):
    part()
sys.exit(1 if bad else 0)
