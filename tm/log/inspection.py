"""A look at a FileLog from outside, while its holder may be at work: `read_log` takes no lock and writes nothing.

1. Read the segment with the highest generation.
2. If it still has its name after that, it was not used anew meanwhile; otherwise begin again.
3. If it looks damaged, a write may have come between: begin again. It is damaged if it looks the same twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

from tm.log.contract import Decision, Heuristic, LogDamaged, LogError, LogMissing
from tm.log.incarnations import copy_of
from tm.log.journal import check_spare, is_copy, read_current, segment_generations, segment_name
from tm.log.log_folder import Files, PosixFiles, disk_errors
from tm.log.records import decode_decision, decode_heuristic
from tm.log.state import LogState

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from tm.log.incarnations import Incarnations
    from tm.log.segment import SegmentContents

T = TypeVar("T")

ATTEMPTS: Final = 100


@dataclass(frozen=True, slots=True)
class LogImage:
    """The contents of a log at one moment. A decision that has ended may still be among `decisions`: its END is
    written later. `worked_at` is when a log in a database was last known to be at work (seconds since 1970, by its
    clock), or was copied; None where that is for its files to tell."""

    node: str
    log_id: bytes
    openings: int
    incarnations: Incarnations
    decisions: tuple[Decision, ...]
    heuristics: tuple[Heuristic, ...]
    worked_at: float | None = None
    carried_out: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Resource → when the latest decision was made that has been carried out there, as far as it is noted (seconds
    since 1970): what is older lacks that."""


def read_log(directory: str | os.PathLike[str], *, files: Files | None = None) -> LogImage:
    """The log in `directory` as it stands on disk. LogMissing when there is none, LogDamaged when it is damaged,
    LogError when it can't be read."""
    files = files or PosixFiles(directory)

    def image(contents: SegmentContents, state: LogState) -> LogImage:
        header = contents.header
        return LogImage(
            header.node,
            header.log_id,
            header.openings,
            replace(state.incarnations, noted=copy_of(state.noted) if is_copy(files, header) else dict(state.noted)),
            tuple(decode_decision(record) for record in state.decisions.values()),
            tuple(decode_heuristic(record) for record in state.heuristics.values()),
            carried_out={name: at_ms / 1000 for name, at_ms in state.carried_out.items()},
        )

    with disk_errors(files, "read"):
        return read_newest(files, image)


def read_newest(files: Files, look: Callable[[SegmentContents, LogState], T]) -> T:
    """Steps 1 to 3: what `look` makes of the newest segment and of the state that it leads to. It is called before the
    segment is known to have kept its name; FileNotFoundError from it means that it has not. LogMissing, LogDamaged."""
    damage = ""
    for _ in range(ATTEMPTS):
        names = _names_in(files)
        generations = segment_generations(names)
        state = LogState()

        try:
            if not generations:
                check_spare(files, names)
                raise LogMissing(f"{files}: there is no decision log here")
            looked = look(read_current(files, generations[-1], state), state)
        except FileNotFoundError:
            continue
        except LogDamaged as error:
            if str(error) == damage:
                raise
            damage = str(error)
            continue
        if segment_name(generations[-1]) in _names_in(files):
            return looked
    raise LogError(f"{files}: the log changes faster than it can be read; try again")


def _names_in(files: Files) -> Sequence[str]:
    """The names of the files; none where there is no folder."""
    try:
        return files.names()
    except FileNotFoundError:
        return ()
