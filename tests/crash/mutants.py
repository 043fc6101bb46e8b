"""Each class here is a worker that makes one classic mistake. The checker of the campaign must notice every one of
them.

python -m tests.crash.mutants '{"mutant": NAME, …}'          otherwise as `bench.crash.worker`
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from bench.crash.points import GatedLog, Wrapped
from bench.crash.worker import BROKER, DATABASE, CrashWorker, Station, run
from tm import ResourceConfig
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tm.resources import Mode
    from xa import Xid


class Mistaken(CrashWorker):
    """`wrong` goes around the resources that it names."""

    wrong: dict[str, Callable[[Any], Any]]

    def resource(self, name: str, url: str, mode: Mode = "two-phase") -> ResourceConfig:
        right = super().resource(name, url, mode)
        wrong = self.wrong.get(name)
        factory: Any = right.factory
        return right if wrong is None else ResourceConfig(url, mode, lambda registrar: wrong(factory(registrar)))


class _CommitsWhenPrepared(Wrapped):
    def prepare(self, xid: Xid, rmid: int, _flags: int = 0) -> Any:
        self.rm.prepare(xid, rmid)
        return self.rm.commit(xid, rmid)

    def commit(self, _xid: Xid, _rmid: int, _flags: int = 0) -> Any:
        return Code.XA_OK

    @property
    def flags(self) -> int:
        """Without TMUSEASYNC."""
        return 0


class AcknowledgesBeforeCommit(Mistaken):
    """The order is taken from its queue before the transaction is decided."""

    wrong = {BROKER: _CommitsWhenPrepared}  # noqa: RUF012 — a constant


class _KnowsNothing(GatedLog):
    def decisions(self) -> Sequence[Any]:
        return ()

    def decision(self, _gtrid: bytes) -> None:
        return None


class PresumesWithoutLog(Mistaken):
    """Recovery presumes that everything is rolled back, whatever the log says."""

    wrong = {}  # noqa: RUF012 — a constant

    def log(self) -> Any:
        right = super().log()
        return _KnowsNothing(right.rm, self.gate.hit)


class _NeverForces(GatedLog):
    def decide(self, _decision: Any) -> None:
        self._hit("before", "force")


class DecisionNotForced(Mistaken):
    """The decision is made, and written nowhere."""

    wrong = {}  # noqa: RUF012 — a constant

    def log(self) -> Any:
        right = super().log()
        return _NeverForces(right.rm, self.gate.hit)


class _ScansNothing(Wrapped):
    def recover(self, _rmid: int, _flags: int = 0, _count: int = 0) -> Sequence[Xid]:
        return ()


class FindsNothing(Mistaken):
    """Recovery sees no branch in the database."""

    wrong = {DATABASE: _ScansNothing}  # noqa: RUF012 — a constant


class _DecidedNothing(Wrapped):
    def decisions(self, *_: Any) -> Sequence[Any]:
        return ()

    def settle(self, *_: Any) -> None:
        return None


class PresumesWithoutDecider(Mistaken):
    """Recovery presumes that everything is rolled back, and does not ask the one that decides."""

    wrong = {DATABASE: _DecidedNothing}  # noqa: RUF012 — a constant


MUTANTS = {
    kind.__name__: kind
    for kind in (AcknowledgesBeforeCommit, PresumesWithoutLog, DecisionNotForced, FindsNothing, PresumesWithoutDecider)
}

if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    run(MUTANTS[told.pop("mutant")], Station(**told))
