"""Which of the transactions in doubt are meant: a filter, the groups of those that are alike, and what an operator's
action can do with all that fit a filter. It is the same for the command and the console. Pure.

An action takes whole transactions: a filter by age or resource that fits one branch means every branch of its
transaction, so that none is split by a filter. What can't be done among others is left out, and said: a transaction of
which a branch may be missing is decided alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xa.printable import escaped
from xabridge.operations.branch_completion import OperatorAction, Plan, explained, plan
from xabridge.operations.survey import IN_DOUBT, BranchView, DecisionKnowledge, State, TransactionView, state_of
from xabridge.text import age, listed, several

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

MANY: Final = 20
"""Of more transactions than these the groups are shown first."""
MOST_GROUPS: Final = 20
ONE_LEFT: Final = "one branch is here, and others may be committed"
FOREIGN: Final = "foreign"
"""In place of the node, of what another transaction manager has made."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which branches are asked about; what is empty asks for all. `lost_but_for`: only transactions that can't be
    decided, of other nodes than these, because the log of their node is not here; None: any."""

    nodes: frozenset[str] = frozenset()
    resources: frozenset[str] = frozenset()
    states: frozenset[State] = frozenset()
    older_than_s: float | None = None
    decisions: frozenset[DecisionKnowledge] = frozenset()
    lost_but_for: frozenset[str] | None = None

    def matches(self, transaction: TransactionView, branch: BranchView) -> bool:
        """Whether the branch is one of them. A branch of unknown age is taken to be old."""
        return (
            branch.state in IN_DOUBT
            and (not self.nodes or node_of(transaction) in self.nodes)
            and (not self.decisions or transaction.decision in self.decisions)
            and (self.lost_but_for is None or is_lost(transaction, self.lost_but_for))
            and (not self.resources or branch.is_on(self.resources))
            and (not self.states or branch.state in self.states)
            and (self.older_than_s is None or branch.age_s is None or branch.age_s >= self.older_than_s)
        )

    def of(self, transactions: Iterable[TransactionView]) -> tuple[TransactionView, ...]:
        """The transactions that have such a branch, each with all of its branches."""
        return tuple(
            transaction
            for transaction in transactions
            if any(self.matches(transaction, branch) for branch in transaction.branches)
        )


def node_of(view: TransactionView) -> str:
    """The node that has made a transaction."""
    return FOREIGN if view.ours is None else view.ours.node


def is_lost(view: TransactionView, here: frozenset[str]) -> bool:
    """Whether the log of its node is not here: it is none of the nodes that are, and its decision is not known."""
    is_known = view.ours is None or view.ours.node in here or view.origin is not None
    return not is_known and view.decision is DecisionKnowledge.UNKNOWN


# --- groups -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TransactionGroup:
    """Transactions in doubt that are alike: of one node, with the same known of their decisions, and with branches in
    the same states on the same resources."""

    node: str
    decision: DecisionKnowledge
    is_lost: bool
    stands: str
    count: int
    oldest_s: float | None
    lone: str = ""

    @property
    def said(self) -> str:
        """It in words, without the count. Escaped."""
        of = f"of node {escaped(self.node)}, lost or away, undecided" if self.is_lost else escaped(self.node)
        known = of if self.is_lost else f"{of}, decision {self.decision.value}"
        since = f", oldest {age(self.oldest_s)}" if self.oldest_s is not None else ""
        return f"{known}: {self.stands}{f'; {self.lone}' if self.lone else ''}{since}"


def groups_of(transactions: Iterable[TransactionView], here: frozenset[str]) -> list[TransactionGroup]:
    """The groups, the largest first. `here` are the nodes whose logs are here."""
    found: dict[tuple[str, DecisionKnowledge, bool, str, str], list[TransactionView]] = {}
    for view in transactions:
        key = (node_of(view), view.decision, is_lost(view, here), _stands(view), view.lone)
        found.setdefault(key, []).append(view)
    groups = [
        TransactionGroup(node, decision, lost, stands, len(views), _oldest_s(views), lone)
        for (node, decision, lost, stands, lone), views in found.items()
    ]
    return sorted(groups, key=lambda group: -group.count)


def _stands(view: TransactionView) -> str:
    states: dict[str, list[str]] = {}
    for branch in view.in_doubt:
        states.setdefault(state_of(branch), []).append(escaped(branch.resource))
    return "; ".join(f"{state} on {listed(names)}" for state, names in states.items())


def _oldest_s(views: Iterable[TransactionView]) -> float | None:
    ages = [branch.age_s for view in views for branch in view.branches if branch.age_s is not None]
    return max(ages, default=None)


# --- actions ----------------------------------------------------------------------------------------------------------
def branches_for(act: OperatorAction, view: TransactionView) -> tuple[BranchView, ...]:
    """The branches of a transaction that an action on all of it is about: to forget, those that are completed."""
    if act is not OperatorAction.FORGET:
        return view.branches
    return tuple(branch for branch in view.branches if branch.state is State.HEURISTIC or branch.noted is not None)


@dataclass(frozen=True, slots=True)
class ChosenTransactions:
    """What an action can do with the transactions that fit a filter: the plans, and what is left out, in words."""

    plans: tuple[Plan, ...]
    left_out: tuple[str, ...]


def chosen_for(
    act: OperatorAction,
    transactions: Sequence[TransactionView],
    *,
    on: Collection[str] = (),
    complete: bool,
    most: int | None = None,
) -> ChosenTransactions:
    """The plans for these transactions, for the first `most` of them; `on` these resources only, where any are
    named."""
    plans: list[Plan] = []
    left_out: Counter[str] = Counter()
    for view in transactions:
        branches = tuple(branch for branch in branches_for(act, view) if not on or branch.is_on(on))
        planned = plan(act, view, branches, complete=complete)
        why = _left_out(planned)
        if not why and most is not None and len(plans) >= most:
            why = f"more than {most} are not done at once"
        if why:
            left_out[why] += 1
        else:
            plans.append(planned)
    return ChosenTransactions(tuple(plans), tuple(f"{count} left out: {why}" for why, count in left_out.items()))


def _left_out(planned: Plan) -> str:
    view = planned.view
    if not planned.steps:
        return "nothing of it is completed by hand" if planned.act is OperatorAction.FORGET else "nothing is left to do"
    is_undecided = planned.act is not OperatorAction.FORGET and view.decision is DecisionKnowledge.UNKNOWN
    if is_undecided and view.ours is not None and len(view.branches) == 1:  # also if no others are left to compare with
        return f"{view.lone or ONE_LEFT}: name each alone"
    return next((step.what for step in planned.steps if step.is_refused), "")


def explained_all(chosen: Sequence[Plan]) -> list[str]:
    """The explanation of many plans, a paragraph each: what is done; then what is said of some of them alike, with the
    name of each."""
    branches = sum(len(planned.steps) for planned in chosen)
    act = chosen[0].act.value
    paragraphs = [f"{act} {several(branches, 'branch')} of {several(len(chosen), 'transaction')}"]
    alike: dict[str, list[str]] = {}
    for planned in chosen:
        first, *steps = explained(planned)
        said = f"{first.removeprefix(f'{planned.view.name}: ')}; {'; '.join(steps)}"
        alike.setdefault(said, []).append(planned.view.name)
    return [
        *paragraphs,
        *(f"{several(len(names), 'transaction')}: {said}: {', '.join(names)}" for said, names in alike.items()),
    ]
