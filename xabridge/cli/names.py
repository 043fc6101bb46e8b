"""How a person names what is in doubt, and what that finds.

orders-1·17·8231          a global transaction of ours, as it is shown; ":" and "/" stand for "·" as well
1480675889_b3Jk…_c2hvcA== a branch, by its full xid
1480675889_b3Jk           a global transaction, by the beginning of its xid (with or without "…"), if only one has it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xa import Xid
from xabridge.cli.text import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from xabridge.cli.survey import BranchView, TransactionView

LEAST_PREFIX: Final = 6


class NotFound(Exception):
    """The named transaction does not exist, or the name fits several."""


def find(name: str, transactions: Sequence[TransactionView]) -> tuple[TransactionView, tuple[BranchView, ...]]:
    """The transaction that `name` names, and of its branches those that it names."""
    wanted = name.strip().removesuffix("…")
    short = wanted.replace(":", "·").replace("/", "·")
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
