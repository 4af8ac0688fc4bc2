"""Replaces servers while clients use them. Every case starts its own server and ends it."""

import json
import os
import random
import signal
import subprocess
import time

import rawnbd
from replaced import BLOCK, DIR, IMAGES, MEMORY, MIB, SERVER, Manager, Server, alive, until
from tap import case, done

UPGRADES = int(os.environ["UPGRADES"])


def bench(server, *options):
    command = [SERVER, "bench", "--uri", f"nbd+unix:///?socket={server.socket}", "--json", "--overwrite", *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@case
def under_load():
    """64 clients verify every byte through upgrades in a row, and nothing grows"""
    server = Server("load", "--cache", "64M")
    load = bench(server, "--rw", "randrw", "--verify", "--fill", "--threads", "64", "--iodepth", "2", "--size", "48M", "--runtime", f"{3 + UPGRADES}s")
    client = server.client()
    until("the load has begun", lambda: server.ctl("exports")[0]["clients"] == 65)
    descriptors, resident, pauses = [], [], []
    for _ in range(UPGRADES):
        answer = server.upgrade()
        pauses.append(answer["paused_ms"])
        until("all clients are there", lambda: server.ctl("exports")[0]["clients"] == 65)
        descriptors.append(server.descriptors())
        resident.append(server.resident())
    out, err = load.communicate(timeout=120)
    assert load.returncode == 0, (err, server.said()[-3000:])
    # A control client comes and goes, and so do its descriptors.
    assert max(descriptors[1:]) <= descriptors[0] + 4, descriptors
    assert max(resident[1:]) <= resident[0] * 1.25 + 4 * MIB, resident
    helpers = subprocess.run(["pgrep", "-f", f"serve-spawner .*{server.socket}"], capture_output=True, text=True).stdout.split()
    assert len(helpers) == 1, f"one helper of the last process, not {helpers}"
    assert len(os.listdir(MEMORY)) == 1, os.listdir(MEMORY)
    client.write(0, b"x" * BLOCK)
    client.close()
    server.stop()
    with open(server.image, "rb") as image:
        assert image.read(BLOCK) == b"x" * BLOCK
    assert os.listdir(MEMORY) == [], "a clean stop leaves no memory"
    result = json.loads(out)
    print(f"# {UPGRADES} upgrades, paused {min(pauses)} to {max(pauses)} ms; load: {json.dumps(result)[:400]}", flush=True)


@case
def cache_stays_warm():
    """The cache is as warm as before: no block that was cached is read again"""
    server = Server("warm", "--cache", "64M")
    client = server.client()
    for offset in range(0, 32 * MIB, MIB):
        client.read(offset, MIB)
    server.upgrade()
    for offset in range(0, 32 * MIB, MIB):
        client.read(offset, MIB)
    cache = server.ctl("stats")["cache"]
    assert cache["misses"] == 0 and cache["hits"] > 0, cache
    client.close()
    server.stop()


@case
def by_signal():
    """SIGUSR2 does the same; a half-sent request goes on at its next byte"""
    server = Server("signal")
    client = server.client()
    wire = rawnbd.header(rawnbd.WRITE, 7, 0, BLOCK) + b"s" * BLOCK
    client.send(wire[:1000])
    old = server.pid
    os.kill(old, signal.SIGUSR2)
    until("another process serves", lambda: server.named_pid() not in (0, old))
    server.follow(server.named_pid())
    client.send(wire[1000:])
    assert client.reply() == (0, 7)
    assert client.read(0, BLOCK) == b"s" * BLOCK
    client.close()
    server.stop()


@case
def without_memory():
    """Without memory that can be handed over everything is written out first"""
    server = Server("anonymous", kept=False)
    client = server.client()
    client.write(0, b"a" * BLOCK)
    server.upgrade()
    with open(server.image, "rb") as image:
        assert image.read(BLOCK) == b"a" * BLOCK
    assert client.read(0, BLOCK) == b"a" * BLOCK
    client.close()
    server.stop()


@case
def overlays_move():
    """Overlays move while 8 clients verify every byte, with and without a cache, and so do layers that were kept in between"""
    for cache in ("0", "16M"):
        base, overlay = (os.path.join(IMAGES, name) for name in (f"golden{cache}.img", f"tenant{cache}.hwo"))
        with open(base, "wb") as image:
            image.truncate(16 * MIB)
        create = [SERVER, "image", "create", "--base", base, overlay]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
        server = Server("layers" + cache, "--cache", cache, spec="overlay:path=" + overlay)
        load = bench(server, "--rw", "randrw", "--verify", "--fill", "--threads", "8", "--iodepth", "4", "--size", "8M", "--runtime", "2s")
        until("the load has begun", lambda: server.ctl("exports")[0]["clients"] == 8)
        client = server.client()
        for number in range(3):
            client.write(12 * MIB + number * BLOCK, bytes([65 + number]) * BLOCK)
            server.upgrade()
            server.ctl("snapshot", "default", f"kept{cache}-{number}.hwo")
        _, err = load.communicate(timeout=120)
        assert load.returncode == 0, (err, server.said()[-3000:])
        for number in range(3):
            assert client.read(12 * MIB + number * BLOCK, BLOCK) == bytes([65 + number]) * BLOCK, number
        client.close()
        server.stop()
        with open(base, "rb") as image:
            assert not any(image.read()), "the base has changed"
        subprocess.run([SERVER, "image", "check", overlay], check=True, stdout=subprocess.DEVNULL)


@case
def changes_stay():
    """What ctl has changed, and clients of an export that it has added, stay through two upgrades"""
    server = Server("changes")
    other = os.path.join(IMAGES, "changes-other.img")
    server.ctl("add", f"added=file:path={other},size=8M")
    server.ctl("set", "exports/added/weight", "300")
    client = server.client(b"added")
    for byte in (b"1", b"2"):
        client.write(0, byte * BLOCK)
        server.upgrade()
        assert client.read(0, BLOCK) == byte * BLOCK
        rows = {row["name"]: row for row in server.ctl("exports")}
        assert rows["added"]["weight"] == 300 and rows["added"]["dirty"] > 0, rows
    client.close()
    server.stop()
    with open(other, "rb") as image:
        assert image.read(BLOCK) == b"2" * BLOCK


@case
def changes_of_the_command_line():
    """What ctl has changed of exports and tenants of the command line stays, though no file can say it"""
    second = os.path.join(IMAGES, "changes-second.img")
    # After a name like this the image of the server is the second export.
    options = ["--tenant", "acme,weight=70", "--cache", "16M", "--set", "nr_requests=64", f"second=file:path={second},size=8M,tenant=acme,weight=40"]
    server = Server("changes-line", *options)
    ctl = {
        "exports/second/weight": 300,
        "exports/second/bps-write": "90M",
        "exports/second/latency-target": "70ms",
        "exports/second/dirty": "4M",
        "exports/changes-line.img/tenant": "acme",
        "tenants/acme/weight": 90,
        "tenants/acme/iops-total": "700000",
        "server/iops-read": "900000",
        "hw0/queue/nr_requests": 128,
    }
    for path, value in ctl.items():
        server.ctl("set", path, str(value))
    for _ in range(2):
        server.upgrade()
        assert {path: server.ctl("get", path)[path] for path in ctl} == ctl
        found = server.ctl("diff")
        assert {change["path"] for change in found["changes"]} >= set(ctl), found
        assert "second" not in found["text"] and "acme" not in found["text"], "for a file these are still of the command line"
    server.stop()


@case
def reload_after_upgrade():
    """A reload after an upgrade leaves alone what ctl had changed and the file does not say anew"""
    config = os.path.join(DIR, "reload.toml")
    image = os.path.join(IMAGES, "reload.img")

    def write(weight, limit, tenant_weight):
        with open(config, "w") as file:
            file.write(
                f'[server]\nlimit = ["iops-read=500K"]\n[[tenant]]\nname = "acme"\nweight = {tenant_weight}\n'
                f'[[export]]\nname = "disk"\nweight = {weight}\nbps-write = "{limit}"\n[export.file]\npath = "{image}"\nsize = "8M"\n'
            )

    ctl = {
        "exports/disk/weight": 300,
        "exports/disk/bps-write": "90M",
        "exports/disk/latency-target": "70ms",
        "exports/disk/tenant": "acme",
        "tenants/acme/weight": 70,
        "server/iops-read": "900000",
    }

    def values():
        return {path: server.ctl("get", path)[path] for path in ctl}

    def reloaded():
        before = server.said().count("configuration reloaded")
        os.kill(server.pid, signal.SIGHUP)
        until("the configuration is reloaded", lambda: server.said().count("configuration reloaded") > before)
        return values()

    write(100, "60M", 50)
    server = Server("reload", "--config", config)
    client = server.client(b"disk")
    for path, value in ctl.items():
        server.ctl("set", path, str(value))
    assert values() == ctl
    for _ in range(2):
        assert reloaded() == ctl, "without an upgrade"
        server.upgrade()
        assert values() == ctl, "the new process has what ctl had changed"
        assert reloaded() == ctl, "and keeps it"
    assert {change["path"] for change in server.ctl("diff")["changes"]} >= set(ctl)
    write(100, "60M", 60)
    assert reloaded() == ctl | {"tenants/acme/weight": 60}, "what the file says anew counts"
    write(200, "60M", 60)
    assert reloaded() == ctl | {"tenants/acme/weight": 60, "exports/disk/weight": 200}
    client.write(0, b"u" * BLOCK)
    client.close()
    server.stop()


@case
def refused():
    """A process that does not come up changes nothing: the old one says why, and serves on"""
    config = os.path.join(DIR, "refused.toml")
    image = os.path.join(IMAGES, "refused.img")

    def write(text):
        with open(config, "w") as file:
            file.write(text)

    export = f'[[export]]\nname = "disk"\n[export.file]\npath = "{image}"\n'
    write(export)
    server = Server("refused", "--config", config)
    client = server.client(b"disk")
    client.write(0, b"r" * BLOCK)
    for text, expected in (("nonsense = 1\n" + export, "nonsense"), ("[server]\ncache = \"8M\"\n" + export, "restart instead")):
        write(text)
        said = server.ctl("upgrade", ok=False)
        assert expected in said and "the old process serves on" in said, said
        assert client.read(0, BLOCK) == b"r" * BLOCK
        client.write(BLOCK, b"t" * BLOCK)
    write(export)
    server.upgrade()
    assert client.read(BLOCK, BLOCK) == b"t" * BLOCK
    client.close()
    server.stop()


@case
def restart():
    """A restart by the service manager keeps connections and the warm cache; everything is on the image in between"""
    manager = Manager("restart", 64)
    server = Server("restart", "--cache", "32M", kept=False, manager=manager)
    clients = [server.client() for _ in range(40)]
    for number, client in enumerate(clients):
        client.write(number * BLOCK, bytes([number + 1]) * BLOCK)
    for round_ in range(2):
        clients[0].send(rawnbd.header(rawnbd.READ, 9, 0, BLOCK)[:11])
        server.process.terminate()
        assert server.process.wait(60) == 0, server.said()[-2000:]
        assert "40 connections wait for the next start" in server.said(), server.said()[-2000:]
        with open(server.image, "rb") as image:
            assert image.read(40 * BLOCK) == b"".join(bytes([number + 1]) * BLOCK for number in range(40))
        left = [path for path in (server.socket, server.control, server.pid_file, server.image + ".headworks-dirty") if os.path.exists(path)]
        assert not left, left
        server = Server("restart", "--cache", "32M", kept=False, manager=manager)
        clients[0].send(rawnbd.header(rawnbd.READ, 9, 0, BLOCK)[11:])
        assert clients[0].reply() == (0, 9) and clients[0].receive(BLOCK) == b"\x01" * BLOCK
        for number, client in enumerate(clients):
            assert client.read(number * BLOCK, BLOCK) == bytes([number + 1]) * BLOCK
        cache = server.ctl("stats")["cache"]
        assert cache["misses"] == 0, cache
        until("the manager keeps the memory alone", lambda: len(manager.kept) == 1)
    # Another cache: what a stop left does not fit, and clients connect again.
    server.process.terminate()
    assert server.process.wait(60) == 0, server.said()[-2000:]
    server = Server("restart", "--cache", "16M", kept=False, manager=manager)
    assert "clients have to connect again" in server.said(), server.said()[-2000:]
    assert all(client.hung_up() for client in clients)
    client = server.client()
    assert client.read(BLOCK, BLOCK) == b"\x02" * BLOCK
    client.close()
    # Too little room: an ordinary stop.
    manager.most = 4
    server.process.terminate()
    assert server.process.wait(60) == 0
    few = Server("restart", "--cache", "16M", kept=False, manager=manager)
    clients = [few.client() for _ in range(4)]
    few.process.terminate()
    assert few.process.wait(60) == 0 and "FileDescriptorStoreMax= is 4" in few.said(), few.said()[-2000:]
    assert all(client.hung_up() for client in clients)


def children(pid):
    """Processes that `pid` has started and not waited for; none if it is gone."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:
        return []


def serves(client, block, data):
    try:
        return client.read(block * BLOCK, BLOCK) == data
    except (EOFError, ConnectionError):
        return False


@case
def killed_meanwhile():
    """kill -9 of the new process at any moment loses nothing: the old one serves on, or the next start has everything"""
    server = Server("killed", "--cache", "32M")
    choice, kept, recovered = random.Random(), 0, 0
    for round_ in range(12):
        client = server.client()
        data = bytes([round_ + 1]) * BLOCK
        client.write(round_ * BLOCK, data)
        (helper,) = children(server.pid)
        os.kill(server.pid, signal.SIGUSR2)
        found = []
        # On a busy machine the new process may have taken over before it is seen.
        until("the helper has started a process", lambda: found.extend(children(helper)) or found or not alive(server.pid), pause=0)
        if not found:
            with open(server.pid_file) as file:
                found.append(int(file.read()))
        (victim,) = found
        time.sleep(choice.uniform(0, 0.05))
        if alive(victim):
            os.kill(victim, signal.SIGKILL)
        # Its end is certain; whether the old process goes on or has left shows when it answers, or has ended.
        until("the victim has ended", lambda: not alive(victim))
        until("the old process has ended, or serves", lambda: not alive(server.pid) or serves(client, round_, data))
        # Either the old process is alive and serves, or it has left and the victim was the server.
        if alive(server.pid):
            kept += 1
            client.close()
            # It serves throughout a preparation; until it has noticed the end a further signal would be refused.
            until("the old process has given up", lambda: server.said().count("upgrade failed") == kept)
            continue
        recovered += 1
        client.close()
        os.path.exists(server.pid_file) and os.remove(server.pid_file)
        server = Server("killed", "--cache", "32M")
        with_all = server.client()
        for block in range(round_ + 1):
            assert with_all.read(block * BLOCK, BLOCK) == bytes([block + 1]) * BLOCK, f"block {block}"
        with_all.close()
    print(f"# of 12 kills the old process served on after {kept}, a new start recovered after {recovered}", flush=True)
    server.stop()


done()
