"""Instruments: the broker's metrics through OpenTelemetry.

Most of them are observed: a reader of the provider asks for them, in its own thread, and gets figures that are taken on
the event loop for it, at most once in FRESH_S. Forces and the delay of the loop are recorded as they happen.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import TimeoutError as TimedOut
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import metrics

from dtx.broker.conditions import OF_QUEUES
from dtx.broker.telemetry import metrics as table
from dtx.broker.telemetry.figures import BrokerFigures
from xa.telemetry.conditions import CONDITION
from xa.telemetry.metric import QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from dtx.broker.telemetry.figures import QueueFigures
    from xa.telemetry.metric import Metric

FRESH_S: Final = 1.0
PATIENCE_S: Final = 5.0
"""How long a reader waits for figures. Then it gets the last ones."""
LOOK_S: Final = 0.5
"""How often the loop is asked how late it is."""

_OF_QUEUES: Final[dict[Metric, Callable[[QueueFigures], float | None]]] = {
    table.DEPTH: lambda queue: queue.depth,
    table.OCTETS: lambda queue: queue.octets,
    table.HELD: lambda queue: queue.held,
    table.DELAYED: lambda queue: queue.delayed,
    table.OLDEST: lambda queue: queue.oldest_s,
    table.CONSUMERS: lambda queue: queue.consumers,
    table.CAME: lambda queue: queue.came,
    table.WENT: lambda queue: queue.went,
    table.DEAD_LETTERED: lambda queue: queue.dead_lettered,
    table.DEAD_LETTERS: lambda queue: queue.dead_letters,
    table.UNREADABLE: lambda queue: queue.unreadable,
}
_OF_THE_BROKER: Final[dict[Metric, Callable[[BrokerFigures], float | None]]] = {
    table.QUEUES: lambda figures: figures.queue_count,
    table.CONNECTIONS: lambda figures: figures.connections,
    table.SESSIONS: lambda figures: figures.sessions,
    table.IN_DOUBT: lambda figures: figures.in_doubt_s,
    table.WAITING: lambda figures: figures.waiting_octets,
    table.LONG_TURNS: lambda figures: figures.long_turns,
    table.REFUSED: lambda figures: figures.settled_and_refused,
    table.STORE_SIZE: lambda figures: figures.store_octets,
    table.STORE_FULL: lambda figures: figures.store_full,
}


class Instruments:
    """The instruments of one broker, made at every one of `providers`. To be made on its event loop; `take` takes the
    figures there."""

    def __init__(
        self, providers: Iterable[metrics.MeterProvider | None], take: Callable[[], Coroutine[Any, Any, BrokerFigures]]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._take = take
        self._figures = BrokerFigures()
        self._taken_at = float("-inf")
        self._record: dict[Metric, list[Callable[[float], None]]] = {}
        for provider in providers:
            self._make(metrics.get_meter("xabridge.broker", version("xabridge"), provider))
        self._due = 0.0
        self._timer: asyncio.Handle = self._loop.call_soon(self._look)

    def close(self) -> None:
        """Records nothing any more."""
        self._timer.cancel()

    def forced(self, took_s: float, batches: int) -> None:
        """The store made so many batches durable, in one group; called in whatever thread did it."""
        self._recorded(table.GROUP_DURATION, took_s)
        self._recorded(table.GROUP_SIZE, batches)

    def _recorded(self, metric: Metric, value: float) -> None:
        for record in self._record[metric]:
            record(value)

    def _look(self) -> None:
        now = self._loop.time()
        if self._due:
            self._recorded(table.LOOP_DELAY, max(0.0, now - self._due))
        self._due = now + LOOK_S
        self._timer = self._loop.call_at(self._due, self._look)

    # -- made at a provider
    def _make(self, meter: metrics.Meter) -> None:
        for metric in table.METRICS:
            if metric.kind == "histogram":
                self._record.setdefault(metric, []).append(metric.recorded(meter))
            else:
                metric.observed(meter, partial(self._observe, metric))

    def _observe(self, metric: Metric, _: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
        return list(_observations(metric, self._now()))

    def _now(self) -> BrokerFigures:
        """The figures, from a reader's thread."""
        if time.monotonic() - self._taken_at > FRESH_S and not self._is_on_loop():
            self._taken_at = time.monotonic()
            taking = self._take()
            try:
                self._figures = asyncio.run_coroutine_threadsafe(taking, self._loop).result(PATIENCE_S)
            except TimedOut:  # the loop is busy: that shows elsewhere
                pass
            except RuntimeError:  # the loop has ended
                taking.close()
        return self._figures

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False


def _observations(metric: Metric, figures: BrokerFigures) -> Iterable[metrics.Observation]:
    if metric is table.BRANCHES:
        for state, count in figures.branches.items():
            yield metrics.Observation(count, {table.STATE: state})
    elif metric is table.CONDITIONS:
        yield from (metrics.Observation(one.count, {CONDITION: one.condition.name}) for one in figures.conditions)
    elif metric is table.WORST:
        yield from _worst(figures)
    elif metric in _OF_QUEUES:
        of_queue = _OF_QUEUES[metric]
        for name, queue in figures.queues.items():
            value = of_queue(queue)
            if value is not None:
                yield metrics.Observation(value, {QUEUE: name})
    else:
        value = _OF_THE_BROKER[metric](figures)
        if value is not None:
            yield metrics.Observation(value)


def _worst(figures: BrokerFigures) -> Iterable[metrics.Observation]:
    """The queues that conditions are about. Xids of branches are no labels: each would be a series of its own."""
    for found in figures.conditions:
        if found.condition in OF_QUEUES:
            for one in found.worst:
                yield metrics.Observation(one.value, {CONDITION: found.condition.name, QUEUE: one.name})
