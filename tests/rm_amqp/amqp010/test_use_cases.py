"""These tests are the use cases of the AMQP working group's slides on XA, over the class `dtx` that they propose.
tests/rm_amqp/test_use_cases.py has them over AMQP 1.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rm_amqp import Message
from tests.rm_amqp.amqp010.client import QpidClient
from tests.rm_amqp.client import RMID
from tests.tm.telemetry.test_telemetry import Exported
from tests.tm.telemetry.traced import check_messages_are_traced
from tm import RolledBack, TransactionManager
from tm.resources import ResourceConfig
from xabridge.testing.reference import ReferenceFactory, ReferenceStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.broker_j import BrokerJ


@pytest.mark.parametrize("commit", [True, False])
def test_messaging_most_common_use_case(broker_j: BrokerJ, queue: str, tmp_path: Path, *, commit: bool) -> None:
    """Consume a message, write to a database, produce a message: all three, or none."""
    store = ReferenceStore("shop")
    client = QpidClient(broker_j.url)
    client.put(queue, ["order"])
    resources: dict[str, str | ResourceConfig] = {
        "broker": broker_j.url,
        "shop": ResourceConfig(store.url, factory=ReferenceFactory(store)),
    }
    with TransactionManager("slides-1", f"file://{tmp_path}/log", resources, background=False) as manager:

        def work() -> None:
            with manager.begin() as tx:
                body = tx["broker"].receive(queue, 5).body
                tx["shop"].write(body, True)
                tx["broker"].send(f"{queue}-other", Message(body))
                if not commit:
                    tx.set_rollback_only("the test wants it")

        if commit:
            work()
        else:
            with pytest.raises(RolledBack):
                work()
    assert sorted(store.data) == (["order"] if commit else [])
    assert client.look(f"{queue}-other") == (["order"] if commit else [])
    assert client.look(queue) == ([] if commit else ["order"])
    assert client.in_doubt() == set()
    client.rm.close("", RMID)


def test_messages_carry_the_trace(broker_j: BrokerJ, queue: str, tmp_path: Path) -> None:
    exported = Exported()
    check_messages_are_traced(exported, broker_j.url, queue, f"{queue}-other", tmp_path)
    exported.close()
