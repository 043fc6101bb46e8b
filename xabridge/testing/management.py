"""Management: asks the management node of a broker, over a connection of its own. Nothing of a resource manager or a
transaction manager stands between, so that an audit needn't trust them.

    with Management("127.0.0.1", 5672, timeout_s=5) as management:
        management.ask("status")["in-doubt"]

`docs/broker.md` has the operations and their answers. Where the broker is lost, or silent for `timeout_s`, every method
raises OSError, and the connection is of no use any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.decoding import decode
from dtx.amqp.messages import body_value
from dtx.protocol.addresses import MANAGEMENT
from xabridge.testing.amqp_client import Client, run

if TYPE_CHECKING:
    from typing import Self

ASK_S: Final = 10.0


class Management:
    """One connection."""

    def __init__(self, host: str, port: int, timeout_s: float = ASK_S) -> None:
        self._client = Client(host, port, timeout_s)
        try:
            self._channel = run(self._client, self._client.requests(MANAGEMENT))
        except BaseException:
            self._client.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, operation: str) -> Any:
        """The answer: a map, or the first page of a list of maps."""
        return decode(body_value(run(self._client, self._client.request(self._channel, {"operation": operation}))))

    def depths(self) -> dict[str, int]:
        """How many messages each queue has, those included that somebody holds; of a broker that has few queues."""
        return {queue["name"]: int(queue["depth"]) for queue in self.ask("queues")}

    def waiting(self, name: str) -> int:
        """How many messages of a queue are available; for a broker that has few queues."""
        return next(
            (int(queue["depth"]) - int(queue["held"]) for queue in self.ask("queues") if queue["name"] == name), 0
        )

    def close(self) -> None:
        """Drops the connection."""
        self._client.close()
