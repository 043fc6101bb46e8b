"""These tests are the use cases of the AMQP working group's slides on XA, over the class `dtx` that they propose.
tests/rm_amqp/test_use_cases.py has them over AMQP 1.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rm_amqp import Message
from tests.rm_amqp.amqp010.client import QpidClient
from tests.rm_amqp.client import RMID, new_xid
from tests.tm.telemetry.test_telemetry import Exported
from tests.tm.telemetry.traced import check_messages_are_traced
from tm import RolledBack, TransactionManager
from tm.resources import ResourceConfig
from xa import TMRESUME, TMSUSPEND, Code, ThreadOfControl, entered
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


def test_messaging_extended_use_case(client: QpidClient, queue: str) -> None:
    """T1 is suspended, work is done for T2 on the same channel, and T1 goes on."""
    first = client.start()
    client.session.send(queue, Message("of T1"))
    client.end(first, TMSUSPEND)
    second = client.start()
    client.session.send(queue, Message("of T2"))
    client.commit(second)
    assert client.look(queue) == ["of T2"]
    client.start(TMRESUME, first)
    client.session.send(queue, Message("of T1 again"))
    client.commit(first, two_phase=True)
    assert client.look(queue) == ["of T2", "of T1", "of T1 again"]


def test_using_a_command_channel(client: QpidClient, broker_j: BrokerJ, queue: str) -> None:
    """What one process has prepared, the command channel of another one commits."""
    xid = client.start()
    client.session.send(queue, Message("x"))
    client.end(xid)
    assert client.rm.prepare(xid, RMID) is Code.XA_OK
    other = QpidClient(broker_j.url)
    assert xid in other.in_doubt()
    assert other.rm.commit(xid, RMID) is Code.XA_OK
    assert client.look(queue) == ["x"]
    other.rm.close("", RMID)


def test_thread_contexts_have_channels_of_their_own(client: QpidClient, queue: str) -> None:
    """One-to-one: a thread of control and its channel; an rmid and the thread tell which."""
    threads = [ThreadOfControl() for _ in range(3)]
    xids = []
    for number, thread in enumerate(threads):
        with entered(thread):
            xids.append(client.start(xid=new_xid()))
            client.session.send(queue, Message(f"{number}"))
    channels = {id(thread.current.work.channel) for thread in client.rm._threads.values() if thread.current}
    assert len(channels) == 3
    for thread, xid in zip(threads, xids, strict=True):
        with entered(thread):
            client.commit(xid)
    assert sorted(client.look(queue)) == ["0", "1", "2"]


def test_recovery(client: QpidClient, broker_j: BrokerJ, queue: str) -> None:
    """recover, and an outcome for each of what it lists."""
    xids = []
    for number in range(3):
        xid = client.start()
        client.session.send(queue, Message(number_text(number)))
        client.end(xid)
        client.rm.prepare(xid, RMID)
        xids.append(xid)
    client.rm.drop()
    broker_j.kill()
    broker_j.start()
    later = QpidClient(broker_j.url)
    assert later.in_doubt() >= set(xids)
    assert later.rm.commit(xids[0], RMID) is Code.XA_OK
    assert later.rm.rollback(xids[1], RMID) is Code.XA_OK
    assert later.rm.commit(xids[2], RMID) is Code.XA_OK
    assert not later.in_doubt() & set(xids)
    assert sorted(later.look(queue)) == ["0", "2"]
    later.rm.close("", RMID)


def number_text(number: int) -> str:
    return f"{number}"


def test_messages_carry_the_trace(broker_j: BrokerJ, queue: str, tmp_path: Path) -> None:
    exported = Exported()
    check_messages_are_traced(exported, broker_j.url, queue, f"{queue}-other", tmp_path)
    exported.close()
