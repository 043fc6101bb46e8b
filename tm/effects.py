"""What the completion and recovery cores ask of the world, and what the world answers.

The cores are generators without I/O: they yield an effect and are sent its answer. A shell performs effects on
resource managers and the log (`tm.performer`); a simulation performs them on models, and stops wherever it likes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from xa import Code, XaError

if TYPE_CHECKING:
    from tm.log import Branch, Decision, Heuristic
    from tm.verdicts import Verb

Answer: TypeAlias = Code | XaError
"""What a verb answered: the code that it returned, or the error that it raised (with its code)."""


@dataclass(slots=True)
class Call:
    """Ask `verb`, with `flags`, of every branch, overlapped where the resource managers can.

    Answer: list[Answer], in the order of the branches.
    """

    verb: Verb
    branches: tuple[Branch, ...]
    flags: int = 0


@dataclass(slots=True)
class Force:
    """Make the decision durable in the log. Answer: None, or the LogError that `DecisionLog.decide` raised."""

    decision: Decision


@dataclass(slots=True)
class Decide:
    """Let the decider commit its branch and the decision together. Answer: Answer."""

    branch: Branch
    decision: Decision


@dataclass(slots=True)
class Note:
    """Make a heuristic outcome durable in the log. Answer: None, or the LogError."""

    heuristic: Heuristic


@dataclass(slots=True)
class End:
    """Note lazily, where the decision stands, that every branch of it is finished. Answer: None."""

    decision: Decision
    decider: str | None = None


@dataclass(slots=True)
class Pause:
    """Wait a moment before the next try. Answer: None."""

    seconds: float


@dataclass(slots=True)
class Held:
    """Can nobody else have finished branches of `gtrid` since it was begun: was the lease at `decider`, or without one
    the log, this process's all the time? Answer: bool; False where it can't be told."""

    gtrid: bytes
    decider: str | None


Effect: TypeAlias = Call | Force | Decide | Note | End | Pause | Held


def code_of(answer: Answer) -> Code:
    """The code in an answer."""
    return answer if isinstance(answer, Code) else answer.code
