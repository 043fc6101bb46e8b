"""These tests kill relays and consumers at every step, against a real RabbitMQ and each kind of database. Between two
applications with outbox and inbox every message is handled exactly once; on the wire it is there at least once."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from typing import Any

import pytest
from sqlalchemy import text

from tests.rabbitmq import RabbitMQ
from tests.xabridge.outbox import relay_child
from tests.xabridge.outbox.relay_child import Steps
from xabridge import Message
from xabridge.outbox import Outbox, OutboxStore

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("outbox"), pytest.mark.timeout(900)]
STRIDE = 1 if os.environ.get("XABRIDGE_POINTS") == "all" else 30
"""The short form kills at every thirtieth step, from one that the seed says."""
MOST_STEPS = 400
NEVER = 10**9
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([relay_child.__name__, "psycopg", "pymysql"])  # children have what takes long to load


def run(what: str, url: str, broker: str, step: int) -> bool:
    """Runs a child; whether it came to its end."""
    child = FORKED.Process(target=relay_child.main, args=(what, url, broker, step))
    child.start()
    child.join(120)
    assert child.exitcode in {0, -signal.SIGKILL}, child.exitcode
    return child.exitcode == 0


def test_relays_and_consumers_are_killed_at_every_step(
    url: str, store: OutboxStore, rabbitmq: RabbitMQ, channel: Any
) -> None:
    channel.queue_declare("orders", durable=True, auto_delete=False)
    channel.queue_purge("orders")
    with store.engine.begin() as connection:
        connection.execute(text("CREATE TABLE billed (number integer NOT NULL)"))
    written = 0
    seed = int(os.environ.get("XABRIDGE_SEED", "0")) or random.SystemRandom().randrange(10**6)
    for step in range(seed % STRIDE, MOST_STEPS, STRIDE):
        with store.engine.begin() as connection:
            for _ in range(3):
                Outbox().put(connection, "orders", Message(written), key="k" if written % 3 else None)
                written += 1
        relayed = run("relay", url, rabbitmq.url, step)
        with store.engine.begin() as connection:  # the leases of the dead end
            connection.execute(text("UPDATE xabridge_outbox_lane SET until = 0"))
        relay_child.relay(OutboxStore.at(url), rabbitmq.url, Steps(NEVER))
        consumed = run("consume", url, rabbitmq.url, step)
        relay_child.consume(OutboxStore.at(url), rabbitmq.url, Steps(NEVER))
        if relayed and consumed:
            break
    else:
        pytest.fail(f"neither came to its end within {MOST_STEPS} steps, XABRIDGE_SEED={seed}")

    assert store.figures().waiting == 0
    with store.engine.begin() as connection:
        numbers = list(connection.execute(text("SELECT number FROM billed ORDER BY number")).scalars())
    assert numbers == list(range(written)), f"XABRIDGE_SEED={seed}"
