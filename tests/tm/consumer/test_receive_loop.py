"""These tests check without I/O what a worker does next: which messages are handled together, which wait and which
become dead letters, and whose fault a failure is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_type_hints

import pymysql
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from rm_amqp import Message
from tests.cases import each
from tm import (
    ConfigurationError,
    ConsumerSettings,
    HeuristicHazard,
    ManagerUnusable,
    OutcomeUnknown,
    ProtocolMisuse,
    RolledBack,
)
from tm.consumer.failures import Failures
from tm.consumer.history import History, is_final
from tm.consumer.receive_loop import receive_loop
from tm.consumer.settings import ConsumerOptions
from tm.faults import Fault, fault_of, is_broken
from tm.outcome import Outcome, Reason, Verdict
from xa import Code, xa_error
from xa.coroutines import suspension

DOWN, CONFLICT = xa_error(Code.XAER_RMFAIL, "down"), xa_error(Code.XA_RBDEADLOCK, "no")


@dataclass(eq=False)
class Told:
    """A message."""

    number: int
    delivery_count: int = 0


class Played:
    """Ports that have these answers, in this order; `asked` has a line for each that was asked."""

    def __init__(self, answers: list[Any], known: Mapping[int, History] | None = None) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.known = dict(known or {})

    async def _answer(self, asked: str, messages: Sequence[Any] = ()) -> Any:
        self.asked.append(" ".join([asked, *(str(message.number) for message in messages)]))
        if not self.answers:
            await suspension()
        return self.answers.pop(0)

    async def receive(self, count: int, *, check: bool) -> Any:
        return await self._answer(f"{'check and ' if check else ''}receive {count}")

    def history(self, message: Any) -> History:
        count = message.delivery_count
        return self.known.get(message.number, History(count, is_apart=count > 0, waits=count > 0))

    async def put_off(self, messages: Sequence[Any], wait_s: float) -> Any:
        return await self._answer(f"put off for {wait_s} s:", messages)

    async def handle(self, messages: Sequence[Any]) -> Any:
        return await self._answer("handle", messages)

    async def refuse(self, messages: Sequence[Any]) -> Any:
        return await self._answer("refuse", messages)

    async def give_back(self, messages: Sequence[Any]) -> Any:
        return await self._answer("give back", messages)

    async def pause(self, seconds: float) -> None:
        await self._answer(f"pause {seconds} s")


def played(
    settings: ConsumerSettings,
    *answers: Any,
    stops_after: int = 100,
    known: Mapping[int, History] | None = None,
    dice: float = 0.5,
) -> list[str]:
    """What is asked when these are the answers."""
    asked = 0

    def stopping() -> bool:
        nonlocal asked
        asked += 1
        return asked > stops_after

    ports = Played(list(answers), known)
    steps = receive_loop(ports, settings, 60.0, stopping, lambda: dice)
    with suppress(StopIteration):
        steps.send(None)  # it stops where the answers end
    steps.close()
    return ports.asked


@each(
    ("settings", "answers", "asked"),
    [
        (  # with one that failed before, a batch is given back: otherwise its failure would count for the others
            {"batch": 10},
            [[Told(1), Told(2, 1)], None, [Told(1)], None],
            ["receive 10", "give back 1 2", "receive 1", "handle 1", "receive 10"],
        ),
        (  # a batch that fails is tried one by one without a wait
            {"batch": 10},
            [[Told(1), Told(2)], LookupError("no"), [Told(1)], None],
            ["receive 10", "handle 1 2", "check and receive 1", "handle 1", "receive 10"],
        ),
        (  # after an outage what was used is tried first, and the pause grows
            {"batch": 10, "retry_first_s": 1.0},
            [[Told(1)], DOWN, None, DOWN, None, DOWN, None, [Told(1)], None],
            ["receive 10", "handle 1", "pause 1.0 s", "check and receive 1", "pause 2.0 s", "check and receive 1",
             "pause 4.0 s", "check and receive 1", "handle 1", "receive 10"],
        ),
        (  # after a conflict the worker pauses for a short time that grows
            {"retry_jitter": 0.2},
            [[Told(1)], CONFLICT, None, [Told(1)], CONFLICT, None, [Told(1)], None],
            ["receive 1", "handle 1", "pause 0.01 s", "check and receive 1", "handle 1", "pause 0.02 s",
             "check and receive 1", "handle 1", "receive 1"],
        ),
        (  # a worker that can't put off waits
            {"retry_waits": "broker"},
            [[Told(1, 1)], LookupError("no"), None],
            ["receive 1", "put off for 0.1 s: 1", "pause 0.1 s", "check and receive 1"],
        ),
    ],
)  # fmt: skip
def test_what_a_worker_does_next(settings: Any, answers: list[Any], asked: list[str]) -> None:
    assert played(ConsumerSettings("q", **{"retry_jitter": 0, **settings}), *answers) == asked


def test_a_failure_of_the_message_is_waited_for_once() -> None:
    """After it the worker does not pause: the message waits when it is delivered again, whoever gets it."""
    settings = ConsumerSettings("q", retry_jitter=0, retry_first_s=2.0, timeout_s=60.0)
    deliveries = [Told(1, count) for count in range(4)]
    answers: list[Any] = []
    for message in deliveries:
        answers += [[message], *([None] if message.delivery_count else []), LookupError("no")]
    asked = played(settings, *answers)
    assert [one for one in asked if one.startswith("pause")] == ["pause 2.0 s", "pause 4.0 s", "pause 8.0 s"]


def test_no_message_is_judged_by_another_one() -> None:
    """The first one is dead, or was tried before: the others have nothing to do with it. Alone it is refused."""
    dead, fresh = Told(1, 5), Told(2)
    known = {1: History(5, is_dead=True, is_apart=True)}
    assert played(ConsumerSettings("q"), [dead], known=known)[1] == "refuse 1"
    for one in (known, {1: History(3, is_apart=True)}):
        asked = played(ConsumerSettings("q", batch=10), [dead, fresh], None, known=one)
        assert asked[1:3] == ["give back 1 2", "receive 1"]


def test_a_consumer_that_stops_gives_back_what_it_has_not_begun() -> None:
    settings = ConsumerSettings("q", batch=10, retry_jitter=0)
    assert played(settings, [Told(1, 1)], None, stops_after=1) == ["receive 10", "pause 0.1 s", "give back 1"]


@each("waits", ["worker", "broker"])
@each("most_s", [0.05, 1.0, 30.0, 86_400.0])
@each("timeout_s", [0.1, 60.0, 7200.0])
def test_no_wait_is_longer_than_documented(waits: Any, most_s: float, timeout_s: float) -> None:
    settings = ConsumerSettings("q", retry_waits=waits, retry_most_s=most_s)
    for number in range(1, 100):
        wait_s = settings.wait_s(number, timeout_s, lambda: 0.0)
        assert wait_s <= settings.wait_s(number + 1, timeout_s, lambda: 0.0) <= most_s
        assert wait_s == min(0.1 * 2 ** (number - 1), most_s, timeout_s / 4 if waits == "worker" else most_s)
        assert settings.pause_s(number, timeout_s, lambda: 0.0) <= min(most_s, timeout_s / 4)
        assert settings.wait_s(number, timeout_s, lambda: 1.0) == pytest.approx(0.8 * wait_s)
        assert 0 <= settings.conflict_s(number) <= 1.0


def test_options_of_a_consumer_are_its_settings() -> None:
    """Of a topic the subscription is a part of the queue's name."""
    settings = get_type_hints(ConsumerSettings)
    assert settings.pop("queue") is str
    assert get_type_hints(ConsumerOptions) == {**settings, "subscription": str | None}
    assert ConsumerSettings.of("topic:prices", subscription="billing").queue == "topic:prices::billing"


def test_a_first_wait_that_no_worker_can_hold_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"retry_first_s is 600, .* at most 15 s.* retry_waits to \"broker\""):
        ConsumerSettings("orders", retry_first_s=600).check_waits(60.0)
    ConsumerSettings("orders", retry_first_s=15).check_waits(60.0)
    ConsumerSettings("orders", retry_first_s=600, retry_waits="broker").check_waits(60.0)
    ConsumerSettings("orders").check_waits(0.1)  # the default is cut


@each(
    ("settings", "told"),
    [
        ({"workers": 0}, "workers is 0"),
        ({"batch": 501}, "batch is 501: expected 1 to 500"),
        ({"retry_first_s": 0}, "retry_first_s is 0"),
        ({"timeout_s": -1}, "timeout_s is -1"),
        ({"retry_jitter": 1.5}, "retry_jitter is 1.5: expected 0 to 1"),
        ({"retry_for_s": 0}, "retry_for_s is 0"),
    ],
)
def test_settings_beyond_their_bounds_are_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        ConsumerSettings("orders", **settings)


def test_what_waits_at_the_broker_lets_the_worker_go_on() -> None:
    settings = ConsumerSettings("q", retry_waits="broker", retry_first_s=90.0, retry_most_s=900.0, retry_jitter=0)
    new, again, later = Told(1), Told(1, 1), Told(2)
    put_off_before = Told(3)
    asked = played(
        settings, [new], LookupError("no"), [again], None, [later], None, [put_off_before], None,
        known={3: History(2, is_apart=True)},
    )  # fmt: skip

    assert asked == [
        "receive 1",
        "handle 1",
        "check and receive 1",  # it may have been an outage that the handler hides
        "put off for 90.0 s: 1",
        "check and receive 1",
        "handle 2",
        "receive 1",
        "handle 3",  # its wait is over
        "receive 1",
    ]


# --- whose fault it is, and what is final --------------------------------------------------------------------------
def raised(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


SERIALIZATION = DBAPIError.instance("SELECT 1", {}, errors.SerializationFailure(), errors.Error)
DEADLOCK = errors.DeadlockDetected()
LOST = errors.AdminShutdown()
TWICE = errors.UniqueViolation()


def refused(*said: Any) -> RolledBack:
    """What a commit raises that was refused for these reasons."""
    error = RolledBack("no")
    reasons = tuple(Reason(None, one) for one in said)
    error.outcome = Outcome(b"x", Verdict.ROLLED_BACK, False, reasons=reasons)
    return error


def during(error: Exception, handled: Exception) -> Exception:
    error.__context__ = handled
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SERIALIZATION, Fault.CONFLICT),
        (DEADLOCK, Fault.CONFLICT),
        (raised(RuntimeError("mine"), SERIALIZATION), Fault.CONFLICT),
        (during(RuntimeError("mine"), SERIALIZATION), Fault.CONFLICT),
        (xa_error(Code.XA_RBDEADLOCK, "prepare: no"), Fault.CONFLICT),
        (refused(Code.XA_RBDEADLOCK), Fault.CONFLICT),
        (refused(raised(xa_error(Code.XA_RBROLLBACK, "prepare: no"), DEADLOCK)), Fault.CONFLICT),
        (refused("the application asked for it", Code.XA_RBTRANSIENT), Fault.CONFLICT),
        (pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"), Fault.CONFLICT),
        (LOST, Fault.OUTAGE),
        (pymysql.err.OperationalError(1040, "Too many connections"), Fault.OUTAGE),
        (pymysql.err.OperationalError(1290, "running with the --read-only option"), Fault.OUTAGE),
        (pymysql.err.OperationalError(1399, "XAER_RMFAIL: in the ACTIVE state"), Fault.MESSAGE),
        (errors.OperationalError("the server closed the connection unexpectedly"), Fault.OUTAGE),
        (pymysql.err.OperationalError(2013, "Lost connection"), Fault.OUTAGE),
        (xa_error(Code.XAER_RMFAIL, "away"), Fault.OUTAGE),
        (raised(RolledBack("can't go on"), xa_error(Code.XAER_RMFAIL, "away")), Fault.OUTAGE),
        (refused(Code.XAER_RMFAIL), Fault.OUTAGE),
        (refused(xa_error(Code.XAER_RMFAIL, "away")), Fault.OUTAGE),
        (OutcomeUnknown("?"), Fault.OUTAGE),
        (ManagerUnusable("the log is gone"), Fault.OUTAGE),
        (refused(TimeoutError("it took longer than its 60 s")), Fault.UNTOLD),
        (refused(Code.XA_RBROLLBACK), Fault.UNTOLD),
        (xa_error(Code.XA_RBTIMEOUT, "the broker's time"), Fault.UNTOLD),
        (xa_error(Code.XA_RBROLLBACK, "work: the branch has been rolled back"), Fault.UNTOLD),
        (errors.InFailedSqlTransaction(), Fault.UNTOLD),
        (HeuristicHazard("who knows"), Fault.UNTOLD),
        (refused(Code.XA_RBINTEGRITY), Fault.MESSAGE),
        (refused("the application asked for it"), Fault.MESSAGE),
        (ProtocolMisuse("no commit in a handler"), Fault.MESSAGE),
        (TWICE, Fault.MESSAGE),
        (errors.QueryCanceled(), Fault.MESSAGE),
        (TimeoutError("another service"), Fault.MESSAGE),
        (RolledBack("no"), Fault.MESSAGE),
        (sqlite3.OperationalError("no such table"), Fault.MESSAGE),
    ],
    ids=lambda one: type(one).__name__,
)
def test_whose_fault_it_is(error: Exception, expected: Fault) -> None:
    assert fault_of(error) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.OperationalError("the server closed the connection unexpectedly"), True),
        (pymysql.err.OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes"), True),
        (raised(KeyError(), pymysql.err.OperationalError(2013, "Lost connection")), True),
        (errors.AdminShutdown(), False),
        (errors.DiskFull(), False),
        (xa_error(Code.XAER_RMFAIL, "away"), False),
        (ConnectionRefusedError(), False),
        (sqlite3.OperationalError("disk I/O error"), False),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_breaks_a_connection(error: Exception, expected: bool) -> None:
    assert is_broken(error) is expected


@pytest.mark.parametrize(
    ("settings", "error", "expected"),
    [
        ({}, ValueError(), False),
        ({"dead_on": ValueError}, ValueError(), True),
        ({"dead_on": ValueError}, UnicodeError(), True),
        ({"dead_on": (ValueError,)}, TypeError(), False),
        ({"retry_on": TimeoutError}, TimeoutError(), False),
        ({"retry_on": TimeoutError}, ValueError(), True),
        ({"retry_on": OSError, "dead_on": TimeoutError}, TimeoutError(), True),
        ({"retry_on": TimeoutError}, refused(Code.XA_RBROLLBACK), False),
        ({"retry_on": TimeoutError}, OutcomeUnknown("?"), False),
        ({"retry_on": TimeoutError}, xa_error(Code.XAER_RMFAIL, "away"), False),
        ({"retry_on": TimeoutError}, raised(KeyError(), xa_error(Code.XAER_RMFAIL, "away")), False),
        ({"retry_on": TimeoutError}, SERIALIZATION, False),
        ({"retry_on": TimeoutError}, LOST, False),
        ({"retry_on": TimeoutError}, TWICE, True),
    ],
)
def test_what_is_final(settings: Any, error: Exception, expected: bool) -> None:
    assert is_final(error, ConsumerSettings("q", **settings)) is expected


def test_a_failure_that_is_final_is_final_for_this_content_only() -> None:
    failures = Failures()
    failures.note(Message("a", id="1"), ValueError(), final=True)
    assert failures.is_final(Message("a", id="1"))
    assert not failures.is_final(Message("another", id="1"))
    failures.note(Message("a", id="1", delivery_count=1), RuntimeError("its dead letter could not be sent"))
    assert failures.is_final(Message("a", id="1"))
    failures.forget(Message("a", id="1"))
    assert not failures.is_final(Message("a", id="1"))
