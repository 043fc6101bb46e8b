"""Ownership: which query has a pipeline, and when another query may take it over.

A streaming query is known by the id that its checkpoint contains. When the query starts, its driver binds the pipeline
to it (`xabridge.pipeline.core.driver.query_binding.bind`), with every source that it reads, before anything of it is
planned. There are three cases:

1. The pipeline belongs to this query already. Then its checkpoint has to know every batch that is decided. The number
   of the last batch is enough to tell, because it is also the version of the query's state.
2. The pipeline belongs to no query. Then the query gets it. The same holds for a pipeline whose tables, of an earlier
   version, do not say whose it is, if this query was the last one to write.
3. The pipeline belongs to another query, so this one has a new checkpoint or is another application. It is refused,
   unless it names the query that it follows (the option `adopt`). The old checkpoint counts as lost then: what it had
   decided is finished, and what it had not decided goes back to the queues. A query that reads other streams besides
   our queues has that done as well, and is refused then: how far they were read stood in the lost checkpoint only, so
   that they would be read, and written, from their beginning.

A query that has another pipeline is refused, so that renaming a pipeline loses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xabridge.pipeline.core.errors import EpochGone, PipelineError
from xabridge.pipeline.core.protocol.epoch_plan import OLDER
from xabridge.pipeline.core.protocol.recovery import DECIDED, SweepResult, carry_out, resolve, scan, settle
from xabridge.pipeline.core.xids import epoch_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from xabridge.pipeline.core.ledger.rows import PipelineOwnership
    from xabridge.pipeline.core.protocol.ports import Ports
    from xabridge.pipeline.core.values import Query
    from xabridge.pipeline.core.xids import Incarnation


GIVEN_UP: Final = "given-up-"
"""Whose a pipeline is that a query of other streams has given up: no checkpoint goes on with it. The number of the
incarnation follows, so that who has adopted one such pipeline has not adopted the next."""


def check(pipeline: str, query: Query, known: PipelineOwnership) -> None:
    """PipelineError: the query can't have the pipeline."""
    owner = _owner_of(known)
    is_given_up = owner is not None and owner.startswith(GIVEN_UP)
    if is_given_up and query.foreign and not query.adopt:
        raise _given_up(pipeline, query, SweepResult())
    if owner not in {None, query.id, query.adopt or None} and not (is_given_up and query.foreign):
        raise PipelineError(
            f"pipeline {pipeline!r} belongs to query {owner}, which has another checkpoint than this one ({query.id}). "
            f"Use that checkpoint. {_when_lost(query, owner)} For another query, use a pipeline of its own"
        )
    if known.elsewhere:
        raise PipelineError(
            f"query {query.id} has pipeline {known.elsewhere[0]!r}, and its checkpoint names the epochs of that one: "
            f"start it as that pipeline again. Pipeline {pipeline!r} needs a checkpoint of its own"
        )

    last = known.decided.get(query.id)
    if last is not None and last.batch > query.planned:
        raise EpochGone(
            f"pipeline {pipeline!r}: batch {last.batch} of query {query.id} is decided, but the checkpoint ends with "
            f"batch {query.planned}: {OLDER}"
        )


def _when_lost(query: Query, owner: str | None) -> str:
    """What to do where the owner's checkpoint does not exist any more."""
    if not query.foreign:
        return (
            "If it is lost, or older than what was decided, start with this new one and the option adopt = "
            f'"{owner}": what was decided is finished and not read again, everything else goes back to its queues, and '
            "the state of a stateful query starts empty."
        )
    return (
        f'If it is lost, start this query once with the option adopt = "{owner}": what was decided is finished, and '
        "everything else goes back to its queues. The query itself fails, because how far "
        f"{' and '.join(query.foreign)} had been read stood in the lost checkpoint only, and says how to go on."
    )


def _left_at(swept: SweepResult) -> list[str]:
    """The resources at which something is left."""
    return sorted({*swept.left_at, *swept.unreachable, *swept.unfinished})


def _given_up(pipeline: str, query: Query, swept: SweepResult) -> PipelineError:
    """Why a query that reads other streams does not follow another one, whose work was given up."""
    where = _left_at(swept)
    if where:
        return PipelineError(
            f"pipeline {pipeline!r}: what is left of it can't be finished at {', '.join(where)} now. Start this query "
            "again when that can be reached"
        )
    return PipelineError(
        f"pipeline {pipeline!r} is given up: what was decided is finished, and everything else is given back. This "
        f"query can't go on with it, because how far {' and '.join(query.foreign)} had been read stood in the lost "
        "checkpoint only: all that is there from where the options of that source begin would be written again. Start "
        "it as a new pipeline: with the option once, whose table has to know every row that was written; or with "
        "options of that source, like startingOffsets of Kafka, by which it begins behind what was written"
    )


async def bind(
    ports: Ports, own: Incarnation, query: Query, sources: Sequence[str], resources: Collection[str]
) -> None:
    """Binds the pipeline to this start of the query, as the module's docstring says. PipelineError: it can't."""
    known = await ports.ledger.known(query.id)
    check(own.pipeline, query, known)
    owner = _owner_of(known)
    if owner not in {None, query.id}:
        swept = await _give_up(ports, own, resources)
        if query.foreign:
            refusal = _given_up(own.pipeline, query, swept)
            if not _left_at(swept):
                await ports.ledger.bind_query(f"{GIVEN_UP}{own.incarnation}", "", ())
            raise refusal
    await ports.ledger.bind_query(query.id, query.run, tuple(sources))


def _owner_of(known: PipelineOwnership) -> str | None:
    """The query that has the pipeline, or that wrote last where that is not said."""
    if known.bound is not None:
        return known.bound.query
    return max(known.decided, key=lambda query: epoch_of(known.decided[query].gtrid), default=None)


async def _give_up(ports: Ports, own: Incarnation, resources: Collection[str]) -> SweepResult:
    """Finishes what is decided, and rolls back everything else: no earlier checkpoint will come back. What is left."""
    waiting = await ports.ledger.waiting(None)
    for gtrid in sorted({row.gtrid for row in waiting}):
        swept = SweepResult()
        found = await scan(ports, resources, swept)
        await settle(ports, gtrid, found.get(gtrid, ()), resources, swept)
        planned = await ports.ledger.planned(gtrid)
        entry = await ports.log.entry(gtrid)
        await ports.ledger.mark_logged(tuple(row.epoch for row in planned.epochs))
        if entry is not None and entry.state in DECIDED and entry.decision is not None:
            await carry_out(ports, entry.decision, planned.as_logged(), resources)
    return await resolve(ports, own, resources, None)
