"""Binding: which query has a pipeline, and when another one may have it. Decided without I/O.

A streaming query is known by the id that stands in its checkpoint. When it starts, its driver binds the pipeline to it
(`xabridge.pipeline.core.driver.bind`), with every source that it reads, before anything of it is planned:

1. The pipeline is the query's already: its checkpoint has to know every batch that is decided. The state of a query
   has the number of its last batch as its version, so the number is enough.
2. Nobody has it: the query gets it. So it is with a pipeline whose tables do not say who has it yet, where the query
   is the one that wrote last.
3. Another query has it, so this one has a new checkpoint, or is another application. It is refused, unless it names the
   query that it follows (the option `adopt`): the old checkpoint then counts as lost. What it had decided is finished,
   and what it had not is given back to the queues.

A query that has another pipeline is refused, so that renaming one loses nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xabridge.pipeline.core.effects import (
    BindQuery,
    FindKnown,
    FindPlanned,
    FindUnlogged,
    FindWaiting,
    Log,
    Look,
    NameEpochs,
)
from xabridge.pipeline.core.errors import EpochGone, PipelineError
from xabridge.pipeline.core.finishing import DECIDED, Swept, carry_out, resolve, scan, settle
from xabridge.pipeline.core.naming import epoch_of
from xabridge.pipeline.core.planning import OLDER

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tm.log.sql.gtrids import Entry
    from xabridge.pipeline.core.finishing import Steps
    from xabridge.pipeline.core.ledger import BatchRow, EpochRow, Known, Planned
    from xabridge.pipeline.core.naming import Own
    from xabridge.pipeline.core.values import Query


def check(pipeline: str, query: Query, known: Known) -> None:
    """PipelineError: the query can't have the pipeline."""
    owner = _owner(known)
    if owner not in {None, query.id, query.adopt or None}:
        raise PipelineError(
            f"pipeline {pipeline!r} belongs to query {owner}, which has another checkpoint than this one ({query.id}). "
            "Use that checkpoint. Where it is lost, or older than what was decided, start with this new one and the "
            f'option adopt = "{owner}": nothing is read twice, and the state of a stateful query begins anew. For '
            "another query, use a pipeline of its own"
        )
    if known.elsewhere:
        raise PipelineError(
            f"query {query.id} has pipeline {known.elsewhere[0]!r}, and its checkpoint names what that one has read "
            f"and decided: start it as that pipeline again. Pipeline {pipeline!r} needs a checkpoint of its own"
        )
    last = known.decided.get(query.id)
    if last is not None and last.batch > query.planned:
        raise EpochGone(
            f"pipeline {pipeline!r}: batch {last.batch} of query {query.id} is decided, and the checkpoint has none "
            f"behind {query.planned}: {OLDER}"
        )


def bind(own: Own, query: Query, sources: Sequence[str], resources: Collection[str]) -> Steps[None]:
    """Binds the pipeline to this start of the query, as the module's docstring says. PipelineError: it can't."""
    known: Known = yield FindKnown(query.id)
    check(own.pipeline, query, known)
    if known.bound is None:
        yield from _named(known.decided)
    if _owner(known) not in {None, query.id}:
        yield from _give_up(own, resources)
    yield BindQuery(query.id, query.run, tuple(sources))


def _owner(known: Known) -> str | None:
    """The query that has the pipeline, or that wrote last where that is not said."""
    if known.bound is not None:
        return known.bound.query
    return max(known.decided, key=lambda query: epoch_of(known.decided[query].gtrid), default=None)


def _named(decided: Mapping[str, BatchRow]) -> Steps[None]:
    """Tables of before do not say which query has read an epoch; those that a decided batch follows are known."""
    for query, last in decided.items():
        planned: Planned = yield FindPlanned(last.gtrid)
        rows: Sequence[EpochRow] = yield FindUnlogged(planned.epoch if planned.epochs else 0)
        yield NameEpochs(query, tuple({row.epoch for row in (*rows, *planned.epochs)}))


def _give_up(own: Own, resources: Collection[str]) -> Steps[None]:
    """No checkpoint of before comes back: what is decided is finished, everything else is rolled back."""
    waiting: Sequence[EpochRow] = yield FindWaiting(None)
    for gtrid in sorted({row.gtrid for row in waiting}):
        swept = Swept()
        found = yield from scan(resources, swept)
        yield from settle(gtrid, found.get(gtrid, ()), resources, swept)
        planned: Planned = yield FindPlanned(gtrid)
        entry: Entry | None = yield Look(gtrid)
        yield Log(tuple(row.epoch for row in planned.epochs))
        if entry is not None and entry.state in DECIDED and entry.decision is not None:
            yield from carry_out(entry.decision, planned.as_logged(), resources)
    yield from resolve(own, resources, None)
