"""Picture: a transaction in doubt, with its decision in the middle and the resources around it.

The resources stand in two columns, above and below the decision, so that the picture is as readable on a phone as on a
screen. Each is joined to the decision by a line that shows how it stands to it: prepared, finished, unreachable,
completed by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from xa.printable import escaped
from xabridge.operations.survey import DecisionKnowledge, State, state_of
from xabridge.text import age, held, several

if TYPE_CHECKING:
    from xabridge.operations.survey import BranchView, TransactionView

WIDTH: Final = 420
MOST: Final = 8
"""Resources that are drawn; the others are counted."""
_BOX: Final = (196, 82)
_GAP: Final = 14
_MIDDLE: Final = 96
"""The height of the row with the decision."""

LOOKS: Final = {
    State.PREPARED: "waiting",
    State.IN_DOUBT: "waiting",
    State.NOT_REACHED: "away",
    State.FINISHED: "finished",
    State.HEURISTIC: "by-hand",
}
DECIDED: Final = {
    DecisionKnowledge.COMMIT: "commit",
    DecisionKnowledge.NONE: "not decided",
    DecisionKnowledge.ENDED: "ended",
    DecisionKnowledge.UNKNOWN: "unknown",
}


@dataclass(frozen=True, slots=True)
class ResourceBox:
    """A resource. The line goes from its edge (`from_x`, `from_y`) to the decision."""

    x: float
    y: float
    name: str
    state: str
    lines: tuple[str, ...]
    looks: str
    from_x: float
    from_y: float


@dataclass(frozen=True, slots=True)
class TransactionPicture:
    """What the template draws."""

    width: int
    height: int
    middle: tuple[float, float]
    decision: str
    looks: str
    place: str
    boxes: tuple[ResourceBox, ...]
    omitted: int
    label: str


def picture(view: TransactionView) -> TransactionPicture:
    """The picture of a transaction."""
    branches = view.branches[:MOST]
    above, below = branches[: (len(branches) + 1) // 2], branches[(len(branches) + 1) // 2 :]
    height = _BOX[1]
    rows_above, rows_below = (len(above) + 1) // 2, (len(below) + 1) // 2
    top = rows_above * (height + _GAP)
    middle = (WIDTH / 2, top + _MIDDLE / 2)
    boxes = [*_rows(above, 0, upper=True), *_rows(below, top + _MIDDLE + _GAP, upper=False)]
    whole = top + _MIDDLE + (_GAP + rows_below * (height + _GAP) if rows_below else 0)
    return TransactionPicture(
        WIDTH, int(whole), middle, DECIDED[view.decision], view.decision.value, _place(view), tuple(boxes),
        len(view.branches) - len(branches), _label(view),
    )  # fmt: skip


def _rows(branches: tuple[BranchView, ...], y: float, *, upper: bool) -> list[ResourceBox]:
    width, height = _BOX
    boxes = []
    for number, branch in enumerate(branches):
        row, column = divmod(number, 2)
        alone = number == len(branches) - 1 and column == 0
        x = (WIDTH - width) / 2 if alone else column * (WIDTH - width)
        at = y + row * (height + _GAP)
        boxes.append(
            ResourceBox(
                x, at, cut(escaped(branch.resource), 24), _state(branch), _lines(branch), LOOKS[branch.state],
                x + width / 2, at + (height if upper else 0),
            )
        )  # fmt: skip
    return boxes


def _state(branch: BranchView) -> str:
    since = f" · {age(branch.age_s)}" if branch.age_s is not None else ""
    return f"{state_of(branch)}{since}"


def _lines(branch: BranchView) -> tuple[str, ...]:
    if branch.state is State.FINISHED:
        return ("not there any more:", "committed, or by hand")
    lines = [cut(held([one]), 30) for one in branch.holdings[:2]]
    more = len(branch.holdings) - len(lines) + branch.omitted
    if more:
        lines[-1:] = [f"and in {several(more + 1, 'place')} more"]
    return tuple(lines)


def _place(view: TransactionView) -> str:
    if view.decider is not None:
        return f"{cut(escaped(view.decider), 20)} knows"
    if view.in_log:
        return "this node's log knows"
    return "its log is not here"


def _label(view: TransactionView) -> str:
    """The picture in words, for who can't see it."""
    branches = "; ".join(f"{escaped(branch.resource)} {_state(branch)}" for branch in view.branches)
    return f"Decision: {DECIDED[view.decision]}, {_place(view)}. {branches}."


def cut(text: str, most: int) -> str:
    """At most so many characters of a text."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
