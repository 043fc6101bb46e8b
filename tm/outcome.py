"""Outcome: what a completed global transaction came to, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from xa import Code, Gtrid
from xa.codes import MEANING

if TYPE_CHECKING:
    from tm.log import Branch, Heuristic


class Verdict(Enum):
    """The outcome of a global transaction as a whole."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    HEUR_COMMITTED = "heuristically committed"
    HEUR_ROLLED_BACK = "heuristically rolled back"
    MIXED = "in part committed, in part rolled back"
    HAZARD = "possibly in part committed, in part rolled back"
    UNKNOWN = "not known yet"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a transaction was not committed: the branch that did not answer as asked, and its answer. Without a branch
    `where` names the resource; without both it was the log or the manager itself."""

    branch: Branch | None
    said: Code | BaseException | str
    where: str = ""

    @property
    def resource(self) -> str:
        """The name of the resource, where it was one."""
        return self.branch.resource if self.branch is not None else self.where

    def __str__(self) -> str:
        where = f"{self.resource}: " if self.resource else ""
        said = self.said
        if isinstance(said, Code):
            return f"{where}{said.name}: {MEANING[said]}"
        return f"{where}{getattr(said, 'message', None) or said}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a completion. `decided` says whether a decision to commit is durable (None: unknown);
    `pending` are the branches that recovery still has to tell."""

    gtrid: bytes
    verdict: Verdict
    decided: bool | None
    pending: tuple[Branch, ...] = ()
    heuristics: tuple[Heuristic, ...] = ()
    reasons: tuple[Reason, ...] = ()


def named(gtrid: bytes) -> str:
    """A gtrid as people read it: node·incarnation·sequence where it is ours, hexadecimal otherwise."""
    try:
        return str(Gtrid.decode(gtrid))
    except ValueError:
        return gtrid.hex()
