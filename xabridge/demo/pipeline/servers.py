"""PipelineServers: the brokers and the PostgreSQL of a pipeline, for benchmark and demo, and what fills its queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xabridge.testing.amqp_client import Client, drive, posting
from xabridge.testing.broker import BrokerProcess
from xabridge.testing.management import Management
from xabridge.testing.ports import free_port
from xabridge.testing.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from xabridge.testing.amqp_client import Waits

HOST: Final = "127.0.0.1"
AT_ONCE: Final = 500
_BINARY: Final = b"\x00\x53\x75\xb0"
_SETTINGS: Final = """
[broker]
idle_timeout_s = 3600

[broker.limits]
unsettled = 1000000
"""
"""For the plain job: a task holds its whole share of a batch before it accepts anything, and a Python worker that waits
for its next task sends no heartbeats."""


class PipelineServers:
    """All of them, with their data below `folder`."""

    def __init__(self, folder: Path, brokers: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "broker.toml").write_text(_SETTINGS, encoding="utf-8")
        self.ports = tuple(free_port() for _ in range(brokers))
        self.brokers = tuple(_broker(folder, number, port) for number, port in enumerate(self.ports))
        self.broker, self.port = self.brokers[0], self.ports[0]
        self.postgres = EmbeddedPostgres(folder / "postgres", {"max_prepared_transactions": "500"})
        self.database = ""

    @property
    def address(self) -> str:
        """Host and port of the first broker."""
        return f"{HOST}:{self.port}"

    def __enter__(self) -> Self:
        for broker in self.brokers:
            broker.start()
        self.postgres.start()
        self.database = self.postgres.create_database("shop")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            for broker in self.brokers:
                broker.kill()
        finally:
            self.postgres.remove()

    def post(self, queue: str, bodies: Iterable[bytes], broker: int = 0) -> int:
        """Puts messages with these binary bodies into a queue; how many."""
        client = Client(HOST, self.ports[broker])
        try:
            return int(drive([(client, _posting(client, queue, bodies))])[0])
        finally:
            client.close()

    def depth(self, queue: str, broker: int = 0) -> int:
        """How many messages of a queue are available to any client."""
        with self.management(broker) as management:
            return management.waiting(queue)

    def management(self, broker: int = 0) -> Management:
        """The management node of a broker; to be closed."""
        return Management(HOST, self.ports[broker])


def _broker(folder: Path, number: int, port: int) -> BrokerProcess:
    own = folder / (f"broker-{number + 1}" if number else "broker")
    own.mkdir(exist_ok=True)
    return BrokerProcess(own, "--config", str(folder / "broker.toml"), "--listen", f"{HOST}:{port}")


def _posting(client: Client, queue: str, bodies: Iterable[bytes]) -> Waits:
    control, sender = (yield from client.control()), (yield from client.sender(queue))
    left, posted = iter(bodies), 0
    body = next(left, None)

    while body is not None:
        txn_id = yield from client.declared(client.declare(control))
        state = posting(txn_id)
        for _ in range(AT_ONCE):
            if not client.may_send(sender):
                yield lambda: client.may_send(sender)
            client.post(sender, _BINARY + len(body).to_bytes(4, "big") + body, state)
            posted += 1
            body = next(left, None)
            if body is None:
                break
        yield from client.accepted(client.discharge(control, txn_id))
    return posted
