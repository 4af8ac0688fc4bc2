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
STATE = os.environ["STATE_DIRECTORY"] = os.path.join(DIR, "state")
BLOCK, SIZE = 4096, 8 << 20
bad = 0


def check(what, holds, seen=""):
    global bad
    bad += not holds
    print(f"{'ok' if holds else 'not ok'} - {what}")
    if not holds:
        print(f"#   {seen}")


class Server:
    """A server of one image; `fds` are passed as by a service manager. What it says is awaited, for some seconds if `wait` says so."""

    def __init__(self, image, *options, environment=None, fds=(), name="kept", awaited=lambda log: "uri: " in log, wait=None):
        self.image = image
        self.socket, self.control = os.path.join(DIR, f"{name}.sock"), os.path.join(DIR, f"{name}.ctl")
        command = [SERVER, "serve", image, "-U", self.socket, "--control", self.control, "--engine", ENGINE]
        command += ["--cache", "8M", "--buffers", "64M", *options]
        environment = {**{k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"}, "HEADWORKS_CACHE_FILE": "auto", **(environment or {})}

        def pass_on():
            for number, fd in enumerate(fds, 3):
                os.dup2(fd, number)
            os.environ["LISTEN_PID"] = str(os.getpid())

        names = ":".join(name for _, name in FD_NAMES.items()) if fds else ""
        if fds:
            environment.update(LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=names)
            command = ["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", *command]
        self.log = os.path.join(DIR, f"{name}.log")
        with open(self.log, "wb") as log:
            keep = tuple(range(3, 3 + len(fds)))
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, pass_fds=keep, preexec_fn=pass_on if fds else None
            )
        deadline = time.monotonic() + (30 if wait is None else wait)
        while not awaited(self.said()) and self.process.poll() is None:
            if time.monotonic() > deadline:
                if wait is not None:
                    break
                raise SystemExit(f"the server does not start: {self.said()}")
            time.sleep(0.01 if wait is None else 0.001)

    def said(self):
        with open(self.log) as log:
            return log.read()

    @contextlib.contextmanager
    def client(self, export=b""):
        raw, _ = rawnbd.Raw(f"nbd+unix:///?socket={self.socket}").go(export)
        yield raw
        raw.close()

    def write(self, block, byte, count=1, export=b""):
        with self.client(export) as raw:
            raw.request(rawnbd.WRITE, 1, block * BLOCK, count * BLOCK, bytes([byte]) * BLOCK * count)
            assert raw.reply()[0] == 0

    def flush(self, export=b""):
        with self.client(export) as raw:
            raw.request(rawnbd.FLUSH, 1, 0, 0)
            return raw.reply()[0]

    def byte(self, block, export=b""):
        with self.client(export) as raw:
            raw.request(rawnbd.READ, 1, block * BLOCK, BLOCK)
            assert raw.reply()[0] == 0
            data = raw.receive(BLOCK)
            return data[0] if data == data[:1] * BLOCK else None

    def ctl(self, *words):
        """What it answers; nothing if it refuses."""
        done = subprocess.run([SERVER, "ctl", self.control, *words], capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else ""

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        return self.process.wait(60)

    def end(self, block, byte):
        """Stops; whether a block had its bytes, and the server ended well."""
        had = self.byte(block) == byte
        return self.stop() == 0 and had


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
        [SERVER, "serve", image, "-U", server.socket, "--read-only", "--cache-file", "auto"], env={**os.environ, **runtime}, capture_output=True, text=True
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


def bare_shell():
    """No runtime directory, as in a shell of root, cron or a container."""
    own = [path for path in ("/run", "/dev/shm") if os.geteuid() == 0 or path != "/run"]
    own = [os.path.join(path, f"headworks-{os.geteuid()}") for path in own]
    before = {path: os.path.isdir(path) and os.listdir(path) for path in own}
    image = new_image("kept-bare.img")
    bare = {"HEADWORKS_CACHE_FILE": "auto", "RUNTIME_DIRECTORY": ""}
    server = Server(image, environment=bare)
    places = [path for path in own if f"dirty data: in {path}/headworks-cache" in server.said()]
    if not places and "in anonymous memory" in server.said() and "free" in server.said():
        print("skip - memory is kept in a bare shell # no tmpfs with room")
        server.stop()
        return
    check("without a runtime directory the memory is in a directory of the user", places, server.said())
    check("that others cannot enter", os.stat(places[0]).st_mode & 0o7777 == 0o700)
    server.write(3, 7)
    server.kill()
    server = Server(image, environment={**bare, "XDG_RUNTIME_DIR": MEMORY})
    check("a start with a runtime directory finds it", server.byte(3) == 7 and f"dirty data: in {MEMORY}" in server.said(), server.said())
    server.write(4, 8)
    server.kill()
    server = Server(image, environment={**bare, "XDG_RUNTIME_DIR": MEMORY})
    check("and the next one", server.byte(4) == 8 and server.stop() == 0, server.said())
    after = {path: os.path.isdir(path) and os.listdir(path) for path in own}
    check("a clean stop leaves no file", all((after[path] or []) == (before[path] or []) for path in own), after)
    server = Server(image, environment={**bare, "XDG_RUNTIME_DIR": MEMORY}, name="gone")
    server.write(5, 9)
    server.kill()
    # Made before the other is gone: it does not get its number.
    beside_it = new_image("kept-beside.img")
    os.remove(image)
    left = os.path.join(MEMORY, os.listdir(MEMORY)[0])
    other = Server(beside_it, environment={**bare, "XDG_RUNTIME_DIR": MEMORY})
    check("data of an image that is gone are named", f"does not exist; remove {left} to give them up" in other.said(), other.said())
    check("and nothing else of them is kept", os.stat(left).st_blocks * 512 < 2 << 20, os.stat(left).st_blocks)
    check("it stops with 0", other.stop() == 0)
    os.remove(left)


def recovered(image):
    """The recovery files of an image in the state directory: their paths, and the ranges of each."""
    folder, name, found = os.path.join(STATE, "recovery"), os.path.basename(image), {}
    for other in sorted(os.listdir(folder) if os.path.exists(folder) else []):
        if other.startswith(name + ".headworks-recovery") and not other.endswith(".map"):
            path = os.path.join(folder, other)
            with open(path + ".map") as table:
                found[path] = [tuple(map(int, line.split())) for line in table if not line.startswith("#")]
    return found


def other_image():
    """Another file at the path of an image gets nothing of it, and suffers nothing for it."""
    image = new_image("kept-changed.img")
    option = ["--cache-file", os.path.join(MEMORY, "cache")]
    server = Server(image, *option)
    server.write(5, 9, 2)
    server.kill()
    first = image.replace("kept-changed", "first")
    os.rename(image, first)
    shutil.copy(first, image)
    server = Server(image, *option)
    check("an image that was replaced is not overwritten", server.byte(5) == 0 and "it is another file" in server.said(), server.said())
    check("nothing lies beside it", beside(image) == [".headworks-dirty"], beside(image))
    found = recovered(image)
    check("the data are in the state directory, with a map", list(found.values()) == [[(5 * BLOCK, 2 * BLOCK)]], found)
    with open(next(iter(found)), "rb") as recovery:
        recovery.seek(5 * BLOCK)
        check("at their places", recovery.read(2 * BLOCK) == b"\x09" * 2 * BLOCK)
    modes = [os.stat(path).st_mode & 0o777 for path in (os.path.join(STATE, "recovery"), next(iter(found)))]
    check("which is this user's alone", modes == [0o700, 0o600], modes)
    check("its flushes succeed", server.flush() == 0)
    check("it stops with 0", server.stop() == 0)
    server = Server(image, *option)
    check("its next start has nothing to say of them", "acknowledged writes" not in server.said(), server.said())
    server.stop()
    os.rename(first, image)
    server = Server(image, *option)
    said, (file,) = server.said(), found
    check("the right image at the path again is told of its recovery file", f"{file} has acknowledged writes to this image" in said, said)
    server.stop()
    command = said.split("stop the server and run: ")[1].split("; then remove both files")[0]
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    server = Server(image, *option)
    check("the command brings them back", server.byte(5) == 9 and server.byte(6) == 9, f"{command}\n{done}")
    server.stop()
    for other in (file, file + ".map"):
        os.remove(other)
    server = Server(image, *option)
    check("without the files nothing is said", "acknowledged writes" not in server.said(), server.said())
    server.stop()
    # An image that was renamed while it was served is restored under its new name, and the file in its place gets nothing.
    server = Server(image, *option)
    os.rename(image, image + ".moved")
    server.write(5, 3)
    check("the disk works after the renaming", server.flush() == 0)
    server.write(5, 4)
    server.kill()
    new_image("kept-changed.img")
    server = Server(f"new={image}", *option, f"old={image}.moved")
    raw, _ = rawnbd.Raw(f"nbd+unix:///?socket={server.socket}").go(b"old")
    data = raw.read(5 * BLOCK, BLOCK)
    raw.close()
    check("a renamed image is restored where it is now", data == b"\x04" * BLOCK and "restored 4 KiB" in server.said(), server.said())
    check("and nothing is recovered", recovered(image) == {}, recovered(image))
    check("it stops with 0", server.stop() == 0)


def reused_number():
    """The next file gets the inode of a deleted image on ext4 and XFS, the next disk the number of a detached loop device."""
    option = ["--cache-file", os.path.join(MEMORY, "reused")]
    image = new_image("kept-deleted.img")
    number = os.stat(image).st_ino
    server = Server(image, *option)
    server.write(5, 9)
    server.kill()
    for path in (image, image + ".headworks-dirty"):
        os.unlink(path)
    other = new_image("kept-next.img")
    server = Server(other, *option)
    reused = os.stat(other).st_ino == number
    check(f"a new image gets nothing of a deleted one (inode used again: {reused})", server.byte(5) == 0 and server.flush() == 0, server.said())
    check("whose data are in the state directory" if reused else "whose data stay in memory", len(recovered(image)) == reused, recovered(image))
    check("it stops with 0", server.stop() == 0)
    if not reused:
        os.unlink(option[1])

    def attach(path):
        made = subprocess.run(["losetup", "-f", "--show", path], capture_output=True, text=True)
        return made.stdout.strip() if made.returncode == 0 else None

    disks = [new_image(f"kept-disk-{letter}.img") for letter in "ab"]
    device = attach(disks[0])
    if device is None:
        print("skip - the number of a loop device that is used again # no loop devices")
        return
    server = Server(device, *option)
    server.write(5, 9)
    server.kill()
    subprocess.run(["losetup", "-d", device], check=True)
    other = attach(disks[1])
    server = Server(other, *option)
    check(f"a new disk gets nothing of a detached one (number used again: {device == other})", server.byte(5) == 0 and server.flush() == 0, server.said())
    check("it stops with 0", server.stop() == 0)
    subprocess.run(["losetup", "-d", other], check=True)
    check("and the start says why", "it is another disk" in server.said() or device != other, server.said())


def block_device():
    """A block device that was attached all the time gets its blocks back."""
    option = ["--cache-file", os.path.join(MEMORY, "disk")]
    made = subprocess.run(["losetup", "-f", "--show", new_image("kept-attached.img")], capture_output=True, text=True)
    if made.returncode != 0:
        print("skip - kept blocks of a block device # no loop devices")
        return
    device = made.stdout.strip()
    server = Server(device, *option)
    server.write(5, 9)
    server.kill()
    server = Server(device, *option)
    check("a block device gets its kept blocks back", server.byte(5) == 9 and server.flush() == 0, server.said())
    check("and the start says so", "restored 4 KiB of acknowledged writes" in server.said(), server.said())
    check("it stops with 0", server.stop() == 0)
    server = Server(device, "--cache-file", "off")
    server.write(5, 8)
    server.kill()
    server = Server(device, "--cache-file", "off")
    check("its flushes fail where memory was lost", server.flush() == 5 and "its memory is gone" in server.said(), server.said())
    check("until that is accepted", discard(server) and server.flush() == 0 and server.stop() == 0, server.said())
    subprocess.run(["losetup", "-d", device], check=True)


def restored_backup():
    """A backup that is copied over the image right after the kill is a change that only the kernel's times tell."""
    image, option = new_image("kept-backup.img"), ["--cache-file", os.path.join(MEMORY, "backup")]
    with open(image + ".saved", "wb") as saved:
        saved.write(b"\x02" * SIZE)
    server = Server(image, *option)
    server.write(5, 9)
    server.kill()
    killed = time.time_ns()
    # The times of files have steps of some milliseconds.
    while os.stat(image).st_ctime_ns < killed + 30_000_000:
        shutil.copy(image + ".saved", image)
    server = Server(image, *option)
    check("a backup that is copied over the image is not overwritten", server.byte(5) == 2 and "it was changed" in server.said(), server.said())
    found = [".headworks-dirty", ".headworks-recovery", ".headworks-recovery.map"]
    check("the data lie beside it", [name for name in beside(image) if name != ".saved"] == found, beside(image))
    check("its flushes fail", server.flush() == 5)
    told = subprocess.run([SERVER, "ctl", server.control, "discard-failed", "default", "--yes"], capture_output=True, text=True)
    check("until they are acknowledged", told.returncode == 0 and server.flush() == 0, told.stderr)
    check("it stops with 0", server.stop() == 0)


def failed_start():
    """A start that fails late leaves marks, data and memory as they were."""
    image, option = new_image("kept-failed.img"), ["--cache-file", os.path.join(MEMORY, "failed")]
    mark = image + ".headworks-dirty"
    fails = lambda: subprocess.run(
        [SERVER, "serve", image, "-U", os.path.join(DIR, "failed.sock"), "--pid-file", "/nonexistent/pid", "--cache", "8M", *option],
        capture_output=True,
        text=True,
    )
    refused = fails()
    check("a start with a wrong pid file fails", refused.returncode == 1 and "pid-file" in refused.stderr, refused.stderr)
    check("and leaves no mark", beside(image) == [], beside(image))
    server = Server(image, *option)
    server.write(5, 9)
    server.kill()
    with open(mark) as old:
        before = old.read()
    fails()
    with open(mark) as old:
        check("after a kill it leaves the mark as it was", old.read() == before)
    memory = os.path.join(MEMORY, "failed")
    shutil.copy(memory, memory + "-saved")
    os.unlink(memory)
    server = Server(image, *option)
    check("so that lost memory is told of", "its memory is gone" in server.said() and server.flush() == 5, server.said())
    server.kill()
    os.unlink(memory)
    os.rename(memory + "-saved", memory)
    server = Server(image, *option)
    check("and memory that is there is restored", server.byte(5) == 9, server.said())
    check("but does not vouch for the server after it", server.flush() == 5 and discard(server), server.said())
    check("it stops with 0", server.stop() == 0)


def hostile_marks():
    """The directory of an image may be its tenant's."""
    server = Server(new_image("kept-honest.img"))
    plants = {
        "a FIFO": os.mkfifo,
        "a link to /dev/zero": lambda path: os.symlink("/dev/zero", path),
        "a directory": os.mkdir,
    }
    for what, plant in plants.items():
        image = new_image("kept-hostile.img")
        plant(image + ".headworks-dirty")
        told = subprocess.run([SERVER, "ctl", server.control, "add", f"t={image}"], capture_output=True, text=True, timeout=20)
        check(f"an image with {what} for a mark is added at once", told.returncode == 0, told.stderr)
        subprocess.run([SERVER, "ctl", server.control, "remove", "t"], capture_output=True, check=True, timeout=20)
        shutil.rmtree(image + ".headworks-dirty", ignore_errors=True)
    check("it stops with 0", server.stop() == 0)


# Python has no name for it.
CLOCK_REALTIME_COARSE = 5


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
    # The server's signs of life are by the clock that ticks: one of the same tick as the change may be earlier than that, and then the
    # image counts as changed after the death.
    while time.clock_gettime_ns(CLOCK_REALTIME_COARSE) <= os.stat(image).st_ctime_ns:
        time.sleep(0.001)
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


def discard(server):
    command = [SERVER, "ctl", server.control, "discard-failed", "default", "--yes"]
    return subprocess.run(command, capture_output=True).returncode == 0


def lost_memory(image, spec):
    """No memory outlives the process; or the host went down."""
    server = Server(spec, "--cache-file", "off")
    check("anonymous memory is said to go with a killed server", "which a killed server takes with it" in server.said(), server.said())
    server.write(1, 1)
    server.kill()
    server = Server(spec, "--cache-file", "off")
    said = "was killed, and its memory is gone" in server.said() and "flushes fail until" in server.said()
    check("the next start says that writes may be lost, and has flushes fail", said and server.flush() == 5, server.said())
    server.stop()
    server = Server(spec, "--cache-file", "off")
    check("also after a stop", server.flush() == 5, server.said())
    check("until that is acknowledged", discard(server) and server.flush() == 0)
    server.write(1, 1)
    server.kill()
    server = Server(f"{spec},on-unclean=serve", "--cache-file", "off")
    check("on-unclean=serve has them succeed", server.flush() == 0 and "is not told" in server.said(), server.said())
    server.kill()
    mark = image + ".headworks-dirty"

    def reboot():
        with open(mark) as old:
            text = old.read().replace("boot-id ", "boot-id 0")
        with open(mark, "w") as new:
            new.write(text)

    reboot()
    server = Server(spec, "--cache-file", "off")
    check("after a power failure the next start says it, and serves", "went down with its host" in server.said() and server.flush() == 0, server.said())
    server.kill()
    reboot()
    server = Server(f"{spec},on-unclean=refuse-flush", "--cache-file", "off")
    check("on-unclean=refuse-flush has flushes fail", server.flush() == 5 and "flushes fail until" in server.said(), server.said())
    check("until that is acknowledged", discard(server) and server.flush() == 0)
    check("it stops with 0", server.stop() == 0)
    check("and removes the mark", beside(image) == [], beside(image))


def lost_memory_of_a_file():
    image = new_image("kept-lost.img")
    lost_memory(image, f"file:path={image}")


def lost_memory_of_an_overlay():
    base, image = new_image("kept-base.img"), os.path.join(IMAGES, "kept-lost.hwo")
    subprocess.run([SERVER, "image", "create", "--base", base, image], capture_output=True, check=True)
    lost_memory(image, f"overlay:path={image}")


def neighbours():
    """Servers that have one directory for their memory: none keeps from another what that has left."""
    runtime = {"XDG_RUNTIME_DIR": MEMORY}
    image, added = new_image("kept-neighbour.img"), new_image("kept-added.img")
    server = Server(image, environment=runtime)
    server.write(3, 7)
    server.kill()
    other = Server(new_image("kept-first.img"), environment=runtime, name="first")
    check("a server that starts first says what a dead one has left", "4 KiB of acknowledged writes to" in other.said(), other.said())
    server = Server(image, environment=runtime)
    check("that one starts beside it, and has its data", server.process.poll() is None and server.byte(3) == 7, server.said())
    check("it stops with 0", server.stop() == 0)
    third = Server(added, environment=runtime, name="third")
    third.write(4, 8)
    third.kill()
    said = other.ctl("add", f"added={added}")
    check("data of one that died later are there when its image is added", "restored 4 KiB" in said and other.byte(4, b"added") == 8, said)
    other.ctl("remove", "added")
    third = Server(added, environment=runtime, name="third")
    third.write(5, 9)
    third.kill()
    said = other.ctl("upgrade")
    check("the other is replaced", "upgraded: process" in said, said)
    successor = int(said.split()[2])
    said = other.ctl("add", f"added={added}")
    check("and finds them after that as well", "restored 4 KiB" in said and other.byte(5, b"added") == 9, said)
    other.process.wait()
    os.kill(successor, signal.SIGTERM)
    deadline = time.monotonic() + 30
    while os.listdir(MEMORY) and time.monotonic() < deadline:
        time.sleep(0.01)
    check("all of it is on the images, and no memory is left", os.listdir(MEMORY) == [], os.listdir(MEMORY))


def vouched():
    """The memory of a killed server says what it has not lost, of images that the next one does not serve as well, and nothing of what others lose."""
    runtime, without = {"XDG_RUNTIME_DIR": MEMORY}, {"HEADWORKS_CACHE_FILE": "off"}
    own, image = new_image("kept-own.img"), new_image("kept-vouched.img")
    server = Server(own, environment=runtime)
    check("an image is added", server.ctl("add", f"more={image}"))
    server.write(1, 1, export=b"more")
    check("and flushed", server.flush(b"more") == 0)
    server.kill()
    server = Server(own, environment=runtime)
    check("the start does not tell of it", "kept-vouched" not in server.said(), server.said())
    check("it stops with 0", server.stop() == 0)
    server = Server(own, environment=runtime)
    said = server.ctl("add", f"more={image}")
    check("nothing is said to be lost when it is added again", "gone" not in said and server.flush(b"more") == 0, said)
    check("no other memory is left", len(os.listdir(MEMORY)) == 1, os.listdir(MEMORY))
    check("it is removed", server.ctl("remove", "more"))
    other = Server(image, environment=without, name="other")
    other.write(2, 2)
    other.kill()
    server.kill()
    server = Server(own, environment=runtime)
    said = server.ctl("add", f"more={image}")
    check("what another server has lost since is told", "its memory is gone" in said and server.flush(b"more") == 5, said)
    check("until it is acknowledged", server.ctl("discard-failed", "more", "--yes") and server.flush(b"more") == 0)
    server.kill()
    other = Server(image, environment=without, name="other")
    other.write(2, 2)
    other.kill()
    server = Server(own, environment=runtime)
    said = server.ctl("add", f"more={image}")
    check("also if it had the image after the memory's server", "its memory is gone" in said and server.flush(b"more") == 5, said)
    check("it is acknowledged", server.ctl("discard-failed", "more", "--yes"))
    check("it stops with 0", server.stop() == 0)
    check("and leaves nothing", os.listdir(MEMORY) == [] and beside(image) == [], (os.listdir(MEMORY), beside(image)))


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


def hidden_mark():
    """A server of another user, which can read neither the memory nor the mark."""
    other = ["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups", SERVER]
    if os.geteuid() != 0 or subprocess.run([*other, "--version"], capture_output=True).returncode != 0:
        print("skip - the mark of another user # needs root, setpriv and a program that all users can run")
        return
    image, options = os.path.join(MEMORY, "hidden.img"), ["--cache-file", os.path.join(MEMORY, "hidden")]
    with open(image, "wb") as file:
        file.truncate(SIZE)
    os.chmod(image, 0o666)
    os.chmod(MEMORY, 0o777)
    server = Server(image, *options)
    server.write(2, 7)
    server.kill()
    command = [*other, "serve", image, "-U", os.path.join(MEMORY, "hidden.sock"), "--cache-file", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        said = ""
        for line in process.stdout:
            said += line
            if "uri: " in line:
                process.terminate()
    check("another user is told whose memory may have writes", "the mark beside it is another user's" in said, said)
    server = Server(image, *options)
    check("which has them later", server.end(2, 7), server.said())
    os.chmod(MEMORY, 0o700)
    os.remove(image)


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
    # For one server, with 33 MiB of cache and 64 MiB of buffers, and for the head of a second one.
    undo, reason = huge_pages(place, 54)
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


@contextlib.contextmanager
def small_memory(name, size):
    """A tmpfs of so many MiB, or none."""
    place = os.path.join(DIR, name)
    os.mkdir(place)
    mounted = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}M", "none", place], capture_output=True).returncode == 0
    if not mounted:
        print(f"skip - memory of {size} MiB that becomes full # needs root and a tmpfs of its own")
    try:
        yield place if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", place], capture_output=True)
        os.rmdir(place)


def fill(path):
    """Takes all that a filesystem has left, as another of its users."""
    with open(path, "wb", buffering=0) as other, contextlib.suppress(OSError):
        while True:
            other.write(bytes(BLOCK))


def full_memory():
    """Others fill the filesystem of the memory after the start."""
    with small_memory("full", 300) as place:
        if not place:
            return
        image, other = new_image("kept-full.img"), os.path.join(place, "other")
        os.truncate(image, 8 * SIZE)
        options = ["--cache-file", os.path.join(place, "cache"), "--cache", "48M"]
        server = Server(image, *options)
        server.write(0, 1)
        fill(other)
        for part in range(1, 20):
            server.write(part * 512, part, 512)
        check("a server whose memory others fill serves on", server.process.poll() is None and server.byte(0) == 1, server.said())
        check("and says that its cache stays smaller", "the filesystem is nearly full, so the cache stays at about" in server.said(), server.said())
        seen = [server.byte(part * 512) for part in range(1, 20)]
        check("with all data", seen == list(range(1, 20)), seen)
        server.kill()
        os.remove(other)
        server = Server(image, *options)
        seen = [server.byte(part * 512) for part in range(1, 20)]
        check("a kill loses nothing of it", server.byte(0) == 1 and seen == list(range(1, 20)), seen)
        check("it stops with 0", server.stop() == 0)


def large_part():
    """A cache that takes most of its filesystem, so that a second one has no room beside what a killed server left."""
    with small_memory("large", 300) as place:
        if not place:
            return
        image, options = new_image("kept-large.img"), ["--cache-file", os.path.join(place, "cache"), "--cache", "220M"]
        os.truncate(image, 32 * SIZE)
        for byte in (5, 6):
            server = Server(image, *options)
            with server.client() as raw:
                for part in range(200):
                    raw.read(part << 20, 1 << 20)
            for part in range(24):
                server.write(part * 256, byte, 256)
            server.kill()
        server = Server(image, *options)
        check("a start after kills needs no more memory than the first one", f"dirty data: in {place}" in server.said(), server.said())
        check("and has all data", [server.byte(part * 256 + 255) for part in range(24)] == [6] * 24)
        check("it stops with 0", server.stop() == 0)
        # Of the default size it takes more than half of what there is.
        image, runtime = new_image("kept-half.img"), {"XDG_RUNTIME_DIR": place}
        os.truncate(image, 32 * SIZE)
        for byte in (7, 8):
            server = Server(image, "--cache", "auto", environment=runtime)
            check("a directory is chosen by the room that a killed server's memory leaves", f"dirty data: in {place}" in server.said(), server.said())
            with server.client() as raw:
                for part in range(200):
                    raw.read(part << 20, 1 << 20)
            server.write(3, byte)
            server.kill()
        check("with all data", Server(image, "--cache", "auto", environment=runtime).end(3, 8))


def starts():
    """Servers that are killed at any moment of their start, with and without data to restore."""
    image, options = new_image("kept-starts.img"), ["--cache-file", os.path.join(MEMORY, "starts"), "--cache", "1G"]
    os.truncate(image, 16 * SIZE)
    server = Server(image, *options)
    alarms, lost, twice = [], [], []
    for round_ in range(1, 9):
        if round_ % 2:
            server.write(0, round_, 1)
            server.flush()
        else:
            # Nothing is written out below that.
            for part in range(96):
                server.write(part * 256, round_, 256)
        server.kill()
        for part in range(4):
            dirty = round_ % 2 == 0 and part < 2
            server = Server(image, *options, awaited=lambda log: "restored" in log, wait=0.5 if dirty else (part * 7 + round_) % 8 * 0.008)
            time.sleep((round_ + part) % 4 * 0.004)
            server.kill()
            alarms += [line for line in server.said().splitlines() if "flushes f" in line]
        server = Server(image, *options)
        alarms += [line for line in server.said().splitlines() if "flushes f" in line]
        sizes = [line.split(": restored ")[1].split(" of ")[0].split() for line in server.said().splitlines() if ": restored " in line]
        size = sum(float(number) * {"KiB": 1 << 10, "MiB": 1 << 20}[unit] for number, unit in sizes)
        twice += [server.said()] if size > 100 << 20 else []
        lost += [round_] if server.byte(0) != round_ else []
    check("servers that die while they start lose nothing", not lost, lost)
    check("and what they leave tells of no loss", not alarms, alarms)
    check("however many die while they restore, each block is left once", not twice, twice)
    check("it stops with 0", server.stop() == 0)
    # One with other options does not look there.
    server = Server(image, *options)
    server.write(1, 98)
    server.kill()
    server = Server(image, "--cache-file", "off")
    check("a start that does not look into the memory names it", f"its memory is {options[1]}," in server.said() and server.flush() == 5, server.said())
    check("and does not stop well", server.stop() == 1)
    server = Server(image, *options)
    check("one that looks there has the writes", server.byte(1) == 98, server.said())
    server.ctl("discard-failed", "default", "--yes")
    check("it stops with 0", server.stop() == 0)
    # A server without memory that outlives it has written everything.
    server = Server(image, *options)
    server.write(1, 99)
    server.kill()
    Server(f"file:path={image},cache=none", *options, "--cache", "0").kill()
    server = Server(image, *options)
    check("a kill of a server without a cache tells of no loss", "flushes f" not in server.said() and server.byte(1) == 99, server.said())
    check("it stops with 0", server.stop() == 0)


def full_directory():
    """A mark that cannot be made anew goes with a clean stop all the same."""
    with small_memory("marks", 64) as place:
        if not place:
            return
        image, options = os.path.join(place, "kept.img"), ["--cache-file", os.path.join(MEMORY, "marks")]
        with open(image, "wb") as file:
            file.truncate(SIZE)
        server = Server(image, *options)
        server.write(1, 4)
        server.flush()
        server.kill()
        fill(os.path.join(place, "other"))
        server = Server(image, *options)
        check("a start says that it cannot mark its image", "cannot be marked as in use" in server.said(), server.said())
        check("it stops with 0", server.end(1, 4))
        os.remove(os.path.join(place, "other"))
        server = Server(image, *options)
        check("after a clean stop nothing is said to be lost", "flushes f" not in server.said(), server.said())
        check("it stops with 0", server.end(1, 4))


def shared_memory():
    """Two servers of automatic size, which would take more than the filesystem of the memory has."""
    with small_memory("shared", 220) as place:
        if not place:
            return
        servers = []
        for number in range(2):
            image = new_image(f"kept-shared-{number}.img")
            os.truncate(image, 16 * SIZE)
            server = Server(image, "--cache", "auto", environment={"XDG_RUNTIME_DIR": place}, name=f"shared-{number}")
            check(f"server {number} keeps its memory", f"dirty data: in {place}" in server.said(), server.said())
            servers.append(server)
        for server in servers:
            server.write(0, 3)
            with server.client() as raw:
                for part in range(96):
                    raw.read(part << 20, 1 << 20)
        check("both serve", [server.process.poll() for server in servers] == [None, None], servers[0].said() + servers[1].said())
        space = os.statvfs(place)
        part = space.f_bavail / space.f_blocks
        check("and leave a part to others", part > 0.05, part)
        for server in servers:
            server.kill()
            check("the data of a killed one are there", Server(server.image, "--cache", "auto", environment={"XDG_RUNTIME_DIR": place}, name="shared").end(0, 3))


PARTS = [kept_file, neighbours, vouched, bare_shell, full_memory, shared_memory, large_part, starts, full_directory, hidden_mark, huge_file, other_image, reused_number, block_device, restored_backup, cut_after_growth, other_user, grown_image, failed_start, hostile_marks]
PARTS += [lost_memory_of_a_file, lost_memory_of_an_overlay, descriptor_store]
for part in PARTS:
    part()
sys.exit(1 if bad else 0)
