"""The pages of a process that uses a manager: `/live`, `/ready` and `/metrics`, of the manager and its consumers, and
HealthServer, which answers those of one consumer for the probe of a container.

They are answered in a thread of their own. The process is live as long as no consumer has failed, and none has only
handlers that take longer than their transactions may. It is ready if recovery has run, every resource could be reached,
the log takes decisions, and every consumer that was started can receive and is not to stop.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, NamedTuple

from tm.consumer.states import ConsumerState
from xa.telemetry.endpoint import JSON, Answer, EndpointThread, text_answer
from xa.telemetry.exposition import Exposition, MetricsPage, NoExporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from tm.consumer.consumer import Consumer
    from tm.manager import Manager
    from xa.telemetry.endpoint import Page


class ObservedManager(NamedTuple):
    """What pages and gauges are about: a manager and its consumers, or one of these."""

    manager: Manager
    consumers: Callable[[], Iterable[Consumer]]


class Pages:
    """The pages of one manager, or those of one of its consumers."""

    def __init__(self, observed: ObservedManager, exposition: Exposition | NoExporter | None) -> None:
        self._manager, self._consumers = observed
        self._shown = MetricsPage(exposition) if exposition is not None else None

    @property
    def by_path(self) -> Mapping[str, Page]:
        """What each path shows."""
        return {"/live": self._live, "/ready": self._ready, "/metrics": self._metrics}

    async def _live(self) -> Answer:
        trouble = [
            f"the consumer of {consumer.settings.queue} {what}"
            for consumer in self._consumers()
            if (what := _lifeless(consumer))
        ]
        return _answer("live", trouble)

    async def _ready(self) -> Answer:
        consumers = tuple(self._consumers())
        trouble = list(self._manager.trouble)
        for consumer in consumers:
            health = consumer.health()
            if health.state is not ConsumerState.RUNNING:
                trouble.append(f"the consumer of {consumer.settings.queue} is {health.state.value}")
            trouble += health.trouble
        return _answer("ready", trouble)

    async def _metrics(self) -> Answer:
        if self._shown is not None:
            return await self._shown()
        return text_answer(404, 'the manager has no http = "HOST:PORT" of its own, which has its metrics')


class HealthServer:
    """A consumer's health over HTTP, while it is entered; `port` 0 is any that is free.

    GET /        200 where the consumer is well, 503 where it is not; the body is JSON: state, workers, busy, counts
                 and trouble
    GET /live, /ready and /metrics as `Pages` says, of this consumer
    """

    def __init__(self, consumer: Consumer, host: str = "127.0.0.1", port: int = 8080) -> None:
        async def health() -> Answer:
            found = consumer.health()
            body = json.dumps({**asdict(found), "ok": found.ok, "state": found.state.value}).encode()
            return Answer(200 if found.ok else 503, body, JSON)

        manager = consumer.manager
        pages = Pages(ObservedManager(manager, lambda: (consumer,)), manager.exposition)
        self._server = EndpointThread({"/": health, **pages.by_path}, host, port)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()


def _lifeless(consumer: Consumer) -> str:
    """What a restart of the process would repair; empty: nothing."""
    if consumer.failure is not None:
        return f"has failed: {type(consumer.failure).__name__}"
    health = consumer.health()
    if health.state is ConsumerState.RUNNING and not health.workers:
        return "has no workers any more"
    if consumer.state is ConsumerState.RUNNING and consumer.hanging >= health.workers:
        return "hangs: every handler takes longer than its transaction may"
    return ""


def _answer(what: str, trouble: list[str]) -> Answer:
    body = json.dumps({what: not trouble, "trouble": trouble})
    return Answer(503 if trouble else 200, body.encode() + b"\n", JSON)


def exposition() -> Exposition | NoExporter:
    """The metrics for Prometheus, or why there are none."""
    try:
        return Exposition()
    except NoExporter as error:
        return error
