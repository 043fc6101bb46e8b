"""BrokerLink: the management connection of one user to one broker.

Pages ask over it, so that the broker decides what this user may see and do. Questions that change nothing are asked
again if the connection was lost; changes never are, because it is unknown whether they were made.

A broker that is away costs a page nothing: the last failure is shown at once, and the next attempt goes on behind the
page.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from anyio.to_thread import run_sync

from dtx.amqp.conditions import Condition
from dtx.protocol.conditions import RefusedError
from rm_amqp.management import ManagementClient
from xa import Code, XaError
from xa.open_string import OpenString
from xa.secrets import without
from xabridge.console.browser import BROWSER

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from xabridge.console.settings import WatchedBroker

PATIENCE_S: Final = 2.5
"""How long a page waits for what it asks."""
LATE: Final = "it has not answered yet"
AGAIN_S: Final = 4.0
"""After a failure, the pause until the next attempt."""
FRESH_S: Final = 10.0
"""A connection that was not used for longer is made anew, because its peer may have given it up."""
KEPT_S: Final = 1.0
"""How long a list of all queues serves for the same user."""
RIGHTS_S: Final = 5.0
PAGE: Final = 500


class BrokerProblem(Exception):
    """A question or change that failed. The text says why."""


class BrokerUnreachable(BrokerProblem):
    """The broker can't be reached now."""


class NotAnsweredYet(BrokerUnreachable):
    """It was asked, and may still answer: whether it can be reached is not known yet."""


class RequestRefused(BrokerProblem):
    """The broker refused; nothing was done. `right`: because this user may not."""

    def __init__(self, said: str, *, right: bool = False) -> None:
        super().__init__(said)
        self.right = right


class ResultUnknown(BrokerProblem):
    """The connection was lost meanwhile: it is unknown whether the change was made."""


@dataclass(frozen=True, slots=True)
class UserRights:
    """What the user may do, beside looking."""

    user: str
    manage: bool
    read_payload: bool
    coordinate_all: bool


class BrokerLink:
    """The link of one user. All of it runs on the event loop; the connection is used by one thread at a time."""

    def __init__(self, broker: WatchedBroker, open_string: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.broker = broker
        self._open_string = open_string
        self._password = OpenString.parse(open_string).password or ""
        self._clock = clock
        self._client: ManagementClient | None = None
        self._used = 0.0
        self._lock = asyncio.Lock()
        self._failed: tuple[float, BrokerProblem] | None = None
        self._late = False
        """What is asked for now takes so long that a page has given it up; further pages don't wait for it."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._queues: tuple[float, list[dict[str, Any]]] | None = None
        self._rights: tuple[float, UserRights] | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """The broker's name."""
        return self.broker.name

    async def open(self) -> None:
        """Connects. BrokerUnreachable, RequestRefused."""
        await self._lasting(self._in_turn(self._connected))

    async def ask(self, operation: str, **arguments: Any) -> Any:
        """An answer that changes nothing."""
        arguments |= _for_browser()
        return await self._patient(lambda client: client.ask(operation, **arguments))

    async def pages(self, operation: str, key: str, **arguments: Any) -> list[dict[str, Any]]:
        """Every entry of a list."""
        found: list[dict[str, Any]] = await self._patient(
            lambda client: list(client.pages(operation, key=key, **arguments))
        )
        return found

    async def queues(self) -> list[dict[str, Any]]:
        """Every queue, as of at most a second ago."""
        if self._failed is not None or self._queues is None or self._clock() - self._queues[0] > KEPT_S:
            found = await self.pages("queues", key="name")
            self._queues = (self._clock(), found)
        return self._queues[1]

    async def queue(self, name: str) -> dict[str, Any]:
        """One queue. RequestRefused: there is none."""
        found: list[dict[str, Any]] = await self.ask("queues", queue=name)
        if found:
            return found[0]
        raise RequestRefused(f"there is no queue {name!r}")

    async def rights(self) -> UserRights:
        """What the user may do. RequestRefused: not even look."""
        if self._rights is None or self._clock() - self._rights[0] > RIGHTS_S:
            self._rights = None
            rights = await self.ask("rights")
            made = UserRights(rights["user"], rights["manage"], rights["read-payload"], rights["coordinate-all"])
            self._rights = (self._clock(), made)
        return self._rights[1]

    async def change(self, operation: str, **arguments: Any) -> Any:
        """Has the broker change something, after it has answered a question over the same connection.
        BrokerUnreachable, RequestRefused: nothing was done. ResultUnknown: it may have been done."""
        self._queues = None
        arguments |= _for_browser()
        if self._failed is not None:
            self._try_again()
            raise self._failed[1]

        def changed() -> Any:
            self._answer(lambda client: client.ask("rights"))  # what fails here was not asked for
            client = self._connected()
            try:
                return client.ask(operation, **arguments)
            except XaError as error:  # it was sent
                self._drop()
                why = without(error.message, self._password)
                raise ResultUnknown(f"it is unknown whether this was done: {why}. Look again") from None

        return await self._lasting(self._in_turn(changed))

    @property
    def closed(self) -> bool:
        """Whether the session is over."""
        return self._closed

    def close(self) -> asyncio.Task[Any]:
        """Closes the connection, as soon as no request uses it."""
        self._closed = True

        def closed() -> None:
            if self._client is not None:
                self._client.close()
                self._client = None

        return self._begin(self._in_turn(closed))

    # -- on the loop
    async def _patient(self, question: Callable[[ManagementClient], Any]) -> Any:
        if self._failed is not None:
            self._try_again()
            raise self._failed[1]
        if self._late and self._lock.locked():
            raise NotAnsweredYet(LATE)
        task = self._begin(self._in_turn(lambda: self._answer(question)))
        done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
        if not done:
            self._late = True
            raise NotAnsweredYet(LATE)
        return task.result()

    async def _lasting(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What goes on also if the browser does not wait for it."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the waiting caller has it

    async def _in_turn(self, work: Callable[[], Any]) -> Any:
        async with self._lock:
            try:
                result = await run_sync(_translated, work, self._password)
            except BrokerUnreachable as away:
                self._failed = (self._clock(), away)
                raise
            except RequestRefused as refused:
                if self._client is None:
                    self._failed = (self._clock(), refused)
                raise
            finally:
                self._late = False
            self._failed = None
            return result

    def _try_again(self) -> None:
        if self._closed or self._failed is None or self._lock.locked():
            return
        since, why = self._failed
        if (
            isinstance(why, BrokerUnreachable) and self._clock() - since > AGAIN_S
        ):  # credentials that were refused stay refused
            self._begin(self._in_turn(self._connected))

    # -- in a thread
    def _answer(self, question: Callable[[ManagementClient], Any]) -> Any:
        had = self._client is not None
        client = self._connected()
        try:
            return question(client)
        except XaError as error:
            self._drop()
            if not had or error.code is not Code.XAER_RMFAIL:
                raise
        try:
            return question(self._connected())
        except XaError:
            self._drop()
            raise

    def _connected(self) -> ManagementClient:
        if self._closed:
            raise BrokerUnreachable("the session is over")
        if self._client is not None and self._clock() - self._used > FRESH_S:
            self._drop()
        if self._client is None:
            self._client = ManagementClient(self._open_string, None)
        self._used = self._clock()
        return self._client

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def _for_browser() -> dict[str, str]:
    """What the broker's audit log is to have beside the address of the console."""
    browser = BROWSER.get()
    return {"browser": browser} if browser else {}


def _translated(work: Callable[[], Any], password: str) -> Any:
    try:
        return work()
    except RefusedError as error:
        refusal = error.refusal
        said = without(refusal.description or str(refusal.condition), password)
        raise RequestRefused(said, right=refusal.condition == Condition.UNAUTHORIZED) from None
    except XaError as error:
        said = without(error.message.removeprefix("open: "), password)
        if error.code is Code.XAER_RMERR:  # reached, and not usable: credentials, or no management
            raise RequestRefused(said, right=True) from None
        raise BrokerUnreachable(said) from None
