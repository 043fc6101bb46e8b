"""These tests check that no message is lost by a function that was called and has not run: a generator function, a
coroutine that nobody awaits, as behind a decorator that knows only plain functions, or a send that nobody awaits.
"""

from __future__ import annotations

import asyncio
import functools
import re
from contextlib import suppress
from typing import Any

import pytest

from tests.xabridge.app.shop import NOWHERE
from tm import ConfigurationError, ProtocolMisuse
from tm.consumer.handler import Handler
from xabridge import App, RolledBack, Tx
from xabridge.app.sends import Sends
from xabridge.testing import TestApp


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
        with pytest.raises(ProtocolMisuse, match=r"has returned a (coroutine|generator), which nobody runs"):
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


@pytest.mark.parametrize(("properties", "tries"), [({"id": "7"}, 2), ({}, 10)])
def test_a_send_that_nobody_awaits_is_a_failure(properties: dict[str, str], tries: int) -> None:
    """Without an id the refused commit may have been that of another message with the same content: it has nine more
    tries after the first, which does not count."""
    app = App(NOWHERE)
    app.consumer("orders", max_deliveries=2)(forgets)
    with TestApp(app) as test:
        for _ in range(tries):
            with pytest.raises(RolledBack, match=r"asend to 'also done' was not awaited: write `await tx.asend"):
                test.deliver("orders", *([] if test.waiting("orders") else [7]), **properties)
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
    sends = Sends()
    sending = sends.add("done", asyncio.sleep(0))
    sending.send(None)
    with pytest.raises(ProtocolMisuse, match="asend to 'done' is not done: await its task before the transaction ends"):
        sends.check()
    with pytest.raises(StopIteration):
        sending.send(None)
    sends.check()


def test_a_send_may_be_awaited_in_a_task() -> None:
    app = App(NOWHERE)
    app.consumer("orders")(awaits_in_its_own_ways)
    with TestApp(app) as test:
        test.deliver("orders", 7)
        assert sorted(test.sent("done")) == [7, 8, 9, 10]
        assert test.sent("never") == []
