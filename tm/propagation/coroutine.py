"""wrap_coroutine(): a coroutine function that runs in a transaction, see `tm.propagation.decorator`.

Functions and coroutine functions have one source: `tools/async_to_sync.py` generates `function.py` from `coroutine.py`.
"""

from __future__ import annotations

import functools
from asyncio import sleep
from typing import TYPE_CHECKING, Any

from tm.errors import is_transient
from tm.propagation.call import TransactionalCall, is_rolled_back, pause_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.manager import Manager
    from tm.propagation.call import Settings


def wrap_coroutine(manager: Manager, function: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    """The coroutine function, decorated."""

    @functools.wraps(function)
    async def run(*args: Any, **kwargs: Any) -> Any:
        call = TransactionalCall(manager, function.__qualname__, settings)
        call.suspend()
        try:
            if not call.begins:
                return await function(*args, **kwargs)
            return await _retried(call, lambda: function(*args, **kwargs), settings.retries)
        except BaseException as error:
            call.failed(error)
            raise
        finally:
            call.resume()

    return run


async def _retried(call: TransactionalCall, work: Callable[[], Any], retries: int) -> Any:
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
            if attempt >= retries or not is_transient(error) or not is_rolled_back(transaction):
                raise
            await sleep(pause_s(attempt))
        else:
            if kept is not None:
                raise kept
            return result
    raise AssertionError("unreachable")
