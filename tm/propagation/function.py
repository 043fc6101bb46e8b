# Generated from tm/propagation/coroutine.py: edit that one, and run `python -m tools.async_to_sync`.
"""wrap_function(): a function that runs in a transaction, see `tm.propagation.decorator`.

Functions and coroutine functions have one source: `tools/async_to_sync.py` generates `function.py` from `coroutine.py`.
"""

from __future__ import annotations

import functools
from time import sleep
from typing import TYPE_CHECKING, Any

from tm.errors import is_transient
from tm.propagation.call import TransactionalCall, is_rolled_back, pause_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.manager import Manager
    from tm.propagation.call import Settings


def wrap_function(manager: Manager, function: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    """The function, decorated."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        call = TransactionalCall(manager, function.__qualname__, settings)
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


def _retried(call: TransactionalCall, work: Callable[[], Any], retries: int) -> Any:
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
            if attempt >= retries or not is_transient(error) or not is_rolled_back(transaction):
                raise
            sleep(pause_s(attempt))
        else:
            if kept is not None:
                raise kept
            return result
    raise AssertionError("unreachable")
