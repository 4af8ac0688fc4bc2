"""A headworks server that a stand-in starts in the place of a peer's server.

HEADWORKS names the binary, HEADWORKS_OPTIONS further options of `serve`, STAND_IN_LOG a file that gets a line for each start:
how it was served (headworks, stacked: by the peer on top of headworks, peer: by the peer alone) and the command line.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time

HEADWORKS = os.environ.get("HEADWORKS", "headworks")
# Long enough for a busy machine; a server that cannot start ends by itself.
START_SECONDS = 30
PR_SET_PDEATHSIG = 1


def serve(*options):
    return [HEADWORKS, "serve", *os.environ.get("HEADWORKS_OPTIONS", "").split(), *options]


def note(how, command):
    log = os.environ.get("STAND_IN_LOG")
    if log:
        with open(log, "a") as file:
            file.write(f"{how}\t{' '.join(command)}\n")


def become(how, command):
    """Ends here: this process is the command from now on, with its id, descriptors and parent."""
    note(how, command)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(command[0], command)


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def temporary_folder():
    return tempfile.mkdtemp(prefix="stand-in.")


def start(command, pid_file, **options):
    """Starts a server that writes `pid_file`, waits until it serves; None if it ends before."""
    if os.path.exists(pid_file):
        os.unlink(pid_file)
    server = subprocess.Popen(command, **options)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if os.path.exists(pid_file) and os.path.getsize(pid_file):
            return server
        if server.poll() is not None:
            return None
        time.sleep(0.02)
    server.kill()
    return None


def as_exit_status(returncode):
    return returncode if returncode >= 0 else 128 - returncode
