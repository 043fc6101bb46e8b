"""These tests run consumers over the embedded broker, and check what becomes of messages, handlers and workers."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from proton import symbol
from proton.utils import BlockingConnection

from rm_amqp import Message
from rm_amqp.driver import PendingOutcome
from rm_amqp.management import ManagementClient
from rm_amqp.session import Session
from tests.rm_amqp.embedded import EmbeddedBroker
from tests.tm.consumer.stall import KINDS, PATIENCE_S, Stall
from tests.tm.telemetry.asking import said
from tests.tm.telemetry.test_telemetry import Exported, attributes
from tests.waiting import until
from tm import ConsumerState, HealthServer, MessageCounts, ProtocolMisuse, Transaction
from tm.consumer.failures import name_of, place_of
from tm.consumer.history import BREAKS
from tm.two_phase.states import GlobalState
from xa import Code, xa_error
from xa.telemetry.log_lines import fields_of, lines
from xabridge.testing.reference import NetworkFault


class Work:
    """A handler: consumes, writes, produces. `fails` says which bodies it refuses."""

    def __init__(self, stall: Stall, *fails: Any) -> None:
        self.stall = stall
        self.fails = set(fails)

    def __call__(self, message: Message, tx: Transaction) -> None:
        self.stall.until.tell(message.body)
        tx["shop"].write(str(message.body), message.delivery_count)
        tx["broker"].send(self.stall.out, Message(message.body))
        if message.body in self.fails:
            raise LookupError(message.body)

    async def in_task(self, message: Message, tx: Transaction) -> None:
        """The same as a coroutine function."""
        self.stall.until.tell(message.body)
        (await tx.aenlist("shop")).write(str(message.body), message.delivery_count)
        await (await tx.aenlist("broker")).aio.send(self.stall.out, Message(message.body))
        if message.body in self.fails:
            raise LookupError(message.body)


@KINDS
def test_an_empty_poll_is_no_transaction(
    broker: EmbeddedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: Any
) -> None:
    exported = Exported()
    stall = Stall(broker, f"silent-{id(tmp_path)}", tmp_path, exported.telemetry)
    caplog.set_level(logging.INFO)
    with stall.manager, stall.consumer(kind(Work(stall)), workers=2):
        caplog.clear()
        until(lambda: exported.value("resource.verb.duration", verb="rollback") >= 6)
        assert caplog.messages == []
        assert exported.exporter.get_finished_spans() == ()
        assert "xabridge.transactions.begun" not in exported.points()
        assert exported.value("transactions.completed") == 0
        stall.put("a")
        stall.until.count(1)

    for name in ("begun", "completed"):
        assert exported.value(f"transactions.{name}") == 2, name
    assert [attributes(span)["xabridge.outcome"] for span in exported.spans("transaction")] == ["committed"] * 2
    exported.close()


@pytest.mark.parametrize("settings", [{}, {"workers": 3, "batch": 7}])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_every_message_is_consumed_written_and_produced(
    stall: Stall, settings: dict[str, Any], *, asynchronous: bool
) -> None:
    stall.put(*range(40))
    work = Work(stall)
    with stall.consumer(work.in_task if asynchronous else work, **settings) as consumer:
        stall.until.count(40)
    assert consumer.state is ConsumerState.STOPPED
    assert consumer.counts == MessageCounts(handled=40)
    assert sorted(stall.look(stall.out)) == list(range(40))
    assert stall.store.data == {str(number): 0 for number in range(40)}
    assert stall.look(stall.queue) == []


def test_the_next_message_is_handled_before_the_broker_has_answered_the_last_commit(stall: Stall) -> None:
    """The resources of the handler have answered by then, so that it sees what it wrote for the message before."""
    stall.put(*range(5))
    seen: list[tuple[int, int, bool]] = []

    def handle(message: Message, tx: Transaction) -> None:
        number = message.body
        seen.append((number, consumer.counts.handled, not number or str(number - 1) in stall.store.data))
        Work(stall)(message, tx)

    consumer = stall.consumer(handle)
    with consumer:
        stall.until.count(5)
    assert seen == [(number, max(number - 1, 0), True) for number in range(5)]
    assert consumer.counts == MessageCounts(handled=5), (
        "that of the last message is known when the consumer has stopped"
    )
    assert stall.manager.log is not None
    assert stall.manager.log.decisions() == []
    assert stall.look(stall.out) == list(range(5)), "in the order of the messages"


@pytest.mark.parametrize("workers", [1, 4])
def test_what_is_called_after_a_transaction_is_in_none(stall: Stall, workers: int) -> None:
    """What the application does there is neither refused, nor part of the next message's transaction."""
    stall.put(*range(5))
    current: list[Transaction | None] = []

    def handle(message: Message, tx: Transaction) -> None:
        def after(_: object) -> None:
            current.append(stall.manager.current_or_none())
            with stall.manager.begin() as own:
                own["broker"].send(stall.out, Message(message.body))
            stall.until.tell(message.body)

        tx["shop"].write(str(message.body), 1)
        tx.register_synchronization(after=after)

    with stall.consumer(handle, workers=workers) as consumer:
        stall.until.count(5)
    assert consumer.counts == MessageCounts(handled=5)
    assert current == [None] * 5
    assert sorted(stall.look(stall.out)) == list(range(5))


@pytest.mark.parametrize("known", [True, False])
def test_an_answer_that_comes_late_is_counted_as_it_is(
    stall: Stall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, known: bool
) -> None:
    """A commit whose answer is a hazard, or is lost, while the next messages are handled."""
    wrong: list[Any] = []
    result = PendingOutcome.result

    def bent(self: PendingOutcome) -> Code:
        code = result(self)
        if wrong or self.verb != "commit":
            return code
        wrong.append(self.xid)
        raise xa_error(Code.XA_HEURHAZ if known else Code.XAER_RMFAIL, "bent", self.xid)

    stall.put(*range(5))
    monkeypatch.setattr(PendingOutcome, "result", bent)
    with stall.consumer(Work(stall)) as consumer:
        stall.until.count(5)
    # what was lost was done: the second try is told that the branch is not known any more
    assert consumer.counts == (MessageCounts(handled=4, heuristic=1) if known else MessageCounts(handled=5))
    assert sorted(stall.look(stall.out)) == list(range(5))
    assert len(wrong) == 1
    assert any("heuristic" in line for line in caplog.messages) == known
    if known:
        assert stall.manager.log is not None
        (heuristic,) = stall.manager.log.heuristics()
        stall.manager.forget("broker", heuristic.branch.xid)


def test_the_decorator_makes_a_consumer_that_can_be_called_as_before(stall: Stall) -> None:
    @stall.manager.consumer(stall.queue, idle_s=0.05)
    def handle(message: Message, tx: Transaction) -> str:
        stall.until.tell(message.body)
        return f"{message.body!s} in {tx}"

    assert handle(Message("a"), "no transaction") == "a in no transaction"
    stall.put("b")
    with handle:
        stall.until.count(2)
    assert stall.until.told == ["a", "b"]


def test_a_handler_can_take_the_batch(stall: Stall) -> None:
    stall.put(*range(20))

    def handle(messages: list[Message], tx: Transaction) -> None:
        for message in messages:
            tx["shop"].write(str(message.body), len(messages))
        for message in messages:
            stall.until.tell(message.body)

    with stall.consumer(handle, batch=20, takes="batch"):
        stall.until.count(20)
    assert len(stall.store.data) == 20
    assert max(stall.store.data.values()) > 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_poison_is_dead_lettered_and_what_was_received_with_it_is_handled(stall: Stall, *, asynchronous: bool) -> None:
    stall.put(*range(30))
    work = Work(stall, 7, 21)
    handler = work.in_task if asynchronous else work
    consumer = stall.consume(handler, 30, batch=10, workers=2, max_deliveries=3)
    assert consumer.counts.handled == 28
    assert consumer.counts.dead_lettered == 2
    for number in (7, 21):  # three attempts of its own, and in a batch at most one
        assert 3 <= stall.until.told.count(number) <= 4
    assert sorted(stall.look(stall.out)) == [number for number in range(30) if number not in {7, 21}]
    assert sorted(stall.look(f"{stall.queue}.dead")) == [7, 21]
    assert not {"7", "21"} & stall.store.data.keys()


def test_a_handler_that_recovers_is_tried_again(stall: Stall) -> None:
    work = Work(stall, "a")

    def handle(message: Message, tx: Transaction) -> None:
        if message.delivery_count == 2:
            work.fails.clear()
        work(message, tx)

    stall.put("a")
    with stall.consumer(handle) as consumer:
        stall.until.count(3)
    assert consumer.counts == MessageCounts(handled=1, failed=2)
    assert stall.look(stall.out) == ["a"]


def test_a_resource_that_is_down_costs_a_message_no_delivery(stall: Stall) -> None:
    stall.put("a")
    stall.store.script.plan("start", fate=NetworkFault.REQUEST_LOST, times=8)
    consumer = stall.consume(Work(stall), max_deliveries=1, workers=4)
    assert consumer.counts.dead_lettered == 0
    assert stall.store.data == {"a": 0}
    assert stall.store.script.pending() == []


@pytest.mark.parametrize("batch", [1, 10])
def test_what_cannot_be_read_is_dead_lettered(stall: Stall, broker: EmbeddedBroker, batch: int) -> None:
    connection = BlockingConnection(broker.address)
    sender = connection.create_sender(stall.queue)
    stall.put("a")
    delivery = sender.link.delivery("1")
    sender.link.stream(b"\x00\x53\x77\x73\x6b\x81\xac\x27")  # a char that is none
    sender.link.advance()
    connection.wait(lambda: delivery.remote_state != 0)
    connection.close()
    stall.put("b")

    def depth(queue: str) -> int:
        return broker.inside(lambda broker: broker.container.resource.queues[queue].depth)

    with stall.consumer(Work(stall), batch=batch):
        until(lambda: not depth(stall.queue))
    assert sorted(stall.until.told) == ["a", "b"]
    assert depth(f"{stall.queue}.dead") == 1


# --- shutdown -------------------------------------------------------------------------------------------------
def test_what_runs_is_finished_and_nothing_is_begun(stall: Stall) -> None:
    gate = threading.Event()

    def handle(message: Message, tx: Transaction) -> None:
        stall.until.tell(message.body)
        assert gate.wait(PATIENCE_S)
        tx["broker"].send(stall.out, Message(message.body))

    stall.put(*range(10))
    consumer = stall.consumer(handle, workers=2)
    consumer.start()
    stall.until.count(2)
    with ThreadPoolExecutor(1) as executor:
        stopped = executor.submit(consumer.stop)
        until(lambda: consumer.state is not ConsumerState.RUNNING)
        gate.set()
        assert stopped.result()
    assert consumer.counts.handled == 2
    assert sorted(stall.look(stall.out) + stall.look(stall.queue)) == list(range(10))
    assert len(stall.look(stall.out)) == 2


def test_shutdown_is_bounded_and_what_hangs_is_never_committed(stall: Stall) -> None:
    gate = threading.Event()

    def handle(message: Message, _: Transaction) -> None:
        stall.until.tell(message.body)
        assert gate.wait(PATIENCE_S)

    stall.put("a")
    consumer = stall.consumer(handle)
    consumer.start()
    stall.until.count(1)
    assert not consumer.stop(0.05)
    gate.set()
    until(lambda: not consumer.health().workers)
    assert consumer.counts == MessageCounts(failed=1)
    assert stall.look(stall.queue) == ["a"]


def test_a_closed_manager_stops_its_consumers_for_good(stall: Stall) -> None:
    consumer = stall.consumer(Work(stall))
    consumer.start()
    stall.put("a")
    stall.until.count(1)
    stall.manager.close()
    assert consumer.state is ConsumerState.STOPPED
    assert consumer.health().workers == 0
    with pytest.raises(ProtocolMisuse, match="is stopped"):
        consumer.start()


# --- asyncio ---------------------------------------------------------------------------------------------------
def test_in_the_event_loop_of_a_service(stall: Stall) -> None:
    async def service() -> MessageCounts:
        async with stall.consumer(Work(stall).in_task, workers=3) as consumer:
            await asyncio.to_thread(stall.put, *range(10))
            await asyncio.to_thread(stall.until.count, 10)
        return consumer.counts

    assert asyncio.run(service()) == MessageCounts(handled=10)
    assert sorted(stall.look(stall.out)) == list(range(10))


def test_a_task_that_does_not_finish_is_cancelled_and_rolled_back(stall: Stall) -> None:
    cancelled: list[bool] = []

    async def handle(message: Message, tx: Transaction) -> None:
        (await tx.aenlist("shop")).write("never", 1)
        stall.until.tell(message.body)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    stall.put("a")
    consumer = stall.consumer(handle)
    consumer.start()
    stall.until.count(1)
    assert not consumer.stop(0.05)
    assert cancelled == [True]
    assert stall.look(stall.queue) == ["a"]
    assert stall.store.data == {}


# --- health, metrics, lines ------------------------------------------------------------------------------------
def test_health_is_told_over_http_and_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    broker = EmbeddedBroker(tmp_path / "other")
    other = Stall(broker, "orders", tmp_path / "other")
    consumer = other.consumer(Work(other), workers=2)

    with other.manager, HealthServer(consumer, port=0) as server:
        assert said(server.port)[0] == 503  # not started
        with consumer:
            other.put("a")
            until(lambda: consumer.counts.handled)
            assert said(server.port)[0] == 200
            broker.stop()
            until(lambda: not consumer.health().ok)
            status, told = said(server.port)
            assert (status, told["state"], told["workers"]) == (503, "running", 2)
            assert told["trouble"]
            broker.start()
            until(lambda: consumer.health().ok)
            other.put("b")
            until(lambda: consumer.counts.handled >= 2)
        assert said(server.port)[1]["counts"]["handled"] == 2
    broker.stop()


def test_metrics(stall: Stall, broker: EmbeddedBroker, tmp_path: Path) -> None:
    exported = Exported()
    (tmp_path / "metered").mkdir()
    metered = Stall(broker, stall.queue, tmp_path / "metered", exported.telemetry)
    with metered.manager:
        metered.put("a", "b")
        with metered.consumer(Work(metered, "b"), max_deliveries=2) as consumer:
            until(lambda: consumer.counts.dead_lettered)
        found = exported.points()

    exported.close()
    counts = {}
    for has, value in found["messaging.client.consumed.messages"]:
        assert has["xabridge.node"] == "stall-1"
        assert has["messaging.destination.name"] == stall.queue
        counts[has["xabridge.outcome"]] = value
    never = dict.fromkeys(("unknown", "heuristic", "returned"), 0)
    assert counts == {"handled": 1, "failed": 2, "dead_lettered": 1, **never}, "each is there before its first event"
    assert sum(count for _, count in found["messaging.process.duration"]) == 4


def test_lines_have_the_transaction_the_message_and_the_queue_in_text_and_as_fields(
    stall: Stall, caplog: pytest.LogCaptureFixture
) -> None:
    stall.put("a")
    with caplog.at_level(logging.INFO, "xabridge.tm.consumer"):
        stall.consume(Work(stall, "a"), max_deliveries=2)
    records = [record for record in caplog.records if record.name == "xabridge.tm.consumer"]
    told = [record.getMessage() for record in records]
    assert all(line.startswith("stall-1·") for line in told)
    message = name_of(Message("a"))
    failed, again, dead = told
    for line in (failed, again):
        assert f"message {message} of {stall.queue}: failed: LookupError: a ({__file__}:" in line
    assert f"message {message} of {stall.queue} was dead-lettered to {stall.queue}.dead after 2 deliveries" in dead
    assert "LookupError: a" in dead

    for record in records:
        fields = fields_of(record)
        assert fields["queue"] == stall.queue
        assert fields["transaction"].startswith("stall-1")
        assert all(json.loads(lines("json").format(record))[name] for name in ("transaction", "message", "queue"))


@KINDS
def test_the_reason_of_a_rollback_is_no_advice_for_a_caller(stall: Stall, kind: Any) -> None:
    """Of a transaction that the handler has marked it is the handler's own; of one that took too long, the time."""

    def handle(message: Message, tx: Transaction) -> None:
        if message.body == "late":
            until(lambda: tx.status is not GlobalState.ACTIVE)
        else:
            tx.set_rollback_only("the till is shut")

    began = time.time() * 1000
    stall.put("marked", "late")
    stall.consume(kind(handle), 2, max_deliveries=1, timeout_s=0.1)
    whys = dict(stall.letters())
    assert whys["marked"]["reason"] == "the till is shut"
    assert whys["late"]["reason"] == "RolledBack: it took longer than its 0.1 s"
    assert began - 1 <= whys["late"]["first"] < whys["late"]["last"]


def test_the_line_of_a_share_that_failed_names_the_message_whose_handler_has_raised(
    stall: Stall, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(message: Message, _: Transaction) -> None:
        if message.body == 5:
            raise ValueError("no")

    stall.put(*range(7))
    with caplog.at_level(logging.WARNING, "xabridge.tm.consumer"):
        stall.consume(handle, 7, max_deliveries=2, batch=50, share_s=5.0)
    first = next(record for record in caplog.records if "failed" in record.getMessage())
    guilty = name_of(Message(5))
    assert f"message {guilty} of {stall.queue}: failed: ValueError: no (" in first.getMessage()
    assert first.getMessage().endswith("; 2 before it in its transaction are tried again")
    assert fields_of(first)["message"] == guilty


@KINDS
def test_a_dead_letter_says_why_where_when_and_how_often(stall: Stall, kind: Any) -> None:
    def handle(message: Message, tx: Transaction) -> None:
        tx["shop"].write("never", 1)
        raise ValueError(f"no such customer: {message.body!s}")

    began = time.time() * 1000
    told = {"x-opt-mine": "kept", "x-opt-dead-reason": "of another time"}
    message = Message(
        "a", id="order 1", properties={"tenant": 7}, annotations={symbol(k): v for k, v in told.items()}, ttl=60.0
    )
    message.durable = True
    with stall.manager.begin() as tx:
        tx["broker"].send(stall.queue, message)
    consumer = stall.consume(kind(handle), max_deliveries=3)
    assert consumer.counts == MessageCounts(failed=3, dead_lettered=1)
    ((body, why),) = stall.letters()
    assert body == "a"
    assert why.pop("x-opt-mine") == "kept"
    first, last = why.pop("first"), why.pop("last")
    assert began - 1 <= first < last <= time.time() * 1000 + 1
    place = why.pop("place")
    line = handle.__code__.co_firstlineno + 2
    assert place == f"{__file__}:{line} in handle"
    assert why == {"reason": "ValueError: no such customer: a", "queue": stall.queue, "deliveries": 3}
    with stall.manager.begin() as tx:
        letter = tx["broker"].receive(f"{stall.queue}.dead", 5)
        assert (letter.id, letter.properties, letter.ttl, letter.durable) == ("order 1", {"tenant": 7}, 0, True)
        assert letter.delivery_count == 0
    assert stall.look(stall.queue) == []
    assert stall.store.data == {}


@pytest.mark.parametrize("waits", ["worker", "broker"])
def test_a_dead_letter_says_where_it_failed_in_another_process(stall: Stall, waits: str) -> None:
    """The place travels with the message, as the reason does; and the letter that the broker makes says it, too."""

    def handle(message: Message, _: Transaction) -> None:
        raise ValueError(f"no such customer: {message.body!s}")

    place = f"{__file__}:{handle.__code__.co_firstlineno + 1} in handle"
    with stall.manager.begin() as tx:
        tx["broker"].send(stall.queue, Message("a", id="order 1"))
    with stall.consumer(handle, max_deliveries=9, retry_first_s=0.5, retry_waits=waits) as first:
        until(lambda: first.counts.failed >= 1)
    stall.consume(handle, max_deliveries=1)  # it has not seen the message fail
    ((_, why),) = stall.letters()
    assert (why["reason"], why["place"]) == ("ValueError: no such customer: a", place)
    with ManagementClient(f"amqp://{stall.broker.address}") as management:
        (group,) = management.ask("dead-letters", queue=f"{stall.queue}.dead")
    assert (group["error"], group["place"], group["from"]) == (why["reason"], place, stall.queue)


@pytest.mark.parametrize("identity", ["an id", None])
def test_what_breaks_its_connection_each_time_is_a_dead_letter(
    stall: Stall, monkeypatch: pytest.MonkeyPatch, identity: str | None
) -> None:
    """Every resource can be reached in between: it is no outage, and must not hold up the others for ever."""
    monkeypatch.setattr("tm.consumer.job.BREAKS", 3)

    def handle(message: Message, tx: Transaction) -> None:
        tx["shop"].write(str(message.body), 1)
        if message.body == "a":
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    with stall.manager.begin() as tx:
        tx["broker"].send(stall.queue, Message("a", id=identity))
    stall.put("b")
    consumer = stall.consume(handle, 2, max_deliveries=1)
    assert consumer.counts == MessageCounts(handled=1, failed=3, dead_lettered=1)
    ((body, why),) = stall.letters()
    assert (body, why["reason"]) == ("a", "OperationalError: server closed the connection unexpectedly")
    assert stall.store.data == {"b": 1}


def test_an_outage_that_was_seen_between_breaks_begins_the_count_anew(stall: Stall) -> None:
    consumer = stall.consumer(Work(stall), max_deliveries=1)
    message = Message("a", id="a")
    message.delivery_count = 1
    broken = psycopg.OperationalError("server closed the connection unexpectedly")
    with stall.manager.begin() as tx:
        for _ in range(3):
            for _ in range(BREAKS - 1):
                consumer.job.done("handled", [message], [], tx, broken, 0.0)
            assert not consumer.job.history(message).is_dead
            consumer.job.failed_to_receive(0, broken)
        for _ in range(BREAKS):
            consumer.job.done("handled", [message], [], tx, broken, 0.0)
    assert consumer.job.history(message).is_dead


@pytest.mark.parametrize(
    ("raised", "deliveries", "reason"),
    [
        (LookupError("a"), 10, "LookupError: a"),  # a limit as high as the broker's
        (ValueError("half a surrogate: \ud800"), 1, "ValueError: half a surrogate: \\ud800"),  # in no message
        (SystemExit(3), 1, "SystemExit: 3"),  # which ends the consumer first
        (None, 3, "RolledBack: "),  # no handler has raised, and it can never be committed
        ("elsewhere", 3, "not known: it failed in another process, or its process ended"),
    ],
    ids=repr,
)
def test_a_dead_letter_has_the_reason_also_where_it_is_hard_to_tell(
    stall: Stall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, raised: Any, deliveries: int,
    reason: str,
) -> None:  # fmt: skip
    """Where nobody knows whose fault it was, deliveries have a limit of their own."""
    caplog.set_level(logging.CRITICAL + 1, logger="xabridge")  # pytest-xdist can't send half a surrogate to its master
    told = isinstance(raised, BaseException)
    if not told:
        monkeypatch.setattr("tm.consumer.job.UNTOLD", deliveries)

    def handle(_message: Message, tx: Transaction) -> None:
        if told:
            raise raised
        stall.store.script.plan("prepare", Code.XA_RBOTHER)
        tx["shop"].write("never", 1)
        tx["broker"].send(stall.out, Message("b"))

    stall.put("a")
    if raised == "elsewhere":
        for _ in range(deliveries):
            tx = stall.manager.begin()
            tx["broker"].receive(stall.queue, 5)
            tx.rollback()
    if isinstance(raised, SystemExit):
        with pytest.raises(SystemExit):
            stall.consumer(handle, max_deliveries=1).run()
    consumer = stall.consume(handle, max_deliveries=deliveries if told else 2)
    assert consumer.counts.dead_lettered == 1
    ((body, why),) = stall.letters()
    assert why["reason"].startswith(reason) if raised is None else why["reason"] == reason
    assert (body, why["queue"], why["deliveries"]) == ("a", stall.queue, deliveries)
    if raised == "elsewhere":
        assert why["place"] == ""
        assert "first" not in why


@pytest.mark.parametrize(("dead_letter", "failed"), [("", 1), ("$nowhere", 2)])
def test_where_nobody_may_send_it_the_broker_puts_it_away(
    stall: Stall, dead_letter: str, failed: int, caplog: pytest.LogCaptureFixture
) -> None:
    stall.put("a")
    consumer = stall.consume(Work(stall, "a"), max_deliveries=1, dead_letter=dead_letter)
    assert consumer.counts == MessageCounts(failed=failed, dead_lettered=1)
    assert stall.look(stall.queue) == []
    assert stall.look(f"{stall.queue}.dead") == ["a"], "the broker's own rule"
    last = [record.getMessage() for record in caplog.records if record.name == "xabridge.tm.consumer"][-1]
    assert "was dead-lettered to where the broker puts it" in last
    assert "LookupError: a" in last


def test_a_traceback_is_logged_once_for_each_place(stall: Stall, caplog: pytest.LogCaptureFixture) -> None:
    stall.put(*range(6))

    def handle(message: Message, _tx: Transaction) -> None:
        number: Any = message.body
        if number % 2:
            raise ValueError(number)
        raise LookupError(number)

    stall.consume(handle, 6, workers=2, max_deliveries=2)
    failed = [record for record in caplog.records if ": failed: " in record.getMessage()]
    assert len(failed) == 12
    traced = [record.exc_info[1] for record in failed if record.exc_info]
    assert sorted(type(error).__name__ for error in traced) == ["LookupError", "ValueError"]


@KINDS
def test_a_handler_that_hangs_is_not_healthy(stall: Stall, kind: Any) -> None:
    stall.put("a")
    released = threading.Event()

    def handle(message: Message, _tx: Transaction) -> None:
        stall.until.tell(message.body)
        if len(stall.until.told) == 1:
            released.wait(PATIENCE_S)

    with stall.consumer(kind(handle), timeout_s=0.1) as consumer:
        until(lambda: not consumer.health().ok)
        (trouble,) = consumer.health().trouble
        assert "a handler is at work for " in trouble
        assert "longer than the 0.1 s of its transaction stall-1·" in trouble
        released.set()
        until(lambda: consumer.health().ok)


def test_the_place_of_a_failure_is_never_in_compiled_code_of_a_library() -> None:
    """Frames of extension modules have a relative file name; their module says where it is."""
    library = {"__file__": f"{sysconfig.get_path('platlib')}/theirs.cpython-311.so"}
    exec(compile("def fail():\n    raise LookupError\n", "lib/theirs.py", "exec"), library)  # noqa: S102
    fail: Any = library["fail"]
    with pytest.raises(LookupError) as raised:
        fail()
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    here = "test_the_place_of_a_failure_is_never_in_compiled_code_of_a_library"
    assert place_of(raised.value) == f"{__file__}:{line} in {here}"


@KINDS
@pytest.mark.parametrize("operation", ["excuse", "explain"])
def test_the_log_says_which_operation_of_a_session_can_not_be_called(
    stall: Stall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, operation: str, kind: Any
) -> None:
    """What a session does not do is not known to other processes. Its worker goes on."""
    monkeypatch.setattr(Session, operation, lambda _session: None)

    def handle(message: Message, _tx: Transaction) -> None:
        if message.body == "bad":
            raise ValueError("no")

    stall.put("bad", "good")
    stall.consume(kind(handle), 2, max_deliveries=3)
    assert [f"{operation} of Session can't be called" in message for message in caplog.messages].count(True) == 1
    assert [body for body, _ in stall.letters()] == ["bad"]


@pytest.mark.parametrize("error", [TypeError("unhashable"), ValueError("lost")])
def test_a_session_that_fails_itself_can_be_called(
    stall: Stall, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(*_arguments: Any) -> None:
        raise error

    def handle(_message: Message, _tx: Transaction) -> None:
        raise ValueError("no")

    monkeypatch.setattr(Session, "explain", fail)
    stall.put("bad")
    stall.consume(handle, max_deliveries=2)
    assert not [message for message in caplog.messages if "can't be called" in message]
    assert [body for body, _ in stall.letters()] == ["bad"]
