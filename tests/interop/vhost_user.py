"""Disks of virtual machines: contents through kills, stops and upgrades; hostile machines and front ends beside honest ones."""

import os
import random
import signal
import struct
import subprocess
import time

from machine import AVAILABLE, BLOCK, DEPTH, DISCARD, FLUSH, ID, READ, RING, SET_MEM_TABLE, SET_OWNER, VRING_CALL, VRING_ERR, VRING_KICK, WRITE, ZERO, FrontEnd, Left, Machine
from replaced import DIR, IMAGES, MIB, SERVER, Server, until
from tap import case, done, same_bytes

KILLS, SEED = int(os.environ.get("KILLS", "8")), int(os.environ.get("SEED", "1"))
SIZE = 8 * MIB


def content(number):
    return struct.pack("<Q", number) * (BLOCK // 8)


def disk(name):
    return os.path.join(DIR, name + ".vhost")


def serve(name, *options, spec=None, size=SIZE, kept=True):
    return Server(name, "--vhost-user", f"{name}={disk(name)}", *options, spec=f"{name}={spec or 'file:path=' + os.path.join(IMAGES, name + '.img')}", size=size, kept=kept)


class Load:
    """Writes blocks with numbers of their own, and knows what each has to be."""

    def __init__(self, machine, seed):
        self.machine, self.random = machine, random.Random(seed)
        self.model, self.number, self.answered = {}, 0, 0

    def fill(self):
        busy = {request[1] // 8 for request in self.machine.flying.values()}
        for slot in range(DEPTH):
            if slot in self.machine.flying:
                continue
            if self.random.random() < 0.05:
                self.machine.submit(slot, FLUSH, length=0)
                continue
            block = self.random.randrange(SIZE // BLOCK)
            if block in busy:
                continue
            busy.add(block)
            self.number += 1
            self.machine.submit(slot, WRITE, block * 8, content(self.number), pieces=self.random.choice([1, 1, 2, 4]))

    def note(self, answers):
        for _, status, (kind, sector, data, _, _) in answers:
            assert status == 0, (status, kind, sector)
            self.answered += 1
            if kind == WRITE:
                self.model[sector // 8] = data

    def run(self, seconds):
        """Goes on for a while; until the server has left, if it has."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.fill()
            answers = self.machine.wait()
            self.note(answers)
            if not answers:
                return

    def settle(self):
        while self.machine.flying:
            answers = self.machine.wait()
            assert answers, "the server has left"
            self.note(answers)

    def check(self):
        for block in range(SIZE // BLOCK):
            status, found = self.machine.one(READ, block * 8)
            assert status == 0, status
            wanted = self.model.get(block, bytes(BLOCK))
            assert found == wanted, f"block {block} has {found[:8].hex()}, not {wanted[:8].hex()}"


def killed(name, kills, start, seed):
    server = start()
    load = Load(Machine(disk(name)), seed)
    assert load.machine.keeps, "requests in flight are kept"
    taken = 0
    for _ in range(kills):
        load.run(0.02 + 0.1 * load.random.random())
        taken += len(load.machine.flying)
        os.kill(server.pid, signal.SIGKILL)
        server.process.wait()
        os.unlink(server.pid_file)
        server = start()
        load.machine.connect()
    load.run(0.1)
    load.settle()
    load.check()
    print(f"# {kills} kills, {load.answered} answers, {taken} requests in flight at the kills", flush=True)
    load.machine.leave()
    server.stop()


@case
def kills_of_a_file():
    """kill -9 under verified writes: each request is answered once, and no block is wrong"""
    killed("file", KILLS, lambda: serve("file", "--cache", "0"), SEED)


@case
def kills_with_kept_memory():
    """The same with a write-back cache whose memory outlives the process"""
    killed("kept", KILLS, lambda: serve("kept", "--cache", "4M"), SEED + 1)


@case
def kills_of_an_overlay():
    """The same of an overlay"""
    base, overlay = (os.path.join(IMAGES, name) for name in ("golden.img", "machine.hwo"))
    with open(base, "wb") as image:
        image.truncate(SIZE)
    subprocess.run([SERVER, "image", "create", "--base", base, overlay], check=True, stdout=subprocess.DEVNULL)
    killed("overlay", KILLS, lambda: serve("overlay", "--cache", "4M", spec="overlay:path=" + overlay), SEED + 2)


@case
def upgrades():
    """Upgrades under verified writes: the machine connects again and goes on"""
    server = serve("upgrade", "--cache", "4M")
    load = Load(Machine(disk("upgrade")), SEED + 3)
    for _ in range(4):
        load.run(0.1)
        server.upgrade()
        load.run(60)
        load.machine.connect()
    load.run(0.1)
    load.settle()
    load.check()
    load.machine.leave()
    server.stop()


@case
def stops():
    """A stop answers what was taken; the next server goes on"""
    server = serve("stop", "--cache", "4M")
    load = Load(Machine(disk("stop")), SEED + 4)
    for _ in range(2):
        load.run(0.1)
        os.kill(server.pid, signal.SIGTERM)
        load.run(60)
        assert server.process.wait(60) == 0, server.said()[-2000:]
        server = serve("stop", "--cache", "4M")
        load.machine.connect()
    load.settle()
    load.check()
    load.machine.leave()
    server.stop()


@case
def requests():
    """Each kind of request; the disk is told of its new size without a stop"""
    server = serve("kinds", "--cache", "4M")
    machine, client = Machine(disk("kinds")), server.client(b"kinds")
    assert (machine.size, machine.queues) == (SIZE, 64)
    for pieces in (1, 2, 8):
        data = os.urandom(BLOCK)
        assert machine.one(WRITE, 64 * pieces, data, pieces=pieces)[0] == 0
        same_bytes(client.read(512 * 64 * pieces, BLOCK), data)
        data = os.urandom(BLOCK)
        client.write(512 * 64 * pieces, data)
        status, found = machine.one(READ, 64 * pieces, pieces=pieces)
        assert status == 0
        same_bytes(found, data)
    assert machine.one(FLUSH, length=0)[0] == 0
    segment = struct.pack("<QII", 64, 8, 0)
    assert machine.one(ZERO, data=segment, length=16)[0] == 0
    assert client.read(512 * 64, BLOCK) == bytes(BLOCK)
    assert machine.one(DISCARD, data=segment, length=16)[0] == 0
    assert machine.one(DISCARD, data=struct.pack("<QII", 64, 8, 2), length=16)[0] == 2, "unknown flags"
    status, name = machine.one(ID, length=20)
    assert (status, name[:6]) == (0, b"kinds\0"), name
    assert machine.one(READ, SIZE // 512)[0] == 1, "beyond the end"
    assert machine.one(99, length=512)[0] == 2, "an unknown request"
    server.ctl("resize", "kinds", "+1M")
    machine.notices.settimeout(60)
    number, _, size = struct.unpack("<III", machine.notices.recv(12))
    assert (number, size) == (2, 0), "the configuration has changed"
    assert machine.read_size() == SIZE + MIB
    assert machine.one(WRITE, SIZE // 512, bytes(BLOCK))[0] == 0
    (row,) = [row for row in server.ctl("connections") if row["kind"] == "vhost-user"]
    assert row["export"] == "kinds" and row["peer"] == f"pid {os.getpid()}", row
    machine.stop_ring()
    client.close()
    machine.leave()
    server.stop()


def ends_with(server, count, word):
    until(f"the log has {word!r}", lambda: server.said().count(word) >= count)


@case
def hostile_machines():
    """Rings full of nonsense end their own device, with a line each; another client of the same export goes on"""
    server = serve("hostile", "--cache", "4M")
    client = server.client(b"hostile")

    def too_far(machine):
        machine.set_word(AVAILABLE + 2, machine.available + RING + 1)

    def head(machine):
        machine.set_word(AVAILABLE + 4 + 2 * (machine.available % RING), 0xFFFF)
        machine.set_word(AVAILABLE + 2, machine.available + 1)

    def loop(machine):
        struct.pack_into("<QIHH", machine.memory, 0, 0x3000, 16, 1, 0)
        head_of(machine, 0)

    def outside(machine):
        struct.pack_into("<QIHH", machine.memory, 0, 1 << 40, 16, 0, 0)
        head_of(machine, 0)

    def head_of(machine, number):
        machine.set_word(AVAILABLE + 4 + 2 * (machine.available % RING), number)
        machine.set_word(AVAILABLE + 2, machine.available + 1)

    def noise(machine):
        machine.memory[: 0x3000] = os.urandom(0x3000)

    for number, harm in enumerate((too_far, head, loop, outside, noise), 1):
        machine = Machine(disk("hostile"), number)
        assert machine.one(WRITE, 8 * number, content(number))[0] == 0
        harm(machine)
        os.eventfd_write(machine.kick, 1)
        ends_with(server, number, "has ended until a reset")
        client.write(BLOCK * 100, content(number))
        same_bytes(client.read(BLOCK * number, BLOCK), content(number))
        machine.leave()
    machine = Machine(disk("hostile"))
    assert machine.one(READ, 8)[1] == content(1)
    # Its memory is gone under the server.
    os.ftruncate(machine.file, BLOCK)
    os.eventfd_write(machine.kick, 1)
    client.write(BLOCK * 100, content(7))
    machine.leave()
    machine = Machine(disk("hostile"))
    assert machine.one(READ, 16)[1] == content(2)
    machine.leave()
    client.close()
    server.stop()


@case
def full_counters():
    """A monitor fills the counter of its machine's interrupts and makes it block: another client of the shard goes on, and so does the machine"""
    server = serve("full", "--shards", "1", "--cache", "0")
    client = server.client(b"full")
    machine = Machine(disk("full"))
    for number in range(1, 20):
        # The server took it as one that does not block.
        os.set_blocking(machine.call, False)
        for step in (os.eventfd_read, lambda call: os.eventfd_write(call, 2**64 - 2)):
            try:
                step(machine.call)
            except BlockingIOError:
                pass
        os.set_blocking(machine.call, True)
        # Nothing takes the count: the machine looks at its ring alone.
        machine.submit(0, WRITE, 8 * number, content(number))
        until("the machine has its answer", lambda: [status for _, status, _ in machine.reap()] == [0])
        client.write(BLOCK * 100, content(number))
        same_bytes(client.read(BLOCK * number, BLOCK), content(number))
    os.set_blocking(machine.call, False)
    machine.leave()
    client.close()
    server.stop()


@case
def other_descriptors():
    """What is no eventfd is refused with a sentence as a kick, call or error descriptor"""
    server = serve("pipes", "--cache", "0")
    for message in (VRING_KICK, VRING_CALL, VRING_ERR):
        front = FrontEnd(disk("pipes"))
        front.ask(SET_OWNER)
        ends = os.pipe()
        front.send(message, struct.pack("<Q", 0), [ends[1]])
        for end in ends:
            os.close(end)
        try:
            front.receive()
            raise AssertionError("a pipe is taken")
        except Left:
            pass
        front.socket.close()
        until("the log says why", lambda: f"vhost-user message {message}: a descriptor of pipe:" in server.said())
    machine = Machine(disk("pipes"))
    assert machine.one(WRITE, 0, content(1))[0] == 0
    machine.leave()
    server.stop()


@case
def hostile_front_ends():
    """Random messages, half messages and connections by the dozen: the server serves the next front end, and keeps no descriptor"""
    server = serve("front", "--cache", "0")
    chance = random.Random(SEED)
    machine = Machine(disk("front"))
    machine.leave()
    until("the first has left", lambda: not server.ctl("connections"))
    before = server.descriptors()
    for _ in range(60):
        try:
            front = FrontEnd(disk("front"))
            way = chance.randrange(4)
            if way == 0:
                front.socket.send(chance.randbytes(chance.randrange(1, 200)))
            elif way == 1:
                front.send(chance.randrange(50), chance.randbytes(chance.choice([0, 8, 16, 40])), flags=9)
            elif way == 2:
                front.socket.send(struct.pack("<III", 1, 1, 1 << 30))
            else:
                file = os.open("/dev/null", os.O_RDONLY)
                front.send(SET_MEM_TABLE, struct.pack("<IIQQQQ", 1, 0, 0, 1 << 60, 0, 0), [file, file], 9)
                os.close(file)
            if chance.random() < 0.5:
                front.socket.settimeout(0.01)
                try:
                    front.receive()
                except (Left, TimeoutError):
                    pass
            front.socket.close()
        except (ConnectionError, BrokenPipeError):
            pass
    crowd = [FrontEnd(disk("front")) for _ in range(20)]
    for one in crowd:
        one.socket.close()
    machine = Machine(disk("front"))
    assert machine.one(WRITE, 0, content(1))[0] == 0
    machine.leave()
    until("all have left", lambda: not server.ctl("connections"))
    until("their descriptors are closed", lambda: server.descriptors() <= before)
    server.stop()


@case
def idle_machine_costs_nothing():
    """A machine that sleeps causes no work"""
    server = serve("idle", "--cache", "0", "--poll-us", "0")
    machine = Machine(disk("idle"))
    assert machine.one(WRITE, 0, content(1))[0] == 0

    def switches():
        total = 0
        for thread in os.listdir(f"/proc/{server.pid}/task"):
            with open(f"/proc/{server.pid}/task/{thread}/status") as status:
                total += sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
        return total

    # The tick of a second after the last request.
    quiet = []

    def is_quiet():
        quiet.append(switches())
        time.sleep(1)
        return len(quiet) > 1 and quiet[-1] - quiet[-2] <= 2

    until("nothing wakes the server", is_quiet)
    assert machine.one(READ, 0)[1] == content(1), "and a kick does"
    machine.leave()
    server.stop()


done()
