"""DecisionLog: the contract of the place where the decision of a global transaction becomes durable.

Only commit decisions are logged (presumed abort): a gtrid of this log without a decision was, or will be, rolled
back. The exact xids stand in the decision; nothing is rebuilt from configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from xa.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tm.log.incarnations import Incarnations
    from xa import Code, Xid


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch, and the configured name of the resource manager that has it. `note` is what the resource manager gave
    with its vote to tell the branch's outcome by later (`xa.outcome_notes`), in a decision; it is no part of what the
    branch is."""

    resource: str
    xid: Xid
    note: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """A global transaction was decided to commit: `branches` are those that were prepared."""

    gtrid: bytes
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class Heuristic:
    """A branch was completed without the manager: `code` is the XA_HEUR* that says so; `why` says in words what is
    known of it, and is no part of the outcome."""

    branch: Branch
    code: Code
    why: str = field(default="", compare=False)


class LogError(Exception):
    """Something is wrong with a decision log. The message holds no password."""

    def __init__(self, message: str) -> None:
        super().__init__(masked(message))


WAYS_OUT: Final = (
    '. Stop that one, or give this one a node and a log of its own, or let a database decide (mode = "decider"), which '
    "any number of processes may share"
)


class LogLocked(LogError):
    """Another process holds the log. The message names it, and says what a transaction manager can do then; `held` is
    the first part alone, for somebody who is none."""

    def __init__(self, held: str, advice: str = WAYS_OUT) -> None:
        self.held = held
        super().__init__(held + advice)


class LogMissing(LogError):
    """No log was opened there yet, so there is nothing to read."""


class LogDamaged(LogError):
    """The log can't be read where it must be readable. The message says where. It is not opened."""


class LogOfOtherVersion(LogError):
    """Another version of xabridge has made the log. The message says what to do. It is not opened."""


class LogFull(LogError):
    """The record was not written and never will be: the disk is full. The transaction can be rolled back."""


class LogStopped(LogError):
    """Whether the record is durable is unknown: a force failed, or the log can't be reached. From then on the log
    tells nothing either, until it knows again: a FileLog when it is opened anew, a SqlLog when its database can
    be reached. So no outcome is presumed meanwhile."""


class DecisionRefused(LogError):
    """The decision was not written and never will be: recovery has presumed the transaction rolled back, or
    another process has taken over this node."""


class DecisionLog(Protocol):
    """A log that is open. Safe to use from many threads."""

    @property
    def node(self) -> str:
        """The node id whose decisions these are."""
        ...

    @property
    def log_id(self) -> bytes:
        """8 octets, random, made when the log was made."""
        ...

    @property
    def incarnation(self) -> bytes:
        """8 octets, random, drawn at this opening; noted durably in the log before they are given out."""
        ...

    @property
    def incarnations(self) -> Incarnations:
        """The log's knowledge of its incarnations: which say, by the absence of a decision, that there is none."""
        ...

    def trust(self, incarnation: bytes) -> None:
        """Durably notes an operator's word that this log, a copy, lacks no decision of `incarnation`. ValueError: it is
        no copy, or was not made while that was at work. Errors as in `decide`."""
        ...

    def held(self) -> bool:
        """Whether no other process can have acted on the decisions of this log since it was opened; False also when
        that is unknown."""
        ...

    def decide(self, decision: Decision) -> None:
        """Makes `decision` durable; the commit point of its transaction is the return of this call.

        LogFull, DecisionRefused: it is not and never will be durable. LogStopped: unknown.
        Whatever else is raised is an interruption of the calling thread (KeyboardInterrupt, say): `decision`
        tells what became of it.
        """
        ...

    def end(self, gtrid: bytes) -> None:
        """Notes that every branch of `gtrid` is finished. Lazy: it may be lost in a crash, and is not forced. What
        can't be written is lost, with a line in Python's log; it is not raised, for nothing depends on it."""
        ...

    def note_floor(self, floor: int, incarnation: bytes = b"") -> None:
        """Notes that every transaction of this incarnation, or of the former one that is named, whose sequence is below
        `floor` is over everywhere (`tm.sequences`). Lazy, as `end`."""
        ...

    def note_ceiling(self, ceiling: int) -> None:
        """Durably notes that no transaction of this incarnation reaches `ceiling`, in the place of what was noted
        before. The caller has begun none that does, and begins none unless it returns. Errors as in `decide`."""
        ...

    def note_heuristic(self, heuristic: Heuristic) -> None:
        """Makes a heuristic outcome durable, before it may be forgotten at the resource manager. Noting the
        same branch again is harmless. Errors as in `decide`."""
        ...

    def drop_heuristic(self, branch: Branch) -> None:
        """Durably drops what `note_heuristic` noted of `branch`. Errors as in `decide`."""
        ...

    def decision(self, gtrid: bytes) -> Decision | None:
        """The decision of `gtrid`, if there is one and it has not ended. LogStopped: it is unknown."""
        ...

    def decisions(self) -> Sequence[Decision]:
        """Every decision that has not ended, oldest first. LogStopped: they are unknown."""
        ...

    def heuristics(self) -> Sequence[Heuristic]:
        """Every heuristic outcome that was noted and not dropped. LogStopped: they are unknown."""
        ...

    def close(self) -> None:
        """Lets others open the log. Nothing is lost by not calling it."""
        ...
