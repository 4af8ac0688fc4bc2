#!/bin/bash
# Process 1 of the guest: what a system has before anything is started, then the checks, then the power goes off.
# The kernel's command line has the folder, in which `env` says the rest; the root is the host's, by hostfs.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
. "$FOLDER/env"
# A unix socket must be on a filesystem of the guest's own.
mount -t tmpfs guest "$DIR"
"$PYTHON" - <<'PY'
import ctypes, fcntl, os, socket, struct

finit_module = 313
for name in os.environ.get("MODULES", "drivers/block/nbd").split():
    module = os.open(f"{os.environ.get('MODULES_OF', '')}/usr/lib/uml/modules/{os.uname().release}/kernel/{name}.ko", os.O_RDONLY)
    if ctypes.CDLL(None).syscall(finit_module, module, b"nbds_max=3" if name.endswith("nbd") else b"", 0):
        print(f"the module {name} cannot be loaded")
set_flags, up_and_running = 0x8914, 0x41
fcntl.ioctl(socket.socket(), set_flags, struct.pack("16sH22x", b"lo", up_and_running))
PY
bash "$CHECKS" >"$FOLDER/checks" 2>&1
echo "exit $?" >>"$FOLDER/checks"
"$PYTHON" -c 'import ctypes; ctypes.CDLL(None).reboot(0x4321FEDC)'
