"""HealthServer: a consumer's health over HTTP, for the probe of a container.

GET /        200 where the consumer is well, 503 where it is not; the body is JSON: state, workers, busy, counts
             and trouble
GET /live, /ready and /metrics as `tm.telemetry.pages` says, of this consumer
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from tm.telemetry.pages import Pages
from xa.telemetry.endpoint import JSON, Answer, EndpointThread

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tm.consumer.consumer import Consumer


class HealthServer:
    """Listens while it is entered; `port` 0 is any that is free."""

    def __init__(self, consumer: Consumer, host: str = "127.0.0.1", port: int = 8080) -> None:
        async def health() -> Answer:
            found = consumer.health()
            body = json.dumps({**asdict(found), "ok": found.ok, "state": found.state.value}).encode()
            return Answer(200 if found.ok else 503, body, JSON)

        manager = consumer.manager
        pages = Pages(manager, lambda: (consumer,), manager.exposition)
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
