"""Survey: what was seen of a site, put together: each global transaction in doubt with all of its branches, and what
is known of its decision, and how a person names what is in doubt. Pure.

orders-1·17·8231          a global transaction of ours, as it is shown; ":" and "/" stand for "·" as well
1480675889_b3Jk…_c2hvcA== a branch, by its full xid
1480675889_b3Jk           a global transaction, by the beginning of its xid (with or without "…"), if only one has it
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Final

from tm.log import Branch, LogError
from tm.log.incarnations import Incarnations
from tm.recovery.ownership import Claim, Ownership
from xa import FORMAT_ID, Code, Gtrid, Xid
from xa.printable import escaped
from xabridge.operations.scan import origin_of
from xabridge.text import ending_command, listed, transaction_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tm.log import Decision
    from xa.holdings import Holding, InDoubtBranch
    from xabridge.operations.scan import Origin, ScannedSite


class State(Enum):
    """The states of a branch. The value is shown, and is the argument of `--state`."""

    PREPARED = "prepared"
    HEURISTIC = "heuristic"
    IN_DOUBT = "in-doubt"
    """In the resource manager's list, which does not tell which of the two."""
    NOT_REACHED = "not-reached"
    """Of a transaction that is decided; its resource manager could not be asked, or is not configured."""
    FINISHED = "finished"
    """Of a transaction that is decided; its resource manager does not know it any more: it was committed before, or
    completed by hand."""


IN_DOUBT: Final = frozenset({State.PREPARED, State.HEURISTIC, State.IN_DOUBT, State.NOT_REACHED})

_COUNTED: Final = {2: "two", 3: "three"}
WAITING: Final = frozenset({State.PREPARED, State.IN_DOUBT})
"""The states in which a branch can be committed or rolled back. One of these that is not noted shows that its decision
has not ended."""


class DecisionKnowledge(Enum):
    """The knowledge about a decision."""

    COMMIT = "commit"
    NONE = "none"
    """It was not taken until now: the transaction is under way, or will be rolled back by recovery."""
    ENDED = "ended"
    """There is none (any more), and a branch was completed on its own; `why` says what is known of the others."""
    UNKNOWN = "unknown"
    """It is kept in a place that this command can't read."""


_LONE: Final = frozenset({DecisionKnowledge.NONE, DecisionKnowledge.UNKNOWN})
"""A branch whose decision is one of these does not know its siblings."""
AGREES: Final = {
    DecisionKnowledge.COMMIT: Code.XA_HEURCOM,
    DecisionKnowledge.NONE: Code.XA_HEURRB,
    DecisionKnowledge.ENDED: Code.XA_HEURRB,
}
"""How a branch may have been completed on its own without a contradiction, where that is not noted."""
REPAIR: Final = "compare the data and repair it by hand"
"""What is to be done about a branch that was completed on its own."""


@dataclass(frozen=True, slots=True)
class BranchView:
    """One branch. `noted` is the heuristic outcome that the log has of it, and `noted_why` what the log has about that
    in words; `configured`: its resource is; `also` are further resources that list it, because they are on the same
    server."""

    resource: str
    xid: Xid
    state: State
    age_s: float | None = None
    owner: str = ""
    outcome: Code | None = None
    holdings: tuple[Holding, ...] = ()
    omitted: int = 0
    noted: Code | None = None
    configured: bool = True
    origin: Origin | None = None
    also: tuple[str, ...] = ()
    noted_why: str = ""

    def is_on(self, resources: Collection[str]) -> bool:
        """Whether one of these resources has it."""
        return self.resource in resources or any(other in resources for other in self.also)


@dataclass(frozen=True, slots=True)
class TransactionView:
    """One global transaction. `why` says in words what `decision` rests on; `in_log`: its decision is this log's to
    tell, `decider` names the resource whose it is, where one decides; `at_work`: another process of this node is, so
    that recovery leaves it alone. `finished_before`: it was over, as this node has noted, so that its branches can only
    be in data that is older; `of_older`: of this node, and its log or the resource that decides is here and leaves it
    alone, because it is a copy, or does not know of it. `lone`, what to say of it where it has no decision, or one that
    is not known here, and one branch where others of the same log have more."""

    format_id: int
    gtrid: bytes
    decision: DecisionKnowledge
    why: str
    branches: tuple[BranchView, ...]
    in_log: bool = False
    decider: str | None = None
    at_work: bool = False
    finished_before: bool = False
    lone: str = ""
    of_older: bool = False

    @property
    def origin(self) -> Origin | None:
        """The program that made it, if known."""
        return next((branch.origin for branch in self.branches if branch.origin is not None), None)

    @property
    def name(self) -> str:
        """Its name for users."""
        return transaction_name(Xid(self.format_id, self.gtrid))

    @property
    def key(self) -> str:
        """What names it and no other: its xid without a branch."""
        return str(Xid(self.format_id, self.gtrid))

    @property
    def ours(self) -> Gtrid | None:
        """Its gtrid, read; None for one of another transaction manager."""
        return Gtrid.of(Xid(self.format_id, self.gtrid))

    @property
    def oldest_s(self) -> float | None:
        """The age of its oldest branch, as far as that is known."""
        return max((branch.age_s for branch in self.branches if branch.age_s is not None), default=None)

    @property
    def in_doubt(self) -> tuple[BranchView, ...]:
        """The branches that are not known to be finished."""
        return tuple(branch for branch in self.branches if branch.state in IN_DOUBT)

    @property
    def against(self) -> tuple[BranchView, ...]:
        """The branches that were completed against the decision, as the log has noted, or as it and their resources
        show now. Not those whose decision is another process's, or is not known here."""
        agreeing = AGREES.get(self.decision)
        if agreeing is None or self.at_work:
            return ()
        return tuple(
            branch
            for branch in self.branches
            if branch.noted is not None or (branch.outcome is not None and branch.outcome is not agreeing)
        )


@dataclass(frozen=True, slots=True)
class Survey:
    """The transactions in doubt at a site, oldest first. `unreachable` maps a resource to the reason why it was not
    asked; `log_trouble` says why the log could not be read. Of the decisions that have not ended, in the log and in
    resources that decide, `open_decisions` are of these transactions, and `carried_out` of none: every branch is
    finished, and the next recovery pass ends them."""

    node: str
    configured: int
    transactions: tuple[TransactionView, ...]
    unreachable: dict[str, str] = field(default_factory=dict)
    log_trouble: str | None = None
    open_decisions: int = 0
    carried_out: int = 0
    decisions_read: bool = True
    """Whether the log, if there is one, and every resource that decides could be read."""
    missing: tuple[Branch, ...] = ()
    """The branches, each with its note, of which the next pass says what became of them: those of decisions that it
    ends, and that no resource manager lists any more."""

    @property
    def complete(self) -> bool:
        """Whether everything was seen."""
        return not self.unreachable and self.log_trouble is None

    def unsolved(self, transactions: Iterable[TransactionView], nodes: Collection[str] = ()) -> bool:
        """Whether one of these transactions is in doubt, or was completed by hand and waits to be forgotten: one of
        this node's, or of `nodes` where any are named. What another process of the node is at work with is not. A
        recovery pass that leaves none so is clean."""
        asked = nodes or {self.node}
        return any(view.ours is not None and view.ours.node in asked and not view.at_work for view in transactions)


def survey(seen: ScannedSite) -> Survey:
    """The survey of what was seen."""
    return _Surveyor(seen).survey()


class _Surveyor:
    def __init__(self, seen: ScannedSite) -> None:
        self._seen = seen
        self._image = None if isinstance(seen.log, LogError) else seen.log
        image = self._image
        self._logged = {decision.gtrid: decision for decision in image.decisions} if image is not None else {}
        self._noted = {note.branch.xid: note for note in image.heuristics} if image is not None else {}
        self._ownership = Ownership(
            seen.node,
            image.log_id if image is not None else b"",
            image.incarnations if image is not None else Incarnations(),
            seen.deciders,
            seen.own,
            seen.floors,
            seen.ceilings,
        )

    def survey(self) -> Survey:
        """The survey."""
        seen = self._seen
        found: dict[tuple[int, bytes], list[BranchView]] = {}
        for resource, scanned in seen.scanned.items():
            for branch in scanned.branches:
                key = (branch.xid.format_id, branch.xid.gtrid)
                found.setdefault(key, []).append(self._view(resource, branch, tells=scanned.tells))

        found = {key: self._each_once(key, branches) for key, branches in found.items()}
        for branch_view in self._noted_only({branch.xid for branches in found.values() for branch in branches}):
            found.setdefault((branch_view.xid.format_id, branch_view.xid.gtrid), []).append(branch_view)
        open_decisions = carried_out = 0
        missing: list[Branch] = []
        for decision in self._decisions():
            key = (FORMAT_ID, decision.gtrid)
            met = {branch.xid for branch in found.get(key, ())}
            others = list(self._others(decision, met))
            if self._is_reported(decision, others):
                missing += [branch for branch in decision.branches if branch.xid not in met]
            if key in found or any(branch.state is State.NOT_REACHED for branch in others):
                found.setdefault(key, []).extend(others)
                open_decisions += 1
            else:
                carried_out += 1
        transactions = _with_lone_ones([self._transaction(*key, branches) for key, branches in found.items()])
        transactions.sort(key=lambda view: (-max(branch.age_s or 0.0 for branch in view.branches), view.name))
        trouble = str(seen.log) if isinstance(seen.log, LogError) else None
        decisions_read = trouble is None and seen.unreachable.keys().isdisjoint(seen.deciding)
        return Survey(
            seen.node, len(seen.configured), tuple(transactions), dict(seen.unreachable), trouble, open_decisions,
            carried_out, decisions_read, tuple(missing),
        )  # fmt: skip

    def _view(self, resource: str, branch: InDoubtBranch, *, tells: bool) -> BranchView:
        note = self._noted.get(branch.xid)
        outcome = branch.outcome or (note.code if note is not None and not tells else None)
        state = State.HEURISTIC if outcome is not None else State.PREPARED if tells else State.IN_DOUBT
        return BranchView(
            resource, branch.xid, state, branch.age_s, branch.owner, outcome, branch.holdings, branch.omitted,
            note.code if note is not None else None, origin=origin_of(branch.xid, self._seen.origins),
            noted_why=note.why if note is not None else "",
        )  # fmt: skip

    def _each_once(self, key: tuple[int, bytes], branches: list[BranchView]) -> list[BranchView]:
        """A branch of ours has an xid of its own. If several resources list it, they are on one server, and it is shown
        at the one that its decision names."""
        format_id, gtrid = key
        if Gtrid.of(Xid(format_id, gtrid)) is None:
            return branches  # other transaction managers may give branches on several servers the same xid

        named = {
            branch.xid: branch.resource
            for decision in self._decisions()
            if decision.gtrid == gtrid
            for branch in decision.branches
        }
        by_xid: dict[Xid, list[BranchView]] = {}
        for branch in branches:
            by_xid.setdefault(branch.xid, []).append(branch)
        once = []
        for xid, same in by_xid.items():
            same.sort(key=lambda branch: (branch.resource != named.get(xid), branch.resource))
            once.append(replace(same[0], also=tuple(branch.resource for branch in same[1:])))
        return once

    def _noted_only(self, listed: set[Xid]) -> Iterator[BranchView]:
        """Heuristic outcomes in the log of branches that no resource manager lists."""
        for xid, note in self._noted.items():
            if xid not in listed:
                yield BranchView(
                    note.branch.resource, xid, State.HEURISTIC, outcome=note.code, noted=note.code,
                    configured=note.branch.resource in self._seen.configured, noted_why=note.why,
                )  # fmt: skip

    def _decisions(self) -> Iterator[Decision]:
        yield from self._logged.values()
        for decided in self._seen.decided.values():
            yield from decided.values()

    def _others(self, decision: Decision, found: set[Xid]) -> Iterator[BranchView]:
        """The branches that a decision names and that were not found."""
        for branch in decision.branches:
            if branch.xid not in found:
                reached = branch.resource in self._seen.scanned
                state = State.FINISHED if reached else State.NOT_REACHED
                yield BranchView(
                    branch.resource, branch.xid, state, configured=branch.resource in self._seen.configured
                )

    def _is_reported(self, decision: Decision, others: Sequence[BranchView]) -> bool:
        """Whether the next pass ends the decision, and says what is known of the branches that were not found."""
        return self._ownership.whose(decision.gtrid, self._seen.at_work, decided=True).is_ours and all(
            branch.state is State.FINISHED for branch in others
        )

    def _transaction(self, format_id: int, gtrid: bytes, branches: list[BranchView]) -> TransactionView:
        ours = Gtrid.of(Xid(format_id, gtrid))
        rows = tuple(sorted(branches, key=lambda branch: branch.resource))
        if ours is None:
            why = f"another transaction manager's (format id {format_id}): its log is not here"
            return TransactionView(format_id, gtrid, DecisionKnowledge.UNKNOWN, why, rows)

        decided_there = any(gtrid in decided for decided in self._seen.decided.values())
        whose = self._ownership.whose(gtrid, self._seen.at_work, decided=gtrid in self._logged or decided_there)
        origin = next((branch.origin for branch in rows if branch.origin is not None), None)
        at_work = whose.claim is Claim.AT_WORK
        if not whose.is_ours and origin is not None:
            why = f"{origin.transaction}: its own log decides (log {ours.log_id.hex()})"
            return TransactionView(format_id, gtrid, DecisionKnowledge.UNKNOWN, why, rows)
        if whose.claim is Claim.FINISHED:
            return TransactionView(format_id, gtrid, DecisionKnowledge.UNKNOWN, whose.why, rows, finished_before=True)
        here = self._ownership.deciders.keys() | ({self._ownership.log_id} - {b""})
        if not whose.is_ours and not at_work:
            why = self._explained(ours, whose.why)
            of_older = ours.node == self._seen.node and ours.log_id in here
            return TransactionView(format_id, gtrid, DecisionKnowledge.UNKNOWN, why, rows, of_older=of_older)

        in_log = self._image is not None and ours.log_id == self._image.log_id
        decider = None if in_log else self._ownership.deciders[ours.log_id]
        where = "the log" if decider is None else decider
        decided = self._logged if decider is None else self._seen.decided[decider]
        if gtrid in decided:
            who = "another process of this node" if at_work else "recovery"
            why = f"{where} has it; {who} commits the remaining branches"
            return TransactionView(format_id, gtrid, DecisionKnowledge.COMMIT, why, rows, in_log, decider, at_work)
        if at_work:
            why = f"{where} has none yet: {whose.why}"
            return TransactionView(format_id, gtrid, DecisionKnowledge.NONE, why, rows, in_log, decider, at_work)
        if not any(branch.state in WAITING and branch.noted is None for branch in rows):
            why = f"{where} has none any more: {_what_was_decided(rows)}"
            return TransactionView(format_id, gtrid, DecisionKnowledge.ENDED, why, rows, in_log, decider)
        why = f"{where} has none: under way, or rolled back by the next recovery"
        return TransactionView(format_id, gtrid, DecisionKnowledge.NONE, why, rows, in_log, decider)

    def _explained(self, ours: Gtrid, why_not: str) -> str:
        if ours.node != self._seen.node:
            return f"another node's: its log is not here (node {ours.node}, log {ours.log_id.hex()})"
        if isinstance(self._seen.log, LogError):
            return f"the decision log can't be read, or it is another one's (log {ours.log_id.hex()})"
        silent = [name for name in self._seen.deciding if name in self._seen.unreachable]
        return f"{why_not}; {listed(silent)}, where it may live, could not be reached" if silent else why_not


def _what_was_decided(branches: Sequence[BranchView]) -> str:
    """What is known of a decision that is not there, from how its branches were completed on their own. An outcome is
    noted where it differs from the decision, and before the decision ends."""
    noted = {branch.noted for branch in branches}
    if noted == {Code.XA_HEURRB}:
        return "it was to commit, and was carried out on the branches that are not listed here"
    if noted == {Code.XA_HEURCOM}:
        return "it was never taken, so that its other branches were rolled back"
    if noted <= {Code.XA_HEURCOM, None}:
        return "it was not taken; its other branches are rolled back, unless it is under way"
    return "it was carried out on the other branches, or never taken"


def _with_lone_ones(transactions: Iterable[TransactionView]) -> list[TransactionView]:
    """The same transactions; those are marked of which a branch is left where others of the same log have more."""
    views = list(transactions)
    usual = usual_branches((view.ours, len(view.branches)) for view in views)
    return [_marked(view, usual) for view in views]


def usual_branches(found: Iterable[tuple[Gtrid | None, int]]) -> dict[tuple[str, bytes], int]:
    """Node and log → how many branches most transactions of it have, of those that have more than one. `found`: the
    gtrid and the number of branches of each transaction."""
    counted: dict[tuple[str, bytes], Counter[int]] = {}
    for gtrid, count in found:
        if gtrid is not None and count > 1:
            counted.setdefault((gtrid.node, gtrid.log_id), Counter())[count] += 1
    return {log: counts.most_common(1)[0][0] for log, counts in counted.items()}


def _marked(view: TransactionView, usual: Mapping[tuple[str, bytes], int]) -> TransactionView:
    ours = view.ours
    if view.decision not in _LONE or ours is None or view.origin is not None or len(view.branches) > 1 or view.at_work:
        return view
    count = usual.get((ours.node, ours.log_id))
    if count is None:
        return view
    lone = lone_branch(count, view.decision)
    return replace(view, lone=lone, why=f"{view.why}; {lone}")


def lone_branch(count: int, decision: DecisionKnowledge) -> str:
    """What to say of a transaction of which one branch is left, where others of its log have `count`."""
    others = "the other" if count == 2 else "the others"
    maybe = "may be committed" if decision is DecisionKnowledge.UNKNOWN else "may be committed by hand, or not prepared"
    return f"one of usually {_COUNTED.get(count, count)} branches is left; {others} {maybe}"


def state_of(branch: BranchView) -> str:
    """The state, and how a branch was completed."""
    if branch.state is State.HEURISTIC and branch.outcome is not None:
        return branch.outcome.name.removeprefix("XA_").lower()
    return branch.state.value.replace("-", " ")


def advice(view: TransactionView) -> str:
    """The next step for a transaction, as a command."""
    where = listed([branch.resource for branch in view.in_doubt])
    if any(branch.state is State.HEURISTIC or branch.noted is not None for branch in view.branches):
        forget = f"xabridge recover forget {view.name}"
        if view.decision is DecisionKnowledge.UNKNOWN or view.at_work:
            forget += " --heuristic"
        return f"{REPAIR}, then: {forget}"

    gone = {branch.resource: None for branch in view.in_doubt if not branch.configured}
    if gone:
        names = listed([escaped(name) for name in gone])
        return (
            f"configure {names} again, under any name, and recovery commits its branch; only if it is gone for "
            f"good: {ending_command(view.name, gone)}"
        )
    if all(branch.state is State.NOT_REACHED for branch in view.in_doubt):
        return f"bring back {where}; recovery does the rest"
    if view.finished_before:
        return f"look what became of it on the other resources, then do the same here: {by_hand(view.name)}"
    if view.decision is not DecisionKnowledge.UNKNOWN:
        return "xabridge recover run, unless the transaction manager of this node runs: it recovers by itself"
    if view.ours is None:
        return "ask the transaction manager that made it"
    if view.origin is not None:
        return f"its driver resolves it when it runs: {view.origin.command}"
    return (
        f"xabridge recover run on node {view.ours.node}; only if its log is lost for good, decide yourself: "
        f"{by_hand(view.name)}"
    )


def contradiction(view: TransactionView, branch: BranchView) -> str:
    """What to say of a branch that was completed `against` the decision."""
    how = f"noted as {branch.noted.name}" if branch.noted is not None else state_of(branch)
    why = f": {escaped(branch.noted_why)}" if branch.noted_why else ""
    return f"{view.name} on {escaped(branch.resource)}: completed against the decision, {how}{why}"


def by_hand(name: str) -> str:
    """The command that completes a transaction whose decision is not known here."""
    return f"xabridge recover commit (or rollback) {name} --heuristic"


# --- how a person names what is in doubt ---------------------------------------------------------------------------
LEAST_PREFIX: Final = 6


class NotFound(Exception):
    """The named transaction does not exist, or the name fits several."""


def find(name: str, transactions: Sequence[TransactionView]) -> tuple[TransactionView, tuple[BranchView, ...]]:
    """The transaction that `name` names, and of its branches those that it names."""
    wanted, short = spelled(name)
    found = [view for view in transactions if view.ours is not None and view.name == short]
    if not found:
        for view in transactions:
            branches = tuple(branch for branch in view.branches if str(branch.xid) == wanted)
            if branches:
                return view, branches
        found = [view for view in transactions if _begins(view, wanted)]
    if not found:
        raise NotFound(f"{name}: no such transaction is in doubt here")
    if len(found) > 1:
        names = [str(view.branches[0].xid) for view in found]
        raise NotFound(f"{name}: this names {len(found)} transactions; choose one by its xid: {listed(names)}")
    return found[0], found[0].branches


def spelled(name: str) -> tuple[str, str]:
    """The name as an xid and as the short name of a transaction."""
    wanted = name.strip().removesuffix("…")
    return wanted, wanted.replace(":", "·").replace("/", "·")


def _begins(view: TransactionView, wanted: str) -> bool:
    whole = str(Xid(view.format_id, view.gtrid))
    return len(wanted) >= LEAST_PREFIX and whole.startswith(wanted)


def only_on(branches: Sequence[BranchView], resources: Collection[str], name: str) -> tuple[BranchView, ...]:
    """Those of `branches` that are held by one of `resources`; all, where none is named."""
    if not resources:
        return tuple(branches)
    chosen = tuple(branch for branch in branches if branch.is_on(resources))
    if not chosen:
        raise NotFound(f"{name}: it has no branch on {listed(sorted(resources))}")
    return chosen
