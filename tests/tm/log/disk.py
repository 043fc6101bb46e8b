"""This module is a disk in memory that forgets what was not forced, runs full, and fails on demand.

Every call that changes something is a step. A test may set `Disk.trouble`; it is called before and after the effect of
each step and may raise: OSError, or an exception of the test that models a crash or a signal. `crashed` gives the disk
as a power cut may leave it: of everything that was not forced any part is there.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tm.log import LogLocked

SECTOR = 512
_NUMBERS = itertools.count(1)


class PowerCut(BaseException):
    """Raised by a `trouble` to stop everything where it is."""


@dataclass
class Inode:
    """A file: what is in it, what of it is durable, and the writes in between."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    unforced: list[tuple[int, bytes]] = field(default_factory=list)
    identity: bytes = field(default_factory=lambda: b"inode" + next(_NUMBERS).to_bytes(7, "big"))

    def write(self, offset: int, octets: bytes) -> None:
        _put(self.content, offset, octets)
        self.unforced.append((offset, octets))

    def force(self) -> None:
        self.durable = bytearray(self.content)
        self.unforced.clear()

    def force_last(self) -> None:
        """Only what the last write wrote; of earlier writes, what lies elsewhere is still not durable."""
        offset, octets = self.unforced.pop()
        end = offset + len(octets)
        _put(self.durable, offset, octets)
        elsewhere: list[tuple[int, bytes]] = []
        for start, earlier in self.unforced:
            elsewhere += (start, earlier[: max(0, offset - start)]), (max(start, end), earlier[max(0, end - start) :])
        self.unforced = [(start, part) for start, part in elsewhere if part]


class Disk:
    """`tm.log.log_folder.Files`, on one folder. `capacity`: octets that fit."""

    def __init__(self, capacity: int = 1 << 30) -> None:
        self.capacity = capacity
        self.names_now: dict[str, Inode] = {}
        self.names_durable: dict[str, Inode] = {}
        self.renamed: list[tuple[str | None, str | None, Inode]] = []
        """Changes of names that were not forced: old name, new name, file."""
        self.locked = False
        self.steps = 0
        self.forces = 0
        self.trouble: Callable[[int, str], None] | None = None

    def __str__(self) -> str:
        return "/disk"

    def step(self, what: str) -> None:
        self.steps += 1
        if self.trouble is not None:
            self.trouble(self.steps, what)

    @property
    def used(self) -> int:
        return sum(len(inode.content) for inode in self.names_now.values())

    def crashed(self, rng: random.Random) -> Disk:
        """The disk after a power cut at this moment."""
        after = Disk(self.capacity)
        names = dict(self.names_durable)
        for old, new, inode in self.renamed:
            if rng.random() < 0.5:
                continue
            if old is not None and names.get(old) is inode:
                del names[old]
            if new is not None:
                names[new] = inode

        survivors: dict[int, Inode] = {}
        for name, inode in names.items():
            if id(inode) not in survivors:
                survivors[id(inode)] = Inode(
                    content := _survived(inode, rng), bytearray(content), identity=inode.identity
                )
            after.names_now[name] = after.names_durable[name] = survivors[id(inode)]
        return after

    def copied(self) -> Disk:
        """Another disk with the same files, as `cp -a` makes it."""
        copy = Disk(self.capacity)
        for name, inode in self.names_now.items():
            copy.names_now[name] = copy.names_durable[name] = Inode(bytearray(inode.content), bytearray(inode.content))
        return copy

    # --- Files ----------------------------------------------------------------------------------------------
    def lock(self) -> DiskLock:
        if self.locked:
            raise LogLocked("the decision log /disk is in use by another process")
        self.locked = True
        return DiskLock(self)

    def names(self) -> Sequence[str]:
        return list(self.names_now)

    def create(self, name: str) -> DiskFile:
        self.step("create")
        inode = Inode()
        self._rename(None, name, inode)
        return DiskFile(self, inode)

    def open(self, name: str) -> DiskFile:
        return DiskFile(self, self._inode(name))

    def read(self, name: str) -> bytes:
        return bytes(self._inode(name).content)

    def identity(self, name: str) -> bytes:
        return self._inode(name).identity

    def rename(self, old: str, new: str) -> None:
        self.step("rename")
        self._rename(old, new, self._inode(old))
        self.step("renamed")

    def remove(self, name: str) -> None:
        self.step("remove")
        self._rename(name, None, self._inode(name))

    def force_names(self) -> None:
        self.step("force names")
        self.names_durable = dict(self.names_now)
        self.renamed.clear()
        self.forces += 1
        self.step("forced names")

    def _inode(self, name: str) -> Inode:
        try:
            return self.names_now[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", name) from None

    def _rename(self, old: str | None, new: str | None, inode: Inode) -> None:
        if old is not None:
            del self.names_now[old]
        if new is not None:
            self.names_now[new] = inode
        self.renamed.append((old, new, inode))


class DiskFile:
    """`tm.log.log_folder.File`."""

    def __init__(self, disk: Disk, inode: Inode) -> None:
        self._disk = disk
        self._inode = inode

    def size(self) -> int:
        return len(self._inode.content)

    def write(self, offset: int, octets: bytes) -> None:
        self._disk.step("write")
        more = max(0, offset + len(octets) - len(self._inode.content))
        room = max(0, self._disk.capacity - self._disk.used)
        if more > room:
            self._inode.write(offset, octets[: len(octets) - more + room])
            raise OSError(errno.ENOSPC, "No space left on device")
        self._inode.write(offset, octets)
        self._disk.step("written")

    def write_forced(self, offset: int, octets: bytes) -> None:
        self.write(offset, octets)
        self._disk.step("force")
        self._inode.force_last()
        self._disk.forces += 1
        self._disk.step("forced")

    def force(self) -> None:
        self._disk.step("force")
        self._inode.force()
        self._disk.forces += 1
        self._disk.step("forced")

    def close(self) -> None:
        pass


class DiskLock:
    """`tm.log.log_folder.Lock`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def sign(self) -> None:
        pass

    def release(self) -> None:
        self._disk.locked = False

    def disown(self) -> None:
        pass


def _survived(inode: Inode, rng: random.Random) -> bytearray:
    """What is durable, and of each later write any of its sectors, the last of them perhaps in part."""
    content = bytearray(inode.durable)
    for offset, octets in inode.unforced:
        share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        start = 0
        while start < len(octets):
            end = min(len(octets), (offset + start) // SECTOR * SECTOR + SECTOR - offset)
            if rng.random() < share:
                torn = end if rng.random() < 0.9 else rng.randint(start, end)
                _put(content, offset + start, octets[start:torn])
            start = end
    return content


def _put(content: bytearray, offset: int, octets: bytes) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(octets)] = octets
