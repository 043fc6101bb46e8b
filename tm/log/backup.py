"""A copy of a FileLog, taken while a process is at work with it: `back_up` takes no lock, and changes nothing there.

1. Read the current segment as `tm.log.inspection` does.
2. Force it: what was read may not have been forced yet, and a copy must not know of a decision that the log loses.
3. Write one segment into the folder of the copy: the state that was read, where each incarnation that was not closed is
   cut (`tm.log.incarnations`). So the copy, once it is opened, presumes nothing about what they decided since.

Every decision that the log had made durable before `back_up` was called is in the copy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tm.log.contract import LogError
from tm.log.incarnations import copy_of
from tm.log.inspection import read_newest
from tm.log.journal import MAKING, MARK_SIZE, segment_name
from tm.log.log_folder import PosixFiles, disk_errors
from tm.log.segment import HEADER_SIZE, Header, encode_frame, encode_header

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tm.log.log_folder import Files
    from tm.log.segment import SegmentContents
    from tm.log.state import LogState


@dataclass(frozen=True, slots=True)
class BackUp:
    """The contents of a copy: the log's node and id, how many decisions and heuristic outcomes, and the incarnations
    about which it presumes nothing."""

    node: str
    log_id: bytes
    decisions: int
    heuristics: int
    cut: tuple[bytes, ...]


def back_up(
    folder: Path, destination: Path, *, files: Files | None = None, entropy: Callable[[int], bytes] = os.urandom
) -> BackUp:
    """Copies the log in `folder` into `destination`, which is made, and must not be there or be empty. LogMissing,
    LogDamaged as `read_log`; LogError: there is something at the destination."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise LogError(f"{destination} is there already: name a folder that is not, or is empty")
    files = files or PosixFiles(folder)
    with disk_errors(files, "read"):
        contents, state = _read(files)
    header = contents.header
    state.noted = copy_of(state.noted)
    _write(destination, header, b"".join(state.records()), entropy)
    return BackUp(header.node, header.log_id, len(state.decisions), len(state.heuristics), state.incarnations.cut)


def _read(files: Files) -> tuple[SegmentContents, LogState]:
    """Steps 1 and 2."""

    def forced(contents: SegmentContents, state: LogState) -> tuple[SegmentContents, LogState]:
        current = files.open(segment_name(contents.header.generation))
        try:
            current.force()
        finally:
            current.close()
        return contents, state

    return read_newest(files, forced)


def _write(destination: Path, header: Header, records: bytes, entropy: Callable[[int], bytes]) -> None:
    """Step 3. An end that is torn off leaves a folder without a log."""
    mark = entropy(MARK_SIZE)
    first = encode_frame(mark, HEADER_SIZE, records)
    end = encode_frame(mark, HEADER_SIZE + len(first), b"")
    size = _whole_blocks(HEADER_SIZE + len(first) + len(end))
    made = Header(mark, header.generation, size, header.log_id, header.openings, header.node)
    files = PosixFiles(destination)
    lock = files.lock()

    try:
        file = files.create(MAKING)
        try:
            file.write(0, (encode_header(made) + first + end).ljust(size, b"\0"))
            file.force()
        finally:
            file.close()
        files.rename(MAKING, segment_name(made.generation))
        files.force_names()
    finally:
        lock.release()


def _whole_blocks(size: int) -> int:
    return -(-size // HEADER_SIZE) * HEADER_SIZE
