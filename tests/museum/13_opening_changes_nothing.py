"""https://github.com/cloud-hypervisor/cloud-hypervisor/issues/6354 and https://github.com/cloud-hypervisor/cloud-hypervisor/issues/8606

Opening a qcow2 image changed a flag in it, and one with compressed clusters that had been resized was corrupted later.

It would fail if serving an image of any of these kinds changed a byte or the time of the file, or read something else than qemu-img.
"""

import hashlib

from museum import *

raw = file("raw", blob(13, 3 * MIB + 512))
KINDS = {
    "compressed": ["-c"],
    "lazy": ["-o", "lazy_refcounts=on"],
    "small": ["-o", "cluster_size=512"],
    "large": ["-o", "cluster_size=2M"],
    "old": ["-o", "compat=0.10"],
}
for kind, options in KINDS.items():
    path = f"{DIR}/{kind}.qcow2"
    subprocess.run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", *options, raw, path], check=True)
    subprocess.run(["qemu-img", "resize", "-q", path, "+68M"], check=True)
    before, times = hashlib.sha256(content(path)).hexdigest(), os.stat(path).st_mtime_ns
    server = Server(f"qcow2:path={path}")
    handle = server.connect()
    size = handle.get_size()
    found = bytes(handle.pread(3 * MIB + 512, 0))
    assert not any(handle.pread(65536, size - 65536))
    server.stop()
    same_bytes(found, content(raw))
    check(f"{kind}: read as it is, and left as it was", (hashlib.sha256(content(path)).hexdigest(), os.stat(path).st_mtime_ns) == (before, times))
done()
