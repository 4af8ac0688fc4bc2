"""What a service manager and an operator rely on: sockets handed over, word to the manager, users, the sandbox."""

import ctypes
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request

import nbd
from ctl_client import Client
from tap import case, done

WHAT, HEADWORKS, ENGINE, DIR = sys.argv[1:5]
NOBODY = 65534
# Long enough for any machine; a limit turns a hang into a failure.
PATIENCE = 30


class Manager:
    """What stands behind NOTIFY_SOCKET: messages in the order in which they came."""

    def __init__(self, folder):
        self.path = folder + "/notify"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(PATIENCE)
        self.seen = []

    def next(self):
        message = self.socket.recv(65536).decode().splitlines()
        self.seen.append(message)
        return message

    def until(self, line):
        """The message that has the line, or one that begins so when it ends with `=`."""
        while True:
            message = self.next()
            found = [one for one in message if one == line or line.endswith("=") and one.startswith(line)]
            if found:
                return message

    def drain(self):
        """What is there now."""
        messages = []
        while select.select([self.socket], [], [], 0)[0]:
            messages.append(self.next())
        return messages


class Served:
    """A server with sockets that we made, as a service manager starts it."""

    def __init__(self, arguments, sockets=(), manager=None, environment=None, lie=False, before=None):
        self.log = tempfile.TemporaryFile()
        environment = dict(os.environ, **(environment or {}))
        if manager:
            environment["NOTIFY_SOCKET"] = manager.path
        numbers = [one.fileno() for one, _ in sockets]

        def prepare():
            # Away from the numbers that they are to have, then to these.
            high = [os.dup2(number, 100 + place) for place, number in enumerate(numbers)]
            for place, number in enumerate(high):
                os.dup2(number, 3 + place)
            os.environ["LISTEN_PID"] = str(os.getpid() + lie)
            os.environ["LISTEN_FDS"] = str(len(numbers))
            os.environ["LISTEN_FDNAMES"] = ":".join(name for _, name in sockets)
            os.environ.update(environment)
            if before:
                before()

        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(self.log.fileno(), 1)
                os.dup2(self.log.fileno(), 2)
                if sockets:
                    prepare()
                else:
                    os.environ.update(environment)
                os.execv(HEADWORKS, [HEADWORKS, "serve", "--engine", ENGINE, *arguments])
            finally:
                os._exit(127)
        self.pid = pid

    def said(self):
        self.log.seek(0)
        return self.log.read().decode()

    def until_said(self, text):
        end = time.monotonic() + PATIENCE
        while text not in self.said():
            assert time.monotonic() < end, self.said()
            time.sleep(0.02)

    def wait(self):
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.pid = 0
        assert "panicked" not in self.said(), self.said()
        return status

    def stop(self):
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def cut_short(self):
        """Signals a server that stops until it says that it ends at once."""
        end = time.monotonic() + PATIENCE
        while "ending at once" not in self.said():
            assert time.monotonic() < end, self.said()
            os.kill(self.pid, signal.SIGTERM)
            time.sleep(0.06)

    def threads(self):
        """The status of every thread, as /proc has it, by field."""
        found = []
        for task in os.listdir(f"/proc/{self.pid}/task"):
            try:
                with open(f"/proc/{self.pid}/task/{task}/status") as status:
                    fields = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
            except (FileNotFoundError, ProcessLookupError):
                continue
            found.append((int(task), fields))
        assert found
        return found

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if kind:
            print("#   the server said: " + self.said().replace("\n", "\n#   "))


def folder():
    """A folder that every user may enter."""
    path = tempfile.mkdtemp(prefix="hw-ops.")
    os.chmod(path, 0o755)
    return path


def listening(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    return listener


def connect(path, name=""):
    handle = nbd.NBD()
    handle.connect_uri(f"nbd+unix:///{name}?socket={path}")
    return handle


def activated():
    @case
    def _():
        """started for a client that waits: handed-over sockets serve, READY comes, and their files stay"""
        at = folder()
        manager = Manager(at)
        nbd_socket, control = listening(at + "/nbd"), listening(at + "/ctl")
        client = socket.socket(socket.AF_UNIX)
        client.connect(at + "/nbd")
        client.settimeout(PATIENCE)
        arguments = ["mem:size=16M", "-U", at + "/nbd"]
        with Served(arguments, [(nbd_socket, "nbd"), (control, "control")], manager) as server:
            message = manager.next()
            assert message == ["READY=1", "STATUS=serving 1 export"], message
            assert connect(at + "/nbd").get_size() == 16 << 20
            assert client.recv(8) == b"NBDMAGIC", "who waited is served"
            assert "result" in Client(at + "/ctl").ask("get")
            added = Client(at + "/ctl").ask("add", spec="late=mem:size=1M")
            assert "result" in added, added
            server.until_said("uri: nbd+unix:///?socket=" + at + "/nbd")
            server.until_said("control: headworks ctl '" + at + "/ctl' get")
            os.kill(server.pid, signal.SIGHUP)
            reload = manager.next()
            assert reload[0] == "RELOADING=1" and reload[1].startswith("MONOTONIC_USEC="), reload
            assert manager.next()[0] == "READY=1"
            assert server.stop() == 0
        assert manager.next()[0] == "STOPPING=1"
        for name in ["/nbd", "/ctl"]:
            assert stat.S_ISSOCK(os.stat(at + name).st_mode), "the service manager's file stays"
        # And it still listens: the next server serves who came meanwhile.
        late = socket.socket(socket.AF_UNIX)
        late.connect(at + "/nbd")
        late.settimeout(PATIENCE)
        with Served(["mem:size=16M"], [(nbd_socket, "nbd")], manager) as server:
            manager.until("READY=1")
            assert late.recv(8) == b"NBDMAGIC"
            assert server.stop() == 0
        shutil.rmtree(at)

    @case
    def _():
        """TCP handed over beside a socket that was asked for"""
        at = folder()
        tcp = socket.create_server(("127.0.0.1", 0))
        port = tcp.getsockname()[1]
        with Served(["a=mem:size=1M", "b=mem:size=2M", "-U", at + "/own"], [(tcp, "tcp")]) as server:
            server.until_said("uri: ")
            handle = nbd.NBD()
            handle.connect_uri(f"nbd://127.0.0.1:{port}/b")
            assert handle.get_size() == 2 << 20
            assert connect(at + "/own", "a").get_size() == 1 << 20
            assert server.stop() == 0
        assert not os.path.exists(at + "/own"), "our own file goes"
        with Served(["mem:size=1M"], [(tcp, "tcp")]) as server:
            server.until_said(f"uri: nbd://127.0.0.1:{port}/")
            assert server.stop() == 0
        shutil.rmtree(at)

    @case
    def _():
        """the socket named metrics answers scrapers, also those who came before, and not clients"""
        at = folder()
        metrics = socket.create_server(("127.0.0.1", 0))
        place = "127.0.0.1:%d" % metrics.getsockname()[1]
        early = socket.create_connection(metrics.getsockname(), timeout=PATIENCE)
        early.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        # Of two addresses it is the one that was handed over.
        arguments = ["a=mem:size=1M", "-U", at + "/own", "--metrics", "127.0.0.1:1"]
        with Served(arguments, [(metrics, "metrics")]) as server:
            assert early.makefile().read().startswith("HTTP/1.1 200 OK")
            server.until_said(f"metrics: http://{place}/metrics\n")
            assert connect(at + "/own", "a").get_size() == 1 << 20
            with urllib.request.urlopen(f"http://{place}/metrics", timeout=PATIENCE) as page:
                assert b"headworks_build_info" in page.read()
            assert "tcp:" not in server.said(), "no client is sent there"
            assert server.stop() == 0
        # It still listens: the next server answers who comes meanwhile.
        socket.create_connection(metrics.getsockname(), timeout=PATIENCE).close()
        shutil.rmtree(at)

    @case
    def _():
        """sockets for another process are not touched, and what is no socket is refused with its number"""
        at = folder()
        own = listening(at + "/nbd")
        with Served(["-U", at + "/own", "mem:size=1M"], [(own, "nbd")], lie=True) as server:
            server.until_said("uri: ")
            assert "/own" in server.said() and at + "/nbd" not in server.said()
            server.stop()
        with open("/dev/null") as null, Served(["mem:size=1M"], [(own, "nbd"), (null, "more")]) as server:
            assert server.wait() == 1
            assert server.said() == (
                "headworks: error: LISTEN_FDS: file descriptor 4: Socket operation on non-socket (os error 88)\n"
            ), server.said()
        with Served(["mem:size=1M"], [(own, "control"), (own, "control")]) as server:
            assert server.wait() == 1 and "two sockets are named" in server.said(), server.said()
        with Served(["mem:size=1M"], [(own, "metrics")]) as server:
            assert server.wait() == 1 and "is no TCP socket" in server.said(), server.said()
        shutil.rmtree(at)

    @case
    def _():
        """a command of --run is not told of our manager and our sockets"""
        at = folder()
        manager = Manager(at)
        arguments = ["mem:size=1M", "--run", "env | grep -E '^(LISTEN_|NOTIFY_|WATCHDOG_)'"]
        with Served(arguments, [(listening(at + "/nbd"), "nbd")], manager) as server:
            assert server.wait() == 1, "grep finds nothing: " + server.said()
        shutil.rmtree(at)


def draining():
    @case
    def _():
        """a stop that writes out says how much is left, asks for time, and ends with 0"""
        at = folder()
        manager = Manager(at)
        spec = "delay:write=2500ms,cache=writeback,of=mem:size=64M"
        with Served(["--cache", "16M", spec, "-U", at + "/nbd"], manager=manager) as server:
            manager.until("READY=1")
            client = connect(at + "/nbd")
            client.pwrite(bytes(range(256)) * 4096, 0)
            client.shutdown()
            os.kill(server.pid, signal.SIGTERM)
            assert manager.until("STOPPING=1")
            message = manager.until("EXTEND_TIMEOUT_USEC=")
            assert message == ["EXTEND_TIMEOUT_USEC=15000000", "STATUS=stopping: 1 MiB left to write"], message
            assert server.wait() == 0
        shutil.rmtree(at)


PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000


def ptrace(request, tid):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(request, tid, None, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def watched():
    @case
    def _():
        """the watchdog hears of us while every shard turns, and not while one hangs"""
        at = folder()
        manager = Manager(at)
        arguments = ["--shards", "2", "mem:size=1M", "null:size=1M", "-U", at + "/nbd"]
        with Served(arguments, manager=manager, environment={"WATCHDOG_USEC": "400000"}) as server:
            manager.until("READY=1")
            manager.until("WATCHDOG=1")
            manager.until("WATCHDOG=1")
            [shard] = [task for task, fields in server.threads() if fields["Name"] == "shard-1"]
            # One thread stands still, all others go on.
            ptrace(PTRACE_SEIZE, shard)
            ptrace(PTRACE_INTERRUPT, shard)
            os.waitpid(shard, WALL)
            try:
                manager.drain()
                # Time for eight signs; waiting longer makes this no less true.
                time.sleep(0.8)
                late = manager.drain()
            finally:
                ptrace(PTRACE_DETACH, shard)
            # The last call before may have been answered.
            assert len(late) <= 1, late
            manager.until("WATCHDOG=1")
            assert server.stop() == 0
        shutil.rmtree(at)

    @case
    def _():
        """a reload that waits for a device holds up neither the sign of life nor a stop"""
        at = folder()
        manager = Manager(at)
        exports = '[[export]]\nname = "stays"\nmem.size = "1M"\n'
        leaves = f'[[export]]\nname = "leaves"\nfile = {{ path = "{at}/image", size = "1M" }}\n'
        leaves += 'wrap = [{ delay = { write = "600s" } }]\n'
        with open(at + "/main.toml", "w") as file:
            file.write(exports + leaves)
        arguments = ["--cache", "16M", "-c", at + "/main.toml", "-U", at + "/nbd"]
        with Served(arguments, manager=manager, environment={"WATCHDOG_USEC": "400000"}) as server:
            manager.until("READY=1")
            connect(at + "/nbd", "leaves").pwrite(b"x" * 4096, 0)
            with open(at + "/main.toml", "w") as file:
                file.write(exports)
            os.kill(server.pid, signal.SIGHUP)
            manager.until("RELOADING=1")
            # The next but one is not one that was on its way.
            manager.until("WATCHDOG=1")
            manager.until("WATCHDOG=1")
            os.kill(server.pid, signal.SIGTERM)
            manager.until("STOPPING=1")
            os.kill(server.pid, signal.SIGHUP)
            server.until_said("reload ignored: shutting down")
            server.cut_short()
            assert server.wait() == 1
            assert "4096 bytes (4 KiB) were not written" in server.said(), server.said()
            assert "RELOADING=1" not in sum(manager.drain(), [])
        shutil.rmtree(at)


def stopped_twice():
    @case
    def _():
        """signals that overtake the first one tell what is lost all the same"""
        at = folder()
        manager = Manager(at)
        arguments = ["--cache", "16M", f"delay:write=600s,of=file:path={at}/image,size=1M", "-U", at + "/nbd"]
        with Served(arguments, manager=manager) as server:
            manager.until("READY=1")
            connect(at + "/nbd").pwrite(b"x" * 4096, 0)
            [shard] = [task for task, fields in server.threads() if fields["Name"] == "shard-0"]
            ptrace(PTRACE_SEIZE, shard)
            ptrace(PTRACE_INTERRUPT, shard)
            os.waitpid(shard, WALL)
            os.kill(server.pid, signal.SIGTERM)
            manager.until("STOPPING=1")
            server.cut_short()
            # Time in which a server that does not wait for its shard would be gone.
            time.sleep(0.1)
            try:
                ptrace(PTRACE_DETACH, shard)
            except ProcessLookupError:
                # It is gone; who traced a thread has to bury it.
                os.waitpid(shard, WALL)
            assert server.wait() == 1
            assert "4096 bytes (4 KiB) were not written" in server.said(), server.said()
            assert "unknown whether" not in server.said(), server.said()
        shutil.rmtree(at)


def as_user(uid, what):
    """What `what` returns when it is somebody else who calls it."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.write(theirs, json.dumps(what()).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def refused(path):
    client = Client(path)
    answer = client.line()
    return [answer["error"]["data"]["errno"], answer["error"]["message"], client.hung_up()]


def asked(path):
    return "result" in Client(path).ask("get")


def privileges():
    # Who builds as root in /root has a binary that nobody else may run.
    global HEADWORKS
    public = folder()
    HEADWORKS = shutil.copy(HEADWORKS, public + "/headworks")

    @case
    def _():
        """the control socket accepts only the server's user and root, whatever its file's mode"""
        at = folder()
        with Served(["mem:size=1M", "-U", at + "/nbd", "--control", at + "/ctl"]) as server:
            server.until_said("uri: ")
            os.chmod(at + "/ctl", 0o666)
            errno, message, hung_up = as_user(NOBODY, lambda: refused(at + "/ctl"))
            assert errno == "EPERM" and "user 65534" in message and hung_up, (errno, message, hung_up)
            assert asked(at + "/ctl")
            shown = as_user(NOBODY, lambda: subprocess.run(
                [HEADWORKS, "ctl", at + "/ctl", "stats"], capture_output=True, text=True, check=False).stderr)
            assert shown.startswith("headworks: error: the control socket accepts only ") and shown.count("\n") == 1, shown
            assert server.stop() == 0
        shutil.rmtree(at)

    @case
    def _():
        """--user: every thread is the user with nothing to spare, and what only root may open is served"""
        at = folder()
        os.makedirs(at + "/images", 0o700)
        pid_file = at + "/pid"
        image = at + "/images/disk.img"
        arguments = ["-u", "nobody", "-P", pid_file, "-U", at + "/nbd", "--control", at + "/ctl"]
        with Served([*arguments, f"file:path={image},size=16M"]) as server:
            server.until_said("uri: ")
            assert int(open(pid_file).read()) == server.pid and os.stat(pid_file).st_uid == 0
            assert f"note: user {NOBODY} cannot remove {at}/nbd, {at}/ctl at shutdown" in server.said()
            assert f"note: user {NOBODY} cannot remove the pid file {pid_file} at shutdown; it is emptied instead" in server.said()
            assert os.stat(at + "/nbd").st_uid == NOBODY, "who may connect follows from the user"
            assert as_user(NOBODY, lambda: asked(at + "/ctl")) and asked(at + "/ctl")
            client = connect(at + "/nbd")
            client.pwrite(b"by nobody" * 512, 4096)
            client.flush()
            os.chmod(at + "/ctl", 0o666)
            assert as_user(1, lambda: refused(at + "/ctl"))[0] == "EPERM"
            for _, fields in server.threads():
                for name in ["Uid", "Gid"]:
                    assert set(fields[name].split()) == {str(NOBODY)}, fields
                assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2", fields
                assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0, fields
                assert "0" not in fields["Groups"].split(), fields
            assert server.stop() == 0
        assert open(pid_file).read() == "", "emptied where it may not be removed"
        # As in /tmp: the socket is the user's and goes, the pid file is root's and stays.
        os.chmod(at, 0o1777)
        with Served([*arguments, f"file:path={image}"]) as server:
            server.until_said("uri: ")
            said = server.said()
            assert "at shutdown; the next start removes" not in said, said
            assert f"cannot remove the pid file {pid_file} at shutdown" in said, said
            assert server.stop() == 0
        assert open(pid_file).read() == "" and not os.path.exists(at + "/nbd")
        with open(image, "rb") as file:
            file.seek(4096)
            assert file.read(9) == b"by nobody"
        shutil.rmtree(at)

    @case
    def _():
        """who may not become the user is told so, and nothing is left behind"""
        at = folder()
        os.chmod(at, 0o777)

        def somebody():
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)

        with Served(["-u", "daemon", "-U", at + "/nbd", "mem:size=1M"], [(listening(at + "/x"), "x")],
                    before=somebody) as server:
            assert server.wait() == 1
            assert "only root can change to another user" in server.said(), server.said()
        assert os.listdir(at) == ["x"], os.listdir(at)
        shutil.rmtree(at)
    shutil.rmtree(public)


def sandbox():
    def modes(server):
        return {(fields["Seccomp"], fields["NoNewPrivs"]) for _, fields in server.threads()}

    @case
    def _():
        """every thread is behind the filter, those that came later, too; --sandbox off leaves them"""
        at = folder()
        manager = Manager(at)
        for option, wanted in [("on", {("2", "1")}), ("off", {("0", "0")})]:
            arguments = ["--shards", "2", "--sandbox", option, "--control", at + "/ctl", "-U", at + "/nbd"]
            with Served([*arguments, f"file:path={DIR}/sandbox.img,size=64M"], manager=manager) as server:
                manager.until("READY=1")
                operator = Client(at + "/ctl")
                assert "result" in operator.ask("get")
                client = connect(at + "/nbd")
                for turn in range(64):
                    client.aio_pwrite(os.urandom(1 << 16), turn << 20)
                while client.aio_in_flight():
                    client.poll(PATIENCE)
                client.flush()
                assert modes(server) == wanted, modes(server)
                names = {fields["Name"] for _, fields in server.threads()}
                assert {"shard-0", "shard-1", "control", "control-client"} <= names, names
                assert server.stop() == 0

        shutil.rmtree(at)

    @case
    def _():
        """a command of --run is outside: it starts programs and may gain privileges"""
        with Served(["mem:size=1M", "--run", "exec grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status"]) as server:
            assert server.wait() == 0
            assert "NoNewPrivs:\t0\nSeccomp:\t0\n" in server.said(), server.said()


def logs():
    @case
    def _():
        """log-level switches what is logged while the server runs"""
        at = folder()
        with Served(["mem:size=1M", "-U", at + "/nbd", "--control", at + "/ctl"]) as server:
            server.until_said("uri: ")

            def level(*wanted):
                words = [HEADWORKS, "ctl", at + "/ctl", "log-level", *wanted]
                return subprocess.run(words, capture_output=True, text=True, check=False)

            connect(at + "/nbd").shutdown()
            assert level().stdout == "info\n" and "client connected" not in server.said()
            assert level("debug").stdout == "debug\n"
            connect(at + "/nbd").shutdown()
            server.until_said("client connected")
            wrong = level("loud")
            assert wrong.returncode == 1 and "error, warn, info, debug, trace" in wrong.stderr, wrong
            assert level("error").stdout == "error\n"
            os.kill(server.pid, signal.SIGHUP)
            assert level().stdout == "error\n"
            assert server.stop() == 0
            assert "reload ignored" not in server.said()
        shutil.rmtree(at)

    @case
    def _():
        """the journal gets priorities instead of times, and null gets nothing"""
        at = folder()
        for extra, wanted in [([], "<6>reload ignored: the server has no configuration file\n"), (["--log", "null"], "")]:
            with open(at + "/log", "w") as log:
                own = os.fstat(log.fileno())
                server = subprocess.Popen(
                    [HEADWORKS, "serve", "--engine", ENGINE, "-U", at + "/nbd", *extra, "mem:size=1M"],
                    stdout=subprocess.PIPE, stderr=log, text=True,
                    env=dict(os.environ, JOURNAL_STREAM=f"{own.st_dev}:{own.st_ino}"))
                while not server.stdout.readline().startswith("uri: "):
                    pass
                server.send_signal(signal.SIGHUP)
                end = time.monotonic() + PATIENCE
                while wanted not in open(at + "/log").read():
                    assert time.monotonic() < end, open(at + "/log").read()
                    time.sleep(0.02)
                server.send_signal(signal.SIGTERM)
                assert server.wait() == 0
            said = open(at + "/log").read()
            assert said.startswith(wanted) and all(line[0] == "<" for line in said.splitlines()), said
            assert wanted or said == "", said
        shutil.rmtree(at)


{"activated": activated, "draining": draining, "watched": watched, "stopped_twice": stopped_twice,
 "privileges": privileges, "sandbox": sandbox, "logs": logs}[WHAT]()
done()
