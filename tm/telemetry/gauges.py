"""The gauges of a manager: what each of them shows at the moment at which a reader of the metrics asks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tm.telemetry import metrics as table
from xa.telemetry.metric import QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tm.consumer.consumer import Consumer
    from tm.consumer.statistics import Health
    from tm.global_transaction import GlobalTransaction
    from tm.log import DecisionLog
    from tm.recovery import Report
    from tm.resources import Resource
    from tm.transaction import Transaction
    from xa.connection_usage import Connections
    from xa.telemetry.metric import Metric

Point: TypeAlias = "tuple[float, Mapping[str, str]]"
_NOTHING: Final[Mapping[str, str]] = {}


class ObservedManager(Protocol):
    """The interface of a manager that telemetry reads. Safe to use from any thread."""

    @property
    def node(self) -> str:
        """Its node."""
        ...

    @property
    def trouble(self) -> tuple[str, ...]:
        """What keeps it from work, or will."""
        ...

    @property
    def live(self) -> tuple[GlobalTransaction, ...]:
        """The transactions that are under way."""
        ...

    @property
    def active(self) -> int:
        """How many transactions are under way."""
        ...

    @property
    def log(self) -> DecisionLog | None:
        """The decision log, where no resource decides."""
        ...

    @property
    def last_report(self) -> Report | None:
        """The report of the latest recovery pass."""
        ...

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """Its consumers."""
        ...

    @property
    def resources(self) -> Mapping[str, Resource]:
        """Its resources by their names."""
        ...

    def current_or_none(self) -> Transaction | None:
        """The calling context's transaction, if it has one."""
        ...


def _active(manager: ObservedManager) -> Iterator[Point]:
    yield manager.active, _NOTHING


def _log_size(manager: ObservedManager) -> Iterator[Point]:
    octets = getattr(manager.log, "octets", None)  # of a log in files
    if octets is not None:
        yield octets, _NOTHING


def _log_decisions(manager: ObservedManager) -> Iterator[Point]:
    if manager.log is not None and hasattr(manager.log, "octets"):  # a log in a database would be asked for it
        yield len(manager.log.decisions()), _NOTHING


def _unreachable(manager: ObservedManager) -> Iterator[Point]:
    if manager.last_report is not None:
        yield len(manager.last_report.unreachable), _NOTHING


def _of_consumers(value: Callable[[Health], int]) -> Callable[[ObservedManager], Iterator[Point]]:
    """A figure of consumers, added up where several have one queue."""

    def points(manager: ObservedManager) -> Iterator[Point]:
        found: Counter[str] = Counter()
        for consumer in manager.consumers:
            found[consumer.settings.queue] += value(consumer.health())
        for queue, count in found.items():
            yield count, {QUEUE: queue}

    return points


def _of_pools(values: Callable[[Connections], Mapping[str, int]]) -> Callable[..., Iterator[Point]]:
    """A figure of pools; `values` gives it by the state of connections, "" where that is no matter."""

    def points(manager: ObservedManager) -> Iterator[Point]:
        for name, resource in manager.resources.items():
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
