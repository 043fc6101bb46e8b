"""Failures on demand, for tests of applications: a resource manager that fails when it is asked to, and otherwise is
the one that it wraps.

What can be asked for, as `at`:

    start      it can't be reached when a transaction first uses it
    prepare    it votes no: the transaction is rolled back
    commit     the connection is lost when it is to commit: the outcome is unknown until recovery
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from tm.log import LogStopped
from xa import TMNOFLAGS, TMONEPHASE, TMUSEASYNC, Code, XaError, xa_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tm.log import Decision, DecisionLog
    from xa import Owner, ResourceFactory, ResourceManager, Xid

At = Literal["start", "prepare", "commit"]
KilledAt = Literal["before the decision", "after the decision"]
PLACES: Final = ("start", "prepare", "commit")
KILLS: Final = ("before the decision", "after the decision")


class Killed(BaseException):
    """The process was killed here, as the test wanted. What the application would have done next, it has not done."""


class Faults:
    """What is to fail, of all resources of an application: once, and at "commit" until `heal`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted: set[tuple[str, str]] = set()
        self._kill: KilledAt | None = None
        self._really = False
        self.is_dead = False
        """Whether the process was killed: nothing reaches a resource any more."""
        self._paused = 0

    def want(self, resource: str, at: At) -> None:
        """Makes it fail there, when it comes to that."""
        if at not in PLACES:
            raise ValueError(f"at={at!r}: expected {' or '.join(map(repr, PLACES))}")
        with self._lock:
            self._wanted.add((resource, at))

    def want_kill(self, at: KilledAt, *, really: bool = False) -> None:
        """The next transaction that commits is killed there; `really`, with its process."""
        if at not in KILLS:
            raise ValueError(f"at={at!r}: expected {' or '.join(map(repr, KILLS))}")
        self._kill, self._really = at, really

    def take(self, resource: str, at: At) -> bool:
        """Whether it is to fail here and now."""
        with self._lock:
            if self._paused or (resource, at) not in self._wanted:
                return False
            if at != "commit":
                self._wanted.discard((resource, at))
            return True

    def heal(self) -> None:
        """Connections that were lost can be made again."""
        with self._lock:
            self._wanted = {(resource, at) for resource, at in self._wanted if at != "commit"}

    @property
    def may_leave_work(self) -> bool:
        """Whether prepared branches may be left unfinished until the end of the test."""
        with self._lock:
            return self.is_dead or any(at == "commit" for _, at in self._wanted)

    def clear(self) -> None:
        """Drops all faults."""
        with self._lock:
            self._wanted.clear()
            self._kill = None

    def passes(self, point: KilledAt) -> None:
        """The process comes to this point."""
        if self._kill == point and not self._paused:
            if self._really:
                os.kill(os.getpid(), signal.SIGKILL)
            self._kill, self.is_dead = None, True
        self.check_alive()

    def check_alive(self) -> None:
        """XAER_RMFAIL: it is dead."""
        if self.is_dead:
            raise xa_error(Code.XAER_RMFAIL, "the process was killed, as the test wants")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context without faults: it is the test that is at work, and not the application."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def revive(self) -> bool:
        """The process is started again; whether it was dead."""
        was, self.is_dead = self.is_dead, False
        return was


class FailingResource:
    """Everything is the wrapped one's, but for the verbs that can fail. It takes each of them by itself."""

    def __init__(self, name: str, rm: ResourceManager, faults: Faults) -> None:
        self._name = name
        self._rm: Any = rm
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        if name == "end_late" or (name == "decide" and not hasattr(self._rm, "decide")):
            raise AttributeError(name)
        return getattr(self._rm, name)

    @property
    def flags(self) -> int:
        return int(self._rm.flags) & ~TMUSEASYNC

    def start(self, xid: Xid, rmid: int, flags: int = 0) -> Any:
        if self._faults.take(self._name, "start"):
            raise xa_error(Code.XAER_RMFAIL, "start: it can't be reached, as the test wants", xid)
        return self._rm.start(xid, rmid, flags)

    def prepare(self, xid: Xid, rmid: int, flags: int = 0) -> Any:
        self._faults.check_alive()
        self._vote(xid, rmid, "prepare")
        return self._rm.prepare(xid, rmid, flags)

    def commit(self, xid: Xid, rmid: int, flags: int = 0) -> Any:
        if flags & TMONEPHASE:
            self._dies_before(xid, rmid)
            self._vote(xid, rmid, "commit")
        else:
            self._faults.passes("after the decision")
        if self._faults.take(self._name, "commit"):
            raise xa_error(Code.XAER_RMFAIL, "commit: the connection was lost, as the test wants", xid)
        answer = self._rm.commit(xid, rmid, flags)
        if flags & TMONEPHASE:
            self._faults.passes("after the decision")
        return answer

    def rollback(self, xid: Xid, rmid: int, flags: int = 0) -> Any:
        self._faults.check_alive()
        return self._rm.rollback(xid, rmid, flags)

    def _dies_before(self, xid: Xid, rmid: int) -> None:
        """A process that dies before the decision takes its connection with it, and what was not prepared."""
        try:
            self._faults.passes("before the decision")
        except XaError:
            self._rm.rollback(xid, rmid, TMNOFLAGS)
            raise

    def _vote(self, xid: Xid, rmid: int, verb: str) -> None:
        if self._faults.take(self._name, "prepare"):
            self._rm.rollback(xid, rmid, TMNOFLAGS)
            raise xa_error(Code.XA_RBINTEGRITY, f"{verb}: it votes no, as the test wants", xid)


class FailingDecider(FailingResource):
    """The same for the one that decides. A process that was killed is known to be dead at once: its lease is ended."""

    def __init__(self, name: str, rm: ResourceManager, faults: Faults) -> None:
        super().__init__(name, rm, faults)
        self._owner: Owner | None = None

    def hold(self, owner: Owner, lease_s: float, rmid: int, floor: int = 0, ceiling: int = 0) -> None:
        self._rm.hold(owner, lease_s, rmid, floor, ceiling)
        self._owner = owner if lease_s else None

    def close(self, close_string: str, rmid: int, flags: int = 0) -> Any:
        if self._owner is not None:
            with suppress(XaError):
                self.hold(self._owner, 0, rmid)
        return self._rm.close(close_string, rmid, flags)

    def decide(self, xid: Xid, rmid: int, record: bytes) -> Any:
        self._dies_before(xid, rmid)
        self._vote(xid, rmid, "decide")
        answer = self._rm.decide(xid, rmid, record)
        if self._faults.take(self._name, "commit"):
            raise xa_error(Code.XAER_RMFAIL, "decide: the connection was lost, as the test wants", xid)
        self._faults.passes("after the decision")
        return answer

    def settle(self, gtrid: bytes, rmid: int) -> Any:
        self._faults.check_alive()
        return self._rm.settle(gtrid, rmid)


class FailingLog:
    """A log whose process may be killed before the decision. Everything else is the wrapped one's."""

    def __init__(self, log: DecisionLog, faults: Faults) -> None:
        self._log: Any = log
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def decide(self, decision: Decision) -> None:
        try:
            self._faults.passes("before the decision")
        except XaError as error:  # whether a decision is there is for the next process to find out
            raise LogStopped(str(error)) from error
        self._log.decide(decision)


def failing(name: str, factory: ResourceFactory, faults: Faults) -> ResourceFactory:
    """A factory of resource managers that fail on demand."""

    def make(registrar: Any) -> Any:
        made = factory(registrar)
        return (FailingDecider if hasattr(made, "decide") else FailingResource)(name, made, faults)

    return make
