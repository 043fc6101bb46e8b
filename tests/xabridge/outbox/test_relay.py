"""These tests run relays over each kind of database, with a broker in memory: what is sent, how often, and in what
order."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import insert

from tests.tm.shop import Clock
from tests.waiting import until
from tests.xabridge.outbox.conftest import MemoryBroker
from xabridge import Message
from xabridge.outbox import BrokerAway, Outbox, OutboxStore, OutgoingMessage, Refusal, Relay, RelaySettings

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("outbox")]
in_a_file = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""What a relay does with what it has read is the same over each kind of database."""


@pytest.fixture
def clock(store: OutboxStore) -> Clock:
    """The wall clock of the store."""
    clock = Clock()
    clock.now = 1_700_000_000.0
    store._clock = clock
    return clock


def fill(store: OutboxStore, *bodies: object, key: str | None = None, to: str = "orders") -> list[str]:
    """Messages in the outbox, from one transaction."""
    with store.engine.begin() as connection:
        return Outbox(clock=store._clock).put_all(connection, to, [Message(body) for body in bodies], key=key)


def test_what_is_committed_is_sent_once_with_its_id(store: OutboxStore) -> None:
    broker = MemoryBroker()
    ids = fill(store, *range(250))
    done = Relay(store, broker).run_once()
    assert (done.sent, done.refused) == (250, 0)
    assert sorted(broker.bodies) == list(range(250))
    assert sorted(str(one.message.id) for one in broker.arrived) == sorted(ids)
    assert all(one.message.durable for one in broker.arrived)
    assert store.rows() == []
    assert Relay(store, broker).run_once().sent == 0


@in_a_file
def test_what_is_rolled_back_is_never_sent(store: OutboxStore) -> None:
    connection = store.engine.connect()
    with connection, connection.begin() as transaction:
        Outbox().put(connection, "orders", Message(1))
        transaction.rollback()
    assert Relay(store, MemoryBroker()).run_once().sent == 0


def test_messages_of_a_key_leave_in_their_order_one_after_the_other(store: OutboxStore) -> None:
    broker = MemoryBroker()
    for n in range(30):
        fill(store, n, key="a" if n % 2 else "b")
    Relay(store, broker).run_once()
    assert [n for n in broker.bodies if n % 2] == list(range(1, 30, 2))
    assert [n for n in broker.bodies if not n % 2] == list(range(0, 30, 2))
    assert max(broker.together) <= 2  # never two of one key on their way


@in_a_file
def test_a_refused_message_is_tried_again_later_then_set_aside(store: OutboxStore, clock: Clock) -> None:
    broker = MemoryBroker(lambda one: Refusal("no room") if one.message.body == "bad" else None)
    fill(store, "good", "bad")
    relay = Relay(store, broker, RelaySettings(max_attempts=3))
    pauses = []
    for _ in range(3):
        relay.run_once()
        before = clock.now
        while relay.run_once().refused == 0 and clock.now < before + 100 and not store.rows(state="refused"):
            clock.now += 0.5
        pauses.append(clock.now - before)
    assert broker.bodies == ["good"]
    (kept,) = store.rows(state="refused")
    assert (kept.attempts, kept.reason) == (3, "no room")
    assert pauses[:2] == [1.0, 2.0]

    broker.judge = lambda _: None
    clock.now += 1000
    assert relay.run_once().sent == 0  # it is an operator's now
    assert store.retry([kept.id]) == 1
    assert relay.run_once().sent == 1


def test_behind_a_refused_message_its_key_waits_and_nothing_else_does(store: OutboxStore, clock: Clock) -> None:
    broker = MemoryBroker(lambda one: Refusal("poison", final=True) if one.message.body == "bad" else None)
    fill(store, "first", "bad", "behind", "behind too", key="k")
    fill(store, *range(40))
    relay = Relay(store, broker)
    done = relay.run_once()
    assert (done.refused, done.set_aside) == (1, 1)  # at once: no other attempt would help
    assert "first" in broker.bodies
    assert sorted(one for one in broker.bodies if isinstance(one, int)) == list(range(40))
    clock.now += 10_000
    fill(store, "later", key="k")
    relay.run_once()
    assert not {"behind", "behind too", "later"} & {str(body) for body in broker.bodies}

    (bad,) = store.rows(state="refused")
    assert store.delete([bad.id]) == 1
    relay.run_once()
    assert broker.bodies[-3:] == ["behind", "behind too", "later"]


@in_a_file
def test_while_a_message_of_a_key_waits_for_its_next_attempt_the_key_waits(store: OutboxStore, clock: Clock) -> None:
    broker = MemoryBroker(lambda one: Refusal("not now") if one.message.body == 1 else None)
    fill(store, 1, 2, 3, key="k")
    relay = Relay(store, broker)
    assert relay.run_once().refused == 1
    broker.judge = lambda _: None
    assert relay.run_once().sent == 0
    clock.now += 2
    assert relay.run_once().sent == 3
    assert broker.bodies == [1, 2, 3]


@in_a_file
def test_a_broker_that_goes_away_in_a_batch_keeps_what_it_has_confirmed(store: OutboxStore) -> None:
    def judge(_: OutgoingMessage) -> None:
        if len(broker.arrived) == 5:
            raise BrokerAway("cut")

    broker = MemoryBroker(judge)
    fill(store, *range(20))
    relay = Relay(store, broker)
    with pytest.raises(BrokerAway, match="cut"):
        relay.run_once()
    assert store.figures().waiting == 15
    broker.judge = lambda _: None
    relay.run_once()
    assert sorted(broker.bodies) == list(range(20))  # none twice: what was confirmed is gone


@in_a_file
def test_a_running_relay_outlives_an_absent_broker(store: OutboxStore, caplog: pytest.LogCaptureFixture) -> None:
    broker = MemoryBroker()
    broker.is_away = True
    fill(store, "one")
    with Relay(store, broker, RelaySettings(poll_s=0.01)):
        until(lambda: "the broker is away: it is away" in caplog.text)
        broker.is_away = False
        until(lambda: broker.bodies == ["one"])
    assert caplog.text.count("it is away") == 1


def test_a_running_relay_outlives_a_database_that_is_not_there_yet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "later"
    broker = MemoryBroker()
    with Relay(f"sqlite:///{folder}/shop.db", broker, RelaySettings(poll_s=0.01)):
        until(lambda: "the database is away" in caplog.text)
        folder.mkdir()
        store = OutboxStore.at(f"sqlite:///{folder}/shop.db")
        store.open()
        fill(store, 1)
        until(lambda: broker.bodies == [1])
        store.close()


def test_relays_at_once_send_each_message_once_and_keep_the_order(url: str, store: OutboxStore) -> None:
    broker = MemoryBroker(lambda _: time.sleep(random.random() / 500))
    stores = [OutboxStore.at(url) for _ in range(4)]
    relays = [Relay(one, broker, RelaySettings(batch=7, poll_s=0.005)) for one in stores]
    for relay in relays:
        relay.start()
    outbox = Outbox()

    def write(writer: int) -> None:
        for n in range(25):
            with store.engine.begin() as connection:
                outbox.put(connection, "orders", Message((writer, n)), key=f"writer-{writer}")
                outbox.put(connection, "orders", Message(None))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    until(lambda: store.figures().waiting == 0)
    for relay in relays:
        relay.stop()
    assert len(broker.arrived) == 3 * 25 * 2
    for number in range(3):
        assert [body[1] for body in broker.bodies if body is not None and body[0] == number] == list(range(25))


@in_a_file
def test_two_that_take_the_same_rows_keep_the_order_of_first_arrivals(store: OutboxStore) -> None:
    """The locks fail: each message is sent twice, and its first copy behind the first copies of all before it."""
    fill(store, *range(40), key="k")
    broker = MemoryBroker()
    first, second = Relay(store, broker), Relay(store, broker)
    with store.engine.connect() as connection:
        taken = store._take(connection, range(16), time.time(), 100)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda relay: relay._send(taken), (first, second)))
    assert list(dict.fromkeys(broker.bodies)) == list(range(40))


@in_a_file
def test_a_batch_ends_where_its_messages_are_many_octets(store: OutboxStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xabridge.outbox.store.MAX_BATCH_OCTETS", 10_000)
    broker = MemoryBroker()
    fill(store, *(bytes(4_000) for _ in range(10)))
    Relay(store, broker).run_once()
    assert sum(broker.together) == 10
    assert max(broker.together) == 2


@in_a_file
def test_a_row_that_holds_no_message_is_set_aside(store: OutboxStore) -> None:
    fill(store, "good")
    with store.engine.begin() as connection:
        connection.execute(
            insert(store.tables.outbox).values(
                lane=0, destination="orders", message_id="x", message=b"junk", octets=4, created=0.0, attempts=0,
                retry_at=0.0, state="waiting", version=2,
            )
        )  # fmt: skip
    done = Relay(store, MemoryBroker()).run_once()
    assert (done.sent, done.set_aside) == (1, 1)
    assert "holds no message" in str(store.rows(state="refused")[0].reason)


@in_a_file
def test_a_relay_whose_lease_ran_out_hinders_nobody(store: OutboxStore, clock: Clock) -> None:
    """SQLite: a relay dies with its lanes; another one takes them when the lease has ended."""
    fill(store, *range(30))
    with store.engine.begin() as connection:
        assert store._lease(connection, clock.now, "dead", 60.0)
        assert store._lease(connection, clock.now, "dead", 60.0)
    broker = MemoryBroker()
    Relay(store, broker).run_once()
    assert len(broker.arrived) < 30
    clock.now += 61
    Relay(store, broker).run_once()
    assert sorted(broker.bodies) == list(range(30))


def test_settings_that_can_not_be() -> None:
    for wrong in ({"batch": 0}, {"batch": 1001}, {"poll_s": 0}, {"timeout_s": 0}, {"max_attempts": 0}):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"^{name}: expected (a whole number, 1|seconds above 0)"):
            RelaySettings(**wrong)
