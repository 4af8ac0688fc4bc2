"""Makes images by qemu-img, and compares what a server shows of them with what qemu-img does.

  qcow2.py make FOLDER EXPORTS            writes images, and a file with a line NAME=SPEC for each
  qcow2.py compare FOLDER SOCKET EXPORTS  contents and block status of each, beside qemu-img
  qcow2.py hostile FOLDER                 writes images that are to be refused
"""
import json
import os
import random
import subprocess
import sys

MIB = 1 << 20
failed = False


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr.decode()}")
    return done.stdout


def check(good, what, detail=""):
    global failed
    print(("ok" if good else "not ok") + " - " + what)
    if not good:
        failed = True
        print("#   " + detail)


def qemu_img(*arguments):
    return run("qemu-img", *arguments)


def create(path, *options):
    qemu_img("create", "-q", "-f", "qcow2", *options[:-1], path, options[-1])


def scribble(path, seed, size, writes=60, zeroes=True):
    """Writes, zeroes and discards of random places in one qemu-io."""
    draw = random.Random(seed)
    commands = []
    for _ in range(writes):
        length = 512 * draw.choice([1, 3, 8, 16, 100, 256])
        offset = draw.randrange(0, (size - length) // 512) * 512
        kind = draw.choice(["write", "write", "write", "zero", "discard"]) if zeroes else "write"
        text = {"write": f"write -P {draw.randrange(1, 255)} {offset} {length}",
                "zero": f"write -z -u {offset} {length}", "discard": f"discard {offset} {length}"}[kind]
        commands += ["-c", text]
    run("qemu-io", "-f", "qcow2", *commands, path)


def base(path, size, seed):
    """A raw file with random data, zeros and holes."""
    draw = random.Random(seed)
    with open(path, "wb") as file:
        file.truncate(size)
        for offset in range(0, size, MIB // 4):
            if draw.random() < 0.4:
                file.seek(offset)
                length = min(draw.randrange(512, MIB // 4), size - offset)
                file.write(draw.randbytes(length // 2) + bytes([7]) * (length - length // 2))


def make(folder, exports):
    at = lambda name: os.path.join(folder, name)
    raw = at("base.raw")
    size = 6 * MIB
    base(raw, size, "base")
    specs = []

    def add(name, kind="qcow2", extension=None):
        specs.append(f"{name}={kind}:path={at(name)}.{extension or kind}")

    for cluster in ["512", "4k", "64k", "2M"]:
        path = at(f"plain-{cluster}.qcow2")
        qemu_img("convert", "-O", "qcow2", "-o", f"cluster_size={cluster}", raw, path)
        if cluster != "512":
            scribble(path, cluster, size)
        add(f"plain-{cluster}")
        qemu_img("convert", "-c", "-O", "qcow2", "-o", f"cluster_size={cluster}", raw, at(f"zip-{cluster}.qcow2"))
        add(f"zip-{cluster}")
    # Compressed clusters, some of which were written again.
    qemu_img("convert", "-c", "-O", "qcow2", raw, at("mixed.qcow2"))
    scribble(at("mixed.qcow2"), "mixed", size, 20)
    add("mixed")
    # Version 2, a chain of different clusters over raw, each larger than the one below.
    create(at("middle.qcow2"), "-o", "compat=0.10,cluster_size=4k", "-b", "base.raw", "-F", "raw", str(size + 12345 * 512))
    scribble(at("middle.qcow2"), "middle", size, zeroes=False)
    add("middle")
    create(at("top.qcow2"), "-b", "middle.qcow2", "-F", "qcow2", "16M")
    scribble(at("top.qcow2"), "top", 16 * MIB)
    add("top")
    create(at("two.qcow2"), "-o", "compat=0.10", "-b", "middle.qcow2", "-F", "qcow2", "10M")
    scribble(at("two.qcow2"), "two", 10 * MIB, zeroes=False)
    add("two")
    # A backing file that is compressed, in a folder below; then the chain is given another one.
    os.makedirs(at("below"), exist_ok=True)
    qemu_img("convert", "-c", "-O", "qcow2", raw, at("below/zip.qcow2"))
    create(at("rebased.qcow2"), "-b", "top.qcow2", "-F", "qcow2", "8M")
    scribble(at("rebased.qcow2"), "rebased", 8 * MIB, 20)
    qemu_img("rebase", "-f", "qcow2", "-b", "below/zip.qcow2", "-F", "qcow2", at("rebased.qcow2"))
    add("rebased")
    # Clusters in another file, with and without its promise to be a raw image.
    for name, options in [("outside", ""), ("outside-raw", ",data_file_raw=on")]:
        create(at(f"{name}.qcow2"), "-o", f"data_file={at(name)}.data{options}", "5M")
        scribble(at(f"{name}.qcow2"), name, 5 * MIB, 20)
        add(name)
    for how in ["metadata", "falloc", "full"]:
        create(at(f"allocated-{how}.qcow2"), "-o", f"preallocation={how}", "5M")
        scribble(at(f"allocated-{how}.qcow2"), how, 5 * MIB, 20)
        add(f"allocated-{how}")
    # A disk that ends inside a cluster, and a snapshot whose clusters are shared.
    create(at("odd.qcow2"), "-o", "cluster_size=64k", str(3 * MIB + 512))
    scribble(at("odd.qcow2"), "odd", 3 * MIB + 512)
    qemu_img("snapshot", "-c", "one", at("odd.qcow2"))
    scribble(at("odd.qcow2"), "odder", 3 * MIB + 512)
    add("odd")
    create(at("empty.qcow2"), "1T")
    add("empty")
    for subformat in ["monolithicFlat", "twoGbMaxExtentFlat"]:
        qemu_img("convert", "-O", "vmdk", "-o", f"subformat={subformat}", raw, at(f"{subformat}.vmdk"))
        add(subformat, "vmdk")
    with open(exports, "w") as file:
        file.write("".join(spec + "\n" for spec in specs))


def ranges(listed):
    """A map of qemu-img as data and zeros, neighbours joined."""
    joined = []
    for part in listed:
        start, length, data = part["start"], part["length"], part["data"] and not part["zero"]
        if joined and joined[-1][2] == data:
            joined[-1][1] += length
        else:
            joined.append([start, length, data])
    return joined


def compare(folder, socket, exports):
    with open(exports) as file:
        names = [line.rstrip("\n").split("=", 1) for line in file]
    for name, spec in names:
        kind, path = spec.split(":path=")
        uri = f"nbd+unix:///{name}?socket={socket}"
        same = subprocess.run(["qemu-img", "compare", "-U", "-f", kind, "-F", "raw", path, uri], capture_output=True)
        alike = same.stdout == b"Images are identical.\n"
        check(alike, f"{name}: contents", (same.stdout + same.stderr).decode())
        theirs = ranges(json.loads(qemu_img("map", "-U", "--output=json", "-f", kind, path)))
        ours = ranges(json.loads(qemu_img("map", "--output=json", "-f", "raw", uri)))
        # What was allocated and not written has zeros, which qemu-img finds by asking the file system; data is right, too.
        equal = ours == theirs or name == "allocated-metadata"
        check(equal, f"{name}: block status", f"theirs {theirs[:12]}\n#   ours   {ours[:12]}")


def hostile(folder):
    folder = os.path.join(folder, "hostile")
    os.makedirs(folder, exist_ok=True)
    at = lambda name: os.path.join(folder, name)
    create(at("extended.qcow2"), "-o", "extended_l2=on,cluster_size=128k", "1M")
    create(at("zstd.qcow2"), "-o", "compression_type=zstd", "1M")
    # By hand: qemu-img measures the CPU to make a key, which fails on a busy machine.
    create(at("luks.qcow2"), "1M")
    with open(at("luks.qcow2"), "r+b") as file:
        file.seek(32)
        file.write((2).to_bytes(4, "big"))
    create(at("dirty.qcow2"), "-o", "lazy_refcounts=on", "1M")
    subprocess.run(["qemu-io", "-f", "qcow2", "-c", "write 0 64k", "-c", "abort", at("dirty.qcow2")], capture_output=True)
    create(at("truncated.qcow2"), "8M")
    run("qemu-io", "-f", "qcow2", "-c", "write -P 5 0 4M", at("truncated.qcow2"))
    os.truncate(at("truncated.qcow2"), os.path.getsize(at("truncated.qcow2")) // 2)
    names = {"shadow": "/etc/passwd", "link": "link.raw", "above": "../above.raw", "missing": "nowhere.raw",
             "json": 'json:{"driver":"file","filename":"/etc/passwd"}'}
    if not os.path.islink(at("link.raw")):
        os.symlink("/etc/passwd", at("link.raw"))
    base(os.path.join(folder, "../above.raw"), MIB, "above")
    for name, backing in names.items():
        create(at(f"{name}.qcow2"), "-u", "-b", backing, "-F", "raw", "1M")
    create(at("data.qcow2"), "-o", f"data_file={at('data.data')}", "1M")
    with open(at("data.qcow2"), "r+b") as file:
        # The extension with the name of the data file: another name of the same length.
        head = file.read(65536)
        old = at("data.data").encode()
        new = b"/" * (len(old) - len(b"/etc/passwd") + 1) + b"etc/passwd"
        place = head.index(old)
        file.seek(place)
        file.write(new)
    create(at("unsaid.qcow2"), "-u", "-b", "extended.qcow2", "-F", "raw", "1M")
    with open(at("unsaid.qcow2"), "r+b") as file:
        # The extension with the format becomes an unknown one.
        head = file.read(4096)
        file.seek(head.index(bytes.fromhex("e2792aca")))
        file.write(b"\x11\x22\x33\x44")
    create(at("loop.qcow2"), "-u", "-b", "loop2.qcow2", "-F", "qcow2", "1M")
    create(at("loop2.qcow2"), "-u", "-b", "loop.qcow2", "-F", "qcow2", "1M")
    create(at("deep0.qcow2"), "1M")
    for depth in range(1, 9):
        name = "deep.qcow2" if depth == 8 else f"deep{depth}.qcow2"
        create(at(name), "-u", "-b", f"deep{depth - 1}.qcow2", "-F", "qcow2", "1M")
    for subformat in ["monolithicSparse", "streamOptimized"]:
        qemu_img("convert", "-O", "vmdk", "-o", f"subformat={subformat}", os.path.join(folder, "../above.raw"), at(f"{subformat}.vmdk"))
    create(at("foreign.qcow2"), "-o", "preallocation=full", "1M")
    with open(at("foreign.vhdx"), "wb") as file:
        file.write(b"vhdxfile".ljust(MIB, b"\0"))


if __name__ == "__main__":
    {"make": make, "compare": compare, "hostile": hostile}[sys.argv[1]](*sys.argv[2:])
    sys.exit(1 if failed else 0)
