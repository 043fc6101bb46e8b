"""`TransactionalCall`: one call of a function that is decorated with `@tm.transactional`."""

from __future__ import annotations

from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final

from tm.errors import ProtocolMisuse, RolledBack
from tm.options import Errors, Member, Option, Seconds, WholeNumber, check
from tm.outcome import Verdict
from tm.two_phase.states import GlobalState

if TYPE_CHECKING:
    from tm.manager import Manager
    from tm.transaction import Transaction


class Propagation(Enum):
    """The rule for the transaction that a transactional function meets."""

    REQUIRED = "required"
    REQUIRES_NEW = "requires new"
    MANDATORY = "mandatory"
    SUPPORTS = "supports"
    NOT_SUPPORTED = "not supported"
    NEVER = "never"


class _Plan(Enum):
    RUN = "run as it is"
    BEGIN = "begin one"
    SUSPEND = "suspend and run without"
    SUSPEND_AND_BEGIN = "suspend and begin one"
    REFUSE = "refuse"


_P: Final = Propagation
_PLANS: Final[dict[Propagation, tuple[_Plan, _Plan]]] = {
    _P.REQUIRED: (_Plan.RUN, _Plan.BEGIN),
    _P.REQUIRES_NEW: (_Plan.SUSPEND_AND_BEGIN, _Plan.BEGIN),
    _P.MANDATORY: (_Plan.RUN, _Plan.REFUSE),
    _P.SUPPORTS: (_Plan.RUN, _Plan.RUN),
    _P.NOT_SUPPORTED: (_Plan.SUSPEND, _Plan.RUN),
    _P.NEVER: (_Plan.REFUSE, _Plan.RUN),
}
"""Propagation → what to do with a transaction in the context, and without one."""

RETRY_PAUSE_S: Final = 0.01
RETRY_PAUSE_MOST_S: Final = 1.0


class TransactionalCall:
    """One call of a transactional function: what it met, what it began, and how it ends."""

    def __init__(self, manager: Manager, name: str, settings: Settings) -> None:
        self._manager = manager
        self._settings = settings
        met = manager.current_or_none()
        self._met = met if met is not None and met.status in (GlobalState.ACTIVE, GlobalState.MARKED) else None
        plan = _PLANS[settings.propagation][0 if self._met is not None else 1]
        if plan is _Plan.REFUSE:
            state = "inside a transaction" if self._met is not None else "without a transaction"
            raise ProtocolMisuse(f"{name} is {settings.propagation.name} and was called {state}")
        self._suspends = plan in (_Plan.SUSPEND, _Plan.SUSPEND_AND_BEGIN)
        self.begins = plan in (_Plan.BEGIN, _Plan.SUSPEND_AND_BEGIN)

    def suspend(self) -> None:
        if self._suspends:
            self._manager.suspend()

    def resume(self) -> None:
        if self._suspends and self._met is not None:
            with suppress(RolledBack):  # it is marked and will say so; what the function came to is not hidden by that
                self._manager.resume(self._met)

    def begin(self) -> Transaction:
        return self._manager.begin(self._settings.timeout_s)

    def rolls_back(self, error: BaseException) -> bool:
        return isinstance(error, self._settings.rollback_on)

    def failed(self, error: BaseException) -> None:
        """The function failed inside the caller's transaction."""
        met = self._met
        if not self._suspends and met is not None and met.status is GlobalState.ACTIVE and self.rolls_back(error):
            met.set_rollback_only(f"{type(error).__name__}: {error}")


OPTIONS: Final[dict[str, Option]] = {
    "propagation": Member(Propagation),
    "rollback_on": Errors(),
    "timeout_s": Seconds(optional=True),
    "retries": WholeNumber(0, 1_000_000),
}


class Settings:
    """The settings of a decorated function."""

    __slots__ = ("propagation", "retries", "rollback_on", "timeout_s")

    def __init__(
        self,
        propagation: Propagation,
        rollback_on: tuple[type[BaseException], ...],
        timeout_s: float | None,
        retries: int,
    ) -> None:
        given = {"propagation": propagation, "rollback_on": rollback_on, "timeout_s": timeout_s, "retries": retries}
        check("transactional", OPTIONS, given)
        self.propagation = propagation
        self.rollback_on = rollback_on
        self.timeout_s = timeout_s
        self.retries = retries


def is_rolled_back(transaction: Transaction) -> bool:
    """Whether it is this transaction that was rolled back, and not another one that the function dealt with."""
    outcome = transaction.outcome
    return outcome is not None and outcome.verdict is Verdict.ROLLED_BACK


def pause_s(attempt: int) -> float:
    """How long to wait after this attempt, the first of which is 0."""
    return min(RETRY_PAUSE_S * 2.0 ** min(attempt, 16), RETRY_PAUSE_MOST_S)
