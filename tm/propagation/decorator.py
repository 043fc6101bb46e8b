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
(`tm.errors.is_transient`): only where it was begun here, since only then is nothing left of the try before.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

from tm.errors import ProtocolMisuse
from tm.propagation.call import Settings
from tm.propagation.coroutine import wrap_coroutine
from tm.propagation.function import wrap_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.manager import Manager
    from tm.propagation.call import Propagation


def transactional(
    manager: Manager,
    function: Callable[..., Any] | None,
    *,
    propagation: Propagation,
    rollback_on: tuple[type[BaseException], ...],
    timeout_s: float | None,
    retries: int,
) -> Any:
    """The decorator behind `TransactionManager.transactional`."""
    settings = Settings(propagation, rollback_on, timeout_s, retries)

    def decorate(decorated: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(decorated):
            return wrap_coroutine(manager, decorated, settings)
        if inspect.isgeneratorfunction(decorated) or inspect.isasyncgenfunction(decorated):
            raise ProtocolMisuse(
                f"{decorated.__qualname__} is a generator function: it would run after its transaction has ended; "
                "begin one inside it"
            )
        return wrap_function(manager, _run_at_once(decorated), settings)

    return decorate if function is None else decorate(function)


def _run_at_once(decorated: Callable[..., Any]) -> Callable[..., Any]:
    """The function. ProtocolMisuse, when it is called: it is a coroutine function behind a decorator that does not know
    these, and would run after its transaction has ended."""

    @functools.wraps(decorated)
    def run(*args: Any, **kwargs: Any) -> Any:
        returned = decorated(*args, **kwargs)
        if inspect.iscoroutine(returned):
            returned.close()
            raise ProtocolMisuse(
                f"{decorated.__qualname__} has returned a coroutine, which would run after its transaction has ended: "
                "is a decorator around it that does not know coroutine functions?"
            )
        return returned

    return run
