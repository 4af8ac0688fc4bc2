"""Stops and drains beside an export whose device does not answer.

    stop_hung.py        with HEADWORKS, ENGINE, DIR and IMAGES of the runner

Twenty exports, one of which hangs: nothing of the others is lost or waits, whether the server ends by itself or is killed soon after
the signal. The same with a remote whose server is stopped.
"""

import json
import os
import re
import signal
import subprocess
import tempfile
import time

import nbd

from tap import case, check, done, equal

HEADWORKS, ENGINE, DIR, IMAGES = (os.environ[name] for name in ("HEADWORKS", "ENGINE", "DIR", "IMAGES"))
SOCKET, CONTROL = f"{DIR}/hung", f"{DIR}/hung.ctl"
MIB = 1 << 20
COUNT, HUNG = 20, 7
HEALTHY = [index for index in range(COUNT) if index != HUNG]


def image(index):
    return f"{IMAGES}/e{index}.img"


def mark(index):
    return image(index) + ".headworks-dirty"


def pattern(index):
    return bytes([index + 1]) * MIB


def until(what, holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what} within {seconds} s"
        time.sleep(0.01)


class Server:
    def __init__(self, exports, *options):
        for path in (SOCKET, CONTROL):
            if os.path.exists(path):
                os.unlink(path)
        self.log = open(f"{DIR}/hung.log", "w+")
        words = [HEADWORKS, "serve", "--engine", ENGINE, "-U", SOCKET, "--control", CONTROL, "--cache", "64M", *options, *exports]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log)
        until("the server is up", lambda: "uri" in self.said().lower() or self.process.poll() is not None, 20)
        assert self.process.poll() is None, self.said()

    def said(self):
        with open(self.log.name) as log:
            return log.read()

    def connect(self, name):
        handle = nbd.NBD()
        handle.connect_uri(f"nbd+unix:///{name}?socket={SOCKET}")
        return handle

    def ctl(self, *words):
        return subprocess.run([HEADWORKS, "ctl", CONTROL, *words], capture_output=True, text=True)

    def in_flight(self, name):
        rows = json.loads(self.ctl("--json", "connections").stdout)
        rows = rows.get("connections", rows) if isinstance(rows, dict) else rows
        return sum(row["in_flight"] for row in rows if row.get("export") == name)

    def kill(self):
        self.process.kill()
        self.process.wait()


def hang(server, name):
    """A client that has read nothing yet of what it asked for."""
    reader = server.connect(name)
    reader.aio_pread(nbd.Buffer(4096), 8 * MIB)
    while server.in_flight(name) == 0:
        reader.poll(10)
    return reader


def healthy_are_whole():
    for index in HEALTHY:
        with open(image(index), "rb") as file:
            assert file.read(MIB) == pattern(index), f"e{index} lacks acknowledged writes"


def twenty(*options):
    # What a case before has lost is accepted: a disk that it was served from refuses flushes until then.
    for index in range(COUNT):
        if os.path.exists(mark(index)):
            os.unlink(mark(index))
    exports = [f"e{index}=file:path={image(index)},size=16M,cache=writeback" for index in range(COUNT)]
    exports[HUNG] = f"e{HUNG}=delay:read=600s,cache=writeback,of=file:path={image(HUNG)},size=16M"
    server = Server(exports, *options)
    clients = [server.connect(f"e{index}") for index in range(COUNT)]
    for index, client in enumerate(clients):
        client.pwrite(pattern(index), 0)
    return server, clients


def next_start():
    """What the next server says of the images, none of which hangs any more."""
    server = Server([f"e{index}=file:path={image(index)}" for index in range(COUNT)])
    said = server.said()
    server.process.terminate()
    server.process.wait(30)
    return [index for index in range(COUNT) if f"/e{index}.img: the last server" in said]


@case
def drains_name_the_export_that_hangs():
    """drain has a limit, names the export and its device, and writes out the others"""
    exports = [f"good=file:path={IMAGES}/good.img,size=16M", f"hung=delay:write=600s,cache=writeback,of=file:path={IMAGES}/hang.img,size=16M"]
    server = Server(exports)
    try:
        good, hung = server.connect("good"), server.connect("hung")
        good.pwrite(pattern(1), 0)
        hung.pwrite(pattern(2), 0)
        told = server.ctl("drain", "--timeout", "500ms")
        assert told.returncode == 1, told
        assert "hung (device hw1, 1 MiB dirty at the begin); 1 of 2 exports are" in told.stderr, told.stderr
        assert "within 0.5 s" in told.stderr and len(told.stderr.splitlines()) == 1, told.stderr
        with open(f"{IMAGES}/good.img", "rb") as file:
            assert file.read(MIB) == pattern(1), "written out beside the one that hangs"
        waiting = subprocess.Popen([HEADWORKS, "ctl", CONTROL, "drain", "hung"], stderr=subprocess.DEVNULL)
        assert server.ctl("drain", "good").returncode == 0, "another drain waits for nothing"
        assert waiting.poll() is None
        waiting.kill()
        waiting.wait()
        for words in ("0", "3601s"):
            told = server.ctl("drain", "--timeout", words)
            assert told.returncode == 1 and "0.001 to 3600" in told.stderr, told
    finally:
        server.kill()


@case
def stop_beside_a_hung_export():
    """a stop beside a hung export loses nothing of nineteen, and says what it waited for"""
    server, clients = twenty("--stop-timeout", "6s", "--cache-file", "off")
    clients.append(hang(server, f"e{HUNG}"))
    server.process.send_signal(signal.SIGTERM)
    until("their marks are gone", lambda: not any(os.path.exists(mark(index)) for index in HEALTHY), 5)
    assert server.process.poll() is None
    healthy_are_whole()
    assert os.path.exists(mark(HUNG)), "its stop has not ended"
    status, said = server.process.wait(30), server.said()
    assert status == 1, said
    assert "nothing left to write; waiting for export e7 (device hw" in said, said
    assert re.search(r"error: the stop waited [0-9.]+ s for export e7 \(device hw\d+, 1 request in flight\)", said), said
    # The acknowledged write does not wait for the read that hangs.
    with open(image(HUNG), "rb") as file:
        assert file.read(MIB) == pattern(HUNG), "acknowledged writes of the export with a read that hangs"
    assert "all acknowledged writes were flushed" in said, said
    equal("the next start calls only that one killed", next_start(), [HUNG])


def kill_after_the_signal(memory):
    server, clients = twenty("--cache-file", memory)
    for index in HEALTHY[:3]:
        clients[index].pwrite(pattern(index), 0)
    clients.append(hang(server, f"e{HUNG}"))
    server.process.send_signal(signal.SIGTERM)
    until("their marks are gone", lambda: not any(os.path.exists(mark(index)) for index in HEALTHY), 30)
    server.kill()
    healthy_are_whole()
    exports = [f"e{index}=file:path={image(index)}" for index in range(COUNT)]
    server = Server(exports, "--cache-file", memory)
    said = server.said()
    try:
        restored = [index for index in range(COUNT) if f"/e{index}.img: restored" in said]
        # None, if the kill came later than the flush beside requests that hang.
        assert restored in ([HUNG], []) and "killed, and its memory is gone" not in said, said
        assert server.connect(f"e{HUNG}").pread(MIB, 0) == pattern(HUNG)
    finally:
        server.process.terminate()
        equal("the server after it ends with 0", server.process.wait(30), 0)


@case
def killed_soon_after_the_signal():
    """a server that is killed two seconds after the signal leaves memory and a mark of the hung export only"""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="hw-hung.") as memory:
        kill_after_the_signal(f"{memory}/cache")


@case
def given_up_export_holds_up_neither_an_upgrade_nor_a_stop():
    """an upgrade names an export that hangs; given up, it delays neither the upgrade of the others nor a stop"""
    exports = [f"good=file:path={image(0)}", f"hung=delay:read=600s,cache=writeback,of=file:path={image(1)}"]
    server = Server(exports, "--stop-timeout", "60s")
    good = server.connect("good")
    good.pwrite(pattern(3), 0)
    hang(server, "hung")
    told = server.ctl("upgrade")
    assert told.returncode == 1 and "export hung, device hw1, oldest" in told.stderr, told
    assert "remove hung --abandon" in told.stderr, told.stderr
    told = server.ctl("remove", "hung", "--abandon")
    assert told.returncode == 0 and told.stdout.startswith("hung: given up, 1 client disconnected; requests of 1 clients"), told
    assert "hung" not in server.ctl("exports").stdout
    # The old process ends, with its read in the device.
    told = server.ctl("--json", "upgrade")
    assert told.returncode == 0, told
    pid = json.loads(told.stdout)["pid"]
    server.process.wait(30)
    assert good.pread(MIB, 0) == pattern(3), "its client goes on with the new server"
    os.kill(pid, signal.SIGTERM)
    until("the new server ends", lambda: not os.path.exists(f"/proc/{pid}"))

    server = Server([f"good=file:path={image(0)}", exports[1]], "--stop-timeout", "60s")
    hang(server, "hung")
    assert server.ctl("remove", "hung", "--abandon").returncode == 0
    server.process.send_signal(signal.SIGTERM)
    status, said = server.process.wait(20), server.said()
    assert status == 1 and "export hung, which was given up: its device has not answered" in said, said


@case
def stop_with_a_write_that_hangs_does_not_claim_a_flush():
    """a stop that loses a write says so, and never that all were flushed"""
    exports = [f"e0=file:path={image(0)}", f"e1=delay:write=600s,cache=writeback,of=file:path={image(1)}"]
    server = Server(exports, "--stop-timeout", "1s")
    for index in (0, 1):
        server.connect(f"e{index}").pwrite(pattern(index), 4 * MIB)
    server.process.send_signal(signal.SIGTERM)
    status, said = server.process.wait(30), server.said()
    assert status == 1 and "all acknowledged writes" not in said, said
    assert "export e1: 1048576 bytes (1 MiB) were not written within the 1 s" in said, said
    assert "for export e1 (device hw1, 1 MiB being written)" in said and "export e0" not in said, said


@case
def stop_beside_a_remote_that_is_stopped():
    """a stop beside a remote whose server is stopped loses nothing of a file, and claims no lost write of the remote"""
    remote, backing = f"{DIR}/remote", f"{IMAGES}/remote.img"
    with open(backing, "wb") as file:
        file.truncate(16 * MIB)
    qemu = subprocess.Popen(["qemu-nbd", "-t", "-k", remote, "-f", "raw", "-e", "4", backing], stderr=subprocess.DEVNULL)
    try:
        until("qemu-nbd is up", lambda: os.path.exists(remote))
        uri = f"nbd+unix:///?socket={remote}"
        server = Server([f"good=file:path={IMAGES}/file.img,size=16M", f"rem=nbd:uri={uri}"], "--stop-timeout", "3s")
        good = server.connect("good")
        good.pwrite(pattern(3), MIB)
        qemu.send_signal(signal.SIGSTOP)
        reader = hang(server, "rem")
        server.process.send_signal(signal.SIGTERM)
        until("the mark is gone", lambda: not os.path.exists(f"{IMAGES}/file.img.headworks-dirty"), 3)
        with open(f"{IMAGES}/file.img", "rb") as file:
            file.seek(MIB)
            assert file.read(MIB) == pattern(3)
        status, said = server.process.wait(30), server.said()
        assert status == 1 and "for export rem (device hw1, 1 request in flight)" in said, said
        assert "not flushed" not in said and "export good (" not in said, said
        del reader
    finally:
        qemu.send_signal(signal.SIGCONT)
        qemu.kill()
        qemu.wait()


done()
