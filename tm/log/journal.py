"""The segments of a FileLog in their folder: which is the current one, how the log moves to the next, and how it
is opened. Layout of a segment: `tm.log.segment`. Not safe to use from two threads at once.

The folder holds

    segment-…   named by generation. The one with the highest is the log; others are left over and of no interest.
    spare       a file that becomes the next segment, with whatever was in it before
    making      a file that is not ready yet; of no interest
    lock        who holds the folder

Moving to the next segment, when the current one is full or the log is opened:

1. The spare is made sure to be large enough, which is where a full disk shows.
2. Header and state are written into the spare and forced.
3. It gets its name, and the folder is forced: this is the moment at which the log moves.
4. The former segment becomes the spare. If it is smaller than the current one, a larger one takes its place:
   then a disk that runs full does no harm, unless there is more and more to keep.

So the log takes the space of two files, however long it runs, and they are some times as large as its state. A
crash leaves the former segment current, or the new one with all that was in the former.
"""

from __future__ import annotations

import errno
import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tm.log.contract import LogDamaged, LogError, LogFull, LogOfOtherVersion
from tm.log.incarnations import IncarnationState, succeeded, warning_of
from tm.log.log_folder import disk_errors
from tm.log.records import RecordError, decode
from tm.log.segment import (
    FRAME_OVERHEAD,
    HEADER_SIZE,
    VERSION,
    Header,
    SegmentContents,
    SegmentDamaged,
    SegmentOfOtherVersion,
    encode_frame,
    encode_header,
    read_segment,
)
from tm.log.state import LogState
from xa import check_node
from xa.format_version import version_refusal
from xa.gtrid import INCARNATION_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tm.log.log_folder import File, Files

_LOGGER: Final = logging.getLogger(__name__)

SPARE: Final = "spare"
MAKING: Final = "making"
MARK_SIZE: Final = 8
LOG_ID_SIZE: Final = 8
LEAST_SEGMENT_SIZE: Final = HEADER_SIZE + 1024
STATE_SHARE: Final = 4
"""A segment is made at least so many times as large as the state it begins with, so that copying the state is
a small part of what is written."""

_SEGMENT: Final = re.compile(r"segment-(\d{16})", re.ASCII)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Journal:
    """An open journal: `append` makes a payload of records durable.

    `state` is what the log said when it was opened, with the `incarnation` that it has got by that. OSError from
    `append` means that the journal must not be used any more. An `append` that was interrupted by a signal can be
    repeated.
    """

    def __init__(self, files: Files, node: str, segment_size: int, entropy: Callable[[int], bytes]) -> None:
        self._files = files
        if segment_size < LEAST_SEGMENT_SIZE:
            raise ValueError(f"segment_size is {segment_size}: a segment has at least {LEAST_SEGMENT_SIZE} octets")
        self._segment_size = segment_size
        self._entropy = entropy
        self.node = check_node(node)
        self.state = LogState()
        self.incarnation = entropy(INCARNATION_SIZE)
        self._file: File | None = None

        with disk_errors(files, "opened"):
            self._lock = files.lock()
            try:
                self._open()
                self._lock.sign()
            except BaseException:
                self.close()
                raise

    def append(self, payload: bytes, state: Callable[[], list[bytes]]) -> None:
        """Writes and forces one frame. `state()` gives the records that the next segment begins with, should it
        be time for that. LogFull: nothing was written."""
        if self._end + FRAME_OVERHEAD + len(payload) > self._header.size:
            self._move(b"".join(state()), len(payload))
        frame = encode_frame(self._header.mark, self._end, payload)
        assert self._file is not None  # noqa: S101 — from the constructor to `close`
        self._file.write_forced(self._end, frame)  # the force that makes decisions durable
        self._end += len(frame)

    def close(self) -> None:
        """Lets others have the folder."""
        self._close_file()
        self._lock.release()

    def disown(self) -> None:
        """In a fork of the process that opened the journal: leaves it to the parent."""
        self._close_file()
        self._lock.disown()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def log_id(self) -> bytes:
        return self._header.log_id

    @property
    def openings(self) -> int:
        """How often the log was opened for writing."""
        return self._header.openings

    # --- Opening ------------------------------------------------------------------------------------------
    def _open(self) -> None:
        names = self._files.names()
        generations = segment_generations(names)
        if generations:
            self._reopen(names, generations)
        else:
            check_spare(self._files, names)
            self._remove_unfinished(names)
            self._header = Header(b"", 0, 0, self._entropy(LOG_ID_SIZE), 0, self.node)
            self.state.noted[self.incarnation] = IncarnationState.OPEN
            self._make(MAKING, self._size_for(0))
            self._begin(MAKING, b"".join(self.state.records()))

        if SPARE not in self._files.names():
            self._make_spare(self._header.size)

    def _remove_unfinished(self, names: Sequence[str]) -> None:
        if MAKING in names:
            self._files.remove(MAKING)

    def _reopen(self, names: Sequence[str], generations: list[int]) -> None:
        contents = read_current(self._files, generations[-1], self.state)
        self._header = contents.header
        if self._header.node != self.node:
            raise LogError(
                f"{self._files} is the decision log of node {self._header.node!r}, not of {self.node!r}: "
                f"open it with that node id, or give {self.node!r} a folder of its own"
            )
        if IncarnationState.OPEN in self.state.noted.values():
            _LOGGER.warning("%s was not closed; its last forced record ends at %d", self._files, contents.end)
        self._remove_unfinished(names)
        for generation in generations[:-1]:
            self._files.remove(segment_name(generation))
        self._succeed(contents.header)
        self._move(b"".join(self.state.records()), 0)

    def _succeed(self, header: Header) -> None:
        """Notes the new incarnation, and what its opening tells of the former ones."""
        state = self.state
        before = dict(state.noted)
        state.noted.clear()
        state.noted.update(succeeded(before, copied=is_copy(self._files, header)))
        warning = warning_of(self._files, state.incarnations, before if header.identity else {})
        if warning is not None:
            _LOGGER.warning("%s", warning)
        state.noted[self.incarnation] = IncarnationState.OPEN

    # --- Moving to the next segment -----------------------------------------------------------------------
    def _move(self, state: bytes, room: int) -> None:
        """Steps 1 to 4; the next segment has space for `room` octets of payload."""
        self._ready_spare(2 * FRAME_OVERHEAD + len(state) + room)
        former_file, former = self._file, segment_name(self._header.generation)
        self._begin(SPARE, state)
        if former_file is not None:
            former_file.close()
        self._files.rename(former, SPARE)
        if self._spare_size() < self._header.size:
            with suppress(LogFull):  # the smaller one will do for a while
                self._make_spare(self._header.size)

    def _begin(self, name: str, state: bytes) -> None:
        """Steps 2 and 3, with the file `name`. It counts as an opening when no segment was open yet."""
        file = self._files.open(name)
        header = Header(
            self._entropy(MARK_SIZE),
            self._header.generation + 1,
            file.size(),
            self._header.log_id,
            self._header.openings + (self._file is None),
            self.node,
            self._files.identity(name),
        )
        frame = encode_frame(header.mark, HEADER_SIZE, state)

        try:
            file.write_forced(0, encode_header(header) + frame)
            self._files.rename(name, segment_name(header.generation))
            self._files.force_names()
        except BaseException:
            file.close()
            raise
        self._file, self._header, self._end = file, header, HEADER_SIZE + len(frame)

    def _ready_spare(self, content: int) -> None:
        """Step 1: a spare of a good size for `content` octets behind the header, or for lack of space one that is
        just large enough; else LogFull."""
        size = self._size_for(content)
        actual = self._spare_size()
        if size <= actual < 4 * size:
            return
        try:
            self._make_spare(size)
        except LogFull:
            if actual < HEADER_SIZE + content:
                raise

    def _spare_size(self) -> int:
        if SPARE not in self._files.names():
            return 0
        file = self._files.open(SPARE)
        try:
            return file.size()
        finally:
            file.close()

    def _size_for(self, content: int) -> int:
        size = self._segment_size
        while size - HEADER_SIZE < STATE_SHARE * content:
            size *= 2
        return size

    def _make_spare(self, size: int) -> None:
        self._make(MAKING, size)
        self._files.rename(MAKING, SPARE)

    def _make(self, name: str, size: int) -> None:
        """A file full of zeros. They are written, not only allocated: otherwise the file system has to note at
        the first write to each block that it is in use, and a force has to wait for that note as well."""
        file = self._files.create(name)
        try:
            file.write(0, bytes(size))
            file.force()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            with suppress(OSError):
                self._files.remove(name)
            raise self._full(size) from error
        finally:
            file.close()

    def _full(self, size: int) -> LogFull:
        return LogFull(f"{self._files}: there is no space for a segment of {size} octets; make room and try again")


def is_copy(files: Files, header: Header) -> bool:
    """Whether the segment with this header is known to be a copy of the file that it was written into."""
    actual = files.identity(segment_name(header.generation))
    return bool(header.identity and actual and header.identity != actual)


def check_spare(files: Files, names: Sequence[str]) -> None:
    """LogDamaged: a folder without a segment has a spare file, which is made after the first segment."""
    if SPARE in names:
        raise LogDamaged(
            f"{files}: there is a spare file but no segment, so the segment with the decisions is missing. Put it "
            "back; in a new log, branches of this one would never be resolved"
        )


def segment_name(generation: int) -> str:
    """The file name of a segment."""
    return f"segment-{generation:016d}"


def segment_generations(names: Iterable[str]) -> list[int]:
    """The generations of the segments among `names`, in ascending order."""
    return sorted(int(match[1]) for name in names if (match := _SEGMENT.fullmatch(name)))


def read_current(files: Files, generation: int, state: LogState) -> SegmentContents:
    """Reads the segment `generation` and applies its records to `state`. LogDamaged says file and offset; LogError:
    another version has written it."""
    name = segment_name(generation)
    octets = files.read(name)
    try:
        contents = read_segment(octets)
        if contents.header.generation != generation:
            raise SegmentDamaged(0, f"its header is that of generation {contents.header.generation}")  # noqa: TRY301

        for payload in contents.payloads:
            for record in decode(payload):
                state.apply(record)
    except SegmentOfOtherVersion as other:
        raise LogOfOtherVersion(str(version_refusal(files, other.version, VERSION))) from None
    except SegmentDamaged as damage:
        raise LogDamaged(
            f"{files}: {name} is damaged at octet {damage.offset}: {damage}. It is not opened, because decisions "
            f"may be lost; restore the folder as it was when the log last ran, or resolve its branches by hand"
        ) from damage
    except RecordError as error:
        raise LogDamaged(
            f"{files}: {name} is damaged: it holds what is no record ({error}). Restore the folder as it was when the "
            "log last ran, or resolve its branches by hand"
        ) from error
    return contents
