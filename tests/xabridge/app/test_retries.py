"""These tests check what becomes of messages whose handlers fail, by the exception: attempts, dead letters, and what is
put off, with its count, across a process that dies. And no message is lost by what was called and has not run: a
generator function, a coroutine, or a send that nobody awaits.
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.xabridge.app.shop import NOWHERE
from tm import ConfigurationError, ProtocolMisuse
from tm.consumer.failures import Failures
from tm.consumer.handler import Handler
from xa.coroutines import drive
from xabridge import App, Message, RolledBack, Tx
from xabridge.app.tx import PendingSends
from xabridge.testing import Killed, TestApp


class Raising:
    """Raises what it is told to."""

    def __init__(self, **settings: Any) -> None:
        self.app = App(NOWHERE)
        self.raises: list[Exception | None] = []
        self.calls = 0

        @self.app.consumer("orders", **settings)
        def handle(number: int, tx: Tx) -> None:
            self.calls += 1
            tx.send("done", number)
            if self.raises and (error := self.raises.pop(0)) is not None:
                raise error


def fails(test: TestApp, error: type[BaseException], *bodies: Any, match: str = ".*") -> None:
    """What waits, and these, is delivered, and a handler fails."""
    with pytest.raises(error, match=match):
        test.deliver("orders", *bodies)


def told_with(test: TestApp) -> dict[Any, Any]:
    (message,) = test.messages("orders")
    return dict(message.annotations or {})


def test_an_error_that_is_final_is_not_tried_again() -> None:
    handler = Raising(dead_on=ValueError)
    handler.raises = [ValueError("no such product"), KeyError("x"), None]
    with TestApp(handler.app) as test:
        fails(test, ValueError, 1, match="no such product")
        assert (test.waiting("orders"), test.sent("done")) == (1, [])
        test.deliver("orders")
        assert (handler.calls, test.dead("orders"), test.sent("done")) == (1, ["ValueError: no such product"], [])
        fails(test, KeyError, 2)
        test.deliver("orders")
        assert test.sent("done") == [2]


@pytest.mark.slow
def test_a_message_that_is_put_off_keeps_its_count_and_its_reason() -> None:
    """Also in another process."""
    handler = Raising(retry_waits="broker", retry_first_s=3600.0, retry_most_s=3600.0, retry_jitter=0, max_deliveries=3)
    handler.raises = [LookupError("first"), LookupError("second"), LookupError("third")]
    with TestApp(handler.app) as test:
        began = time.time() * 1000
        for count, reason in enumerate(("first", "second"), start=1):
            with pytest.raises(LookupError, match=reason):
                test.deliver("orders", *([7] if count == 1 else []), id="o-7" if count == 1 else None)
            test.restart()  # another process has the message next
            drive(test._pass("orders"))  # one pass, which puts it off
            told = told_with(test)
            assert told["x-opt-retry-count"] == count
            assert told["x-opt-retry-reason"] == f"LookupError: {reason}"
            assert 0 <= told["x-opt-retry-first"] - began < 60_000
            assert test.later("orders") == [pytest.approx(3600, abs=60)]
            test.deliver("orders")  # it waits, and no time passes
            assert (handler.calls, test.waiting("orders")) == (count, 1)
            (message,) = test.messages("orders")
            assert (message.id, message.body, message.delivery_count) == ("o-7", b"7", 0)
            test.advance(3601)
            test.restart()

        fails(test, LookupError, match="third")
        test.restart()
        test.deliver("orders")
        assert test.dead("orders") == ["LookupError: third"]
        (letter,) = test.messages("orders.dead")
        assert (letter.annotations or {})["x-opt-dead-deliveries"] == 3


@pytest.mark.parametrize("at", ["before the decision", "after the decision"])
def test_a_process_that_dies_while_it_puts_off_or_away_loses_and_doubles_nothing(at: Any) -> None:
    handler = Raising(retry_waits="broker", retry_first_s=30.0)
    handler.raises = [LookupError("no")]
    with TestApp(handler.app) as test:
        fails(test, LookupError, 7)
        test.kill(at)
        fails(test, Killed)
        assert test.waiting("orders") == 1
        test.deliver("orders")  # where it was rolled back, it is put off now
        assert (test.sent("done"), len(test.later("orders"))) == ([], 1)
        test.advance(60)
        test.deliver("orders")
        assert (test.sent("done"), test.waiting("orders")) == ([7], 0)

    with TestApp(Raising(batch=5).app) as test:
        test.kill(at)
        fails(test, Killed, 1, "two", 3)
        test.deliver("orders")
        assert (test.sent("done"), len(test.dead("orders"))) == ([1, 3], 1)


def test_the_time_for_attempts_has_a_limit() -> None:
    """It begins with the message's own failure."""
    handler = Raising(retry_for_s=3600.0)
    handler.raises = [LookupError("no")] * 4
    with TestApp(handler.app) as test:
        fails(test, LookupError, 1)
        take_away(test)
        test.advance(4000)
        fails(test, LookupError, 1)
        fails(test, LookupError)
        test.advance(3599)
        fails(test, LookupError)
        test.advance(2)
        test.deliver("orders")
        assert (handler.calls, test.dead("orders"), test.sent("done")) == (4, ["LookupError: no"], [])


def take_away(test: TestApp, queue: str = "orders") -> None:
    """What another process does with a message that has failed here."""
    with test.manager.begin() as tx:
        tx["broker"].receive(queue, 0)


def test_a_dead_letter_that_is_sent_again_has_all_its_attempts(caplog: pytest.LogCaptureFixture) -> None:
    handler = Raising(retry_waits="broker", max_deliveries=2, retry_for_s=3600.0, retry_jitter=0)
    handler.raises = [LookupError("first"), LookupError("second")]

    with TestApp(handler.app) as test:
        fails(test, LookupError, 7)
        test.deliver("orders")
        test.advance(60)
        fails(test, LookupError)
        test.deliver("orders")
        assert "dead-lettered to orders.dead after 2 deliveries: LookupError: second" in caplog.text
        (letter,) = test.messages("orders.dead")
        assert (letter.annotations or {})["x-opt-dead-deliveries"] == 2
        assert not [name for name in letter.annotations or {} if str(name).startswith("x-opt-retry-")]
        test.advance(4000)
        with test.manager.begin() as tx:
            tx["broker"].send("orders", tx["broker"].receive("orders.dead", 0))
        test.deliver("orders")
        assert (test.sent("done"), test.waiting("orders.dead")) == ([7], 0)


@pytest.mark.parametrize("batch", [1, 5])
def test_a_message_is_not_put_away_besides_being_handled(batch: int) -> None:
    handler = Raising(dead_on=ValueError, batch=batch)
    handler.raises = [ValueError("no such product")]
    with TestApp(handler.app) as test:
        fails(test, ValueError, 1, match="no such product")
        take_away(test)
        test.deliver("orders", 1, 2)  # the same content again
        assert (test.sent("done"), test.dead("orders")) == ([1, 2], [])


def test_a_message_that_is_sent_on_as_it_came_has_all_its_attempts() -> None:
    """And does not wait again."""
    handler = Raising(retry_waits="broker", retry_jitter=0)
    handler.raises = [LookupError("first")]
    errors: list[Exception] = [LookupError("there")]

    @handler.app.consumer("onward", max_deliveries=2)
    def onward(number: int, tx: Tx) -> None:
        if errors:
            raise errors.pop()
        tx.send("arrived", number)

    @handler.app.middleware
    def send_on(message: Message, tx: Tx) -> Iterator[None]:
        yield
        if not test.waiting("onward"):
            tx.send("onward", message)

    with TestApp(handler.app) as test:
        fails(test, LookupError, 7, match="first")
        test.deliver("orders")
        test.advance(60)
        test.deliver("orders")
        assert (test.later("onward"), test.waiting("onward")) == ([], 1)
        with pytest.raises(LookupError, match="there"):
            test.deliver("onward")
        test.deliver("onward")
        assert (test.sent("arrived"), test.dead("onward")) == ([7], [])


@pytest.mark.parametrize("behind_s", [3600, -3600])
def test_the_wait_does_not_depend_on_the_clock_of_the_consumer(behind_s: float) -> None:
    handler = Raising(retry_waits="broker", retry_first_s=30.0, retry_most_s=3600.0, retry_jitter=0)
    handler.raises = [LookupError("no"), LookupError("no")]
    with TestApp(handler.app) as test:
        wrong_clock = Failures(lambda: test.broker.clock.wall_ms() / 1000 - behind_s)
        handler.app.consumers[0].live.job.failures = wrong_clock
        for wait_s in (30, 60):
            with pytest.raises(LookupError):
                test.deliver("orders", *([] if test.waiting("orders") else [7]))
            test.deliver("orders")
            assert test.later("orders") == [pytest.approx(wait_s, abs=5)]
            test.advance(wait_s + 1)
        test.deliver("orders")
        assert (test.sent("done"), test.waiting("orders")) == ([7], 0)


# --- what another process knows
def test_a_batch_that_fails_is_no_attempt_of_its_messages() -> None:
    """They are tried one by one, by another process too, and each has its own reason. A middleware that has the
    transaction commit after the handler's error ends it."""
    app = App(NOWHERE)

    @app.consumer("orders", takes="batch", batch=5, max_deliveries=1)
    def work(numbers: list[int]) -> None:
        if 2 in numbers:
            raise LookupError(numbers)

    with TestApp(app) as test:
        fails(test, LookupError, 1, 2, 3)
        test.restart()
        fails(test, LookupError)
        test.restart()
        test.deliver("orders")
        assert (test.dead("orders"), test.waiting("orders")) == (["LookupError: [2]"], 0)
    handler = Raising()
    handler.raises = [LookupError("no")]

    @handler.app.middleware
    def forgive() -> Iterator[None]:
        with suppress(LookupError):
            yield

    with TestApp(handler.app) as test:
        test.deliver("orders", 7)
        assert (test.sent("done"), test.waiting("orders")) == ([7], 0)


# --- what was called and has not run ---------------------------------------------------------------------------------
def generates(number: int, tx: Tx) -> Any:
    tx.send("done", number)
    yield


async def generates_later(number: int, tx: Tx) -> Any:
    await tx.asend("done", number)
    yield


class Callee:
    """An object that is called."""

    async def __call__(self, number: int, tx: Tx) -> None:
        await tx.asend("done", number)


def plainly(function: Any) -> Any:
    """A decorator that knows only plain functions."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return call


async def handle(number: int, tx: Tx) -> None:
    await tx.asend("done", number)


class Called(Callee):
    """One that has it from its base."""


def test_a_generator_function_is_no_handler_and_an_object_with_a_coroutine_function_is_awaited() -> None:
    for function in (generates, generates_later):
        with pytest.raises(ConfigurationError, match="is a generator function"):
            App(NOWHERE).consumer("orders")(function)
        with pytest.raises(ConfigurationError, match="is a generator function"):
            Handler(function)
    app = App(NOWHERE)
    app.consumer("orders")(Called())
    with TestApp(app) as test:
        test.deliver("orders", 7)
        assert test.sent("done") == [7]


@pytest.mark.parametrize("function", [plainly(handle), plainly(generates)])
@pytest.mark.parametrize("has_middleware", [False, True])
def test_what_was_called_and_has_not_run_is_a_failure(function: Any, has_middleware: bool) -> None:
    app = App(NOWHERE)
    app.consumer("orders")(function)
    if has_middleware:

        @app.middleware
        def around() -> Any:
            yield

    with TestApp(app) as test:
        with pytest.raises(ProtocolMisuse, match=r"has returned a (coroutine|generator), which would not run"):
            test.deliver("orders", 7)
        assert (test.waiting("orders"), test.sent("done")) == (1, [])


# --- a send that nobody awaits
async def forgets(number: int, tx: Tx) -> None:
    await tx.asend("done", number)
    tx.asend("also done", number)  # type: ignore[unused-coroutine]


async def leaves_a_task(number: int, tx: Tx) -> None:
    TASKS.append(asyncio.create_task(tx.asend("done", number)))


async def awaits_in_its_own_ways(number: int, tx: Tx) -> None:
    first = tx.asend("done", number)
    await asyncio.gather(first, asyncio.create_task(tx.asend("done", number + 1)))
    async with asyncio.TaskGroup() as group:
        group.create_task(tx.asend("done", number + 2))
    await asyncio.wait_for(tx.asend("done", number + 3), 5)
    given_up = asyncio.create_task(tx.asend("never", number))
    given_up.cancel()
    with suppress(asyncio.CancelledError):
        await given_up
    tx.asend("never", number).close()
    with pytest.raises(TypeError, match="object"):
        await tx.asend("never", object())


TASKS: list[asyncio.Task[None]] = []


@pytest.mark.parametrize(("identifier", "tries"), [("7", 2), (None, 10)])
def test_a_send_that_nobody_awaits_is_a_failure(identifier: str | None, tries: int) -> None:
    """Without an id the refused commit may have been that of another message with the same content: it has nine more
    tries after the first, which does not count."""
    app = App(NOWHERE)
    app.consumer("orders", max_deliveries=2)(forgets)
    with TestApp(app) as test:
        for _ in range(tries):
            with pytest.raises(RolledBack, match=r"asend to 'also done' was not awaited: write `await tx.asend"):
                test.deliver("orders", *([] if test.waiting("orders") else [7]), id=identifier)
            assert (test.waiting("orders"), test.sent("done"), test.sent("also done")) == (1, [], [])
        test.deliver("orders")
        assert "ProtocolMisuse: asend to" in test.dead("orders")[0]


def test_a_task_that_nobody_awaits_has_sent_or_the_transaction_is_rolled_back() -> None:
    """Its send may be done before the commit, or not."""
    app = App(NOWHERE)
    app.consumer("orders", max_deliveries=100)(leaves_a_task)
    told = r"asend to 'done' (was not awaited: write `await tx.asend|is not done: await its task)"
    with TestApp(app) as test:
        for number in range(5):  # fewer than the broker allows
            sent = len(test.sent("done"))
            try:
                test.deliver("orders", *([] if test.waiting("orders") else [number]))
            except RolledBack as error:
                assert re.search(told, str(error))  # noqa: PT017 — it need not be raised
                assert (test.waiting("orders"), len(test.sent("done"))) == (1, sent)
            else:
                assert (test.waiting("orders"), len(test.sent("done"))) == (0, sent + 1)


def test_a_send_that_is_not_done_at_the_commit_is_a_failure() -> None:
    sends = PendingSends()
    sending = sends.add("done", asyncio.sleep(0))
    sending.send(None)
    with pytest.raises(ProtocolMisuse, match="asend to 'done' is not done: await its task before the transaction ends"):
        sends.check()
    with pytest.raises(StopIteration):
        sending.send(None)
    sends.check()


def test_a_task_that_begins_after_the_end_says_so() -> None:
    sends = PendingSends()
    sending = sends.add("done", asyncio.sleep(0))
    with pytest.raises(ProtocolMisuse, match="was not awaited"):
        sends.check()
    with pytest.raises(ProtocolMisuse, match="the transaction ended before the task of asend to 'done' began"):
        sending.send(None)


def test_a_send_may_be_awaited_in_a_task() -> None:
    app = App(NOWHERE)
    app.consumer("orders")(awaits_in_its_own_ways)
    with TestApp(app) as test:
        test.deliver("orders", 7)
        assert sorted(test.sent("done")) == [7, 8, 9, 10]
        assert test.sent("never") == []
