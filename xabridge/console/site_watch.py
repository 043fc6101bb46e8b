"""SiteWatch: what is in doubt at the site of this console's configuration, beside what its brokers tell, and what an
operator can do about it (`xabridge.node.operations`).

A site is one node's log and its resource managers, with the users that the configuration names. So the console has to
say who may use it: users who may look at the first broker may see it, and those who may manage there, and complete
everybody's branches, may finish transactions.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xa import Xid
from xa.holdings import Holding, InDoubtBranch, Relation
from xabridge.console.brokers import BrokerProblem, RequestRefused
from xabridge.operations.progress import silent
from xabridge.operations.scan import ScannedResource, ScannedSite, installed
from xabridge.operations.service import ActionRefused, AnswerUnavailable, OperatorService
from xabridge.operations.site import Site
from xabridge.operations.survey import Survey, TransactionView, survey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tm.config import Configuration
    from xabridge.operations.service import OperatorAnswer, OperatorRequest, ProposedAction


class SiteWatch:
    """The site; without a configuration, nothing but what the brokers tell of their branches."""

    def __init__(self, configuration: Configuration | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._configuration = configuration
        self._operations = None if configuration is None else OperatorService(Site(configuration, silent()), clock)

    @property
    def can_act(self) -> bool:
        """Whether there is a site whose transactions can be finished here."""
        return self._operations is not None

    @property
    def node(self) -> str:
        """The node of the configuration."""
        return self._configuration.node if self._configuration is not None else ""

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of its resources."""
        return tuple(self._configuration.resources) if self._configuration is not None else ()

    async def survey(self, branches: Mapping[str, Sequence[Mapping[str, Any]]], silent: Mapping[str, str]) -> Survey:
        """What is in doubt: at the site, and of `branches`, which other brokers have reported; `silent` are those that
        have not, and why."""
        seen = _with(await self._look(), branches)
        return survey(replace(seen, unreachable={**seen.unreachable, **silent}))

    async def choose(self, wanted: OperatorRequest) -> ProposedAction:
        """What it would do now. RequestRefused: there is nothing to do it with."""
        with _troubles():
            return await self._acting().choose(wanted)

    async def carry_out(
        self, wanted: OperatorRequest, shown: tuple[str, ...], *, heuristic: bool
    ) -> tuple[OperatorAnswer, ...]:
        """Does what was shown as `shown`. RequestRefused: nothing was done."""
        with _troubles():
            return await self._acting().carry_out(wanted, shown, heuristic=heuristic)

    def close(self) -> None:
        """Closes the resource managers."""
        if self._operations is not None:
            self._operations.close()

    async def _look(self) -> ScannedSite:
        if self._operations is None:
            return ScannedSite("", (), None, {}, (), {}, {}, {}, installed())
        try:
            return await self._operations.look()
        except (ActionRefused, AnswerUnavailable) as error:
            raise BrokerProblem(str(error)) from None

    def _acting(self) -> OperatorService:
        if self._operations is None:
            raise RequestRefused("this console has no node of its own: use `xabridge recover` where the node runs")
        return self._operations


@contextmanager
def _troubles() -> Iterator[None]:
    """Raises RequestRefused where nothing was done, BrokerProblem where it is not known."""
    try:
        yield
    except ActionRefused as error:
        raise RequestRefused(str(error)) from None
    except AnswerUnavailable as error:
        raise BrokerProblem(str(error)) from None


def _with(seen: ScannedSite, branches: Mapping[str, Sequence[Mapping[str, Any]]]) -> ScannedSite:
    """What was seen, with the branches in doubt of brokers that are none of the site's resources."""
    known = {branch.xid for scanned in seen.scanned.values() for branch in scanned.branches}
    more: dict[str, ScannedResource] = {}
    for name, reports in branches.items():
        found = tuple(one for one in map(_branch, reports) if one is not None and one.xid not in known)
        if found:
            more[name] = ScannedResource(found, tells=True)
    return replace(seen, scanned={**seen.scanned, **more}) if more else seen


def _branch(report: Mapping[str, Any]) -> InDoubtBranch | None:
    if not str(report["state"]).startswith("S3"):
        return None
    age_s = max(time.time() - report["since"] / 1000, 0.0)
    holdings = tuple(
        Holding(relation, queue, "message", held[key])
        for queue, held in report["holds"].items()
        for relation, key in ((Relation.FROM, "retired"), (Relation.TO, "posted"))
        if held[key]
    )
    return InDoubtBranch(Xid.parse(report["xid"]), age_s, report["owner"], holdings=holdings)


def key_of(view: TransactionView) -> str:
    """What names a transaction in an address, and no other: of somebody else's, its xid up to the branch."""
    return view.name if view.ours is not None else str(Xid(view.format_id, view.gtrid))
