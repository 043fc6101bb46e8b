"""Looks at the folder of a FileLog before anybody depends on it: is it there and writable, what is it kept on, is there
room, and how long does a force take. What it writes it removes again; a log in the folder is not touched.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tm.log.file_log import SEGMENT_SIZE
from tm.log.log_folder import BLOCK, PosixFiles
from xa.diagnosis import Check, Health

if TYPE_CHECKING:
    from collections.abc import Iterator

FORCES: Final = 9
SLOW_S: Final = 0.05
ROOM: Final = 4 * SEGMENT_SIZE
"""A log and its spare take two segments; some more are needed while it grows."""

_MOUNTS: Final = Path("/proc/self/mounts")
_VOLATILE: Final = {"tmpfs", "ramfs"}
_NETWORK: Final = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"}


def examine_folder(folder: Path) -> Iterator[Check]:
    """The checks, in the order in which one depends on the other."""
    place = folder

    try:
        place = folder if folder.exists() else folder.parent
        if not place.is_dir():
            yield Check(Health.FAIL, "folder", f"{place} is not there", f"make it: mkdir -p {place}")
            return
        forced_s = _force(place)
    except OSError as error:
        who = f"uid {os.geteuid()}"
        advice = f"give this user ({who}) write access, or name another folder"
        yield Check(Health.FAIL, "folder", f"{place} can't be written: {error.strerror or error}", advice)
        return
    made = "" if place == folder else " (to be made)"
    milliseconds = f"{1000 * forced_s:.1f} ms"
    if forced_s >= SLOW_S:
        advice = "each commit waits for a force: put the log on a local disk"
        yield Check(Health.WARN, "folder", f"{folder}{made}: writable, but a force takes {milliseconds}", advice)
    else:
        yield Check(Health.OK, "folder", f"{folder}{made}: writable, forced in {milliseconds}")
    yield from _kept_on(place)
    free = shutil.disk_usage(place).free
    if free < ROOM:
        yield Check(Health.WARN, "room", f"{free >> 20} MB are free", f"make room: {ROOM >> 20} MB are little enough")


def _force(folder: Path) -> float:
    """The median time in seconds of a forced write, as the log makes them."""
    files = PosixFiles(folder)
    name = f"doctor-{os.getpid()}"
    file = files.create(name)
    try:
        file.write(0, bytes(BLOCK))
        file.force()
        times = []
        for _ in range(FORCES):
            began = time.perf_counter()
            file.write_forced(0, bytes(128))
            times.append(time.perf_counter() - began)
    finally:
        file.close()
        files.remove(name)
    return statistics.median(times)


def _kept_on(folder: Path) -> Iterator[Check]:
    kind = file_system_of(folder.resolve())
    if kind in _VOLATILE:
        advice = "put it on a disk: what is decided has to outlive the machine's power"
        yield Check(Health.FAIL, "disk", f"it is kept in memory ({kind})", advice)
    elif kind == "overlay":
        advice = (
            "mount a volume there: otherwise the decisions are deleted with the container, and branches stay in doubt"
        )
        yield Check(Health.WARN, "disk", "it is in a container's own layer (overlay)", advice)
    elif kind in _NETWORK:
        advice = "put it on a local disk, or keep decisions in a database: locks and forces go over the network here"
        yield Check(Health.WARN, "disk", f"it is on a network file system ({kind})", advice)


def file_system_of(folder: Path, mounts: Path = _MOUNTS) -> str | None:
    """The kind of file system that `folder` is on; None where the system does not tell."""
    try:
        text = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    best, kind = -1, None
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        if folder.is_relative_to(point) and len(point) >= best:  # of two at one place the later one counts
            best, kind = len(point), fields[2]
    return kind
