"""These tests run the use cases of the AMQP working group's slides with the transaction manager, the broker, and a
reference resource manager in place of the database.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dtx.broker.settings import Limits, QueueSettings, Settings
from rm_amqp import Message
from rm_amqp.connections import REAP_S
from tests.rm_amqp.client import RMID, Client, NetworkClient
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.rm_amqp.network import Network
from tm import RolledBack, TransactionManager
from tm.faults import fault_of
from tm.resources import ResourceConfig
from tm.resources.resource import Mode
from xa import TMNOWAIT, Code, ThreadOfControl, TryAgain, Xid, entered
from xabridge.testing.reference import ReferenceFactory, ReferenceStore

Connect = Callable[..., Client]


class Shop:
    """An application's surroundings: a broker, a database, a transaction manager."""

    def __init__(self, broker: EmbeddedBroker, folder: Path, scheme: str = "amqp", options: str = "") -> None:
        self.store = ReferenceStore("shop")
        self.manager = TransactionManager(
            "shop-1",
            f"file://{folder / 'log'}",
            {
                "broker": f"{scheme}://{broker.address}/{options}",
                "shop": ResourceConfig(self.store.url, factory=ReferenceFactory(self.store)),
            },
        )


@pytest.fixture(params=["amqp", "amqp?ahead=true&prefetch=10", "dynamic+amqp"])
def shop(request: pytest.FixtureRequest, broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Shop]:
    """One for each way to configure the broker."""
    scheme, _, options = request.param.partition("?")
    shop = Shop(broker, tmp_path, scheme, f"?{options}" if options else "")
    with shop.manager:
        yield shop
    assert broker.left() == []


# --- messaging, most common use case ----------------------------------------------------------------------------
@pytest.mark.parametrize("commit", [True, False])
def test_most_common_use_case(shop: Shop, client: Client, queue: str, *, commit: bool) -> None:
    """Start T1, consume a message from queue X, write to the database, produce a message on queue Y, commit T1. If the
    transaction rolls back, the produced message is discarded, the consumed one is enqueued again."""
    client.put(f"{queue}-x", ["M1", "M3"])
    with suppress(ZeroDivisionError), shop.manager.begin() as tx:
        message = tx["broker"].receive(f"{queue}-x", 5)
        tx["shop"].write(queue, message.body)
        tx["broker"].send(f"{queue}-y", Message("M2"))
        if not commit:
            raise ZeroDivisionError
    assert shop.store.data.get(queue) == ("M1" if commit else None)
    assert client.look(f"{queue}-y") == (["M2"] if commit else [])
    with shop.manager.begin() as tx:
        left = tx["broker"].receive_batch(f"{queue}-x", 2, 5)
    told = [(message.body, message.delivery_count) for message in left]
    assert told == ([("M3", 0)] if commit else [("M1", 1), ("M3", 0)])


# --- using a command channel --------------------------------------------------------------------------------------


def test_command_channel_is_re_established_by_itself(client: Client, broker: EmbeddedBroker, queue: str) -> None:
    """It is cut, while the thread's transactional channel works on; nobody has to open again."""
    xid = client.start()
    client.session.send(queue, Message("x"))
    command = client.rm.driver.connections.commands._channel
    assert command is not None
    broker.cut_connection(command.endpoint)
    client.end(xid)
    assert client.rm.prepare(xid, RMID) is Code.XA_OK
    assert client.rm.commit(xid, RMID) is Code.XA_OK
    assert client.rm.driver.connections.commands._channel is not command
    assert client.look(queue) == ["x"]


# --- C++: registration, threads of control ------------------------------------------------------------------------


def test_a_thread_that_is_gone_leaves_its_channel_to_others() -> None:
    """What it did is rolled back: it never ended it."""
    network = Network()
    client = NetworkClient(network, "&channels=1")
    client.put("q", ["x"])

    def leaves() -> Xid:
        with entered(ThreadOfControl()):
            xid = client.start()
            client.session.receive("q", 5)
            return xid

    for _ in range(2):
        left = leaves()
        gc.collect()
        network.sleep(REAP_S)
        xid = client.start()
        assert client.session.receive("q", 20).body == "x"
        client.rollback(xid)
        client.rollback(left, end=False)


def test_the_pool_is_bounded(connect: Connect) -> None:
    client = connect("channels=2&timeout=1")
    controls = [ThreadOfControl() for _ in range(3)]
    xids = []
    for control in controls[:2]:
        with entered(control):
            xids.append(client.start())
    with entered(controls[2]), pytest.raises(TryAgain, match="all 2 channels are in use"):
        client.start(TMNOWAIT)
    with entered(controls[2]), pytest.raises(TryAgain, match="end other work, or allow more with channels="):
        client.start()
    for control, xid in zip(controls, xids, strict=False):
        with entered(control):
            client.commit(xid)
    with entered(controls[2]):
        client.commit(client.start())


# --- asyncio -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phases", ["one", "two", "decider"])
def test_a_queue_without_room_is_no_fault_of_what_was_handled(tmp_path: Path, phases: str) -> None:
    """Consumers would make dead letters of innocents; a message that no room is enough for is one by itself."""
    limited = Settings(queues={"full": QueueSettings(max_depth=1), "small": QueueSettings(max_octets=1000)})
    brokers = [EmbeddedBroker(tmp_path, settings=limited)]
    if phases == "two":
        (tmp_path / "other").mkdir()
        brokers.append(EmbeddedBroker(tmp_path / "other"))
    mode: Mode = "decider" if phases == "decider" else "two-phase"
    resources = {
        f"broker-{number}": ResourceConfig(f"amqp://{one.address}", mode) for number, one in enumerate(brokers)
    }
    log = None if phases == "decider" else f"file://{tmp_path}/log"

    with TransactionManager("node-1", log, resources, background=False) as manager:

        def send(queue: str, body: bytes) -> None:
            with manager.begin() as tx:
                for name in resources:
                    tx[name].send(queue if name == "broker-0" else "elsewhere", Message(body))

        send("full", b"fits")
        for queue, body, is_excused in [("full", b"one more", True), ("small", b"x" * 2000, False)]:
            with pytest.raises(RolledBack) as raised:
                send(queue, body)
            assert fault_of(raised.value).is_excused is is_excused, raised.value
    for one in brokers:
        one.stop()


@pytest.mark.parametrize("phases", ["one", "two"])
@pytest.mark.parametrize("options", ["", "ahead=true"])
def test_a_broker_with_too_many_branches_is_no_fault_of_what_was_handled(
    tmp_path: Path, broker: EmbeddedBroker, options: str, phases: str
) -> None:
    """Also where a start without a wait is refused at the end, or at the prepare."""
    crowded = EmbeddedBroker(tmp_path, settings=Settings(limits=Limits(branches=1)))
    resources = {"crowded": f"amqp://{crowded.address}/?{options}"}
    if phases == "two":
        resources["other"] = f"amqp://{broker.address}"
    other = Client(crowded.address)
    xid = other.start()

    with TransactionManager("node-1", f"file://{tmp_path}/log", resources, background=False) as manager:
        for _ in range(3):
            with pytest.raises((RolledBack, TryAgain), match="there are 1 branches") as raised, manager.begin() as tx:
                for name in resources:
                    tx[name].send("orders", Message("one"))
            assert fault_of(raised.value).is_excused, raised.value
        other.rollback(xid)
        with manager.begin() as tx:
            tx["crowded"].send("orders", Message("one"))
    assert crowded.left() == broker.left() == []
    other.rm.drop()
    crowded.stop()
