"""A read-only export says so, and refuses whoever writes all the same."""

import errno
import sys

import nbd

from tap import case, check, done

h = nbd.NBD()
h.set_strict_mode(0)
h.connect_uri(sys.argv[1])
check("the handshake says read-only", h.is_read_only())
before = h.pread(65536, 0)
for what, function, arguments in [
    ("write", h.pwrite, (b"x" * 4096, 0)),
    ("zero", h.zero, (4096, 0)),
    ("trim", h.trim, (4096, 0)),
    ("write with FUA", h.pwrite, (b"x" * 4096, 0, nbd.CMD_FLAG_FUA)),
]:

    def refused(function=function, arguments=arguments):
        try:
            function(*arguments)
        except nbd.Error as error:
            assert error.errnum == errno.EPERM, error.string
            return
        raise AssertionError("not refused")

    refused.__doc__ = f"{what} on a read-only export says EPERM"
    case(refused)


@case
def _():
    """a large write is refused too, and the connection lives"""
    try:
        h.pwrite(b"x" * (4 << 20), 0)
        raise AssertionError("not refused")
    except nbd.Error as error:
        assert error.errnum == errno.EPERM, error.string
    h.flush()
    assert h.pread(65536, 0) == before


h.shutdown()
done()
