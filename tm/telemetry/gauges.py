"""The gauges of a manager: what each of them shows at the moment at which a reader of the metrics asks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from tm.telemetry import metrics as table
from xa.telemetry.metric import QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tm.consumer.statistics import Health
    from tm.telemetry.pages import ObservedManager
    from xa.pool import Connections
    from xa.telemetry.metric import Metric

Point: TypeAlias = "tuple[float, Mapping[str, str]]"
_NOTHING: Final[Mapping[str, str]] = {}


def _active(observed: ObservedManager) -> Iterator[Point]:
    yield observed.manager.active, _NOTHING


def _log_size(observed: ObservedManager) -> Iterator[Point]:
    octets = getattr(observed.manager.log, "octets", None)  # of a log in files
    if octets is not None:
        yield octets, _NOTHING


def _log_decisions(observed: ObservedManager) -> Iterator[Point]:
    log = observed.manager.log
    if log is not None and hasattr(log, "octets"):  # a log in a database would be asked for it
        yield len(log.decisions()), _NOTHING


def _unreachable(observed: ObservedManager) -> Iterator[Point]:
    report = observed.manager.last_report
    if report is not None:
        yield len(report.unreachable), _NOTHING


def _of_consumers(value: Callable[[Health], int]) -> Callable[[ObservedManager], Iterator[Point]]:
    """A figure of consumers, added up where several have one queue."""

    def points(observed: ObservedManager) -> Iterator[Point]:
        found: Counter[str] = Counter()
        for consumer in observed.consumers():
            found[consumer.settings.queue] += value(consumer.health())
        for queue, count in found.items():
            yield count, {QUEUE: queue}

    return points


def _of_pools(values: Callable[[Connections], Mapping[str, int]]) -> Callable[..., Iterator[Point]]:
    """A figure of pools; `values` gives it by the state of connections, "" where that is no matter."""

    def points(observed: ObservedManager) -> Iterator[Point]:
        for name, resource in observed.manager.resources.items():
            offered: Callable[[], Connections | None] | None = getattr(resource.rm, "connections", None)
            usage = offered() if offered is not None else None
            for state, value in values(usage).items() if usage is not None else ():
                yield value, {table.POOL: name} | ({table.POOL_STATE: state} if state else {})

    return points


POINTS: Final[Mapping[Metric, Callable[[ObservedManager], Iterator[Point]]]] = {
    table.ACTIVE: _active,
    table.LOG_SIZE: _log_size,
    table.LOG_DECISIONS: _log_decisions,
    table.UNREACHABLE: _unreachable,
    table.CONSUMER_WORKERS: _of_consumers(lambda health: health.workers),
    table.CONSUMER_BUSY: _of_consumers(lambda health: health.busy),
    table.CONSUMER_TROUBLED: _of_consumers(lambda health: len(health.trouble)),
    table.CONNECTIONS: _of_pools(lambda usage: {"idle": usage.idle, "used": usage.used}),
    table.CONNECTIONS_MAX: _of_pools(lambda usage: {"": usage.most}),
    table.CONNECTIONS_PENDING: _of_pools(lambda usage: {"": usage.waiting}),
}
"""The points of each gauge that is read from the manager. Those about transactions in doubt are the recorder's."""
