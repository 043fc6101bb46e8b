"""This test empties an outbox into a broker of another project over AMQP 1.0: ActiveMQ Artemis, which is killed
once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from rm_amqp import Message
from tests.interop.artemis_broker import Artemis, jars
from tm import TransactionManager
from tm.resources import ResourceConfig
from xabridge.outbox import BrokerAway, Outbox, OutboxStore, Relay, RelaySettings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow]


def test_everything_arrives_in_the_order_of_its_key(tmp_path: Path) -> None:
    artemis = Artemis(jars(), tmp_path)
    store = OutboxStore.at(f"sqlite:///{tmp_path}/shop.db")
    store.open()
    relay = Relay(store, f"amqp://{artemis.address}", RelaySettings(timeout_s=20))
    for start in (0, 100):
        with store.engine.begin() as connection:
            Outbox().put_all(connection, "orders", [Message(n) for n in range(start, start + 100)], key="k")
        relay.run_once()
        if start == 0:
            artemis.kill()
            with pytest.raises(BrokerAway):
                relay.run_once()
            artemis.start()
    relay.close()
    store.close()
    broker = ResourceConfig(f"amqp://{artemis.address}", "decider")
    got: list[int] = []
    with TransactionManager("node-1", resources={"b": broker}, background=False) as tm, tm.begin() as tx:
        deadline = time.monotonic() + 30
        while len(dict.fromkeys(got)) < 200 and time.monotonic() < deadline:
            got += [message.body for message in tx["b"].receive_batch("orders", 100, timeout_s=1)]
    assert list(dict.fromkeys(got)) == list(range(200))
    artemis.kill()
