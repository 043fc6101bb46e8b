"""Finishing: phase two, and the sweep of what nobody decided. Generators without I/O, as `tm.recovery`.

1. Decisions that have not ended are carried out: sinks at once, sources when Spark has logged the batch.
2. Every resource manager tells its prepared branches of this log.
3. Of each global transaction that is not the one at work, the log gives its final word: what isn't decided never will
   be (presumed abort), before anything is rolled back.
4. Branches of what is not decided are rolled back, and those of what is decided that the decision does not name:
   attempts that Spark did not take.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from tm.effects import Call, End, Note, Pause, code_of
from tm.log import Branch, Heuristic
from tm.log.sql.states import GtridState
from tm.verdicts import HEURISTIC_CODE, MEANING, Meaning, Verb
from xa import XaError
from xabridge.pipeline.core.effects import Abort, Fence, FindPlanned, Finished, Look, Scan, Undone
from xabridge.pipeline.core.naming import is_source, word

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Sequence

    from tm.effects import Answer
    from tm.log import Decision, LogError
    from tm.log.sql.gtrids import Entry
    from xa import Xid
    from xabridge.pipeline.core.effects import Effect
    from xabridge.pipeline.core.ledger import Planned
    from xabridge.pipeline.core.naming import Own

    T = TypeVar("T")
    Steps: TypeAlias = Generator[Effect, Any, T]

AT_ONCE: Final = 256
"""How many branches are asked of at a time."""
PAUSES_S: Final = (0.05, 0.2, 0.8)
"""How long to wait before each further try."""
DECIDED: Final = frozenset({GtridState.COMMITTED, GtridState.DONE})
_AGREES: Final = {Verb.COMMIT_AGAIN: Meaning.HEUR_COMMITTED, Verb.ROLLBACK: Meaning.HEUR_ROLLED_BACK}


@dataclass(slots=True)
class Swept:
    """What a sweep did: branches rolled back, branches that could not be now, resources that could not be asked."""

    rolled_back: int = 0
    left: int = 0
    unreachable: dict[str, str] = field(default_factory=dict)


def tell(verb: Verb, branches: Iterable[Branch]) -> Steps[list[Branch]]:
    """Commits (COMMIT_AGAIN) or rolls back branches; those that are left to another time. What was completed on its own
    is noted in the log, and forgotten where that agrees."""
    left = list(branches)
    for pause_s in (*PAUSES_S, None):
        asked, left = left, []
        for first in range(0, len(asked), AT_ONCE):
            some = tuple(asked[first : first + AT_ONCE])
            answers: Sequence[Answer] = yield Call(verb, some)
            for branch, answer in zip(some, answers, strict=True):
                meaning = MEANING[verb][code_of(answer)]
                if meaning is Meaning.DONE:
                    continue
                if meaning is Meaning.LATER:
                    left.append(branch)
                elif meaning is _AGREES[verb]:
                    yield Call(Verb.FORGET, (branch,))
                else:
                    refused: LogError | None = yield Note(Heuristic(branch, HEURISTIC_CODE[meaning]))
                    if refused is not None:
                        left.append(branch)
        if not left or pause_s is None:
            break
        yield Pause(pause_s)
    return left


def carry_out(decision: Decision, planned: Planned, resources: Collection[str]) -> Steps[int]:
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
    left = yield from tell(Verb.COMMIT_AGAIN, due)
    done = {word(branch) for branch in due} - {word(branch) for branch in left}
    if done and planned.epochs:
        finished = yield Finished(decision.gtrid, done)
    if {word(branch) for branch in decision.branches} <= finished | done:
        yield End(decision)
    return len(left)


def scan(resources: Collection[str], swept: Swept) -> Steps[dict[bytes, list[Branch]]]:
    """The prepared branches of this log, by global transaction."""
    found: dict[bytes, list[Branch]] = {}
    for resource in resources:
        told: frozenset[Xid] | XaError = yield Scan(resource)
        if isinstance(told, XaError):
            swept.unreachable[resource] = told.message
            continue
        for xid in sorted(told, key=lambda xid: (xid.gtrid, xid.bqual)):
            found.setdefault(xid.gtrid, []).append(Branch(resource, xid))
    return found


def sweep(own: Own, resources: Collection[str], keep: bytes | None) -> Steps[Swept]:
    """Steps 2 to 4 of the module's docstring; `keep` is at work."""
    swept = Swept()
    found = yield from scan(resources, swept)
    for gtrid in sorted(found):
        if gtrid != keep and own.owns(gtrid):
            yield from settle(gtrid, found[gtrid], resources, swept)
    return swept


def settle(gtrid: bytes, prepared: Sequence[Branch], resources: Collection[str], swept: Swept) -> Steps[None]:
    """Steps 3 and 4 for one global transaction, of which these branches are prepared."""
    state: GtridState = yield Abort(gtrid)
    orphans = list(prepared)
    if state in DECIDED:
        entry: Entry | None = yield Look(gtrid)
        if entry is None or entry.decision is None:
            return  # purged meanwhile: the next sweep says what it is then
        named = {branch.xid for branch in entry.decision.branches}
        orphans = [branch for branch in prepared if branch.xid not in named]
    else:
        yield from fence(gtrid, resources)
    left = yield from tell(Verb.ROLLBACK, orphans)
    swept.rolled_back += len(orphans) - len(left)
    swept.left += len(left)


def fence(gtrid: bytes, resources: Collection[str]) -> Steps[None]:
    """Late attempts can neither start nor prepare any more. Where it can't be put up now, a later sweep finds them."""
    for resource in resources:
        yield Fence(resource, gtrid)


def resolve(own: Own, resources: Collection[str], keep: bytes | None) -> Steps[Swept]:
    """All steps of the module's docstring."""
    undone: Sequence[Decision] = yield Undone()
    left = 0
    for decision in undone:
        planned: Planned = yield FindPlanned(decision.gtrid)
        left += yield from carry_out(decision, planned, resources)
    swept = yield from sweep(own, resources, keep)
    swept.left += left
    return swept
