"""Mutants of the pipeline's core: each makes one classic mistake. The checker has to see every one of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.simulation.pipeline.world import Cores
from tm.effects import Call, Force
from tm.log import LogError
from tm.log.sql.states import GtridState
from xa import FORMAT_ID, Code, Gtrid, XaError, Xid, xa_error
from xabridge.pipeline.core import binding, deciding, planning, taking
from xabridge.pipeline.core.effects import (
    Abort,
    BindQuery,
    Failed,
    Fence,
    FindKnown,
    FindLater,
    FindPlanned,
    FindWaiting,
    Scan,
    Upsert,
)
from xabridge.pipeline.core.ledger import Planned
from xabridge.pipeline.core.naming import Own, is_excuse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    Bend = Callable[[Any], Generator[Any, Any, Any]]


@dataclass(frozen=True)
class Mutant:
    """A name, and what it puts in the place of the right thing."""

    name: str
    cores: Cores


def bent(steps: Callable[..., Any], bend_of: Callable[[], Bend]) -> Callable[..., Any]:
    """The steps; every effect goes through a bend, which yields what is really asked and returns what is heard."""

    def run(*arguments: Any, **named: Any) -> Generator[Any, Any, Any]:
        inner, bend = steps(*arguments, **named), bend_of()
        answer: Any = None
        error: LogError | None = None
        while True:
            try:
                effect = inner.throw(error) if error is not None else inner.send(answer)
            except StopIteration as stop:
                return stop.value
            error = None
            try:
                answer = yield from bend(effect)
            except LogError as raised:
                error = raised

    return run


def _without(kind: type, answer: Any) -> Callable[[], Bend]:
    """One kind of effect is not carried out."""

    def bend(effect: Any) -> Generator[Any, Any, Any]:
        if isinstance(effect, kind):
            return answer
        return (yield effect)

    return lambda: bend


def _no_scan_after_the_decision() -> Bend:
    decided = False

    def bend(effect: Any) -> Generator[Any, Any, Any]:
        nonlocal decided
        decided = decided or isinstance(effect, Force)
        if decided and isinstance(effect, Scan):
            return frozenset()
        return (yield effect)

    return bend


def _blaming(effect: Any) -> Generator[Any, Any, Any]:
    """Nobody hears that a place is away, or that a task could not write."""
    answer = yield effect
    if not isinstance(effect, Scan):
        return answer
    return frozenset() if isinstance(answer, XaError) else frozenset(xid for xid in answer if not is_excuse(xid))


def _one_attempt(effect: Any) -> Generator[Any, Any, Any]:
    return (yield replace(effect, staged=effect.staged[:1]) if isinstance(effect, Upsert) else effect)


def _taken_all(aside: int, bad: Collection[int], taken: int, told: int) -> taking.Judged:
    del aside, bad, taken, told
    return taking.Judged()


def _as_if_logged(effect: Any) -> Generator[Any, Any, Any]:
    answer = yield effect
    return answer.as_logged() if isinstance(effect, FindPlanned) else answer


def _not_now_is_rolled_back(effect: Any) -> Generator[Any, Any, Any]:
    """ "No connection was free", told with the code for "was rolled back"."""
    answer = yield effect
    if not isinstance(effect, Call):
        return answer
    return [
        xa_error(Code.XAER_RMERR) if isinstance(told, XaError) and told.code is Code.XA_RETRY else told
        for told in answer
    ]


class _Forgetful(Own):
    """Its gtrids say nothing of incarnation and try."""

    def gtrid(self, epoch: int, tries: int) -> bytes:
        del tries
        return Gtrid(self.pipeline, self.log_id, 0, epoch << 16).encode()

    def planned(self, gtrid: bytes) -> bool:
        return self.owns(gtrid)


class _TwoPipelines(Own):
    """Of a source and a sink under different pipelines: the sink never finds what was read at work."""

    def planned(self, gtrid: bytes) -> bool:
        del gtrid
        return False


def _sink_apart(own: Own, query: str, resources: Any) -> Any:
    return planning.plan_sink(_TwoPipelines(own.pipeline, own.log_id, own.incarnation), query, resources)


def _never(kinds: dict[type, Any]) -> Callable[[], Bend]:
    """What these effects ask for is never found."""

    def bend(effect: Any) -> Generator[Any, Any, Any]:
        return kinds[type(effect)] if type(effect) in kinds else (yield effect)

    return lambda: bend


def _known_batches(pipeline: str, query: Any, known: Any) -> None:
    """The checkpoint may be older than what was decided."""
    binding.check(pipeline, query, replace(known, decided={}))


def _without_batches(effect: Any) -> Generator[Any, Any, Any]:
    answer = yield effect
    return replace(answer, decided={}) if isinstance(effect, FindKnown) else answer


def _anybody(pipeline: str, query: Any, known: Any) -> None:
    """Another query may have the pipeline: its checkpoint counts as one that never was."""


def _bind_anybody(own: Own, query: Any, sources: Any, resources: Any) -> Any:
    """As it was: nothing is asked, and nothing of the other query is finished."""
    del own, resources
    yield BindQuery(query.id, query.run, tuple(sources))


def _one_sink_for_all(gtrid: bytes, partition: int, task: int, random: bytes) -> Xid:
    del task, random
    return Xid(FORMAT_ID, gtrid, b"snk/%d" % partition)


def _at_once(effect: Any) -> Generator[Any, Any, Any]:
    """What was taken is yielded first; when it should be prepared, the task is over."""
    if isinstance(effect, taking.Prepare):
        return Code.XA_OK
    return (yield effect)


def _rolled_back(effect: Any) -> Generator[Any, Any, Any]:
    """What is not prepared at first sight is rolled back."""
    return (yield Roll(effect.xid) if isinstance(effect, taking.Adopt) else effect)


@dataclass(frozen=True)
class Roll:
    """Tell the branch to roll back, whatever it is."""

    xid: Xid


_NO_SWEEP = Cores(
    plan=bent(planning.plan, _without(Scan, frozenset())),
    plan_sink=bent(planning.plan_sink, _without(Scan, frozenset())),
    commit=bent(deciding.commit, _no_scan_after_the_decision),
)
MUTANTS = (
    Mutant("abort without asking the log", Cores(abort=bent(deciding.abort, _without(Abort, GtridState.ABORTED)))),
    Mutant("gtrid without incarnation and try", Cores(own=_Forgetful)),
    Mutant("bqual without attempt and random", Cores(sink_xid=_one_sink_for_all)),
    Mutant("yield before prepare", Cores(take=bent(taking.take, lambda: _at_once))),
    Mutant("no sweep", _NO_SWEEP),
    Mutant(
        "no fence",
        Cores(commit=bent(deciding.commit, _without(Fence, None)), abort=bent(deciding.abort, _without(Fence, None))),
    ),
    Mutant("sources finished with the decision", Cores(commit=bent(deciding.commit, lambda: _as_if_logged))),
    Mutant("outages are the messages' fault", Cores(abort=bent(deciding.abort, lambda: _blaming))),
    Mutant("no isolation", Cores(abort=bent(deciding.abort, _without(Failed, None)))),
    Mutant("what can't be read is taken", Cores(judge=_taken_all)),
    Mutant("rows by key of one task", Cores(commit=bent(deciding.commit, lambda: _one_attempt))),
    Mutant("rows by key that are not decided", Cores(commit=bent(deciding.commit, _without(Upsert, ())))),
    Mutant('"no room" counts as rolled back', Cores(commit=bent(deciding.commit, lambda: _not_now_is_rolled_back))),
    Mutant("what another attempt is at is rolled back", Cores(take=bent(taking.take, lambda: _rolled_back))),
    Mutant(
        "each source has a decision of its own",
        Cores(
            plan=bent(planning.plan, _never({FindPlanned: Planned(())})),
            plan_sink=bent(planning.plan_sink, _never({FindWaiting: ()})),
            commit=bent(deciding.commit, _never({FindWaiting: ()})),
        ),
    ),
    Mutant(
        "the sink decides apart from the sources",
        Cores(
            plan_sink=bent(_sink_apart, _never({FindWaiting: ()})),
            commit=bent(deciding.commit, _never({FindWaiting: ()})),
        ),
    ),
    Mutant(
        "an old checkpoint goes on",
        Cores(
            check=_known_batches,
            bind=bent(binding.bind, lambda: _without_batches),
            plan=bent(planning.plan, _never({FindLater: ()})),
            latest=bent(planning.latest, _never({FindLater: ()})),
        ),
    ),
    Mutant("anybody's checkpoint is taken", Cores(check=_anybody, bind=_bind_anybody)),
    Mutant("what another query left is not given up", Cores(bind=bent(binding.bind, _never({FindWaiting: ()})))),
)
