"""InDoubtOverview: what is in doubt, put together from all who know something of it: the site of the console's
configuration, the brokers, and the nodes that tell.

A transaction is shown as the one sees it whose log knows the decision. Of several who do, a node that can be acted
through is preferred, because its log is open there. What is under way at a node is not in doubt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from xabridge.operations.survey import DecisionKnowledge, Survey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xabridge.console.nodes import InDoubt
    from xabridge.operations.survey import TransactionView

    Key: TypeAlias = tuple[int, bytes]

HERE = ""
"""The place that is the console's own site."""


@dataclass(frozen=True, slots=True)
class InDoubtOverview:
    """What is in doubt. `places` says as whose it is shown: HERE, or the name of a node; `nodes` are those that
    tell."""

    survey: Survey
    places: Mapping[Key, str]
    nodes: Mapping[str, InDoubt]

    def place_of(self, view: TransactionView) -> str:
        """The place that shows it."""
        return self.places.get((view.format_id, view.gtrid), HERE)


def together(own: Survey, nodes: Mapping[str, InDoubt], silent: Mapping[str, str]) -> InDoubtOverview:
    """All of it; `silent` are nodes that can't be asked, and why."""
    live = frozenset().union(*(node.live for node in nodes.values()))
    best: dict[Key, tuple[tuple[bool, ...], TransactionView, str]] = {}
    for place, survey in ((HERE, own), *((name, node.survey) for name, node in nodes.items())):
        for view in survey.transactions:
            if view.gtrid in live:
                continue
            acting = place != HERE and nodes[place].acting
            rank = (view.decision is not DecisionKnowledge.UNKNOWN, not view.at_work, acting, place != HERE)
            key = (view.format_id, view.gtrid)
            if key not in best or rank > best[key][0]:
                best[key] = (rank, view, place)

    views = [view for _, view, _ in best.values()]
    views.sort(key=lambda view: (-max(branch.age_s or 0.0 for branch in view.branches), view.name))
    unreachable = dict(own.unreachable)
    troubles = [own.log_trouble] if own.log_trouble is not None else []
    for name, node in nodes.items():
        unreachable |= {f"{resource} of {name}": why for resource, why in node.survey.unreachable.items()}
        if node.survey.log_trouble is not None:
            troubles.append(f"{name}: {node.survey.log_trouble}")
    unreachable |= {f"node {name}": why for name, why in silent.items()}
    survey = replace(own, transactions=tuple(views), unreachable=unreachable, log_trouble="; ".join(troubles) or None)
    return InDoubtOverview(survey, {key: place for key, (_, _, place) in best.items()}, nodes)
