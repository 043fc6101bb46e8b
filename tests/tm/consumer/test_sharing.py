"""These tests check which messages share a transaction, when the share ends, and that none of them notices another."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import BigInteger, Text, create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from dtx.broker.endpoint import connection
from dtx.broker.settings import QueueSettings, Settings
from rm_amqp import Message
from tests.cases import each
from tests.postgres import Postgres
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.tm.consumer.stall import KINDS, Stall
from tests.waiting import until
from tm import Consumer, ConsumerSettings, MessageCounts, Outcome, ResourceConfig, Transaction, TransactionManager
from tm.consumer.history import UNTOLD
from tm.consumer.sharing import MOST_PAUSED, PAUSED, Sharing
from tm.faults import Fault
from xa import Code
from xabridge.testing.reference import ReferenceFactory


class Clock:
    """Time that moves when a handler says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# --- how many, and until when --------------------------------------------------------------------------------------
class Shared:
    """A worker's sharing. Each handler takes `handler_s`."""

    def __init__(self, timeout_s: float = 60.0, **settings: Any) -> None:
        self.clock = Clock()
        self.sharing = Sharing(ConsumerSettings("q", **{"batch": 50, **settings}), timeout_s, self.clock)

    def share(self, handler_s: float, waiting: int = 1_000) -> int:
        """How many messages the next transaction has handled, which commits."""
        sharing = self.sharing
        sharing.transaction_begins()
        sharing.begins()
        handled = 0
        for _ in range(min(sharing.count, waiting)):
            if handled and not sharing.goes_on:
                break
            self.clock.now += handler_s
            sharing.handled()
            handled += 1
        sharing.committed(handled)
        return handled


def test_shares_grow_to_a_batch_and_end_with_the_messages_that_wait() -> None:
    shared = Shared()
    assert [shared.share(0.0001) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 50, 50]
    assert [shared.share(0.0001, waiting) for waiting in (3, 1, 50)] == [3, 1, 50]


@each(("handler_s", "expected"), [(0.0006, 33), (0.0039, 5), (0.011, 1), (1.0, 1)])
def test_a_share_is_over_in_time(handler_s: float, expected: int) -> None:
    shared = Shared()
    assert [shared.share(handler_s) for _ in range(10)][-1] == expected


def test_a_handler_that_gets_slow_ends_the_share_and_takes_no_more_than_it_can_handle() -> None:
    shared = Shared()
    for _ in range(8):
        shared.share(0.0001)
    assert shared.share(0.021) == 1
    assert shared.share(0.0001) == 17, "it was held up for once"
    assert [shared.share(0.021) for _ in range(15)] == [1] * 15
    assert shared.sharing.count == 1


def test_a_share_leaves_time_for_one_more_handler_before_the_timeout() -> None:
    shared = Shared(timeout_s=1.0, share_s=60.0)
    assert [shared.share(0.1) for _ in range(6)] == [1, 2, 4, 8, 8, 8], "of ten"


def test_after_a_failure_messages_are_handled_alone_for_a_while() -> None:
    shared = Shared()
    for _ in range(8):
        shared.share(0.0001)
    shared.sharing.failed(1, Fault.MESSAGE)
    assert shared.share(0.0001) == 50, "it was alone: nothing was wrong with sharing"
    for expected in (PAUSED, 2 * PAUSED, 4 * PAUSED):
        shared.sharing.failed(7, Fault.MESSAGE)
        assert [shared.share(0.0001) for _ in range(expected + 1)] == [1] * (expected + 1)
    assert [shared.share(0.0001) for _ in range(3)] == [2, 4, 8]
    shared.sharing.failed(1, Fault.CONFLICT)
    assert [shared.share(0.0001) for _ in range(PAUSED + 3)] == [1] * (PAUSED + 1) + [2, 4]


def test_the_pause_has_a_bound() -> None:
    shared = Shared()
    for _ in range(20):
        shared.sharing.failed(2, Fault.CONFLICT)
    for _ in range(MOST_PAUSED + 1):
        assert shared.share(0.0) == 1
    assert shared.share(0.0) == 2


def test_a_handler_of_batches_gets_what_there_is() -> None:
    shared = Shared(takes="batch")
    shared.sharing.failed(7, Fault.CONFLICT)
    assert shared.sharing.count == 50


# --- with a broker ------------------------------------------------------------------------------------------------
class Handler:
    """Notes which messages were handled in which transaction. Each takes `takes_s`, by the clock of its consumer."""

    def __init__(self, stall: Stall, clock: Clock | None = None) -> None:
        self.stall = stall
        self.clock = clock or Clock()
        self.takes_s: dict[Any, float] = {}
        self.fails: dict[Any, Any] = {}
        """What is called instead of the work, once for each value."""
        self.begun: list[tuple[str, Any, int]] = []

    def __call__(self, message: Message, tx: Transaction) -> None:
        self.begun.append((str(tx), message.body, message.delivery_count))
        tx["shop"].write(str(message.body), 1)
        tx["broker"].send(self.stall.out, Message(message.body))
        self.clock.now += self.takes_s.get(message.body, 0.0)
        failing = self.fails.get(message.body)
        if failing is not None:
            failing(tx)
        self.stall.until.tell(message.body)

    @property
    def shares(self) -> list[list[Any]]:
        """The messages of each transaction, in their order."""
        return [[body for _, body, _ in share] for _, share in itertools.groupby(self.begun, lambda one: one[0])]


def sharing(stall: Stall, handler: Any, clock: Clock, **settings: Any) -> Consumer:
    """A consumer that shares transactions, on this clock."""
    consumer = stall.consumer(handler, **{"batch": 50, **settings})
    consumer.job.statistics.clock = clock
    return consumer


def raises(_: Transaction) -> None:
    raise LookupError("poison")


@KINDS
def test_messages_that_wait_share_a_transaction_in_their_order(stall: Stall, kind: Any) -> None:
    stall.put(*range(20))
    handler = Handler(stall)
    with sharing(stall, kind(handler), handler.clock) as consumer:
        stall.until.count(20)
    assert handler.shares == [[0], [1, 2], [3, 4, 5, 6], list(range(7, 15)), list(range(15, 20))]
    assert consumer.counts == MessageCounts(handled=20)
    assert stall.look(stall.out) == list(range(20))
    assert stall.store.data.keys() == {str(number) for number in range(20)}


def test_with_a_batch_of_one_each_message_has_a_transaction(stall: Stall) -> None:
    stall.put(*range(10))
    handler = Handler(stall)
    with sharing(stall, handler, handler.clock, batch=1):
        stall.until.count(10)
    assert handler.shares == [[number] for number in range(10)]


@KINDS
def test_what_is_not_begun_in_time_comes_next_and_was_not_delivered(stall: Stall, kind: Any) -> None:
    stall.put(*range(30))
    handler = Handler(stall)
    handler.takes_s = {9: 0.018, 10: 0.003, 20: 5.0}
    with sharing(stall, kind(handler), handler.clock):
        stall.until.count(30)
    assert handler.shares[:4] == [[0], [1, 2], [3, 4, 5, 6], [7, 8, 9, 10]], "the time of the last one was over"
    assert [share[-1] for share in handler.shares if 20 in share] == [20]
    assert [body for _, body, _ in handler.begun] == list(range(30))
    assert {count for _, _, count in handler.begun} == {0}
    assert stall.look(stall.out) == list(range(30))


def test_a_slow_handler_keeps_no_message_that_another_worker_could_handle(stall: Stall) -> None:
    stall.put(*range(8))
    handler, waiting = Handler(stall), list[int]()

    def look(_: Transaction) -> None:
        waiting.append(stall.broker.inside(lambda broker: broker.container.resource.queues[stall.queue].available))

    handler.takes_s = dict.fromkeys(range(8), 0.5)
    handler.fails = dict.fromkeys(range(8), look)
    with sharing(stall, handler, handler.clock):
        stall.until.count(8)
    assert handler.shares == [[number] for number in range(8)]
    assert waiting == [7, 6, 5, 4, 3, 2, 1, 0]


@KINDS
@pytest.mark.parametrize("place", [9, 7])
def test_only_the_message_whose_handler_raises_has_failed(stall: Stall, kind: Any, place: int) -> None:
    """The others of its share are tried first, one by one, and without a wait. Those that were not begun are not
    concerned."""
    stall.put(*range(20))
    handler = Handler(stall)
    handler.fails = {place: raises}
    consumer = sharing(stall, kind(handler), handler.clock, max_deliveries=2)
    with consumer:
        until(lambda: consumer.counts.handled + consumer.counts.dead_lettered >= 20)

    first = [[0], [1, 2], [3, 4, 5, 6], list(range(7, place + 1))]
    assert handler.shares[: len(first)] == first
    attempts = [count for _, body, count in handler.begun if body == place]
    alone = [[number] for number in range(7, place)] + [[place]] * (len(attempts) - 1)
    assert handler.shares[len(first) : len(first) + len(alone)] == alone
    assert attempts == ([0, 1] if place == 7 else [0, 0, 1]), "what fails in company does not count"
    assert {count for _, body, count in handler.begun if body != place} == {0}
    assert consumer.counts == MessageCounts(handled=19, failed={9: 3 + 1 + 1, 7: 1 + 1}[place], dead_lettered=1)
    ((body, why),) = stall.letters()
    assert (body, why["reason"], why["deliveries"]) == (place, "LookupError: poison", 2)
    assert sorted(stall.look(stall.out)) == [number for number in range(20) if number != place]


def test_what_can_only_be_rolled_back_ends_the_share(stall: Stall) -> None:
    stall.put(*range(12))
    handler = Handler(stall)
    handler.fails = {8: lambda tx: tx.set_rollback_only("no")}
    consumer = sharing(stall, handler, handler.clock, max_deliveries=1)
    with consumer:
        until(lambda: consumer.counts.handled + consumer.counts.dead_lettered >= 12)
    assert handler.shares[3] == [7, 8], "the next one is not begun"
    assert {count for _, body, count in handler.begun if body != 8} == {0}
    ((body, why),) = stall.letters()
    assert (body, why["deliveries"]) == (8, 1)


def test_a_refused_commit_is_tried_again_one_by_one(stall: Stall) -> None:
    stall.put(*range(10))
    handler = Handler(stall)
    handler.fails = {7: lambda _: stall.store.script.plan("prepare", Code.XA_RBOTHER)}

    def once(message: Message, tx: Transaction) -> None:
        handler(message, tx)
        if message.body == 7:
            handler.fails.clear()

    consumer = sharing(stall, once, handler.clock)
    with consumer:
        until(lambda: consumer.counts.handled >= 10)
    assert handler.shares == [[0], [1, 2], [3, 4, 5, 6], [7, 8, 9], [7], [8], [9]]
    assert consumer.counts == MessageCounts(handled=10, failed=3)
    assert {count for _, _, count in handler.begun} == {0}


def test_a_conflict_pauses_sharing(stall: Stall) -> None:
    stall.put(*range(40))
    handler = Handler(stall)
    handler.fails = {7: lambda _: stall.store.script.plan("prepare", Code.XA_RBDEADLOCK)}

    def once(message: Message, tx: Transaction) -> None:
        handler(message, tx)
        handler.fails.pop(message.body, None)

    with sharing(stall, once, handler.clock):
        until(lambda: len(stall.store.data) >= 40)
    shares = handler.shares[4:]
    assert handler.shares[3] == list(range(7, 15))
    assert shares[:PAUSED] == [[number] for number in range(7, 7 + PAUSED)]
    assert max(map(len, shares)) > 1, "and it goes on"


@pytest.mark.parametrize("kind", ["raised", "returned"])
def test_callbacks_are_called_once_for_each_message_in_their_order(stall: Stall, kind: str) -> None:
    stall.put(*range(15))
    handler, called = Handler(stall), []
    if kind == "raised":
        handler.fails = {10: raises}

    def handle(message: Message, tx: Transaction) -> None:
        def after(outcome: Outcome, number: Any = message.body) -> None:
            assert stall.manager.current_or_none() is None
            called.append((number, outcome.verdict.value))

        tx.register_synchronization(after=after)
        handler(message, tx)

    consumer = sharing(stall, handle, handler.clock, max_deliveries=1)
    with consumer:
        until(lambda: consumer.counts.handled + consumer.counts.dead_lettered >= 15)
    committed = [number for number, verdict in called if verdict == "committed"]
    assert committed == [number for number in range(15) if kind == "returned" or number != 10]
    assert called == [(body, verdict) for (_, body, _), (_, verdict) in zip(handler.begun, called, strict=True)]


@pytest.mark.parametrize(("workers", "prefetch"), [pytest.param(1, 0, marks=pytest.mark.slow), (3, 20)])
def test_the_messages_of_a_group_are_handled_in_their_order(stall: Stall, workers: int, prefetch: int) -> None:
    """Whatever fails, and however many of them are not begun in time."""
    numbers = range(300)
    with stall.manager.begin() as tx:
        for number in numbers:
            tx["broker"].send(stall.queue, Message(number, group_id=f"g{number % 4}"))
    handler = Handler(stall)
    handler.takes_s = {9: 0.1, 18: 0.021, 160: 0.1, 240: 0.1, 180: 0.021}
    failing, refused = {60, 66, 250}, {18, 180}

    def handle(message: Message, tx: Transaction) -> None:
        handler(message, tx)
        number: Any = message.body
        handler.takes_s.pop(number, None)
        if number in refused:
            refused.remove(number)
            stall.store.script.plan("prepare", Code.XA_RBOTHER)
        if number in failing:
            failing.remove(number)
            raise LookupError(number)

    resources: dict[str, str | ResourceConfig] = {
        "broker": f"amqp://{stall.broker.address}/?prefetch={prefetch}",
        "shop": ResourceConfig(stall.store.url, factory=ReferenceFactory(stall.store)),
    }
    with TransactionManager("groups", f"file://{stall.folder / 'groups'}", resources) as manager:
        consumer = Consumer(
            manager, stall.queue, handle, batch=50, workers=workers, idle_s=0.01, retry_first_s=0.002, share_s=0.02
        )
        consumer.job.statistics.clock = handler.clock
        with consumer:
            until(lambda: consumer.counts.handled >= len(numbers))

    handled = stall.look(stall.out)
    assert sorted(handled) == list(numbers)
    for group in range(4):
        assert [number for number in handled if number % 4 == group] == list(range(group, 300, 4))
    if workers == 1:
        assert handled == list(numbers)


def test_a_consumer_that_stops_gives_back_the_rest_of_a_share(stall: Stall) -> None:
    stall.put(*range(15))
    handler = Handler(stall)
    consumer = sharing(stall, handler, handler.clock)
    handler.fails = {8: lambda _: consumer.ask_to_stop()}
    with consumer:
        stall.until.count(9)
    assert consumer.counts.handled == 9
    assert stall.look(stall.queue) == list(range(9, 15))
    with stall.manager.begin() as tx:
        assert tx["broker"].receive(stall.queue, 5).delivery_count == 0


def test_the_broker_s_own_limit_kills_no_innocent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It counts none of them, also when it is restarted in between."""
    caplog.set_level(logging.ERROR)
    broker = EmbeddedBroker(tmp_path, settings=Settings(queue_defaults=QueueSettings(max_deliveries=1)))
    (tmp_path / "stall").mkdir()
    stall = Stall(broker, "orders", tmp_path / "stall")
    with stall.manager:
        handler = Handler(stall)
        handler.fails = dict.fromkeys((9, 17), raises)
        stall.put(*range(20))

        for _ in range(3):
            with sharing(stall, handler, handler.clock, max_deliveries=1) as consumer:
                until(partial(has_ended, consumer))
            broker.stop()
            broker.start()
        with sharing(stall, handler, handler.clock, max_deliveries=1):
            until(lambda: not broker.inside(lambda inside: inside.container.resource.queues["orders"].depth))
        assert sorted(stall.look(stall.out)) == [number for number in range(20) if number not in {9, 17}]
        assert sorted(stall.look("orders.dead")) == [9, 17]
    broker.stop()


@pytest.mark.pure  # the embedded broker is to be one that counts every rollback
def test_company_kills_no_innocent_at_a_broker_that_counts_every_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As ActiveMQ Artemis does. What has failed in company is alone from then on, also after a restart of the broker:
    so sharing adds one counted delivery, and a limit of two is enough."""
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(connection, "CAPABILITIES", ("ANONYMOUS-RELAY",))
    broker = EmbeddedBroker(tmp_path, settings=Settings(queue_defaults=QueueSettings(max_deliveries=2)))
    (tmp_path / "stall").mkdir()
    stall = Stall(broker, "orders", tmp_path / "stall")
    with stall.manager:
        handler = Handler(stall)
        handler.fails = dict.fromkeys((9, 17), raises)
        stall.put(*range(20))
        for _ in range(3):
            with sharing(stall, handler, handler.clock, max_deliveries=1) as consumer:
                until(partial(has_ended, consumer))
            broker.stop()
            broker.start()
        with sharing(stall, handler, handler.clock, max_deliveries=1):
            until(lambda: not broker.inside(lambda inside: inside.container.resource.queues["orders"].depth))

        assert sorted(stall.look(stall.out)) == [number for number in range(20) if number not in {9, 17}]
        assert sorted(stall.look("orders.dead")) == [9, 17]
        assert max(map(len, handler.shares)) > 1
    broker.stop()


def has_ended(consumer: Consumer) -> bool:
    """Whether it has had a failure, or five messages came to their ends."""
    counts = consumer.counts
    return counts.failed > 0 or counts.handled + counts.dead_lettered >= 5


# --- with a database ----------------------------------------------------------------------------------------------
class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "rows"
    number: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    name: Mapped[str] = mapped_column(Text)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ResourceConfig]:
    """A database with the table, as a resource."""
    if request.param == "sqlite":
        config = ResourceConfig(f"sqlite:///{tmp_path / 'shop.db'}", "decider")
    else:
        server: Postgres = request.getfixturevalue("postgres")
        config = ResourceConfig(server.create_database())
    engine = create_engine(config.url.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    yield config
    engine.dispose()


class Counter:
    """A consumer over a database, and what its handler was called with."""

    def __init__(self, broker: EmbeddedBroker, database: ResourceConfig, folder: Path) -> None:
        log = None if database.mode == "decider" else f"file://{folder / 'log'}"
        self.manager = TransactionManager("rows", log, {"broker": f"amqp://{broker.address}", "shop": database})
        self.queue = f"rows-{folder.name}"

    def consume(
        self, handler: Any, count: int, batch: int = 50, max_deliveries: int = 1, *, with_ids: bool = False
    ) -> MessageCounts:
        """The counts when so many messages, numbers, have come to their ends."""
        consumer = Consumer(
            self.manager,
            self.queue,
            handler,
            batch=batch,
            max_deliveries=max_deliveries,
            idle_s=0.05,
            retry_first_s=0.01,
            share_s=5.0,
        )

        messages = [Message(number, id=f"m-{number}" if with_ids else None) for number in range(count)]
        with self.manager.begin() as tx:
            tx["broker"].send_batch(self.queue, messages)
        with consumer:
            until(lambda: consumer.counts.handled + consumer.counts.dead_lettered >= count)
        return consumer.counts

    def found(self) -> tuple[list[int], dict[Any, str]]:
        """The rows, and the reasons of the dead letters."""
        with self.manager.begin() as tx:
            rows = list(tx["shop"].execute(select(Row.number).order_by(Row.number)).scalars())
            letters = list(tx["broker"].browse(f"{self.queue}.dead"))
        return rows, {letter.body: (letter.annotations or {})["x-opt-dead-reason"] for letter in letters}


@pytest.mark.parametrize(
    ("database", "asynchronous"),
    [("postgresql", False), ("postgresql", True), ("sqlite", False)],
    indirect=["database"],
)
def test_a_handler_finds_nothing_of_the_one_before_in_its_session(
    broker: EmbeddedBroker, database: ResourceConfig, tmp_path: Path, *, asynchronous: bool
) -> None:
    """And what it has not written is written before the next one begins, so that its failure is its own."""
    counter = Counter(broker, database, tmp_path)
    begun: list[tuple[str, Any]] = []

    def work(orm: Any, message: Message, tx: Transaction) -> None:
        begun.append((str(tx), message.body))
        assert list(orm) == list(orm.new) == []
        orm.add(Row(number=message.body if message.body != 12 else 3, name="a"))

    async def awork(message: Message, tx: Transaction) -> None:
        orm = (await tx.aenlist("shop")).asyncio.orm
        work(orm.sync_session, message, tx)
        assert await orm.get(Row, -1) is None

    with counter.manager:
        counts = counter.consume(awork if asynchronous else lambda m, tx: work(tx["shop"].orm, m, tx), 20)
        rows, reasons = counter.found()
    shares = [[body for _, body in share] for _, share in itertools.groupby(begun, lambda one: one[0])]
    assert shares[:4] == [[0], [1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]
    assert rows == [number for number in range(20) if number != 12]
    assert list(reasons) == [12]
    assert "unique constraint" in reasons[12].lower(), "as the commit says it"
    assert counts.dead_lettered == 1


NO_TABLE, TWICE = "SELECT 1 FROM nowhere", "INSERT INTO rows VALUES (3, 'twice')"


@pytest.mark.parametrize(
    ("hidden", "with_ids", "calls"),
    [(TWICE, True, 2), (TWICE, False, UNTOLD + 1), (NO_TABLE, True, UNTOLD + 1), (NO_TABLE, False, UNTOLD + 1)],
)
def test_an_error_that_is_hidden_alone_counts_where_the_database_says_that_it_is_the_messages(
    broker: EmbeddedBroker, postgres: Postgres, tmp_path: Path, hidden: str, calls: int, *, with_ids: bool
) -> None:
    """A constraint is as good as an exception. What may be anybody's fault, or another message's without an id, has the
    limit of nine; the first time counts nowhere."""
    database = ResourceConfig(postgres.create_database())
    engine = create_engine(database.url.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    engine.dispose()
    counter = Counter(broker, database, tmp_path)
    begun: list[int] = []

    def handle(message: Message, tx: Transaction) -> None:
        begun.append(message.body)
        tx["shop"].execute(text("INSERT INTO rows VALUES (:number, 'a')"), {"number": message.body})
        if message.body == 4:
            with suppress(DBAPIError):
                tx["shop"].execute(text(hidden))

    with counter.manager:
        counter.consume(handle, 5, batch=1, max_deliveries=2, with_ids=with_ids)
        rows, reasons = counter.found()
    assert begun.count(4) == calls
    assert rows == [0, 1, 2, 3]
    assert list(reasons) == [4]


@pytest.mark.parametrize("hidden", [NO_TABLE, TWICE])
def test_an_error_that_is_hidden_is_the_failure_of_the_handler_that_has_hidden_it(
    broker: EmbeddedBroker, postgres: Postgres, tmp_path: Path, hidden: str
) -> None:
    """Its next statement would fail, in whatever handler it is."""
    database = ResourceConfig(postgres.create_database())
    engine = create_engine(database.url.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    engine.dispose()
    counter = Counter(broker, database, tmp_path)
    begun: list[tuple[str, Any]] = []

    def handle(message: Message, tx: Transaction) -> None:
        begun.append((str(tx), message.body))
        tx["shop"].execute(text("INSERT INTO rows VALUES (:number, 'a')"), {"number": message.body})
        if message.body == 9:
            with suppress(DBAPIError):
                tx["shop"].execute(text(hidden))

    with counter.manager:
        counter.consume(handle, 20)
        rows, reasons = counter.found()
    shares = [[body for _, body in share] for _, share in itertools.groupby(begun, lambda one: one[0])]
    assert shares[3:6] == [[7, 8, 9], [7], [8]]
    assert rows == [number for number in range(20) if number != 9]
    assert list(reasons) == [9]


def test_a_lost_connection_that_is_hidden_ends_the_share(
    broker: EmbeddedBroker, postgres: Postgres, tmp_path: Path
) -> None:
    """It is known from the statement, without a look at the connection between two messages. It counts for none."""
    database = ResourceConfig(postgres.create_database())
    engine = create_engine(database.url.replace("postgresql://", "postgresql+psycopg://"))
    Base.metadata.create_all(engine)
    engine.dispose()
    counter = Counter(broker, database, tmp_path)
    begun: list[tuple[str, Any]] = []

    def handle(message: Message, tx: Transaction) -> None:
        begun.append((str(tx), message.body))
        tx["shop"].execute(text("INSERT INTO rows VALUES (:number, 'a')"), {"number": message.body})
        if message.body == 9 and [body for _, body in begun].count(9) == 1:
            with suppress(DBAPIError):
                tx["shop"].execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    with counter.manager:
        counter.consume(handle, 20)
        rows, reasons = counter.found()
    shares = [[body for _, body in share] for _, share in itertools.groupby(begun, lambda one: one[0])]
    assert shares[3:7] == [[7, 8, 9], [7], [8], [9]]
    assert rows == list(range(20))
    assert reasons == {}
