"""These tests check what is made for handlers, in which order, and when it is cleaned up; middlewares; lifespans."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

from xabridge import App, Configuration, ConfigurationError, Depends, Message, Tx
from xabridge.testing import TestApp

NOWHERE = Configuration("app-1", None, {"broker": "amqp://nowhere.invalid"})
TOLD: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    TOLD.clear()


class Client:
    """What a handler needs."""


def make_client(message: Message, tx: Tx) -> Iterator[Client]:
    TOLD.append(f"client for {message.id!s}")
    try:
        yield Client()
        TOLD.append("good")
    except LookupError as error:
        TOLD.append(f"bad: {error}")
        raise
    finally:
        TOLD.append(f"client closed while {tx.status.value}")


AClient = Annotated[Client, Depends(make_client)]


def user(client: AClient, name: str = "Ada") -> str:
    TOLD.append(f"user of {type(client).__name__}")
    return name


async def later(client: AClient) -> AsyncIterator[str]:
    TOLD.append("later")
    yield f"of {type(client).__name__}"
    TOLD.append("later closed")


async def awaited() -> int:
    return 7


def count(messages: list[Message]) -> int:
    return len(messages)


def test_dependencies_are_made_once_and_cleaned_up_before_the_commit() -> None:
    """Of a batch, once for all of it; for a coroutine function, awaited; in tests, something else."""
    app = App(NOWHERE)

    @app.consumer("orders")
    def handle(number: int, client: AClient, name: Annotated[str, Depends(user)], tx: Tx) -> None:
        assert isinstance(client, Client)
        tx.after_commit(TOLD.append, "committed")
        TOLD.append(f"handle {number} for {name}")
        if number < 0:
            raise LookupError(number)

    @app.consumer("awaited")
    async def handle_awaited(
        number: int, client: AClient, what: Annotated[str, Depends(later)], seven: Annotated[int, Depends(awaited)]
    ) -> None:
        TOLD.append(f"handle {number} {what} {seven} {type(client).__name__}")

    @app.consumer("many", takes="batch", batch=5)
    def handle_many(numbers: list[int], many: Annotated[int, Depends(count)]) -> None:
        TOLD.append((numbers, many))

    with TestApp(app) as test:
        test.deliver("orders", 1, id="m")
        assert TOLD == [
            "client for m", "user of Client", "handle 1 for Ada", "good", "client closed while active", "committed",
        ]  # fmt: skip
        TOLD.clear()
        with pytest.raises(LookupError):
            test.deliver("orders", -1, id="n")
        assert TOLD[-2:] == ["bad: -1", "client closed while active"]
        TOLD.clear()
        test.deliver("awaited", 1, id="m")
        assert TOLD[1:4] == ["later", "handle 1 of Client 7 Client", "later closed"]
        TOLD.clear()
        test.deliver("many", 1, 2, "three")
        assert TOLD == [([1, 2], 2)]
    app.dependency_overrides[user] = lambda: "Boole"
    with TestApp(app) as test:
        test.deliver("orders", 1)
    assert "handle 1 for Boole" in TOLD


def test_middlewares_are_around_every_handler() -> None:
    app = App(NOWHERE)

    @app.middleware
    def outer(message: Message) -> Iterator[None]:
        TOLD.append(f"outer {message.id!s}")
        try:
            yield
        except LookupError:
            TOLD.append("seen")
            raise
        TOLD.append("outer ends")

    @app.middleware
    def inner(name: Annotated[str, Depends(user)]) -> Iterator[None]:
        TOLD.append(f"inner for {name}")
        yield

    @app.consumer("orders")
    def handle(number: int) -> None:
        TOLD.append(number)
        if number < 0:
            raise LookupError

    @app.consumer("later")
    async def handle_later(number: int) -> None:
        TOLD.append(number)

    with TestApp(app) as test:
        test.deliver("orders", 1, id="m")
        assert [one for one in TOLD if "client" not in str(one)] == [
            "outer m", "user of Client", "inner for Ada", 1, "good", "outer ends",
        ]  # fmt: skip
        with pytest.raises(LookupError):
            test.deliver("orders", -1)
        assert TOLD[-1] == "seen"
        TOLD.clear()
        test.deliver("later", 2, id="n")
        assert (TOLD[0], 2 in TOLD, TOLD[-1]) == ("outer n", True, "outer ends")


def test_an_asynchronous_middleware_needs_coroutine_functions() -> None:
    app = App(NOWHERE)

    @app.middleware
    async def around() -> AsyncIterator[None]:
        TOLD.append("before")
        yield
        TOLD.append("after")

    @app.consumer("later")
    async def handle(number: int) -> None:
        TOLD.append(number)

    with TestApp(app) as test:
        test.deliver("later", 1)
    assert TOLD == ["before", 1, "after"]

    @app.consumer("orders")
    def plain(number: int) -> None: ...

    with (
        pytest.raises(ConfigurationError, match=r"around is awaited, and .*plain is no coroutine function"),
        TestApp(app),
    ):
        pass
    with pytest.raises(ConfigurationError, match="around is awaited"), app:
        pass


def test_a_lifespan_is_around_all_of_it() -> None:
    app = App(NOWHERE)

    @app.lifespan
    def all_of_it() -> Iterator[None]:
        assert app.manager is not None
        TOLD.append("begins")
        yield
        assert app.manager is not None
        TOLD.append("ends")

    with TestApp(app):
        assert TOLD == ["begins"]
    assert TOLD == ["begins", "ends"]

    @app.lifespan
    async def in_the_loop() -> AsyncIterator[None]:
        TOLD.append("begins in the loop")
        yield
        TOLD.append("ends in the loop")

    with pytest.raises(ConfigurationError, match="in_the_loop is awaited: use `async with`"), TestApp(app):
        pass
    TOLD.clear()

    async def run() -> None:
        async with TestApp(app):
            assert TOLD == ["begins", "begins in the loop"]

    asyncio.run(run())
    assert TOLD[2:] == ["ends in the loop", "ends"]


def itself(more: Annotated[int, Depends(lambda: 1)], own: Annotated[int, Depends(awaited)] = 0) -> int:
    return more + own


def body(number: int) -> int:
    return number


def round_trip(there: Annotated[int, Depends(lambda: 0)]) -> int:
    return there


round_trip.__annotations__["there"] = Annotated[int, Depends(round_trip)]


def test_mistakes_are_told_when_it_is_declared() -> None:
    wrong: list[tuple[Any, str]] = [
        (awaited, "awaited is awaited, and .*handle is no coroutine function: write async def"),
        (itself, "awaited is awaited"),
        (body, "body: number: what makes a dependency gets the transaction"),
        (round_trip, "round_trip depends on itself"),
    ]
    for make, told in wrong:
        with pytest.raises(ConfigurationError, match=told):

            @App(NOWHERE).consumer("orders")
            def handle(number: int, made: Annotated[Any, Depends(make)]) -> None: ...

    for declare in (App.middleware, App.lifespan):
        with pytest.raises(ConfigurationError, match="is a generator function"):
            declare(App(NOWHERE), lambda: None)


def test_a_middleware_is_around_handlers_of_batches_too() -> None:
    app = App(NOWHERE)

    @app.consumer("many", batch=5, takes="batch")
    def many(numbers: list[int]) -> None:
        TOLD.append(numbers)

    @app.middleware
    def around(came: Message | list[Message]) -> Iterator[None]:
        TOLD.append([message.id for message in came] if isinstance(came, list) else came.id)
        yield

    with TestApp(app) as test:
        test.deliver("many", 7, 8, id="b")
    assert TOLD == [["b", "b"], [7, 8]]
