"""Finishing: phase two, and the sweep of what nobody decided. Coroutines over ports, as `tm.recovery`.

1. Decisions that have not ended are carried out: sinks at once, sources when Spark has logged the batch.
2. Every resource manager tells its prepared branches of this log.
3. Of each global transaction that is not the one at work, the log gives its final word: what isn't decided never will
   be (presumed abort), before anything is rolled back.
4. Branches of what is not decided are rolled back, and those of what is decided that the decision does not name:
   attempts that Spark did not take.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tm.effects import code_of
from tm.log import Branch, Heuristic
from tm.log.sql_states import GtridState
from tm.verdicts import HEURISTIC_CODE, MEANING, Meaning, Verb
from xa import XaError
from xabridge.pipeline.core.xids import is_source, word

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tm.log import Decision
    from xabridge.pipeline.core.ledger.rows import PlannedEpochs
    from xabridge.pipeline.core.protocol.ports import Ports
    from xabridge.pipeline.core.xids import Incarnation


AT_ONCE: Final = 256
"""How many branches are asked of at a time."""
PAUSES_S: Final = (0.05, 0.2, 0.8)
"""How long to wait before each further try."""
DECIDED: Final = frozenset({GtridState.COMMITTED, GtridState.DONE})
_AGREES: Final = {Verb.COMMIT_AGAIN: Meaning.HEUR_COMMITTED, Verb.ROLLBACK: Meaning.HEUR_ROLLED_BACK}


@dataclass(slots=True)
class SweepResult:
    """What a sweep did: branches rolled back, branches that could not be now, resources that could not be asked."""

    rolled_back: int = 0
    left: int = 0
    unreachable: dict[str, str] = field(default_factory=dict)


async def tell(ports: Ports, verb: Verb, branches: Iterable[Branch]) -> list[Branch]:
    """Commits (COMMIT_AGAIN) or rolls back branches; those that are left to another time. What was completed on its own
    is noted in the log, and forgotten where that agrees."""
    left = list(branches)
    for pause_s in (*PAUSES_S, None):
        asked, left = left, []
        for first in range(0, len(asked), AT_ONCE):
            some = tuple(asked[first : first + AT_ONCE])
            answers = await ports.branches.ask(verb, some)
            for branch, answer in zip(some, answers, strict=True):
                meaning = MEANING[verb][code_of(answer)]
                if meaning is Meaning.DONE:
                    continue
                if meaning is Meaning.LATER:
                    left.append(branch)
                elif meaning is _AGREES[verb]:
                    await ports.branches.ask(Verb.FORGET, (branch,))
                else:
                    refused = await ports.log.note(Heuristic(branch, HEURISTIC_CODE[meaning]))
                    if refused is not None:
                        left.append(branch)
        if not left or pause_s is None:
            break
        await ports.pause(pause_s)
    return left


async def carry_out(ports: Ports, decision: Decision, planned: PlannedEpochs, resources: Collection[str]) -> int:
    """Commits what the decision names at these resources and is not finished: sinks, and sources where Spark has logged
    the batch. Ends it when nothing is left. How many branches are left to another time."""
    finished = planned.finished
    due = [
        branch
        for branch in decision.branches
        if branch.resource in resources
        and word(branch) not in finished
        and (planned.logged or not is_source(branch.xid))
    ]
    left = await tell(ports, Verb.COMMIT_AGAIN, due)
    done = {word(branch) for branch in due} - {word(branch) for branch in left}
    if done and planned.epochs:
        finished = await ports.ledger.mark_finished(decision.gtrid, done)
    if {word(branch) for branch in decision.branches} <= finished | done:
        await ports.log.end(decision)
    return len(left)


async def scan(ports: Ports, resources: Collection[str], swept: SweepResult) -> dict[bytes, list[Branch]]:
    """The prepared branches of this log, by global transaction."""
    found: dict[bytes, list[Branch]] = {}
    for resource in resources:
        told = await ports.branches.prepared(resource)
        if isinstance(told, XaError):
            swept.unreachable[resource] = told.message
            continue
        for xid in sorted(told, key=lambda xid: (xid.gtrid, xid.bqual)):
            found.setdefault(xid.gtrid, []).append(Branch(resource, xid))
    return found


async def sweep(ports: Ports, own: Incarnation, resources: Collection[str], keep: bytes | None) -> SweepResult:
    """Steps 2 to 4 of the module's docstring; `keep` is at work."""
    swept = SweepResult()
    found = await scan(ports, resources, swept)
    for gtrid in sorted(found):
        if gtrid != keep and own.owns(gtrid):
            await settle(ports, gtrid, found[gtrid], resources, swept)
    return swept


async def settle(
    ports: Ports, gtrid: bytes, prepared: Sequence[Branch], resources: Collection[str], swept: SweepResult
) -> None:
    """Steps 3 and 4 for one global transaction, of which these branches are prepared."""
    state = await ports.log.abort(gtrid)
    orphans = list(prepared)
    if state in DECIDED:
        entry = await ports.log.entry(gtrid)
        if entry is None or entry.decision is None:
            return  # purged meanwhile: the next sweep says what it is then
        named = {branch.xid for branch in entry.decision.branches}
        orphans = [branch for branch in prepared if branch.xid not in named]
    else:
        await fence(ports, gtrid, resources)
    left = await tell(ports, Verb.ROLLBACK, orphans)
    swept.rolled_back += len(orphans) - len(left)
    swept.left += len(left)


async def fence(ports: Ports, gtrid: bytes, resources: Collection[str]) -> None:
    """Late attempts can neither start nor prepare any more. Where it can't be put up now, a later sweep finds them."""
    for resource in resources:
        await ports.branches.fence(resource, gtrid)


async def resolve(ports: Ports, own: Incarnation, resources: Collection[str], keep: bytes | None) -> SweepResult:
    """All steps of the module's docstring."""
    undone = await ports.log.decisions()
    left = 0
    for decision in undone:
        planned = await ports.ledger.planned(decision.gtrid)
        left += await carry_out(ports, decision, planned, resources)
    swept = await sweep(ports, own, resources, keep)
    swept.left += left
    return swept
