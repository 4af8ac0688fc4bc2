"""Images of one point in time: `freeze` and `thaw` beside a client that writes numbered records to two exports of two shards all the
time, and what waits, changes and ends meanwhile.

A record is a block that holds its number; it is written and flushed to export `a` and then to `b`. So a copy is of one point in time if
it has every record that was acknowledged when the freeze was, whole and in order, and no newer one."""

import struct
import sys
import threading
import time

import ctl_client
import rawnbd
import tap

control, uri_a, uri_b, image_a, image_b, image_slow, log = sys.argv[1:]
BLOCK, SLOTS = 4096, 64


def rpc(method, **params):
    return ctl_client.Client(control).ask(method, **params)


def must(method, **params):
    answer = rpc(method, **params)
    assert "result" in answer, answer
    return answer["result"]


def refused(errno, part, method, **params):
    error = rpc(method, **params).get("error", {})
    assert error.get("data", {}).get("errno") == errno and part in error["message"], error


def wait_for(condition, what):
    limit = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < limit, f"no {what} within 20 s"
        time.sleep(0.005)


def contents(path):
    with open(path, "rb") as image:
        return image.read()


class Records(threading.Thread):
    """Writes record after record until it is told to stop; `acked` is the newest that is in both exports."""

    def __init__(self):
        super().__init__(daemon=True)
        self.exports = [rawnbd.Raw(uri).go(name)[0] for uri, name in ((uri_a, b"a"), (uri_b, b"b"))]
        self.acked, self.stopping, self.failure = 0, False, None

    def run(self):
        try:
            while not self.stopping:
                number = self.acked + 1
                block = struct.pack(">Q", number) * (BLOCK // 8)
                for export in self.exports:
                    export.write(number % SLOTS * BLOCK, block)
                    export.request(rawnbd.FLUSH, 5, 0, 0)
                    assert export.reply() == (0, 5)
                self.acked = number
        except Exception as failure:
            self.failure = failure

    def end(self):
        self.stopping = True
        self.join(20)
        assert not self.is_alive() and self.failure is None, self.failure


def newest(copy):
    """The newest record of a copy; all before it must be there, whole."""
    numbers = []
    for slot in range(SLOTS):
        words = set(struct.unpack(f">{BLOCK // 8}Q", copy[slot * BLOCK:][:BLOCK]))
        assert len(words) == 1, f"a torn block in slot {slot}: {sorted(words)}"
        numbers.append(words.pop())
    last = max(numbers)
    for slot, number in enumerate(numbers):
        # The newest record up to the last one that goes into this slot; none is 0.
        wanted = last - (last - slot) % SLOTS
        assert number == max(wanted, 0), f"slot {slot} has record {number} instead of {wanted}, the last is {last}"
    return last


records = Records()
records.start()


def states():
    return {row["name"]: row["state"] for row in must("exports")}


@tap.case
def points_in_time():
    """copies under frozen exports have all that was acknowledged, in order, and do not change"""
    for round_ in range(5):
        wait_for(lambda: records.acked > 20 * (round_ + 1), "new records")
        before = records.acked
        told = must("freeze", exports=["a", "b"] if round_ else ["?"], timeout=60)
        acked = records.acked
        assert told["exports"] == ["a", "b"] and told["timeout"] == 60, told
        copies = [contents(image) for image in (image_a, image_b)]
        last_a, last_b = (newest(copy) for copy in copies)
        # One record may have been accepted and not acknowledged; in `b` only after it was in `a`.
        assert before <= acked <= last_b <= last_a <= acked + 1, (before, acked, last_b, last_a)
        assert states() == {"a": "frozen", "b": "frozen", "slow": "serving"}, states()
        # Reads, flushes and `drain` go on, and change nothing.
        with_read = rawnbd.Raw(uri_b).go(b"b")[0]
        assert with_read.read(0, SLOTS * BLOCK) == copies[1][:SLOTS * BLOCK]
        with_read.request(rawnbd.FLUSH, 9, 0, 0)
        assert with_read.reply() == (0, 9)
        with_read.close()
        must("drain")
        assert [contents(image) for image in (image_a, image_b)] == copies
        must("thaw", exports=["a", "b"])
        wait_for(lambda: records.acked > acked + 1, "record after the thaw")
    assert set(states().values()) == {"serving"}


@tap.case
def refusals():
    """a frozen export is not frozen again, removed, resized or handed over; options change"""
    must("freeze", exports=["a"], timeout=60)
    refused("EBUSY", "frozen already", "freeze", exports=["b", "a"])
    assert states() == {"a": "frozen", "b": "serving", "slow": "serving"}, "none is frozen if one cannot be"
    refused("EBUSY", "thaw a", "remove", export="a", force=True)
    refused("EBUSY", "thaw a", "resize", export="a", size="+1M")
    error = rpc("upgrade").get("error", {})
    assert "a is frozen" in error.get("message", ""), error
    must("set", path="exports/a/weight", value="200")
    assert states()["a"] == "frozen"
    must("thaw", exports=["a"])
    refused("EINVAL", "not frozen: a", "thaw", exports=["a"])
    refused("ENOENT", "no export", "freeze", exports=["none"])
    refused("ENOENT", "no export fits x-*", "thaw", exports=["x-*"])
    for wrong in (0, -1, 3601, "long"):
        refused("EINVAL", "timeout", "freeze", exports=["a"], timeout=wrong)


@tap.case
def time_limit():
    """a forgotten freeze ends by itself, is logged, and its thaw says so"""
    must("freeze", exports=["a", "b"], timeout=1)
    acked = records.acked
    wait_for(lambda: records.acked > acked + 1, "record after the time limit")
    refused("ETIMEDOUT", "not of one point in time", "thaw", exports=["a", "b"])
    refused("EINVAL", "not frozen", "thaw", exports=["a", "b"])
    with open(log, encoding="utf-8") as lines:
        text = lines.read()
    assert text.count("the freeze ended by itself after 1.000 s") == 2, text


@tap.case
def every_change_waits():
    """trims and zeroes wait as writes do, several exports of one image are one, and why says so"""
    must("add", spec=f"twin={image_a}")
    # Something that a trim would change.
    before = rawnbd.Raw(uri_a).go(b"a")[0]
    before.write(SLOTS * BLOCK, b"y" * 2 * BLOCK)
    before.close()
    must("freeze", exports=["twin"], timeout=60)
    frozen_at = time.monotonic()
    copy = contents(image_a)
    clients = []
    for number, command in enumerate((rawnbd.TRIM, rawnbd.WRITE_ZEROES, rawnbd.WRITE)):
        data = b"x" * BLOCK if command == rawnbd.WRITE else b""
        client = rawnbd.Raw(uri_a).go((b"a", b"twin")[number % 2])[0]
        # In one piece with a read before it: when that is answered, the change was looked at.
        read = rawnbd.header(rawnbd.READ, 1, 0, BLOCK)
        client.send(read + rawnbd.header(command, 2, (SLOTS + number) * BLOCK, BLOCK) + data)
        assert client.reply() == (0, 1)
        client.receive(BLOCK)
        clients.append(client)
    must("drain")
    assert contents(image_a) == copy and states()["a"] == "frozen"
    # Longer than a busy disk takes for all slow writes together: why names the longest wait.
    wait_for(lambda: time.monotonic() - frozen_at > 2, "end of two seconds")
    must("thaw", exports=["a"])
    for client in clients:
        assert client.reply() == (0, 2)
        assert client.read((SLOTS + 2) * BLOCK, BLOCK) in (b"x" * BLOCK, copy[(SLOTS + 2) * BLOCK:][:BLOCK])
        client.close()
    assert rawnbd.Raw(uri_a).go(b"a")[0].read((SLOTS + 2) * BLOCK, BLOCK) == b"x" * BLOCK
    why = must("why", export="a", op="write")
    assert why["stages"]["limit"]["requests"] > 0 and "a freeze" in why["sentence"], why
    must("remove", export="twin", force=True)


@tap.case
def in_flight():
    """a freeze waits for writes that the device has, and they are in the copy"""
    client = rawnbd.Raw(uri_a).go(b"slow")[0]
    client.send(rawnbd.header(rawnbd.READ, 1, 0, BLOCK) + rawnbd.header(rawnbd.WRITE, 2, 0, BLOCK) + b"z" * BLOCK)
    # A cache may answer the write first; the image does not have it then.
    is_written = client.reply() == (0, 2)
    assert not is_written or client.reply() == (0, 1)
    client.receive(BLOCK)
    must("freeze", exports=["slow"], timeout=60)
    assert contents(image_slow)[:BLOCK] == b"z" * BLOCK
    assert is_written or client.reply() == (0, 2)
    client.close()
    must("thaw", exports=["slow"])


@tap.case
def left_clients():
    """what a client that has left had waiting is dropped"""
    offset, clients = (SLOTS + 8) * BLOCK, must("exports")[0]["clients"]
    must("freeze", exports=["a"], timeout=60)
    leaver = rawnbd.Raw(uri_a).go(b"a")[0]
    leaver.send(rawnbd.header(rawnbd.READ, 1, 0, BLOCK) + rawnbd.header(rawnbd.WRITE, 2, offset, BLOCK) + b"s" * BLOCK)
    assert leaver.reply() == (0, 1)
    leaver.receive(BLOCK)
    leaver.close()
    must("thaw", exports=["a"])
    wait_for(lambda: must("exports")[0]["clients"] == clients, "end of the connection")
    other = rawnbd.Raw(uri_a).go(b"a")[0]
    assert other.read(offset, BLOCK) == bytes(BLOCK)
    other.close()


records.end()
tap.done()
