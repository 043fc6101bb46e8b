"""Ports: what the two-phase commit asks of the world, and what the world answers.

The algorithm (`tm.two_phase.commit`) does no I/O. It awaits the methods of a `Ports`. `tm.resources.blocking_ports`
carries them out on resource managers and the decision log; the simulation carries them out on models, and crashes in
front of any.

A failure that the algorithm goes on with is an answer, not an exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from xa import Code, XaError

if TYPE_CHECKING:
    from tm.log import Branch, Decision, Heuristic, LogError
    from tm.two_phase.return_codes import Verb
    from xa import Handle
    from xa.outcome_notes import BranchOutcome

Answer: TypeAlias = Code | XaError
"""The resource manager's answer: the code that it returned, or the error that it raised (with its code)."""


def code_of(answer: Answer) -> Code:
    """The code in an answer."""
    return answer if isinstance(answer, Code) else answer.code


def text_of(answer: Answer) -> str:
    """An answer in words."""
    return answer.name if isinstance(answer, Code) else answer.message


@dataclass(slots=True, eq=False)
class AskedBranches:
    """Branches that were asked a verb, not all of which have answered."""

    verb: Verb
    branches: tuple[Branch, ...]
    answers: dict[int, Answer]
    """The answers that are here, by the place of the branch."""
    outstanding: dict[int, Handle]
    """The operations of all others."""
    took_s: float = 0.0
    """How long it took to send, where that is measured."""


class OutcomePorts(Protocol):
    """The common part of a two-phase commit and a recovery pass: branches are asked, and the results are noted."""

    async def ask(self, verb: Verb, branches: tuple[Branch, ...], flags: int = 0) -> list[Answer]:
        """Asks `verb`, with `flags`, of every branch, overlapped where the resource managers can. The answers are in
        the order of the branches."""
        ...

    async def outcomes(self, branches: tuple[Branch, ...]) -> list[BranchOutcome | XaError]:
        """What became of branches that their resource managers do not know any more, as their notes tell. UNKNOWN where
        there is no note; the error that kept a resource manager from telling it now."""
        ...

    async def note(self, heuristic: Heuristic) -> LogError | None:
        """Makes a heuristic outcome durable in the log. None, or the error."""
        ...

    async def end(self, decision: Decision, decider: str | None = None) -> None:
        """Notes lazily, in the log or in `decider`, that every branch of the decision is finished."""
        ...


class Ports(OutcomePorts, Protocol):
    """The ports of a two-phase commit."""

    async def with_notes(self, branches: tuple[Branch, ...]) -> tuple[Branch, ...]:
        """The same branches, which are prepared, with the notes that their resource managers have of them."""
        ...

    async def force(self, decision: Decision) -> LogError | None:
        """Makes the decision durable in the log. None, or the error that `DecisionLog.decide` raised."""
        ...

    async def send(self, verb: Verb, branches: tuple[Branch, ...], leave: str) -> AskedBranches:
        """Asks, and does not wait for the answers of the resource `leave`, if that takes TMASYNC. Every request was
        sent when it returns."""
        ...

    async def collect(self, asked: AskedBranches) -> list[Answer]:
        """Waits for the answers that `send` has left; all of them, as `ask` returns them."""
        ...

    async def decide(self, branch: Branch, decision: Decision) -> Answer:
        """Lets the resource that decides commit its `branch` and the decision together."""
        ...

    async def pause(self, seconds: float) -> None:
        """Waits before the next try."""
        ...

    async def is_held(self, gtrid: bytes, decider: str | None) -> bool:
        """Whether no other process can have finished branches of `gtrid` since it began, because this process has held
        the lease at `decider`, or without a decider the log, all the time. False where that is unknown."""
        ...
