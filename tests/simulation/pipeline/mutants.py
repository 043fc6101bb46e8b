"""Each class here is a mutant of the pipeline's core, which makes one classic mistake. The checker has to notice every
one of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any

from tests.simulation.pipeline.world import Mutant
from tm.log.sql.states import GtridState
from xa import FORMAT_ID, Code, Gtrid, XaError, Xid, xa_error
from xabridge.pipeline.core.errors import PipelineError
from xabridge.pipeline.core.ledger.rows import PlannedEpochs
from xabridge.pipeline.core.protocol import batch_decision, ownership, partition_read
from xabridge.pipeline.core.protocol.epoch_plan import EpochPlanner, PlannedSink, ReadPlan
from xabridge.pipeline.core.protocol.ports import Ports
from xabridge.pipeline.core.xids import Incarnation, is_excuse

Bend = Callable[[Any, str, tuple[Any, ...]], Awaitable[Any]]


class BentPort:
    """A port; every call goes through a bend, which makes the call that is really made, and returns the answer that is
    heard."""

    def __init__(self, port: Any, bend: Bend) -> None:
        self._port = port
        self._bend = bend

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return lambda *arguments: self._bend(self._port, name, arguments)


def bent(algorithm: Callable[..., Any], bend_of: Callable[[], Bend]) -> Callable[..., Any]:
    """The algorithm over bent ports."""

    def run(ports: Any, *arguments: Any, **named: Any) -> Any:
        bend = bend_of()
        if isinstance(ports, EpochPlanner):
            return algorithm(replace(ports, ports=_bent_ports(ports.ports, bend)), *arguments, **named)
        over = _bent_ports(ports, bend) if isinstance(ports, Ports) else BentPort(ports, bend)
        return algorithm(over, *arguments, **named)

    return run


def _bent_ports(ports: Ports, bend: Bend) -> Ports:
    ledger, log, branches = (BentPort(port, bend) for port in (ports.ledger, ports.log, ports.branches))
    return Ports(ledger, log, branches, ports.pause)  # type: ignore[arg-type]


async def call(port: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    """The right call."""
    return await getattr(port, name)(*arguments)


def _without(answers: dict[str, Any]) -> Callable[[], Bend]:
    """These calls are not made; their answer is always the same."""

    async def bend(port: Any, name: str, arguments: tuple[Any, ...]) -> Any:
        return answers[name] if name in answers else await call(port, name, arguments)

    return lambda: bend


def _hears(of: str, change: Callable[[Any], Any]) -> Callable[[], Bend]:
    """Something else is heard in the place of the answer of this call."""

    async def bend(port: Any, name: str, arguments: tuple[Any, ...]) -> Any:
        answer = await call(port, name, arguments)
        return change(answer) if name == of else answer

    return lambda: bend


def _no_scan_after_the_decision() -> Bend:
    decided = False

    async def bend(port: Any, name: str, arguments: tuple[Any, ...]) -> Any:
        nonlocal decided
        decided = decided or name == "force"
        if decided and name == "prepared":
            return frozenset()
        return await call(port, name, arguments)

    return bend


def _nobody_excused(prepared: Any) -> frozenset[Xid]:
    """Nobody hears that a place is away, or that a task could not write."""
    return frozenset() if isinstance(prepared, XaError) else frozenset(xid for xid in prepared if not is_excuse(xid))


async def _one_attempt(port: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    if name == "write_staged":
        gtrid, staged = arguments
        arguments = gtrid, staged[:1]
    return await call(port, name, arguments)


async def _decided_twice(port: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    """The decision first, then the rows of the database that decides."""
    if name != "force_with_rows":
        return await call(port, name, arguments)
    refused = await call(port, "force", arguments[:1])
    return refused or await call(port, name, arguments)


def _taken_all(aside: int, bad: Collection[int], taken: int, told: int) -> partition_read.WithheldMessages:
    del aside, bad, taken, told
    return partition_read.WithheldMessages()


def _rolled_back_for_not_now(answers: list[Any]) -> list[Any]:
    """ "No connection was free", told with the code for "was rolled back"."""
    full = [isinstance(told, XaError) and told.code is Code.XA_RETRY for told in answers]
    return [xa_error(Code.XAER_RMERR) if is_full else told for is_full, told in zip(full, answers, strict=True)]


class _Forgetful(Incarnation):
    """Its gtrids say nothing of incarnation and try."""

    def gtrid(self, epoch: int, tries: int) -> bytes:
        del tries
        return Gtrid(self.pipeline, self.log_id, 0, epoch << 16).encode()

    def planned(self, gtrid: bytes) -> bool:
        return self.owns(gtrid)


class _TwoPipelines(Incarnation):
    """Of a source and a sink under different pipelines: the sink never finds what was read at work."""

    def planned(self, gtrid: bytes) -> bool:
        del gtrid
        return False


def _sink_apart(planner: EpochPlanner, query: str) -> Any:
    own = planner.own
    return replace(planner, own=_TwoPipelines(own.pipeline, own.log_id, own.incarnation)).plan_sink(query)


def _known_batches(pipeline: str, query: Any, known: Any) -> None:
    """The checkpoint may be older than what was decided."""
    ownership.check(pipeline, query, replace(known, decided={}))


def _anybody(pipeline: str, query: Any, known: Any) -> None:
    """Another query may have the pipeline: its checkpoint counts as one that never was."""


def _adopts_anything(pipeline: str, query: Any, known: Any) -> None:
    """Whoever names the query that it follows has the pipeline, whatever else it reads."""
    ownership.check(pipeline, replace(query, foreign=()), known)


async def _bind_anything(ports: Ports, own: Incarnation, query: Any, sources: Any, resources: Any) -> None:
    await ownership.bind(ports, own, replace(query, foreign=()), sources, resources)


async def _bind_nobody(ports: Ports, own: Incarnation, query: Any, sources: Any, resources: Any) -> None:
    """A query of other streams is refused, and what the lost one had under way is nobody's."""
    known = await ports.ledger.known(query.id)
    if query.foreign and known.bound is not None and known.bound.query != query.id:
        await ports.ledger.bind_query(f"{ownership.GIVEN_UP}{own.incarnation}", "", ())
        raise PipelineError("given up")
    await ownership.bind(ports, own, query, sources, resources)


async def _bind_anybody(ports: Ports, own: Incarnation, query: Any, sources: Any, resources: Any) -> None:
    """A former fault: nothing is asked, and nothing of the other query is finished."""
    del own, resources
    await ports.ledger.bind_query(query.id, query.run, tuple(sources))


def _one_sink_for_all(gtrid: bytes, partition: int, task: int, random: bytes) -> Xid:
    del task, random
    return Xid(FORMAT_ID, gtrid, b"snk/%d" % partition)


async def _rolled_back(port: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    """What is not prepared at first sight is rolled back, whatever it is."""
    return await call(port, "roll_back" if name == "adopt" else name, arguments)


async def _read_in_part(planner: EpochPlanner, *arguments: Any) -> ReadPlan:
    """A decided epoch is read again without the broker of its last task."""
    planned = await planner.plan(*arguments)
    return replace(planned, parts=planned.parts[:-1]) if planned.again else planned


async def _in_no_order(planner: EpochPlanner, query: str) -> PlannedSink:
    """A batch is decided whatever earlier ones have left."""
    return replace(await planner.plan_sink(query), unfinished=())


_commit, _abort = partial(bent, batch_decision.commit), partial(bent, batch_decision.abort)
_NOTHING_PREPARED = _without({"prepared": frozenset()})
_NO_FENCE = _without({"fence": None})
_NOTHING_WAITS = _without({"waiting": ()})
_NOTHING_LATER = _without({"later": ()})
MUTANTS = (
    Mutant("abort without asking the log", abort=_abort(_without({"abort": GtridState.ABORTED}))),
    Mutant("gtrid without incarnation and try", own=_Forgetful),
    Mutant("bqual without attempt and random", sink_xid=_one_sink_for_all),
    # what was taken is yielded first; when it should be prepared, the task is over
    Mutant("yield before prepare", take=bent(partition_read.take, _without({"prepare": Code.XA_OK})), seed=5),
    Mutant(
        "no sweep",
        plan=bent(EpochPlanner.plan, _NOTHING_PREPARED),
        plan_sink=bent(EpochPlanner.plan_sink, _NOTHING_PREPARED),
        commit=_commit(_no_scan_after_the_decision),
    ),
    Mutant("no fence", commit=_commit(_NO_FENCE), abort=_abort(_NO_FENCE), seed=17),
    Mutant("sources finished with the decision", commit=_commit(_hears("planned", PlannedEpochs.as_logged)), seed=11),
    Mutant("outages are the messages' fault", abort=_abort(_hears("prepared", _nobody_excused)), seed=495),
    Mutant("no isolation", abort=_abort(_without({"note_failure": None}))),
    Mutant("what can't be read is taken", judge=_taken_all),
    Mutant("rows by key of one task", commit=_commit(lambda: _one_attempt)),
    Mutant("rows by key that are not decided", commit=_commit(_without({"write_staged": ()}))),
    Mutant("rows behind the decision", commit=_commit(lambda: _decided_twice), seed=9),
    Mutant('"no room" counts as rolled back', commit=_commit(_hears("ask", _rolled_back_for_not_now))),
    Mutant("what another attempt is at is rolled back", take=bent(partition_read.take, lambda: _rolled_back), seed=112),
    Mutant(
        "each source has a decision of its own",
        plan=bent(EpochPlanner.plan, _without({"planned": PlannedEpochs(())})),
        plan_sink=bent(EpochPlanner.plan_sink, _NOTHING_WAITS),
        commit=_commit(_NOTHING_WAITS),
    ),
    Mutant(
        "the sink decides apart from the sources",
        plan_sink=bent(_sink_apart, _NOTHING_WAITS),
        commit=_commit(_NOTHING_WAITS),
        seed=3,
    ),
    Mutant(
        "an old checkpoint goes on",
        seed=12,
        check=_known_batches,
        bind=bent(ownership.bind, _hears("known", lambda known: replace(known, decided={}))),
        plan=bent(EpochPlanner.plan, _NOTHING_LATER),
        latest=bent(EpochPlanner.latest, _NOTHING_LATER),
    ),
    Mutant("anybody's checkpoint is taken", check=_anybody, bind=_bind_anybody),
    Mutant("a file is read from its beginning", check=_adopts_anything, bind=_bind_anything, seed=26),
    Mutant("what was not decided is nobody's", bind=_bind_nobody, seed=15),
    Mutant("what another query left is not given up", bind=bent(ownership.bind, _NOTHING_WAITS)),
    Mutant("a decided epoch is read again in part", plan=_read_in_part),
    Mutant("batches overtake each other", plan_sink=_in_no_order, seed=129),
)
