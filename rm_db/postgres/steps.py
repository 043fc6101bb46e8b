"""Runs generators that talk to PostgreSQL (`rm_db.postgres.libpq`).

`drive` runs one to its end on the calling thread. `attempt` runs it as far as it goes without waiting: that is how a
verb with TMASYNC sends its request and leaves the reply to `complete`.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING, TypeVar

from rm_db.postgres.libpq import ConnectionLost, Failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_db.postgres.libpq import Steps, Wait

T = TypeVar("T")


def drive(steps: Steps[T], timeout_s: float, wait: Wait | None = None) -> T:
    """Runs `steps` to their end on this thread; `wait` is what they wait for, if they have begun. After `timeout_s` the
    connection that they wait for is closed, and ConnectionLost is raised in them. The connection is also closed when
    the thread is interrupted, because nobody would collect its replies."""
    deadline = 0.0
    try:
        wait = wait or next(steps)
        while True:
            connection, events = wait
            now = time.monotonic()
            deadline = deadline or now + timeout_s
            try:
                ready = connection.poll(events, max(0.0, deadline - now))
            except BaseException:
                connection.close()
                steps.close()
                raise
            if ready:
                wait = next(steps)
            else:
                connection.close()
                silent = Failure(None, f"no answer within {timeout_s:g} s; the connection was closed")
                wait = steps.throw(ConnectionLost(silent))
    except StopIteration as stop:
        result: T = stop.value
        return result


def attempt(steps: Steps[T]) -> Wait | T:
    """Runs `steps` as far as they go without waiting. Returns what they wait for then, or their result."""
    try:
        wait = next(steps)
        while is_ready([wait]):
            wait = next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result
    return wait


def is_ready(waits: Sequence[Wait], timeout_s: float = 0.0) -> bool:
    """Whether any of these can go on. Waits for that at most `timeout_s`."""
    poller = select.poll()
    for wait in waits:
        poller.register(wait.connection.pgconn.socket, wait.events)
    return bool(poller.poll(timeout_s * 1000))
