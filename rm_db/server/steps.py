"""Steps: coroutines that talk to a database's server, one connection at a time, and the ways to run them.

Code that talks to the server is a coroutine, `Steps`. It awaits a `Wait` whenever it has to wait for a socket, and
returns when the replies are complete. `drive` runs one to its end on the calling thread. `attempt` runs it as far as it
goes without waiting: that is how a verb with TMASYNC sends its request and leaves the reply to `complete`.
"""

from __future__ import annotations

import select
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence

T = TypeVar("T")


class Pollable(Protocol):
    """A connection that steps wait for."""

    def fileno(self) -> int:
        """The number of its socket."""
        ...

    def poll(self, events: int, timeout_s: float) -> bool:
        """Waits until one of `events` of select.poll can go on; False when none did in time."""
        ...

    def close(self) -> None:
        """Closes the connection, whatever happens on it."""
        ...


class Wait(NamedTuple):
    """What steps wait for: `events` of select.poll on the socket of `connection`."""

    connection: Pollable
    events: int

    def __await__(self) -> Generator[Wait, None, None]:
        return cast("Generator[Wait, None, None]", iter((self,)))  # for the code that runs the steps


Steps: TypeAlias = "Coroutine[Wait, None, T]"


@dataclass(frozen=True, slots=True)
class Failure:
    """An error that the server or the client's library reported. `sqlstate` is None for errors of the library itself;
    `number` is that of MariaDB's and MySQL's errors, and 0 elsewhere."""

    sqlstate: str | None
    message: str
    constraint: str | None = None
    number: int = 0

    def __str__(self) -> str:
        code = self.sqlstate or self.number
        return f"{code} {self.message}" if code else self.message


class ConnectionLost(Exception):
    """The connection broke or was closed. Requests that were sent on it may have been carried out."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


@contextmanager
def understood(let_go: Callable[[], None] | None = None) -> Iterator[None]:
    """Around the use of answers. XAER_RMFAIL: they have not the rows that were asked for. `let_go` closes the
    connections that may have given them: which answer belongs to which request is not known there any more."""
    try:
        yield
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        if let_go is not None:
            let_go()
        raise xa_error(Code.XAER_RMFAIL, f"the server's answer can't be understood: {error!r}") from error


def drive(steps: Steps[T], timeout_s: float, wait: Wait | None = None) -> T:
    """Runs `steps` to their end on this thread; `wait` is what they wait for, if they have begun. After `timeout_s` the
    connection that they wait for is closed, and ConnectionLost is raised in them. The connection is also closed when
    the thread is interrupted, because its replies would not be collected."""
    deadline = 0.0
    try:
        wait = wait or steps.send(None)
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
                wait = steps.send(None)
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
        wait = steps.send(None)
        while is_ready([wait]):
            wait = steps.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    return wait


def is_ready(waits: Sequence[Wait], timeout_s: float = 0.0) -> bool:
    """Whether any of these can go on. Waits for that at most `timeout_s`."""
    poller = select.poll()
    for wait in waits:
        poller.register(wait.connection.fileno(), wait.events)
    return bool(poller.poll(timeout_s * 1000))
