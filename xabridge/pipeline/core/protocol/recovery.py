"""Recovery carries out phase two of decided batches, and rolls back undecided ones.

1. Every decision that has not ended is carried out: its sinks at once, its sources when Spark has logged the batch.
2. Every resource manager is asked for its prepared branches of this log.
3. The log gives its final word on the global transaction of each of them, except the one at work: what is not decided
   by then never will be (presumed abort). This comes before anything is rolled back.
4. The branches of an undecided global transaction are rolled back. So are those of a decided one that its decision does
   not name: they belong to attempts that Spark did not accept. And so are those that it names and that were finished:
   a late attempt that met no fence has prepared them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tm.log import Branch, Heuristic
from tm.log.sql.states import GtridState
from tm.two_phase.ports import code_of
from tm.two_phase.return_codes import HEURISTIC_CODE, MEANING, AnswerMeaning, Verb
from xa import XaError
from xabridge.pipeline.core.ledger.rows import due
from xabridge.pipeline.core.xids import epoch_of, word

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from tm.log import Decision
    from xabridge.pipeline.core.ledger.rows import PlannedEpochs
    from xabridge.pipeline.core.protocol.ports import Ports
    from xabridge.pipeline.core.xids import Incarnation


AT_ONCE: Final = 256
"""How many branches are finished at a time."""
PAUSES_S: Final = (0.05, 0.2, 0.8)
"""How long to wait before each further try."""
DECIDED: Final = frozenset({GtridState.COMMITTED, GtridState.DONE})
_AGREES: Final = {Verb.COMMIT_AGAIN: AnswerMeaning.HEUR_COMMITTED, Verb.ROLLBACK: AnswerMeaning.HEUR_ROLLED_BACK}


@dataclass(slots=True)
class SweepResult:
    """The result of a sweep: how many branches it rolled back, how many are left for the next sweep, at which
    resources these are, and which resources could not be asked, with the reason. `unfinished`: the resources, asked or
    not, at which a decided batch has branches that are due and not finished."""

    rolled_back: int = 0
    left: int = 0
    left_at: set[str] = field(default_factory=set)
    unreachable: dict[str, str] = field(default_factory=dict)
    unfinished: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What decisions have left: how many branches of `resources` could not be finished now, where these are, and for
    every resource the oldest gtrid that is not finished there."""

    count: int
    left_at: frozenset[str]
    oldest: Mapping[str, bytes]


async def finish_branches(ports: Ports, verb: Verb, branches: Iterable[Branch]) -> list[Branch]:
    """Commits (COMMIT_AGAIN) or rolls back branches. Returns those that could not be finished now. A branch that was
    completed heuristically is forgotten where its outcome agrees with the decision, and noted in the log otherwise."""
    left = list(branches)
    for pause_s in (*PAUSES_S, None):
        asked, left = left, []
        for first in range(0, len(asked), AT_ONCE):
            some = tuple(asked[first : first + AT_ONCE])
            answers = await ports.branches.ask(verb, some)
            for branch, answer in zip(some, answers, strict=True):
                meaning = MEANING[verb][code_of(answer)]
                if meaning is AnswerMeaning.DONE:
                    continue
                if meaning is AnswerMeaning.LATER:
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


async def carry_out(
    ports: Ports, decision: Decision, planned: PlannedEpochs, resources: Collection[str]
) -> Sequence[Branch]:
    """Commits the branches that the decision names at these resources and that are not finished: sinks, and sources
    once Spark has logged the batch. Ends the decision when nothing is left. Returns the branches that could not be
    finished now."""
    finished = planned.finished
    pending = due(decision.branches, finished, logged=planned.logged)
    asked = [branch for branch in pending if branch.resource in resources]
    left = await finish_branches(ports, Verb.COMMIT_AGAIN, asked)
    done = {word(branch) for branch in asked} - {word(branch) for branch in left}
    if done and planned.epochs:
        finished = await ports.ledger.mark_finished(decision.gtrid, done)
    if {word(branch) for branch in decision.branches} <= finished | done:
        await ports.log.end(decision)
    return left


async def carry_out_all(ports: Ports, resources: Collection[str]) -> Unfinished:
    """Step 1 of the module's docstring, at these resources."""
    count, left_at, oldest = 0, set[str](), dict[str, bytes]()
    for decision in sorted(await ports.log.decisions(), key=lambda decision: epoch_of(decision.gtrid)):
        planned = await ports.ledger.planned(decision.gtrid)
        left = await carry_out(ports, decision, planned, resources)
        count += len(left)
        left_at |= {branch.resource for branch in left}
        for branch in due(decision.branches, planned.finished, logged=planned.logged):
            if branch in left or branch.resource not in resources:
                oldest.setdefault(branch.resource, decision.gtrid)
    return Unfinished(count, frozenset(left_at), oldest)


async def scan(ports: Ports, resources: Collection[str], swept: SweepResult) -> dict[bytes, list[Branch]]:
    """The prepared branches of this log, by global transaction. Resources that can't be asked are noted in `swept`."""
    found: dict[bytes, list[Branch]] = {}
    for resource in resources:
        prepared = await ports.branches.prepared(resource)
        if isinstance(prepared, XaError):
            swept.unreachable[resource] = prepared.message
            continue
        for xid in sorted(prepared, key=lambda xid: (xid.gtrid, xid.bqual)):
            found.setdefault(xid.gtrid, []).append(Branch(resource, xid))
    return found


async def sweep(ports: Ports, own: Incarnation, resources: Collection[str], keep: bytes | None) -> SweepResult:
    """Steps 2 to 4 of the module's docstring. `keep` is the global transaction at work, which is left alone."""
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
    if state in DECIDED:
        entry = await ports.log.entry(gtrid)
        if entry is None or entry.decision is None:
            return  # it was purged in the meantime: the next sweep finds what it is then
        planned = await ports.ledger.planned(gtrid)
        finished = frozenset(map(word, entry.decision.branches)) if state is GtridState.DONE else planned.finished
        await roll_back_others(ports, entry.decision, finished, prepared, swept)
        return
    await fence(ports, gtrid, resources)
    await _roll_back(ports, prepared, swept)


async def roll_back_others(
    ports: Ports, decision: Decision, finished: Collection[str], prepared: Sequence[Branch], swept: SweepResult
) -> None:
    """Step 4 for a decided global transaction, of which these branches are prepared and those that the words `finished`
    name are finished."""
    kept = {one.xid for one in decision.branches if word(one) not in finished}
    await _roll_back(ports, [branch for branch in prepared if branch.xid not in kept], swept)


async def _roll_back(ports: Ports, orphans: Sequence[Branch], swept: SweepResult) -> None:
    left = await finish_branches(ports, Verb.ROLLBACK, orphans)
    swept.rolled_back += len(orphans) - len(left)
    swept.left += len(left)
    swept.left_at |= {branch.resource for branch in left}


async def fence(ports: Ports, gtrid: bytes, resources: Collection[str]) -> None:
    """Fences the global transaction, so that late attempts can neither start nor prepare branches. Where that fails
    now, a later sweep finds what they have prepared."""
    for resource in resources:
        await ports.branches.fence(resource, gtrid)


async def resolve(ports: Ports, own: Incarnation, resources: Collection[str], keep: bytes | None) -> SweepResult:
    """Steps 1 to 4 of the module's docstring."""
    undone = await carry_out_all(ports, resources)
    swept = await sweep(ports, own, resources, keep)
    swept.left += undone.count
    swept.left_at |= undone.left_at
    swept.unfinished = frozenset(undone.oldest)
    return swept
