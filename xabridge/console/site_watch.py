"""SiteWatch: what is in doubt at the site of this console's configuration, and what an operator can do about it. It
is `xabridge recover`, asked from a page: the same survey, plans and words.

A site is one node's log and its resource managers, with the users that the configuration names. So the console has to
say who may use it: whoever may look at the first broker may see it, and whoever may there manage, and complete
everybody's branches, may finish transactions.

Everything is done by one thread, one thing after the other. Looking is shared: however many pages show it, the resource
managers are asked once in a few seconds.
"""

from __future__ import annotations

import asyncio
import io
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tm.log import LogError, LogLocked
from tm.resources import ConfigurationError
from tm.two_phase.blocking import BlockingPorts
from xa import XaError, Xid
from xa.holdings import Holding, InDoubtBranch, Relation
from xabridge.cli.completing import Act, Changed, Hand, Plan, explained, needs_the_log, plan, refusal
from xabridge.cli.names import NotFound, find, only_on
from xabridge.cli.origins import installed
from xabridge.cli.progress import Progress
from xabridge.cli.recovering import expected, one_pass, report_lines
from xabridge.cli.site import Scanned, Seen, Site
from xabridge.cli.survey import Survey, TransactionView, survey
from xabridge.cli.text import transaction_name
from xabridge.console.brokers import Refused, Trouble

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tm.config import Configuration
    from xabridge.cli.completing import Done

T = TypeVar("T")
KEPT_S: Final = 3.0
"""A survey serves all pages for so long."""
PATIENCE_S: Final = 2.5
CLOSE_S: Final = 3.0
ANYWAY: Final = "tick the box that says so"


@dataclass(frozen=True, slots=True)
class Choice:
    """What an act would do, as it was shown."""

    planned: Plan
    told: tuple[str, ...]
    refused: str | None
    needs_heuristic: bool


class SiteWatch:
    """The site; without a configuration, nothing but what the brokers tell of their branches."""

    def __init__(self, configuration: Configuration | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._site = None if configuration is None else Site(configuration, _silent())
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="xabridge-console-site")
        self._seen: tuple[float, Seen] | None = None
        self._looking: asyncio.Future[Seen] | None = None

    @property
    def can_act(self) -> bool:
        """Whether there is a site whose transactions can be finished here."""
        return self._site is not None

    @property
    def node(self) -> str:
        """The node of the configuration."""
        return self._site.configuration.node if self._site is not None else ""

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of its resources."""
        return tuple(self._site.resources) if self._site is not None else ()

    async def survey(self, branches: Mapping[str, Sequence[Mapping[str, Any]]], silent: Mapping[str, str]) -> Survey:
        """What is in doubt: at the site, and of `branches`, which brokers have told beside it; `silent` are those that
        have not, and why."""
        seen = _with(await self._latest(), branches)
        return survey(replace(seen, unreachable={**seen.unreachable, **silent}))

    async def choose(self, act: Act, name: str, on: Sequence[str]) -> Choice:
        """What `act` would do now. Refused: there is nothing to do it with."""
        return await self._in_thread(lambda site: self._choice(site, act, name, on, heuristic=False))

    async def carry_out(
        self, act: Act, name: str, on: Sequence[str], told: Sequence[str], *, heuristic: bool
    ) -> list[Done]:
        """Does what was shown as `told`. Refused: nothing was done."""

        def carried_out(site: Site) -> list[Done]:
            choice = self._choice(site, act, name, on, heuristic=heuristic)
            if choice.told != tuple(told):
                raise Refused("nothing was done: what it would do has changed since it was shown. Look again")
            if choice.refused is not None:
                raise Refused(f"nothing was done: {choice.refused}")
            with site.holding_the_log() if needs_the_log(choice.planned) else nullcontext() as log:
                return Hand(site, log, BlockingPorts(site.resources, log)).carry_out(choice.planned)

        return await self._in_thread(carried_out)

    async def expected(self) -> list[str]:
        """What a recovery pass would do now."""
        return await self._in_thread(lambda site: list(expected(survey(site.look()), 50)))

    async def recover(self) -> list[str]:
        """Makes a recovery pass; what it did."""

        def passed(site: Site) -> list[str]:
            with site.holding_the_log() as log:
                report = one_pass(site, log, _silent())
            away = [f"{name} could not be reached: {why}" for name, why in report.unreachable.items()]
            return [*report_lines(report, 50), *away]

        return await self._in_thread(passed)

    def close(self) -> None:
        """Closes the resource managers."""
        site = self._site
        if site is not None:
            closing = self._thread.submit(site.__exit__, None, None, None)
            with suppress(TimeoutError):  # a resource manager that hangs
                closing.result(CLOSE_S)
        self._thread.shutdown(wait=False)

    # -- looking
    async def _latest(self) -> Seen:
        site = self._site
        if site is None:
            return Seen("", (), None, {}, (), {}, {}, {}, installed())
        if self._seen is not None and self._clock() - self._seen[0] < KEPT_S:
            return self._seen[1]
        if self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.run_in_executor(self._thread, site.look)
            self._looking.add_done_callback(self._looked)
        done, _ = await asyncio.wait({self._looking}, timeout=PATIENCE_S)
        if done:
            try:
                return done.pop().result()
            except (ConfigurationError, LogError, XaError) as error:
                raise Trouble(str(error)) from None
        if self._seen is not None:
            return self._seen[1]
        raise Trouble("the resource managers have not answered yet")

    def _looked(self, looking: asyncio.Future[Seen]) -> None:
        self._looking = None
        if not looking.cancelled() and looking.exception() is None:
            self._seen = (self._clock(), looking.result())

    # -- acting, in the thread
    async def _in_thread(self, work: Callable[[Site], T]) -> T:
        site = self._site
        if site is None:
            raise Refused("this console has no node of its own: use `xabridge recover` where the node runs")

        def worked() -> T:
            try:
                return work(site)
            except LogLocked as error:
                held = "The transaction manager that holds it recovers by itself; stop it to do it by hand"
                raise Refused(f"nothing was done: {error}. {held}") from None
            except (Changed, NotFound, ConfigurationError) as error:
                raise Refused(f"nothing was done: {error}") from None
            except LogError as error:
                raise Trouble(str(error)) from None
            except XaError as error:
                raise Trouble(f"nothing was done: {error.message}") from None

        self._seen = None
        try:
            return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._thread, worked))
        finally:
            self._seen = None

    @staticmethod
    def _choice(site: Site, act: Act, name: str, on: Sequence[str], *, heuristic: bool) -> Choice:
        found = survey(site.look())
        view, branches = find(name, found.transactions)
        planned = plan(act, view, only_on(branches, on, name), complete=found.complete)
        if not planned.steps:
            raise NotFound(f"{view.name}: these branches are finished already")
        refused = refusal([planned], heuristic=heuristic, anyway=ANYWAY)
        needs = planned.needs_heuristic and not planned.refused
        return Choice(planned, tuple(explained(planned)), refused, needs)


def _silent() -> Progress:
    return Progress(io.StringIO(), quiet=True)


def _with(seen: Seen, branches: Mapping[str, Sequence[Mapping[str, Any]]]) -> Seen:
    """What was seen, with the branches in doubt of brokers that are none of the site's resources."""
    known = {branch.xid for scanned in seen.scanned.values() for branch in scanned.branches}
    more: dict[str, Scanned] = {}
    for name, told in branches.items():
        found = tuple(one for one in map(_branch, told) if one is not None and one.xid not in known)
        if found:
            more[name] = Scanned(found, tells=True)
    return replace(seen, scanned={**seen.scanned, **more}) if more else seen


def _branch(told: Mapping[str, Any]) -> InDoubtBranch | None:
    if not str(told["state"]).startswith("S3"):
        return None
    age_s = max(time.time() - told["since"] / 1000, 0.0)
    holdings = tuple(
        Holding(relation, queue, "message", held[key])
        for queue, held in told["holds"].items()
        for relation, key in ((Relation.FROM, "retired"), (Relation.TO, "posted"))
        if held[key]
    )
    return InDoubtBranch(Xid.parse(told["xid"]), age_s, told["owner"], holdings=holdings)


def key_of(view: TransactionView) -> str:
    """What names a transaction in an address, and no other: of somebody else's, its xid up to the branch."""
    return view.name if view.ours is not None else str(Xid(view.format_id, view.gtrid))


def finished(done: Done) -> str:
    """The result for one branch, in the words of `recover`."""
    return f"{transaction_name(done.branch.xid)} on {done.branch.resource}: {done.said}"
