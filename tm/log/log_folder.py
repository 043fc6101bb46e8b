"""The disk under a FileLog: a folder whose files are forced. `PosixFiles` is the real one."""

from __future__ import annotations

import errno
import fcntl
import io
import os
import struct
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from tm.log.contract import LogError, LogLocked
from xa.durable_files import FULL_SYNC, force, force_descriptor
from xa.lease import holder_name
from xa.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

BLOCK: Final = 4096

_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
_GET_GENERATION: Final = 0x80087601
"""FS_IOC_GETVERSION, with the number that it has on `_GENERATIONS`."""
_GENERATIONS: Final = frozenset({"x86_64", "aarch64", "riscv64", "s390x"})
_IDENTITY: Final = struct.Struct(">QI")
_NO_DSYNC: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class File(Protocol):
    """An open file. Any call may raise OSError."""

    def size(self) -> int:
        """Octets in the file."""
        ...

    def write(self, offset: int, octets: bytes) -> None:
        """Writes all of `octets`, forces nothing."""
        ...

    def write_forced(self, offset: int, octets: bytes) -> None:
        """Writes all of `octets`, which are durable on return. What was written unforced before need not be."""
        ...

    def force(self) -> None:
        """Everything written, and the size, is durable on return."""
        ...

    def close(self) -> None:
        """Ends the use of the file."""
        ...


class Lock(Protocol):
    """A folder that is held."""

    def sign(self) -> None:
        """Notes in the folder who holds it, for others: it is this process's to change."""
        ...

    def release(self) -> None:
        """Lets others have it."""
        ...

    def disown(self) -> None:
        """In a fork of the holder: the folder stays the parent's, for as long as that holds it."""
        ...


class Files(Protocol):
    """A folder. Any call may raise OSError; a name is that of a file in it."""

    def lock(self) -> Lock:
        """Holds the folder for this process, until released or the process ends; the folder is made when it is
        not there. LogLocked names who has it."""
        ...

    def names(self) -> Sequence[str]:
        """The names of the files."""
        ...

    def create(self, name: str) -> File:
        """A new, empty file, in the place of another of that name."""
        ...

    def open(self, name: str) -> File:
        """The file, for writing."""
        ...

    def read(self, name: str) -> bytes:
        """All octets of a file."""
        ...

    def identity(self, name: str) -> bytes:
        """12 octets that distinguish a file from a copy of it, whatever either of them is called and wherever it is
        mounted; none where the file system has nothing of the kind."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Gives a file another name."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file."""
        ...

    def force_names(self) -> None:
        """Every creation, renaming and removal so far is durable on return."""
        ...


@contextmanager
def disk_errors(files: Files, what: str) -> Iterator[None]:
    """Has a disk that fails be an error of the log, which says what to do."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename not in {None, str(files)} else ""
        raise LogError(
            f"{files}: the log can't be {what}: {error.strerror or error}{where}. Nothing in it was given up: see to "
            "the disk and to who may read and write there, then try again"
        ) from error


class PosixFiles:
    """`Files` in a directory of a POSIX file system, whose parent is there."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory).absolute()

    def __str__(self) -> str:
        return str(self._directory)

    def lock(self) -> PosixLock:
        if not self._directory.is_dir():
            try:
                self._directory.mkdir(mode=0o700, exist_ok=True)
            except FileNotFoundError:
                parent = self._directory.parent
                raise LogError(
                    f"{self._directory}: the log can't be made, because {parent} is not there: mkdir -p {parent}"
                ) from None
            force(self._directory.parent)
        return PosixLock(self._directory / "lock")

    def names(self) -> Sequence[str]:
        return [path.name for path in self._directory.iterdir()]

    def create(self, name: str) -> PosixFile:
        return PosixFile(self._directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def open(self, name: str) -> PosixFile:
        return PosixFile(self._directory / name, os.O_WRONLY)

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def identity(self, name: str) -> bytes:
        descriptor = os.open(self._directory / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return file_identity(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: str, new: str) -> None:
        (self._directory / old).rename(self._directory / new)

    def remove(self, name: str) -> None:
        (self._directory / name).unlink()

    def force_names(self) -> None:
        force(self._directory)


class PosixFile:
    """`File` over a descriptor."""

    __slots__ = ("_descriptor", "_dsync", "_handle")

    def __init__(self, path: Path, flags: int) -> None:
        self._handle = _open(path, flags)
        self._descriptor = self._handle.fileno()
        self._dsync = bool(_DSYNC)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def write(self, offset: int, octets: bytes) -> None:
        """Writes a block at a time: a page cache that made large units of a large write would have much to go through
        at each small write into them afterwards (measured: a third of the forces a second)."""
        view = memoryview(octets)
        for start in range(0, len(octets), BLOCK):
            _write(self._descriptor, offset + start, view[start : start + BLOCK])

    def write_forced(self, offset: int, octets: bytes) -> None:
        """Makes one system call where the system can."""
        if self._dsync:
            try:
                written = os.pwritev(self._descriptor, (octets,), offset, _DSYNC)
            except OSError as error:
                if error.errno not in _NO_DSYNC:
                    raise
                self._dsync = False
            else:
                if written == len(octets):
                    return
                offset, octets = offset + written, octets[written:]
        _write(self._descriptor, offset, memoryview(octets))
        _force_data(self._descriptor)

    def force(self) -> None:
        force_descriptor(self._descriptor)

    def close(self) -> None:
        self._handle.close()


class PosixLock:
    """`Lock` by flock on a file that says who holds it. The file stays: removing it would let two hold it."""

    def __init__(self, path: Path) -> None:
        self._handle = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._handle.read(400).decode(errors="replace").strip()
            self._handle.close()
            raise LogLocked(
                f"the decision log {path.parent} is in use by {printable(holder) or 'another process'}"
            ) from None

    def sign(self) -> None:
        with suppress(OSError):  # on a full disk it is held all the same, without its holder's name
            self._handle.seek(0)
            self._handle.truncate(0)
            self._handle.write(f"{holder_name()}\n".encode())

    def release(self) -> None:
        fcntl.flock(self._handle, fcntl.LOCK_UN)
        self._handle.close()

    def disown(self) -> None:
        """Closes the descriptor. Left open, the descriptor would hold the lock for longer than the parent lives."""
        self._handle.close()


def file_identity(descriptor: int) -> bytes:
    """The identity of an open file, as in `Files.identity`: inode and generation. The generation tells an inode from an
    earlier file that had its number; a file system that tells it (ext4, xfs, btrfs) also keeps the numbers of inodes,
    which others may not."""
    if sys.platform != "linux" or os.uname().machine not in _GENERATIONS:
        return b""
    try:
        answer = fcntl.ioctl(descriptor, _GET_GENERATION, bytes(8))
        inode = os.fstat(descriptor).st_ino
    except OSError:
        return b""
    generation = int.from_bytes(answer[:4], sys.byteorder)
    return _IDENTITY.pack(inode, generation) if generation else b""


def _open(path: Path, flags: int) -> io.FileIO:
    return io.FileIO(os.open(path, flags | os.O_CLOEXEC, 0o600), "r+" if flags & os.O_RDWR else "w")


def _write(descriptor: int, offset: int, view: memoryview) -> None:
    while view:
        written = os.pwrite(descriptor, view, offset)
        offset, view = offset + written, view[written:]


def _force_data(descriptor: int) -> None:
    if FULL_SYNC is not None:
        fcntl.fcntl(descriptor, FULL_SYNC)
    else:
        os.fdatasync(descriptor)
