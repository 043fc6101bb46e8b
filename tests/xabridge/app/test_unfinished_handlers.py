"""These tests check that no message is lost by a function that was called and has not run: a generator function, or a
coroutine that nobody awaits, as behind a decorator that knows only plain functions.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tm import ConfigurationError, ProtocolMisuse
from tm.consumer.handler import Handler
from xabridge import App, Configuration, ResourceConfig, Tx
from xabridge.testing import TestApp

NOWHERE = Configuration("app-1", None, {"broker": "amqp://nowhere.invalid", "shop": ResourceConfig("sqlite:///x")})


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


@pytest.mark.parametrize("function", [generates, generates_later])
def test_a_generator_function_is_no_handler(function: Any) -> None:
    with pytest.raises(ConfigurationError, match="is a generator function"):
        App(NOWHERE).consumer("orders")(function)
    with pytest.raises(ConfigurationError, match="is a generator function"):
        Handler(function)


def test_an_object_with_a_coroutine_function_is_awaited() -> None:
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
