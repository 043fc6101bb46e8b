"""OperatorService: what operators can do about the transactions in doubt at a place. Each choice is shown before it is
made, and made only if it is still what was shown.

    choice = await service.choose(OperatorRequest("commit", "orders-1·3fa91c·8231"))
    said = await service.carry_out(OperatorRequest(…), choice.shown, heuristic=False)

Everything is done by one thread, one thing after the other: of two operators who want something of one branch, the
second one gets the answer that it has changed. Looking is shared: however many ask, the resource managers are asked
once in a few seconds.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tm.log import LogError, LogLocked
from tm.resources import ConfigurationError
from xa import ThreadOfControl, XaError, entered
from xa.printable import escaped
from xabridge.operations import decision_end
from xabridge.operations.branch_completion import (
    HELD,
    BranchCompleter,
    DecisionChanged,
    OperatorAction,
    explained,
    needs_the_log,
    plan,
    refusal,
)
from xabridge.operations.progress import silent
from xabridge.operations.recovery_pass import expectation, expected, one_pass, report_lines
from xabridge.operations.selection import chosen_for, explained_all
from xabridge.operations.survey import NotFound, find, only_on, survey
from xabridge.text import several, unreachable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from xabridge.operations.branch_completion import Plan
    from xabridge.operations.scan import ScannedSite
    from xabridge.operations.site import OperationsTarget
    from xabridge.operations.survey import Survey, TransactionView

T = TypeVar("T")
KEPT_S: Final = 3.0
"""What was seen serves everybody for so long."""
PATIENCE_S: Final = 2.5
CLOSE_S: Final = 3.0
SHOWN: Final = 50
"""Transactions of a pass that are shown one by one."""
ANYWAY: Final = "tick the box that says so"
END: Final = "end"
RECOVER: Final = "recover"
AT_ONCE: Final = 200
"""Transactions that one request names at most."""
DOING: Final = frozenset({*(act.value for act in OperatorAction), END, RECOVER})
"""What can be wanted."""


class ActionRefused(Exception):
    """Nothing was done. The text says why."""


class AnswerUnavailable(Exception):
    """It is not known now; of what was to be done, some may be done. The text says why."""


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """One of DOING; of the transaction `name`, its branches `on` these resources only; to end a decision, without the
    resources `gone`. Or, in place of `name`, of the transactions with these `keys`, all together."""

    doing: str
    name: str = ""
    on: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProposedAction:
    """What it would do, in words: that is what is agreed to. `refused` says why it can't be done as it is;
    `needs_heuristic`: it can, with consent. A pass has no transaction to show."""

    shown: tuple[str, ...]
    refused: str | None = None
    needs_heuristic: bool = False
    view: TransactionView | None = None


@dataclass(frozen=True, slots=True)
class OperatorAnswer:
    """A result in words."""

    ok: bool
    text: str


class OperatorService:
    """The operations at `place`; its methods are called on one event loop."""

    def __init__(self, place: OperationsTarget, clock: Callable[[], float] = time.monotonic) -> None:
        self.place = place
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="xabridge-operations")
        self._seen: tuple[float, ScannedSite] | None = None
        self._looking: asyncio.Future[ScannedSite] | None = None

    async def look(self) -> ScannedSite:
        """What is in doubt, as of a few seconds ago at most, unless the resource managers are slower.
        AnswerUnavailable: they have not answered yet, or can't be asked."""
        if self._seen is not None and self._clock() - self._seen[0] < KEPT_S:
            return self._seen[1]
        if self._looking is None:
            self._looking = self._begun(self.place.look)
            self._looking.add_done_callback(self._looked)
        done, _ = await asyncio.wait({self._looking}, timeout=PATIENCE_S)
        if done:
            try:
                return done.pop().result()
            except (ConfigurationError, LogError, XaError) as error:
                raise AnswerUnavailable(str(error)) from None
        if self._seen is not None:
            return self._seen[1]
        raise AnswerUnavailable("the resource managers have not answered yet")

    async def choose(self, wanted: OperatorRequest) -> ProposedAction:
        """What it would do now. ActionRefused: there is nothing to do it with."""
        return await self._in_thread(lambda: self._choice(wanted, heuristic=False)[0])

    async def carry_out(
        self, wanted: OperatorRequest, shown: tuple[str, ...], *, heuristic: bool
    ) -> tuple[OperatorAnswer, ...]:
        """Does what was `shown`. Of a pass, what it finds may be something else by now; it does what recovery
        does in any case. ActionRefused; AnswerUnavailable."""
        return await self._in_thread(lambda: self._carried_out(wanted, shown, heuristic=heuristic))

    def close(self) -> None:
        """Ends the thread after what is under way, and what was opened for looking."""
        with suppress(TimeoutError, RuntimeError):  # a resource manager that hangs; it is closed already
            self._thread.submit(self.place.close).result(CLOSE_S)
        self._thread.shutdown(wait=False)

    # -- on the loop
    def _looked(self, looking: asyncio.Future[ScannedSite]) -> None:
        self._looking = None
        if not looking.cancelled() and looking.exception() is None:
            self._seen = (self._clock(), looking.result())

    def _begun(self, work: Callable[[], T]) -> asyncio.Future[T]:
        def worked() -> T:
            with entered(ThreadOfControl()):
                return work()

        try:
            return asyncio.get_running_loop().run_in_executor(self._thread, worked)
        except RuntimeError:  # it is closed
            raise ActionRefused("nothing was done: this process is ending") from None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def worked() -> T:
            try:
                return work()
            except LogLocked as error:
                raise ActionRefused(f"nothing was done: {error.held}. {HELD}") from None
            except (DecisionChanged, NotFound, ConfigurationError) as error:
                raise ActionRefused(f"nothing was done: {error}") from None
            except LogError as error:
                raise AnswerUnavailable(str(error)) from None
            except XaError as error:
                raise AnswerUnavailable(f"no branch was touched: {error.message}") from None

        self._seen = None
        try:
            return await asyncio.shield(self._begun(worked))
        finally:
            self._seen = None

    # -- in the thread
    def _choice(
        self, wanted: OperatorRequest, *, heuristic: bool
    ) -> tuple[ProposedAction, tuple[Plan, ...] | decision_end.DecisionEnding | None]:
        if wanted.doing == RECOVER:
            return ProposedAction(tuple(expected(expectation(self.place), SHOWN, wrapped=False))), None

        seen = self.place.look()
        found = survey(seen)
        if wanted.keys:
            return self._choice_of_many(wanted, found, heuristic=heuristic)
        view, branches = find(wanted.name, found.transactions)
        if wanted.doing == END:
            end = decision_end.planned_end(view, seen, found, frozenset(wanted.gone))
            return ProposedAction(tuple(decision_end.explained_end(end)), end.refused, view=view), end

        planned = plan(
            OperatorAction(wanted.doing), view, only_on(branches, wanted.on, wanted.name), complete=found.complete
        )
        if not planned.steps:
            raise NotFound(f"{view.name}: these branches are finished already")
        refused = refusal([planned], heuristic=heuristic, anyway=ANYWAY)
        needs = planned.needs_heuristic and not planned.refused
        return ProposedAction(tuple(explained(planned)), refused, needs, view), (planned,)

    @staticmethod
    def _choice_of_many(
        wanted: OperatorRequest, found: Survey, *, heuristic: bool
    ) -> tuple[ProposedAction, tuple[Plan, ...]]:
        """Of those among `keys` that are still in doubt."""
        act = OperatorAction(wanted.doing)
        by_key = {view.key: view for view in found.transactions}
        views = [by_key[key] for key in wanted.keys if key in by_key]
        chosen = chosen_for(act, views, complete=found.complete)
        if not chosen.plans:
            raise NotFound("; ".join(chosen.left_out) or "none of these transactions is in doubt any more")
        refused = refusal(chosen.plans, heuristic=heuristic, anyway=ANYWAY)
        needs = any(planned.needs_heuristic for planned in chosen.plans)
        shown = (*explained_all(chosen.plans), *chosen.left_out)
        return ProposedAction(shown, refused, needs), chosen.plans

    def _carried_out(
        self, wanted: OperatorRequest, shown: tuple[str, ...], *, heuristic: bool
    ) -> tuple[OperatorAnswer, ...]:
        if wanted.doing == RECOVER:
            return tuple(self._passed())
        choice, planned = self._choice(wanted, heuristic=heuristic)
        if choice.shown != shown:
            raise ActionRefused("nothing was done: what it would do has changed since it was shown. Look again")
        if choice.refused is not None:
            raise ActionRefused(f"nothing was done: {choice.refused}")
        if isinstance(planned, decision_end.DecisionEnding):
            result = decision_end.carry_out(self.place, planned, silent())
            lines = tuple(
                OperatorAnswer(True, line) for line in decision_end.result_lines(planned, result, SHOWN, wrapped=False)
            )
            return lines if result.trouble is None else (*lines, OperatorAnswer(False, escaped(result.trouble)))

        assert planned is not None  # noqa: S101 — there is none for a pass only
        hold = self.place.has_the_log or any(map(needs_the_log, planned))
        with self.place.holding_the_log() if hold else nullcontext() as log:
            return tuple(self._completed(BranchCompleter(self.place, log), planned))

    @staticmethod
    def _completed(hand: BranchCompleter, plans: tuple[Plan, ...]) -> Iterator[OperatorAnswer]:
        """Carries the plans out, one after the other. What stops it is raised as long as nothing is done."""
        for number, planned in enumerate(plans):
            try:
                yield from (OperatorAnswer(one.ok, one.line) for one in hand.carry_out(planned))
            except (DecisionChanged, LogError, XaError) as error:
                if not number:
                    raise
                said = error.message if isinstance(error, XaError) else str(error)
                left = several(len(plans) - number, "transaction")
                yield OperatorAnswer(False, f"{planned.view.name}: {escaped(said)}. {left} left as they were")
                return

    def _passed(self) -> list[OperatorAnswer]:
        with self.place.holding_the_log() as log:
            report = one_pass(self.place, log, silent())
        away = [OperatorAnswer(False, line) for line in unreachable_lines(report.unreachable)]
        return [*(OperatorAnswer(True, line) for line in report_lines(report, SHOWN, wrapped=False)), *away]


def said_of(answers: Any) -> tuple[OperatorAnswer, ...]:
    """The results again, where they are read."""
    return tuple(OperatorAnswer(ok is True, str(text)) for ok, text in answers)
