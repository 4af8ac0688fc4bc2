"""SQLite on a disk behind NBD, through a VFS of its own: the database and its journal are two parts of the disk.

`load OFF|FULL` commits rows and promises each commit in $state; `check` opens the database, which recovers it, and looks for the
promised rows. A sync of SQLite is a flush of the disk, and nothing else is.
"""

import os
import sys

import apsw
import nbd

JOURNAL, END = 32 << 20, 64 << 20
SECTOR = 512
ROWS = 15


class File:
    def __init__(self, disk, begin, end):
        self.disk, self.begin, self.end = disk, begin, end

    def xRead(self, amount, offset):
        if amount == 0:
            return b""
        first = offset // SECTOR * SECTOR
        end = -(-(offset + amount) // SECTOR) * SECTOR
        sectors = self.disk.pread(end - first, self.begin + first)
        return bytes(sectors[offset - first:offset - first + amount])

    def xWrite(self, data, offset):
        # The journal is not written in whole sectors, the disk is.
        before = self.xRead(offset % SECTOR, offset - offset % SECTOR)
        end = offset + len(data)
        after = self.xRead(-end % SECTOR, end)
        self.disk.pwrite(before + bytes(data) + after, self.begin + offset - len(before))

    def xTruncate(self, size):
        # A part of the disk keeps its size; an empty journal begins with zeros.
        if size == 0:
            self.disk.pwrite(bytes(4096), self.begin)

    def xSync(self, flags):
        self.disk.flush()

    def xFileSize(self):
        # A database without a page yet is empty.
        empty = self.begin == 0 and self.xRead(16, 0) == bytes(16)
        return 0 if empty else self.end - self.begin

    def xLock(self, level):
        pass

    def xUnlock(self, level):
        pass

    def xCheckReservedLock(self):
        return False

    def xFileControl(self, op, pointer):
        return False

    def xSectorSize(self):
        return 4096

    def xDeviceCharacteristics(self):
        return 0

    def xClose(self):
        pass


class Disk(apsw.VFS):
    def __init__(self, disk):
        self.disk = disk
        super().__init__("disk", "")

    def xOpen(self, name, flags):
        name = name.filename() if isinstance(name, apsw.URIFilename) else name
        return File(self.disk, JOURNAL, END) if name.endswith("-journal") else File(self.disk, 0, JOURNAL)

    def xAccess(self, path, flags):
        return not path.endswith("-wal")

    def xDelete(self, path, sync):
        self.disk.pwrite(bytes(4096), JOURNAL)
        if sync:
            self.disk.flush()

    def xFullPathname(self, name):
        return name


disk = nbd.NBD()
disk.connect_uri(os.environ["uri"])
vfs = Disk(disk)
path = os.path.join(os.environ.get("state", "."), "promises")
if sys.argv[1] == "check" and not os.path.exists(path):
    sys.exit(0)
database = apsw.Connection("database", vfs="disk")
execute = database.cursor().execute
execute("pragma journal_mode=persist")
if sys.argv[1] == "setup":
    execute("create table rows (number integer primary key, text)")
elif sys.argv[1] == "load":
    execute(f"pragma synchronous={sys.argv[2]}")
    with open(path, "w") as promises:
        for number in range(1, ROWS + 1):
            execute("begin")
            execute("insert into rows values (?, ?)", (number, str(number) * 900))
            if number > 3:
                execute("update rows set text = ? where number = ?", (str(number) * 700, number - 3))
            execute("commit")
            print(number, file=promises, flush=True)
else:
    found = list(execute("pragma integrity_check"))
    if found != [("ok",)]:
        sys.exit(f"the database is corrupt: {found[:3]}")
    promised = [int(line) for line in open(path)]
    there = {number for number, in execute("select number from rows")}
    missing = [number for number in promised if number not in there]
    if missing:
        sys.exit(f"commits {missing} of {len(promised)} are gone")
