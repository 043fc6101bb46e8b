"""These tests return something from handlers: it is sent where they say, or refused, or reported once."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated, Any

import pytest
from sqlalchemy import text

from tests.xabridge.app.shop import NOWHERE, Invoice, Shop, rows, set_up
from xa import XaMisuse
from xabridge import App, ConfigurationError, Depends, Message, Tx
from xabridge.app.codec import MessageFields
from xabridge.testing import Killed, TestApp
from xabridge.testing.contract.client import case


def answering() -> App:
    app = App(NOWHERE)

    @app.consumer("orders", publish="invoices", reply=True)
    def handle(number: int, tx: Shop) -> Invoice | None:
        tx.shop.execute(text("INSERT INTO orders VALUES (:number)"), {"number": number})
        if number == 3:
            raise LookupError(number)
        return Invoice(number) if number < 10 else None

    return app


def test_what_a_handler_returns_is_sent_in_its_transaction() -> None:
    with TestApp(answering()) as test:
        set_up(test)
        test.deliver("orders", 1, reply_to="answers", id="o-1")
        test.deliver("orders", 2, reply_to="answers", id="o-2", correlation_id="asked-2")
        test.deliver("orders", 4)
        test.deliver("orders", 10, reply_to="answers")
        with pytest.raises(LookupError):
            test.deliver("orders", 3, reply_to="answers")
        assert rows(test) == [1, 2, 4, 10]
        test.assert_sent("invoices", Invoice(1), Invoice(2), Invoice(4))
        test.assert_sent("answers", Invoice(1), Invoice(2))
        assert [message.correlation_id for message in test.messages("answers")] == ["o-1", "asked-2"]

    with TestApp(answering()) as test:
        set_up(test)
        test.kill("before the decision")
        with pytest.raises(Killed):
            test.deliver("orders", 5, reply_to="answers")
        assert (test.sent("invoices"), test.sent("answers")) == ([], [])
        test.deliver("orders")
        assert (len(test.sent("invoices")), len(test.sent("answers"))) == (1, 1)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_reply_to_a_client_that_is_gone_is_left_out(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = App(NOWHERE)

    def answer(number: int) -> int:
        return number

    async def answer_later(number: int) -> int:
        return number

    app.consumer("questions", reply=True, publish="published")(answer_later if is_async else answer)
    with TestApp(app) as test:
        with app.begin() as tx:
            for number, reply_to in enumerate(("answers", "$reply/of-a-client-that-is-gone", "answers")):
                tx.send("questions", number, reply_to=reply_to)
        test.deliver("questions")
        assert (test.sent("answers"), test.sent("published")) == ([0, 2], [0, 1, 2])
        assert (test.waiting("questions"), test.dead("questions")) == (0, [])
    assert "a message of questions has no reply: " in caplog.text


def test_a_reply_that_can_not_be_sent_is_the_fault_of_the_handler() -> None:
    """It is not left out as one whose address is gone."""
    app = App(NOWHERE)

    @app.consumer("questions", reply=True)
    def answer(_question: str) -> Message:
        return Message(object())

    with TestApp(app) as test:
        with pytest.raises(XaMisuse, match="the message's body is of type object"):
            test.deliver("questions", "what?", reply_to="answers")
        assert (test.waiting("questions"), test.waiting("answers")) == (1, 0)


def test_a_message_that_is_returned_keeps_its_fields() -> None:
    app = App(NOWHERE)

    @app.consumer("questions", reply=True)
    def answer(question: str) -> Message:
        return Message(question.upper(), subject="s", correlation_id="own" if question == "own" else None)

    with TestApp(app) as test:
        test.deliver("questions", "a", "own", reply_to="answers", id="q-1")
        found = [(one.body, one.subject, one.correlation_id) for one in test.messages("answers")]
        assert found == [("A", "s", "q-1"), ("OWN", "s", "own")]


def test_coroutine_functions_batches_and_handlers_with_dependencies_send_what_they_return() -> None:
    app = App(NOWHERE)
    order: list[str] = []

    def prices() -> Iterator[int]:
        yield 100
        order.append("cleaned up")

    @app.consumer("awaited", reply=True, publish="published")
    async def awaited(number: int) -> int:
        await asyncio.sleep(0)
        return number + 1

    @app.consumer("depending", publish="published")
    def depending(number: int, price: Annotated[int, Depends(prices)]) -> int:
        return number + price

    @app.consumer("both", publish="published")
    async def both(number: int, price: Annotated[int, Depends(prices)]) -> int:
        return number + price

    @app.consumer("many", takes="batch", publish="published")
    def many(numbers: list[int]) -> int:
        return sum(numbers)

    with TestApp(app) as test:
        test.deliver("awaited", 1, reply_to="answers")
        test.deliver("depending", 2)
        test.deliver("both", 3)
        test.deliver("many", 4, 5)
        assert (test.sent("published"), test.sent("answers")) == ([2, 102, 103, 9], [2])
        assert order == ["cleaned up", "cleaned up"]


def returns_text() -> str:
    return ""


def returns_what_can_not_be_imported() -> Elsewhere:  # type: ignore[name-defined]  # noqa: F821
    return None


async def returns_in_a_task() -> int:
    return 1


def returns_nothing() -> None: ...


def test_a_result_that_goes_nowhere_is_refused_where_it_is_declared() -> None:
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (returns_text, {}, "returns_text: it returns str, which is sent nowhere: declare reply=True (to the reply_to"),
        (returns_what_can_not_be_imported, {}, "it returns Elsewhere, which is sent nowhere"),
        (returns_in_a_task, {}, "it returns int, which is sent nowhere"),
        (returns_nothing, {"reply": True}, "returns_nothing: it returns nothing that reply=True could send"),
        (returns_nothing, {"publish": "x"}, "it returns nothing that publish='x' could send"),
        (returns_text, {"reply": True, "takes": "batch"}, 'reply=True is for takes="message"'),
        (returns_text, {"publish": ""}, "publish is '': expected the name of a queue, a str, or None"),
        (returns_text, {"reply": 1}, "reply is 1: expected True or False; did you mean reply=True?"),
        (returns_text, {"replay": True}, "replay: there is no such setting; did you mean reply?"),
    ]
    for function, settings, message in wrong:
        with case(message), pytest.raises(ConfigurationError) as refused:
            App(NOWHERE).consumer("orders", **settings)(function)
        assert message in str(refused.value)

    App(NOWHERE).consumer("orders", publish="x")(returns_what_can_not_be_imported)


def test_a_result_that_was_not_declared_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    app = App(NOWHERE)

    @app.consumer("orders")
    def handle(number: int):  # type: ignore[no-untyped-def]
        return number

    with TestApp(app) as test, caplog.at_level(logging.WARNING, "xabridge.app"):
        test.deliver("orders", 1, 2)
        test.deliver("orders", 3)
    reported = [record.getMessage() for record in caplog.records if record.name == "xabridge.app"]
    assert len(reported) == 1
    assert reported[0].startswith("the handler of orders has returned a value (int), which is sent nowhere: declare")


def test_fields_of_a_message_that_is_sent_are_those_of_a_message() -> None:
    """Type checkers look at them: `tests/user/application.py`."""
    for name, hint in MessageFields.__annotations__.items():
        assert hint.__forward_arg__ == Message.__annotations__[name], name
    others = {field.name for field in fields(Message)} - set(MessageFields.__annotations__)
    of_the_broker_or_of_send = {"body", "address", "content_type", "inferred", "first_acquirer", "delivery_count"}
    assert others == of_the_broker_or_of_send
    assert not set(MessageFields.__annotations__) & set(inspect.signature(Tx.send).parameters)

    with TestApp(App(NOWHERE)) as test, test.app.begin() as tx:
        with pytest.raises(TypeError, match="dely"):
            tx.send("orders", 1, dely=60)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="delay: a Message is sent as it is: set its fields there"):
            tx.send("orders", Message(1), delay=60)
