"""Recording: the contract of telemetry, which a manager tells about its transactions, consumers and recovery passes.

`tm.telemetry.recorder` makes metrics and spans of it, `tm.telemetry.timelines` the page of a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tm.outcome import Outcome
    from tm.recovery import Report
    from tm.two_phase.ports import Ports
    from xa import Code, ResourceManager, Xid


class Received(NamedTuple):
    """The messages that a consumer has received in a transaction, from a broker of this kind."""

    system: str
    queue: str
    messages: Sequence[Any]


class Recording(Protocol):
    """Called from any thread. Nothing of it may raise."""

    def resource(self, name: str, rm: ResourceManager, system: str) -> ResourceManager:
        """`rm` with its verbs measured."""
        ...

    def session(self, session: Any, system: str) -> Any:
        """`session` of a resource of this kind, with its messages traced, if it is one for messages."""
        ...

    def ports(self, ports: Ports) -> Ports:
        """`ports` with their phases and forces measured."""
        ...

    def close(self) -> None:
        """Observes nothing of this manager any more."""
        ...

    def began(self, gtrid: bytes, received: Received | None = None) -> None:
        """A transaction has begun, or has work now: messages that a consumer has received in it."""
        ...

    def enter(self, gtrid: bytes) -> Any:
        """A transaction becomes that of the calling context; what `leave` needs."""
        ...

    def leave(self, entered: Any) -> None:
        """What was before `enter` is so again."""
        ...

    def completed(self, outcome: Outcome) -> None:
        """A transaction has come to its outcome."""
        ...

    def verb(self, resource: str, verb: str, began: float, code: Code | None, xid: Xid | None) -> None:
        """A resource manager was asked `verb` at `began` and has answered `code` (None: it raised what it must not)."""
        ...

    def phase(self, phase: str, began: float) -> None:
        """A phase that began at `began` is over for every branch."""
        ...

    def forced(self, record: str, began: float, *, gtrid: bytes, failed: bool) -> None:
        """A record about the transaction `gtrid` was forced, or was to be."""
        ...

    def consumes(self, system: str, queue: str, outcomes: Iterable[str]) -> None:
        """Notes a consumer of `queue`, at a broker of this kind, whose messages can come to these outcomes."""
        ...

    def consumed(self, system: str, queue: str, outcome: str, messages: int, took_s: float) -> None:
        """A consumer of `queue` has come to an end with so many messages."""
        ...

    def recovered(self, report: Report, began: float) -> None:
        """A recovery pass that began at `began` is over."""
        ...
