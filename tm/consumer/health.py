"""HealthServer: a consumer's health over HTTP, for the probe of a container.

GET /        200 where the consumer is well, 503 where it is not; the body is JSON: state, workers, busy, counts
             and trouble
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from tm.consumer.consumer import Consumer

READ_S: Final = 5
"""How long a peer may take for its request."""


class HealthServer:
    """Listens while it is entered; `port` 0 is any that is free."""

    def __init__(self, consumer: Consumer, host: str = "127.0.0.1", port: int = 8080) -> None:
        class Probe(BaseHTTPRequestHandler):
            timeout = READ_S

            def do_GET(self) -> None:
                health = consumer.health()
                body = json.dumps({**asdict(health), "ok": health.ok, "state": health.state.value}).encode()
                self.send_response(200 if health.ok else 503)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """A probe is no news."""

        self._server = ThreadingHTTPServer((host, port), Probe)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="xabridge-health", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
