"""These fixtures are shared by the tests of the outbox: its databases, RabbitMQ, and a broker in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import amqp
import pytest

from tests.memory_folder import tmp_path  # noqa: F401 — files of SQLite are in memory, too
from tests.rabbitmq import RabbitMQ
from tests.rabbitmq import installed as rabbitmq_installed
from xabridge.outbox import BrokerAway, OutboxStore, OutgoingMessage, PublishResult, Refusal

PATIENCE_S = 300.0


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMQ]:
    """The session's RabbitMQ, which may be stopped. Use `rabbitmq`, unless you start it yourself."""
    if not rabbitmq_installed():
        pytest.skip("RabbitMQ is not installed: .ci/run installs it")
    server = RabbitMQ()
    yield server
    server.remove()


@pytest.fixture
def rabbitmq(rabbitmq_server: RabbitMQ) -> RabbitMQ:
    """A RabbitMQ that runs."""
    rabbitmq_server.start()
    return rabbitmq_server


@pytest.fixture
def channel(rabbitmq: RabbitMQ) -> Iterator[Any]:
    """A channel of a client that is not ours."""
    with amqp.Connection(rabbitmq.address, "guest", "guest") as connection:
        yield connection.channel()


@pytest.fixture(scope="session")
def addresses() -> dict[str, str]:
    """The URLs of the databases of this session, by their kind."""
    return {}


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path, addresses: dict[str, str]) -> str:  # noqa: F811 — the fixture
    """A database of each kind, without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    server = request.getfixturevalue(request.param)
    if request.param not in addresses:
        addresses[request.param] = server.create_database()
    return addresses[request.param]


@pytest.fixture
def store(url: str) -> Iterator[OutboxStore]:
    """Its outbox, with its tables."""
    store = OutboxStore.at(url)
    store.open()
    yield store
    store.tables.outbox.metadata.drop_all(store.engine)
    store.close()


class MemoryBroker:
    """A `Publisher` that keeps what it was sent. `judge` says of a message why it is refused, or None; BrokerAway
    raised by it breaks the connection there."""

    def __init__(self, judge: Callable[[OutgoingMessage], Refusal | None] = lambda _: None) -> None:
        self.judge = judge
        self.arrived: list[OutgoingMessage] = []
        self.together: list[int] = []
        self.is_away = False

    @property
    def bodies(self) -> list[Any]:
        """What has arrived."""
        return [outgoing.message.body for outgoing in self.arrived]

    def open(self) -> None:
        if self.is_away:
            raise BrokerAway("it is away")

    def send(self, messages: Sequence[OutgoingMessage], deadline: float) -> PublishResult:
        assert deadline > time.monotonic() - 60
        sent = PublishResult()
        self.together.append(len(messages))
        for message in messages:
            try:
                refusal = self.judge(message)
            except BrokerAway as error:
                sent.away = str(error)
                break
            if refusal is not None:
                sent.refused[message.number] = refusal
            else:
                self.arrived.append(message)
                sent.confirmed.add(message.number)
        return sent

    def keep_alive(self) -> None:
        self.open()

    def close(self) -> None:
        pass
