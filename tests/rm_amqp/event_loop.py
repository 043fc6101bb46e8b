"""This event loop runs over the network in memory: it waits for the ends of that network as it would wait for sockets,
on the network's clock.

It runs the work of worker threads at once, in the calling thread, so that a run goes the same way every time.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from tests.rm_amqp.network import Network

T = TypeVar("T")


class NetworkSelector(selectors.BaseSelector):
    """Selects ends by their numbers. What has a real descriptor, which is the loop's own, is never ready."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if number in self._keys:
            raise KeyError(fileobj)
        key = self._keys[number] = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        deadline = math.inf if timeout is None else self._network.now + max(timeout, 0.0)
        self._network.wait(lambda: bool(self._ready()), deadline)
        return self._ready()

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        found = []
        for end in self._network.ends:
            key = self._keys.get(end.fileno())
            if key is None:
                continue
            events = selectors.EVENT_READ * end.readable | selectors.EVENT_WRITE * (not end.full)
            if events & key.events:
                found.append((key, events & key.events))
        return found

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class NetworkLoop(asyncio.SelectorEventLoop):
    """The event loop."""

    def __init__(self, network: Network) -> None:
        self._network = network
        super().__init__(NetworkSelector(network))

    def time(self) -> float:
        return self._network.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 — it is the future's
            future.set_exception(error)
        return future


def run(network: Network, main: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end."""
    with asyncio.Runner(loop_factory=lambda: NetworkLoop(network)) as runner:
        return runner.run(main)
