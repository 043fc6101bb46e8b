"""TestBroker: the embedded broker in a thread of the test, over a store in memory, for tests of applications.

    with TestBroker() as broker:               # or: async with TestBroker() as broker
        tm = TransactionManager("test", log, {"broker": broker.url})

It is the broker of `xabridge broker`: transactions, dead letters, selectors and limits are the same. It starts in a few
milliseconds and leaves nothing behind. Its time is moved by `advance`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dtx.broker.broker import Broker
from dtx.broker.config import Address, BrokerConfig
from dtx.broker.queues.entry import State
from dtx.broker.queues.subscription import Subscription
from dtx.broker.settings import Settings
from dtx.store.memory import Disk, MemoryStore
from xa.topics import topic_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

T = TypeVar("T")
PATIENCE_S = 30.0


class MovedClock:
    """The machine's time, and what it was moved by."""

    def __init__(self) -> None:
        self.moved_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.moved_s

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000 + int(self.moved_s * 1000)


class DelayedMessage(NamedTuple):
    """A message whose time has not come."""

    in_s: float
    """In how many seconds it comes, by the broker's clock."""
    deliveries: int
    octets: bytes


class TestBroker:
    """A broker that runs while it is entered. `settings` are those of `[broker]`, as `dtx.broker.settings.Settings`."""

    __test__ = False  # for pytest: it is no test

    def __init__(self, settings: Settings | None = None) -> None:
        self._config = BrokerConfig(listen=(Address("127.0.0.1", 0),), settings=settings or Settings())
        self._disk = Disk()
        self.clock = MovedClock()
        self._broker: Broker | None = None
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None

    @property
    def broker(self) -> Broker:
        """The broker itself; RuntimeError while it does not run."""
        if self._broker is None:
            raise RuntimeError("the broker does not run: enter it, `with TestBroker() as broker`")
        return self._broker

    @property
    def url(self) -> str:
        """The open string of a resource at this broker."""
        return f"amqp://{self.broker.addresses[0]}"

    def start(self) -> None:
        """Starts it; it has what it had when it was stopped."""
        begun: Future[None] = Future()
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(begun),), name="test-broker", daemon=True)
        self._thread.start()
        begun.result(PATIENCE_S)

    async def _serve(self, begun: Future[None]) -> None:
        try:
            self._loop = asyncio.get_running_loop()
            store = lambda deliver: MemoryStore(self._disk, deliver)  # noqa: E731
            self._broker = Broker(self._config, clock=self.clock, make_store=store)
            await self._broker.start()
        except BaseException as error:
            begun.set_exception(error)
            raise
        begun.set_result(None)
        await self._broker.run()

    def stop(self) -> None:
        """Stops it; every connection is closed when this returns."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self.broker.stop)
            self._thread.join(PATIENCE_S)
            self._thread = self._broker = None

    def advance(self, seconds: float) -> None:
        """Moves its time: what is due by then is done when this returns."""

        def move() -> None:
            self.clock.moved_s += seconds
            self.broker.look_at_the_clock()

        self.inside(move)

    def inside(self, call: Callable[[], T]) -> T:
        """What `call` returns, in the broker's thread."""

        async def run() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    def subscribe(self, source: str) -> None:
        """Makes a subscription, `topic:prices::billing`, where there is none."""
        topic = topic_of(source)
        if topic is None:
            raise ValueError(f"{source} is no subscription")
        self.inside(lambda: self.broker.container.resource.subscribe(source, Subscription(topic)))

    def waiting(self, queue: str) -> int:
        """How many messages are in a queue, those included that a transaction holds."""
        found = self.broker.container.resource.queues.get(queue)
        return 0 if found is None else self.inside(lambda: found.depth)

    def available(self, queue: str) -> int:
        """How many messages of a queue a consumer can have now."""
        found = self.broker.container.resource.queues.get(queue)
        return 0 if found is None else self.inside(lambda: found.available)

    def later(self, queue: str) -> list[DelayedMessage]:
        """The messages of a queue whose time has not come, the next one first."""
        found = self.broker.container.resource.queues.get(queue)

        def look() -> list[DelayedMessage]:
            now_ms = self.clock.wall_ms()
            delayed = [entry for entry in found or () if entry.state is State.DELAYED]
            delayed.sort(key=lambda entry: (entry.due_ms, entry.position))
            return [
                DelayedMessage((entry.due_ms - now_ms) / 1000, entry.count, self._payload(entry.number))
                for entry in delayed
            ]

        return [] if found is None else self.inside(look)

    def _payload(self, message: int) -> bytes:
        pieces = self._disk.pieces.get(message, {})
        return b"".join(pieces[number] for number in sorted(pieces))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.to_thread(self.stop)
