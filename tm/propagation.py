"""`@tm.transactional`: a function or coroutine function that runs in a transaction.

| propagation   | with a transaction in the context | without one       |
|---------------|-----------------------------------|-------------------|
| REQUIRED      | runs in it                        | begins one        |
| REQUIRES_NEW  | suspends it, begins one           | begins one        |
| MANDATORY     | runs in it                        | ProtocolMisuse    |
| SUPPORTS      | runs in it                        | runs without      |
| NOT_SUPPORTED | suspends it, runs without         | runs without      |
| NEVER         | ProtocolMisuse                    | runs without      |

An exception in `rollback_on` rolls the transaction back: the one begun here at once, the caller's by marking it
rollback-only. Any other exception lets it commit and is raised behind the commit. `retries` runs the function again, in
a new transaction, after RolledBack, and after an error of a statement that was in the way of another transaction
(`tm.resources.transient_errors`): only where it was begun here, since only then is nothing left of the try before.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from tm.errors import ProtocolMisuse, RolledBack
from tm.outcome import Verdict
from tm.resources.transient_errors import is_transient
from tm.two_phase.states import GlobalState

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.manager import TransactionManager
    from tm.transaction import Transaction


class Propagation(Enum):
    """What a transactional function does with the transaction that it meets."""

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


class _Call:
    """One call of a transactional function: what it met, what it began, and how it ends."""

    def __init__(self, manager: TransactionManager, name: str, settings: _Settings) -> None:
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


class _Settings:
    __slots__ = ("propagation", "retries", "rollback_on", "timeout_s")

    def __init__(
        self,
        propagation: Propagation,
        rollback_on: tuple[type[BaseException], ...],
        timeout_s: float | None,
        retries: int,
    ) -> None:
        self.propagation = propagation
        self.rollback_on = rollback_on
        self.timeout_s = timeout_s
        self.retries = retries


def transactional(
    manager: TransactionManager,
    function: Callable[..., Any] | None,
    *,
    propagation: Propagation,
    rollback_on: tuple[type[BaseException], ...],
    timeout_s: float | None,
    retries: int,
) -> Any:
    """The decorator behind `TransactionManager.transactional`."""
    settings = _Settings(propagation, rollback_on, timeout_s, retries)

    def decorate(decorated: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(decorated):
            return _wrap_coroutine(manager, decorated, settings)
        if inspect.isgeneratorfunction(decorated) or inspect.isasyncgenfunction(decorated):
            raise ProtocolMisuse(
                f"{decorated.__qualname__} is a generator function: it would run after its transaction has ended; "
                "begin one inside it"
            )
        return _wrap_function(manager, decorated, settings)

    return decorate if function is None else decorate(function)


def _wrap_function(
    manager: TransactionManager, function: Callable[..., Any], settings: _Settings
) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        call = _Call(manager, function.__qualname__, settings)
        call.suspend()
        try:
            if not call.begins:
                return function(*args, **kwargs)
            return _retried(call, lambda: function(*args, **kwargs), settings.retries)
        except BaseException as error:
            call.failed(error)
            raise
        finally:
            call.resume()

    return run


def _retried(call: _Call, work: Callable[[], Any], retries: int) -> Any:
    for attempt in range(retries + 1):
        transaction = call.begin()
        kept: BaseException | None = None
        try:
            with transaction:
                try:
                    result = work()
                except BaseException as error:
                    if call.rolls_back(error):
                        raise
                    kept = error
        except Exception as error:
            if attempt >= retries or not is_transient(error) or not _is_rolled_back(transaction):
                raise
            time.sleep(_pause_s(attempt))
        else:
            if kept is not None:
                raise kept
            return result
    raise AssertionError("unreachable")


def _is_rolled_back(transaction: Transaction) -> bool:
    """Whether it is this transaction that was rolled back, and not another one that the function dealt with."""
    outcome = transaction.outcome
    return outcome is not None and outcome.verdict is Verdict.ROLLED_BACK


def _pause_s(attempt: int) -> float:
    return min(RETRY_PAUSE_S * 2.0 ** min(attempt, 16), RETRY_PAUSE_MOST_S)


def _wrap_coroutine(
    manager: TransactionManager, function: Callable[..., Any], settings: _Settings
) -> Callable[..., Any]:
    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        call = _Call(manager, function.__qualname__, settings)
        call.suspend()
        try:
            if not call.begins:
                return await function(*args, **kwargs)
            return await _retried_coroutine(call, lambda: function(*args, **kwargs), settings.retries)
        except BaseException as error:
            call.failed(error)
            raise
        finally:
            call.resume()

    return run


async def _retried_coroutine(call: _Call, work: Callable[[], Any], retries: int) -> Any:
    for attempt in range(retries + 1):
        transaction = call.begin()
        kept: BaseException | None = None
        try:
            async with transaction:
                try:
                    result = await work()
                except BaseException as error:
                    if call.rolls_back(error):
                        raise
                    kept = error
        except Exception as error:
            if attempt >= retries or not is_transient(error) or not _is_rolled_back(transaction):
                raise
            await asyncio.sleep(_pause_s(attempt))
        else:
            if kept is not None:
                raise kept
            return result
    raise AssertionError("unreachable")
