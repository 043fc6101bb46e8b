"""drive() runs a coroutine of ours without an event loop.

The algorithms of this product (the two-phase commit, a recovery pass, the rounds of a consumer, the protocol of
pipelines, the election of a token founder) are coroutines. They do no I/O themselves: they `await` the methods of their
ports. So there is one algorithm for every kind of caller:

- In a thread the ports block. Awaiting such a port never suspends the coroutine, so that one `send` runs it to its end.
  That is what `drive` does.
- In asyncio a coroutine is awaited, as any other, with ports that await the event loop.
- Over a connection (`rm_amqp.connection`, `rm_db.server`) a coroutine is suspended where it has to wait, and gives out
  what for; the code that waits resumes it.
- In a test the ports are models. They suspend the coroutine before every answer (`suspension`), so that a scheduler
  decides which coroutine goes on, and which never does.
"""

from __future__ import annotations

from types import coroutine
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

T = TypeVar("T")


def drive(steps: Coroutine[None, None, T]) -> T:
    """Runs `steps`, and returns or raises its result. Its ports must block: RuntimeError, and it is closed, where one
    suspends it."""
    try:
        steps.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    steps.close()
    raise RuntimeError(f"{steps!r} was suspended, and nothing can resume it")


@coroutine
def suspension() -> Generator[None, None, None]:
    """Suspends the awaiting coroutine, until the code that drives it resumes it."""
    yield
