"""FileLog: the decision log on this node's disk. Group commit over a `Journal`.

How a record becomes durable, with nothing but locks:

1. Under the mutex the record joins the batch that is being filled.
2. The first thread through the batch's gate is its leader; the others of the batch wait at the gate.
3. The leader waits for the disk, where the batch before is being forced; meanwhile others join the batch.
4. Once it has the disk, the leader closes the batch (the next one is being filled from now on), writes and
   forces it as one frame, makes its records visible, notes the outcome, and gives the disk to the next leader.
5. The gate lets the others through one after the other: they look whether the batch has its outcome, which it
   has, unless the leader was interrupted. Then the next one is the leader, and writes the same batch again.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from tm.log.contract import Branch, Decision, Heuristic, LogError, LogFull, LogStopped
from tm.log.incarnations import FIRST, INCARNATION, IncarnationVerb, trusted
from tm.log.journal import Journal
from tm.log.log_folder import Files, PosixFiles
from tm.log.records import (
    branch_key,
    decode_decision,
    decode_heuristic,
    encode_carried_out,
    encode_ceiling,
    encode_decision,
    encode_end,
    encode_floor,
    encode_heuristic,
    encode_heuristic_dropped,
    encode_noted,
)
from xa.fork import belongs_to_this_process
from xa.machine import advance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tm.log.incarnations import Incarnations

_LOGGER: Final = logging.getLogger(__name__)

SEGMENT_SIZE: Final = 4 << 20
CARRIED_OUT_S: Final = 1.0
"""How often it is noted which decision was carried out where."""
LAZY_SIZE: Final = 16 << 10
"""So many octets of lazy records wait in memory before they are written without a decision among them."""

_Change = tuple[dict[bytes, Any], bytes, Any]
"""Table of the state, key, and what it holds for it, or None to take it out."""


class _BatchResult(Enum):
    """The result of a batch, where it was no error."""

    OPEN = "not settled yet"
    FORCED = "durable"


class _Batch:
    """Records that are written together, and what became of them."""

    __slots__ = ("gate", "outcome", "records", "size")

    def __init__(self) -> None:
        self.records: list[tuple[bytes, _Change | None]] = []
        self.size = 0
        self.gate = threading.Lock()
        self.outcome: _BatchResult | LogError = _BatchResult.OPEN


class FileLog:
    """A `DecisionLog` in a directory of its own, which one process holds at a time.

    Opened by construction: LogLocked, LogDamaged, LogFull as their docstrings say, LogError when the directory
    is another node's, or the disk fails; nothing is lost by that, it can be opened again. `entropy(n)` gives n random
    octets.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        node: str,
        *,
        segment_size: int = SEGMENT_SIZE,
        files: Files | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._journal = Journal(files or PosixFiles(directory), node, segment_size, entropy)
        self._directory = directory
        self._state = self._journal.state
        self._mutex = threading.Lock()
        self._disk = threading.Lock()
        self._filling = _Batch()
        self._decided: dict[bytes, tuple[Decision, float]] = {}
        """The decisions of this opening that have not ended, and when each was to be made."""
        self._noted_at = 0.0
        self._wall = wall
        self._stopped: str | None = None
        self._closed = False
        belongs_to_this_process(self)

    @property
    def node(self) -> str:
        return self._journal.node

    @property
    def octets(self) -> int:
        """The size of its files."""
        size = 0
        with suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                size += entry.stat().st_size
        return size

    @property
    def log_id(self) -> bytes:
        return self._journal.log_id

    @property
    def incarnation(self) -> bytes:
        return self._journal.incarnation

    @property
    def openings(self) -> int:
        """How often this log was opened for writing."""
        return self._journal.openings

    @property
    def incarnations(self) -> Incarnations:
        with self._mutex:
            return self._state.incarnations

    def trust(self, incarnation: bytes) -> None:
        standing = trusted(self.incarnations, incarnation)
        self._commit(encode_noted(incarnation, standing), (self._state.noted, incarnation, standing))

    def held(self) -> bool:
        """Always: no other process can open the folder."""
        return True

    def decide(self, decision: Decision) -> None:
        record = encode_decision(decision)
        at = self._wall()
        self._commit(record, (self._state.decisions, decision.gtrid, record))
        self._decided[decision.gtrid] = decision, at

    def end(self, gtrid: bytes) -> None:
        """Visible at once; written with the next forced record, or when many wait."""
        record = encode_end(gtrid)
        with self._mutex:
            decided = self._decided.pop(gtrid, None)
            if self._state.decisions.pop(gtrid, None) is None or self._stopped is not None:
                return
            batch = self._add_lazy(record)
            if decided is not None and decided[1] >= self._noted_at + CARRIED_OUT_S:
                self._note_carried_out(*decided)
        if batch.size >= LAZY_SIZE:
            self._settle(batch)

    def _note_carried_out(self, decision: Decision, at: float) -> None:
        """Called with the mutex held. One that recovery has carried out, of an earlier opening, is not noted."""
        self._noted_at = at
        for branch in decision.branches:
            self._state.carried_out[branch.resource] = at_ms = int(at * 1000)
            self._add_lazy(encode_carried_out(branch.resource, at_ms))

    def note_floor(self, floor: int, incarnation: bytes = b"") -> None:
        incarnation = incarnation or self.incarnation
        with self._mutex:
            if floor <= self._state.floors.get(incarnation, FIRST) or self._stopped is not None:
                return
            self._state.floors[incarnation] = floor
            self._add_lazy(encode_floor(incarnation, floor))

    def note_ceiling(self, ceiling: int) -> None:
        record = encode_ceiling(self.incarnation, ceiling)
        self._commit(record, (self._state.ceilings, self.incarnation, ceiling))

    def _add_lazy(self, record: bytes) -> _Batch:
        batch = self._filling
        batch.records.append((record, None))
        batch.size += len(record)
        return batch

    def note_heuristic(self, heuristic: Heuristic) -> None:
        record = encode_heuristic(heuristic)
        self._commit(record, (self._state.heuristics, branch_key(heuristic.branch), record))

    def drop_heuristic(self, branch: Branch) -> None:
        self._commit(encode_heuristic_dropped(branch), (self._state.heuristics, branch_key(branch), None))

    def decision(self, gtrid: bytes) -> Decision | None:
        with self._mutex:
            self._check()
            record = self._state.decisions.get(gtrid)
        return None if record is None else decode_decision(record)

    def decisions(self) -> Sequence[Decision]:
        with self._mutex:
            self._check()
            records = list(self._state.decisions.values())
        return [decode_decision(record) for record in records]

    def heuristics(self) -> Sequence[Heuristic]:
        with self._mutex:
            self._check()
            records = list(self._state.heuristics.values())
        return [decode_heuristic(record) for record in records]

    def close(self) -> None:
        """Writes what is lazy, and an empty frame behind it (see `tm.log.segment`)."""
        with self._mutex:
            if self._closed:
                return
            self._closed = True
            batch = self._filling
        try:
            self._settle(batch)
        finally:
            with self._disk:
                self._close_journal()

    def _close_journal(self) -> None:
        try:
            if self._stopped is None:
                own = self.incarnation
                standing = advance(INCARNATION, self._state.noted[own], IncarnationVerb.CLOSE)
                self._journal.append(encode_noted(own, standing), self._records)
        except (OSError, LogFull) as error:
            _LOGGER.warning("the decision log of %s could not be closed properly: %s", self.node, error)
        finally:
            self._stop("it was closed")
            self._journal.close()

    # --- Group commit -------------------------------------------------------------------------------------
    def _commit(self, record: bytes, change: _Change) -> None:
        batch = None
        try:
            with self._mutex:
                self._check()
                batch = self._filling
                batch.records.append((record, change))
            outcome = self._settle(batch)
        except LogError:
            raise
        except BaseException:
            if batch is not None:
                self._settle_interrupted(batch)
            raise
        if isinstance(outcome, LogError):
            raise type(outcome)(*outcome.args) from outcome

    def _settle(self, batch: _Batch) -> _BatchResult | LogError:
        """Steps 2 to 5: the outcome of `batch`."""
        with batch.gate:
            if batch.outcome is not _BatchResult.OPEN:
                return batch.outcome
            with self._disk:
                with self._mutex:
                    if self._filling is batch:
                        self._filling = _Batch()
                    if self._stopped is not None:
                        batch.outcome = LogStopped(self._stopped)
                        return batch.outcome

                try:
                    self._journal.append(b"".join([record for record, _ in batch.records]), self._records)
                except LogFull as error:
                    batch.outcome = error
                    return error
                except OSError as error:
                    reason = f"a write or a force failed: {error}"
                    self._stop(reason)
                    batch.outcome = LogStopped(self._stopped or reason)
                    return batch.outcome

                with self._mutex:
                    for _, change in batch.records:
                        if change is not None:
                            table, key, record = change
                            if record is None:
                                table.pop(key, None)
                            else:
                                table[key] = record
                    batch.outcome = _BatchResult.FORCED
                return batch.outcome

    def _settle_interrupted(self, batch: _Batch) -> None:
        """This thread was interrupted by a signal while its record is somewhere on its way. It is settled all
        the same, so that `decision` can tell what became of it; if that is interrupted as well, the log stops."""
        try:
            self._settle(batch)
        except BaseException as error:
            self._stop(f"a thread was interrupted twice while it forced a record ({type(error).__name__})")
            raise

    def _records(self) -> list[bytes]:
        with self._mutex:
            return self._state.records()

    # --- Stopping -----------------------------------------------------------------------------------------
    def _check(self) -> None:
        if self._stopped is not None:
            raise LogStopped(self._stopped)

    def _stop(self, reason: str) -> None:
        if self._stopped is None:
            self._stopped = reason

    def forked(self) -> None:
        # Whatever the parent's threads were doing.
        self._mutex, self._disk = threading.Lock(), threading.Lock()
        self._closed = True
        self._stop("this process is a fork of the one that opened the log")
        self._journal.disown()
