"""Makes the table of transactions in doubt: a narrow one for 80 columns, with the locks of a branch below it, and a
wide one with a column for everything. It is pure: it returns lines.

Names are never cut, because users copy them into the next command. Only the xids of other transaction managers, which
can be longer than a line, are cut: they end with "…", and a command accepts the beginning if it is unique.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from xa.printable import escaped
from xabridge.operations.recovery_pass import troubles
from xabridge.operations.selection import MOST_GROUPS
from xabridge.operations.survey import DecisionKnowledge, State, Survey, TransactionView, advice, state_of
from xabridge.text import LONGEST_NAME, NARROW, age, held, listed, paragraph, several, shortened, table_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from xa import Gtrid
    from xabridge.operations.selection import TransactionGroup
    from xabridge.operations.survey import BranchView

WIDE_FROM: Final = 120
"""From so many columns on a terminal gets the wide table."""

MOST: Final = 50
"""The most transactions that are listed without --all."""

_NARROW_HEAD: Final = ("XID", "AGE", "STATE", "DECISION", "HELD BY")
_NARROW_WIDTHS: Final = (28, 5, 11, 8, 0)
_WIDE_HEAD: Final = ("XID", "NODE", "AGE", "STATE", "DECISION", "HELD BY", "OWNER", "HOLDS")
_INDENT: Final = "    "
_LONGEST_FOREIGN: Final = 32
"""The most characters of another transaction manager's name in the wide table."""


def table(transactions: Sequence[TransactionView], width: int) -> list[str]:
    """The lines of the table for a terminal of `width` columns."""
    if not transactions:
        return []
    return list(_wide(transactions) if width >= WIDE_FROM else _narrow(transactions))


def summary(transactions: Sequence[TransactionView], survey: Survey) -> list[str]:
    """The lines below the table: the number of transactions, and the resource managers that were not reached."""
    branches = [branch for view in transactions for branch in view.in_doubt]
    managers = {branch.resource for branch in branches}

    if transactions:
        counted = several(len(transactions), "transaction")
        said = f"{counted} in doubt on {several(len(managers), 'resource manager')}"
        others = sum(view.ours is None for view in transactions)
        if others:
            said += f", {others} of them not xabridge's"
    elif survey.configured == 0:
        said = "nothing in doubt: no resource manager is configured"
    else:
        asked = survey.configured - len(survey.unreachable)
        where = several(asked, "resource manager")
        if survey.log_trouble is not None:
            return [*troubles(survey), f"nothing found in doubt on {where}"]
        said = f"nothing in doubt on {where}"
    return [said, *_carried_out(survey), *troubles(survey)]


def _carried_out(survey: Survey) -> list[str]:
    if not survey.carried_out:
        return []
    decisions = several(survey.carried_out, "decision")
    has = "has" if survey.carried_out == 1 else "have"
    return paragraph(
        f"{decisions} more {has} no branch left anywhere; the next recovery pass says what is known, and ends that if "
        "there is nothing to note, or a log to note it in"
    )


def rest(transactions: Sequence[TransactionView]) -> list[str]:
    """The line in place of the transactions that are not listed."""
    return [f"… and {several(len(transactions), 'transaction')} more; --all lists them"] if transactions else []


def groups(found: Sequence[TransactionGroup]) -> list[str]:
    """The lines of the groups of many transactions: how many there are of each, and how old the oldest is."""
    lines = []
    for group in found[:MOST_GROUPS]:
        lines += paragraph(f"{group.count:>5}  {group.said}", "", _INDENT + "   ")
    left = sum(group.count for group in found[MOST_GROUPS:])
    return [*lines, f"{left:>5}  of other kinds"] if left else lines


def _narrow(transactions: Iterable[TransactionView]) -> Iterator[str]:
    yield table_row(_NARROW_HEAD, _NARROW_WIDTHS)
    for view in transactions:
        name = view.name
        if len(name) > _NARROW_WIDTHS[0]:
            yield shortened(name)
            name = ""

        for branch in view.branches:
            yield table_row(
                (name, age(branch.age_s), state_of(branch), view.decision.value, escaped(branch.resource)),
                _NARROW_WIDTHS,
            )
            name = ""
            holds = held(branch.holdings, branch.omitted)
            if holds:
                yield from paragraph(holds, _INDENT, _INDENT)
            if branch.also:
                yield from paragraph(_also(branch), _INDENT, _INDENT)
        if view.decision is DecisionKnowledge.UNKNOWN:
            yield from paragraph(view.why, _INDENT, _INDENT)


def _wide(transactions: Iterable[TransactionView]) -> Iterator[str]:
    rows: list[tuple[Sequence[str], str]] = [(_WIDE_HEAD, "")]
    for view in transactions:
        rows += _wide_rows(view)
    columns = [column for column in range(len(_WIDE_HEAD)) if any(row[column] for row, _ in rows[1:])]
    widths = [max(len(row[column]) for row, _ in rows) for column in columns]
    for row, below in rows:
        yield table_row([row[column] for column in columns], widths)
        if below:
            yield _INDENT + below


def _wide_rows(view: TransactionView) -> Iterator[tuple[Sequence[str], str]]:
    """The rows of one transaction, and the lines below each."""
    ours = view.ours
    name = shortened(view.name, LONGEST_NAME if ours is not None else _LONGEST_FOREIGN)
    node = ours.node if ours is not None else "-"
    for number, branch in enumerate(view.branches, start=1):
        last = view.decision is DecisionKnowledge.UNKNOWN and number == len(view.branches)
        below = "; ".join(text for text in (_also(branch), view.why if last else "") if text)
        row = (
            name, node, age(branch.age_s), state_of(branch), view.decision.value, escaped(branch.resource),
            escaped(branch.owner), held(branch.holdings, branch.omitted),
        )  # fmt: skip
        yield row, below
        name = node = ""


def _also(branch: BranchView) -> str:
    """Which other resources list the branch."""
    return f"the same on {escaped(listed(branch.also))}: on one server" if branch.also else ""


def _incarnation(ours: Gtrid) -> str:
    if isinstance(ours.incarnation, int):
        return f"opening {ours.incarnation}"
    return f"incarnation {ours.incarnation.hex()}"


def details(view: TransactionView, survey: Survey) -> list[str]:
    """Everything about one transaction, for `show`."""
    ours = view.ours
    facts: list[tuple[str, str]] = []
    if ours is not None:
        mine = " (this one)" if ours.node == survey.node else ""
        facts.append(("node", f"{ours.node}{mine}"))
        facts.append(("log", f"{ours.log_id.hex()}, {_incarnation(ours)}, number {ours.sequence}"))
        if view.origin is not None:
            facts.append(("made by", view.origin.transaction))
    else:
        facts.append(("made by", f"another transaction manager (format id {view.format_id})"))

    facts.append(("decision", f"{view.decision.value}: {view.why}"))
    for branch in view.branches:
        facts += _branch_facts(branch)
    facts.append(("next", advice(view)))
    label = max(len(escaped(name)) for name, _ in facts)
    lines = [view.name]
    for name, text in facts:
        wrapped = textwrap.wrap(
            text, max(NARROW - label - 4, 30), break_long_words=False, break_on_hyphens=False
        ) or [""]  # fmt: skip
        lines.append(f"  {escaped(name).ljust(label)}  {wrapped[0]}")
        lines += [" " * (label + 4) + line for line in wrapped[1:]]
    return lines


def _branch_facts(branch: BranchView) -> Iterator[tuple[str, str]]:
    since = f" for {age(branch.age_s)}" if branch.age_s is not None else ""
    since = ": not there any more, committed before or completed by hand" if branch.state is State.FINISHED else since
    owner = f", made by {escaped(branch.owner)}" if branch.owner else ""
    yield branch.resource, f"{state_of(branch)}{since}{owner}"
    if branch.also:
        yield "", _also(branch)
    if branch.origin is not None:
        yield "", branch.origin.branch
    for holding in branch.holdings:
        note = f" ({escaped(holding.note)})" if holding.note else ""
        yield "", f"holds {held([holding])}{note}"

    if branch.omitted:
        yield "", f"and more in {several(branch.omitted, 'place')}"
    if branch.noted is not None:
        why = f": {escaped(branch.noted_why)}" if branch.noted_why else ""
        yield "", f"noted in the log as {branch.noted.name}{why}"
    yield "", f"xid {branch.xid}"
