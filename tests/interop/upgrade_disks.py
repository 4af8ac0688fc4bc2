"""Upgrades and restarts with random changes of configuration and images between, under clients that verify whose bytes they read.

Each block carries the number of the image that it belongs to. A model says which clients may go on: those whose export leads to the disk
that they opened. With others connected an upgrade is refused; they disconnect, and it is carried out, or a restart closes them.
"""

import os
import random
import struct
import subprocess
import threading

import rawnbd
from replaced import BLOCK, DIR, IMAGES, MIB, SERVER, Manager, Server, until
from tap import case, done

CHANGES, SEED = int(os.environ["DISK_CHANGES"]), int(os.environ.get("SEED") or random.randrange(1 << 32))
BLOCKS, PER_EXPORT = 64, 2
# Clients stay within the first quarter of MiB: the rest grows and shrinks.
SIZE, SHORT, LONG = 2 * MIB, MIB, 3 * MIB
choice = random.Random(SEED)


def content(image, block, version):
    return struct.pack(">8sIIQQ", b"headwork", image, block, version, ~version & (1 << 64) - 1) * (BLOCK // 32)


class Image:
    """One image, whatever its path is; its files are kept under a second name for the end."""

    made = []

    def __init__(self, path, kind):
        self.number, self.kind, self.size = len(Image.made), kind, SIZE
        Image.made.append(self)
        # By block: versions that may be found there.
        self.versions = {block: {0} for block in range(BLOCKS)}
        raw = self.kept = os.path.join(IMAGES, f"kept-{self.number}")
        with open(raw, "wb") as file:
            file.write(b"".join(content(self.number, block, 0) for block in range(BLOCKS)))
            file.truncate(SIZE)
        if kind == "overlay":
            self.kept = raw + ".hwo"
            create = [SERVER, "image", "create", "--base", raw, self.kept]
            subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
        self.take(path)

    def take(self, path):
        """Puts the image at a path, in place of what was there."""
        os.link(self.kept, path + ".new")
        os.rename(path + ".new", path)

    def resize(self, size):
        os.truncate(self.kept, size)
        self.size = size

    def is_own(self, data, block):
        return data in [content(self.number, block, version) for version in self.versions[block]]


class Export:
    """An export of the configuration."""

    def __init__(self, path, kind):
        self.path, self.kind, self.read_only, self.delay = path, kind, False, False

    def table(self, name):
        wrap = 'wrap = [{ delay = { read = "10us" } }]\n' if self.delay else ""
        read_only = "read-only = true\n" if self.read_only else ""
        return f'[[export]]\nname = "{name}"\n{wrap}{read_only}{self.kind} = {{ path = "{self.path}" }}\n'


class Model:
    """The configuration, and which image is at which path."""

    def __init__(self):
        self.exports, self.at, self.names, self.moves = {}, {}, 0, 0
        for number in range(6):
            kind = "overlay" if number > 3 else "file"
            path = os.path.join(IMAGES, f"disk-{number}.img")
            self.at[path] = Image(path, kind)
            self.add(Export(path, kind))

    def add(self, export):
        self.names += 1
        self.exports[f"d{self.names}"] = export

    def write(self, path):
        with open(path, "w") as file:
            file.write("".join(export.table(name) for name, export in self.exports.items()))

    def change(self):
        """One random change; returns its name."""
        name = choice.choice(list(self.exports))
        export = self.exports[name]
        image = self.at[export.path]
        what = choice.choice("rename swap replace shrink grow delete remove add read-only delay move none".split())
        if what == "rename":
            self.add(self.exports.pop(name))
        elif what == "swap":
            other = choice.choice([other for other in self.exports.values() if other.kind == export.kind])
            export.path, other.path = other.path, export.path
        elif what == "replace":
            self.at[export.path] = Image(export.path, export.kind)
        elif what in ("shrink", "grow") and image and export.kind == "file":
            image.resize(SHORT if what == "shrink" else LONG)
        elif what == "delete" and image:
            os.unlink(export.path)
            self.at[export.path] = None
        elif what == "remove" and len(self.exports) > 3:
            del self.exports[name]
        elif what == "add":
            free = [path for path in self.at if path not in {used.path for used in self.exports.values()}]
            if free:
                path = choice.choice(free)
                kind = self.at[path].kind if self.at[path] else "file"
                self.add(Export(path, kind))
        elif what == "read-only":
            export.read_only = not export.read_only
        elif what == "delay":
            export.delay = not export.delay
        elif what == "move" and image:
            # The same image at another path, and the export follows it.
            self.moves += 1
            path = os.path.join(IMAGES, f"moved-{self.moves}.img")
            os.rename(export.path, path)
            self.at[path] = self.at.pop(export.path)
            export.path = path
        return what

    def image_of(self, name):
        export = self.exports.get(name)
        return export and self.at[export.path]


class Client(threading.Thread):
    """Reads and writes an image's blocks until it is told to end, or disconnected; it alone writes its blocks."""

    def __init__(self, server, name, image, export, share):
        super().__init__(daemon=True)
        self.name_of_export, self.image, self.read_only, self.share = name, image, export.read_only, share
        self.connection, self.size = server.client(name.encode()), image.size
        self.random = random.Random(choice.random())
        self.leaves, self.closed, self.wrong, self.done = threading.Event(), False, None, 0
        self.start()

    def run(self):
        try:
            while not self.leaves.is_set():
                self.step()
            self.connection.request(rawnbd.FLUSH, 5, 0, 0)
            assert self.connection.reply() == (0, 5)
            self.connection.request(rawnbd.DISC, 6, 0, 0)
        except (EOFError, ConnectionError):
            self.closed = True
        except Exception as error:
            self.wrong = repr(error)
        self.connection.close()

    def step(self):
        block = self.random.randrange(BLOCKS)
        if block % PER_EXPORT == self.share and not self.read_only and self.random.random() < 0.5:
            versions = self.image.versions[block]
            version = max(versions) + 1
            versions.add(version)
            self.connection.write(block * BLOCK, content(self.image.number, block, version))
            self.image.versions[block] = {version}
        else:
            # Another client may write it meanwhile: what it was, or what it becomes.
            before = set(self.image.versions[block])
            data = self.connection.read(block * BLOCK, BLOCK)
            between = range(min(before), max(self.image.versions[block]) + 1)
            fits = any(data == content(self.image.number, block, version) for version in between)
            assert fits, f"{self.name_of_export}: block {block} of image {self.image.number} reads {data[:32]!r}"
        self.done += 1

    def may_go_on(self, model):
        """Whether the export leads to the disk that this client opened, as it opened it."""
        export = model.exports.get(self.name_of_export)
        is_same = export and model.at[export.path] is self.image and export.read_only == self.read_only
        return bool(is_same) and self.image.size >= self.size

    def leave(self):
        self.leaves.set()
        self.join(60)
        assert not self.is_alive() and not self.closed and not self.wrong, self.wrong or "it was disconnected"


class Run:
    def __init__(self):
        self.config, self.model = os.path.join(DIR, "disks.toml"), Model()
        self.manager = Manager("disks", 64)
        self.model.write(self.config)
        self.server, self.clients = self.serve(), []
        self.counts = {"upgraded": 0, "refused": 0, "restarted": 0, "closed": 0}

    def serve(self):
        return Server("disks", "--config", self.config, "--cache", "16M", kept=False, manager=self.manager)

    def connect(self):
        for name, export in self.model.exports.items():
            image = self.model.image_of(name)
            there = [client.share for client in self.clients if client.name_of_export == name]
            for share in range(PER_EXPORT):
                if image and share not in there:
                    self.clients.append(Client(self.server, name, image, export, share))

    def disconnect(self, clients):
        for client in clients:
            client.leave()
            self.clients.remove(client)
        counts = lambda: sum(row["clients"] for row in self.server.ctl("exports"))
        until("they have left", lambda: counts() == len(self.clients))

    def moved(self):
        """Every client uses what its export has now, and cannot go back to less."""
        for client in self.clients:
            client.size = client.image.size

    def all_work(self):
        """Every client answers, and has seen no foreign byte."""
        before = [(client, client.done) for client in self.clients]
        moved = lambda: all(client.done > done + 3 or not client.is_alive() for client, done in before)
        until("every client goes on", moved)
        for client, _ in before:
            assert client.is_alive(), (client.name_of_export, client.wrong or "it was disconnected", self.server.said()[-2000:])

    def upgrade(self, affected):
        if not affected:
            self.server.upgrade()
            self.counts["upgraded"] += 1
            self.moved()
            return
        said = self.server.ctl("upgrade", ok=False)
        names = {client.name_of_export for client in affected}
        assert "the old process serves on" in said and any(f"export {name} has clients" in said for name in names), (said, names)
        self.counts["refused"] += 1

    def restart(self, affected):
        self.server.stop()
        self.server = self.serve()
        for client in affected:
            client.join(60)
            assert client.closed, (client.name_of_export, client.wrong, self.server.said()[-2000:])
            self.clients.remove(client)
        self.moved()
        self.counts["restarted"] += 1
        self.counts["closed"] += len(affected)

    def round(self):
        changes = [self.model.change() for _ in range(choice.randint(1, 3))]
        self.model.write(self.config)
        affected = lambda: [client for client in self.clients if not client.may_go_on(self.model)]
        if choice.random() < 0.3:
            self.disconnect(affected())
        if choice.random() < 0.8:
            refused = affected()
            self.upgrade(refused)
            self.all_work()
            if refused and choice.random() < 0.6:
                self.disconnect(refused)
                self.upgrade([])
            elif refused:
                self.restart(refused)
        else:
            self.restart(affected())
        self.all_work()
        self.connect()
        self.all_work()
        return changes


@case
def disks_stay_with_their_clients():
    """No connection reads or writes another disk, whatever changes between upgrades and restarts"""
    run = Run()
    run.connect()
    history = []
    try:
        for _ in range(CHANGES):
            history.append(run.round())
    except Exception:
        print(f"# seed {SEED}, changes {history[-3:]}, {run.counts}", flush=True)
        raise
    run.disconnect(list(run.clients))
    run.server.stop()
    left = [name for name in os.listdir(IMAGES) if name.endswith((".headworks-dirty", ".headworks-recovery"))]
    assert not left, left
    # A byte of another image would have the other one's number.
    for image in Image.made:
        with open(os.path.join(IMAGES, f"kept-{image.number}"), "rb") as file:
            for block in range(BLOCKS):
                data = file.read(BLOCK)
                wanted = image.is_own(data, block) if image.kind == "file" else data == content(image.number, block, 0)
                assert wanted, f"image {image.number}, block {block}: {data[:32]!r}"
    print(f"# {CHANGES} changes of {len(Image.made)} images, seed {SEED}: {run.counts}", flush=True)


done()
