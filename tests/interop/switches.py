"""200 connections that read and write while the queue under them is switched again and again; a model knows every byte.

Each connection has a part of the disk and four requests out: writes of 4 to 128 KiB, some with FUA, zeroing, flushes, and
reads that must find what was acknowledged. No two requests of a connection overlap, so the model is exact at all times. In
the end it is written to a file, for the image to be held against when the server is gone.
"""

import random
import select
import subprocess
import sys
import threading

from rawnbd import FLUSH, READ, SIMPLE_MAGIC, WRITE, WRITE_ZEROES, Raw, header
from tap import case, done, same_bytes

HEADWORKS, URI, CONTROL, SIZE, EXPECTED = *sys.argv[1:4], int(sys.argv[4]), sys.argv[5]
CONNECTIONS, DEPTH, BLOCK, BLOCKS_MAX = 200, 4, 4096, 32
PART = SIZE // CONNECTIONS // BLOCK
ROUNDS = 4
# Between two switches so many requests finish, so that each meets requests of its own.
PROGRESS = 2 * CONNECTIONS
FUA = 1
RANDOM = random.Random(4)
NOISE = RANDOM.randbytes(1 << 20)
model = bytearray(SIZE)
counts = {READ: 0, WRITE: 0, WRITE_ZEROES: 0, FLUSH: 0}
finished = 0
stop = threading.Event()


class Connection:
    def __init__(self, number):
        self.raw, size = Raw(URI).go()
        assert size == SIZE, size
        self.socket = self.raw.socket
        self.socket.setblocking(False)
        self.first, self.busy = number * PART, bytearray(PART)
        self.cookie, self.pending = number << 32, {}
        self.output, self.input = bytearray(), bytearray()

    def range(self):
        """Blocks that nobody is at; none if the first guess is wrong."""
        count = RANDOM.randint(1, BLOCKS_MAX)
        start = RANDOM.randrange(PART - count)
        if any(self.busy[start : start + count]):
            return None
        self.busy[start : start + count] = b"\1" * count
        return start, count

    def start(self):
        self.cookie += 1
        if RANDOM.random() < 0.02:
            self.pending[self.cookie] = (FLUSH, 0, 0, b"")
            self.output += header(FLUSH, self.cookie, 0, 0)
            return
        place = self.range()
        if place is None:
            return
        start, count = place
        command = RANDOM.choices((READ, WRITE, WRITE_ZEROES), (45, 50, 5))[0]
        flags = FUA if command != READ and RANDOM.random() < 0.05 else 0
        data, bytes_ = b"", count * BLOCK
        if command == WRITE:
            at = RANDOM.randrange(len(NOISE) - bytes_)
            data = self.cookie.to_bytes(8, "big") + NOISE[at : at + bytes_ - 8]
        offset = (self.first + start) * BLOCK
        self.pending[self.cookie] = (command, start, count, data)
        self.output += header(command, self.cookie, offset, bytes_, flags) + data

    def fill(self):
        for _ in range(DEPTH - len(self.pending)):
            self.start()

    def send(self):
        if self.output:
            try:
                del self.output[: self.socket.send(self.output)]
            except BlockingIOError:
                pass

    def receive(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError("the server hung up")
        self.input += data
        while self.digest():
            pass

    def digest(self):
        """Takes one reply, if it is complete, and checks it."""
        global finished
        if len(self.input) < 16:
            return False
        magic, error = (int.from_bytes(self.input[at : at + 4], "big") for at in (0, 4))
        cookie = int.from_bytes(self.input[8:16], "big")
        assert (magic, error) == (SIMPLE_MAGIC, 0), (hex(magic), error)
        command, start, count, data = self.pending[cookie]
        offset, bytes_ = (self.first + start) * BLOCK, count * BLOCK
        got = bytes_ if command == READ else 0
        if len(self.input) < 16 + got:
            return False
        if command == READ:
            same_bytes(self.input[16 : 16 + got], model[offset : offset + bytes_])
        elif command != FLUSH:
            model[offset : offset + bytes_] = data or bytes(bytes_)
        del self.input[: 16 + got]
        del self.pending[cookie]
        self.busy[start : start + count] = bytes(count)
        counts[command] += 1
        finished += 1
        return True


def load():
    """Keeps all of them busy until it is told to stop, and then waits for the last answer."""
    connections = [Connection(number) for number in range(CONNECTIONS)]
    by_fd = {connection.socket.fileno(): connection for connection in connections}
    poll = select.epoll()
    for fd in by_fd:
        poll.register(fd, select.EPOLLIN)
    while True:
        for connection in connections:
            if not stop.is_set():
                connection.fill()
            connection.send()
        if not any(connection.pending for connection in connections):
            break
        # What a socket did not take is tried again soon.
        events = poll.poll(0.01 if any(connection.output for connection in connections) else 30)
        assert events or any(connection.output for connection in connections), "no answer in 30 s"
        for fd, _ in events:
            by_fd[fd].receive()
    for connection in connections:
        connection.raw.close()


def ctl(*words):
    run = subprocess.run([HEADWORKS, "ctl", CONTROL, *words], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def switches():
    """Each in force when it is answered, and requests finish between two of them."""
    schedulers = {
        "mq-deadline": "none [mq-deadline] bfq",
        "none": "[none] mq-deadline bfq",
        "bfq": "none mq-deadline [bfq]",
    }
    for number in range(ROUNDS):
        for name, value in [
            ("scheduler", "mq-deadline"),
            ("nr_requests", 7),
            ("iosched/fifo_batch", 2 + number),
            ("max_sectors_kb", 16),
            ("nomerges", 2),
            ("scheduler", "none"),
            ("nr_requests", 100 + number),
            ("nomerges", 0),
            ("iosched/fifo_batch", 16),
            ("scheduler", "mq-deadline"),
            ("max_sectors_kb", 1280),
            ("nomerges", 1),
            ("scheduler", "none"),
        ]:
            before = finished
            path = f"hw0/queue/{name}"
            ctl("set", path, str(value))
            found = ctl("get", path)
            assert found == schedulers.get(value, str(value)), (path, value, found)
            while finished - before < PROGRESS:
                assert not stop.wait(0.005), "the load has ended"


@case
def _():
    """200 connections with four requests each find every byte through 52 switches"""
    problems = []

    def switch():
        try:
            switches()
        except BaseException as problem:
            problems.append(problem)
        stop.set()

    thread = threading.Thread(target=switch)
    thread.start()
    try:
        load()
    finally:
        stop.set()
        thread.join()
    if problems:
        raise problems[0]
    assert all(counts.values()) and finished >= ROUNDS * 13 * PROGRESS, counts


names = {READ: "reads", WRITE: "writes", WRITE_ZEROES: "zeroings", FLUSH: "flushes"}
print("# " + ", ".join(f"{count} {names[command]}" for command, count in counts.items()))
with open(EXPECTED, "wb") as file:
    file.write(model)
done()
