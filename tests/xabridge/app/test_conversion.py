"""These tests check what bodies become which declared types, and what is refused with which words."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NewType
from uuid import UUID

import msgspec
import pydantic
import pytest

from rm_amqp import Message
from xabridge.app.codec import Codecs
from xabridge.app.conversion import MessageUnfit, UnsupportedType, reader_of


class Kind(Enum):
    """An enum."""

    CARD = "card"
    CASH = "cash"


@dataclass
class Line:
    """A dataclass."""

    price: Decimal
    count: int = 1


@dataclass
class Order:
    """One with others in it."""

    number: int
    lines: list[Line] = field(default_factory=list)
    kind: Kind | None = None
    before: Order | None = None


class Model(pydantic.BaseModel):
    """A model of pydantic."""

    number: int
    customer: str


class Struct(msgspec.Struct):
    """A struct of msgspec."""

    number: int
    at: datetime | None = None


Number = NewType("Number", int)
CODECS = Codecs()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Order(1, [Line(Decimal("9.99"))], Kind.CARD, Order(0)), Order),
        (Model(number=1, customer="Ada"), Model),
        ([Model(number=1, customer="Ada")], list[Model]),
        (Struct(1, datetime(2026, 11, 23, tzinfo=UTC)), Struct),
        ({"a": Struct(1)}, dict[str, Struct]),
        (7, int),
        (7, Number),
        (7, Annotated[int, "a number"]),
        ("seven", str),
        (None, int | None),
        ([1, "two"], tuple[int, str]),
        ([1, 2], set[int]),
        ([1, 2], tuple[int, ...]),
        ({"any": ["thing"]}, Any),
        (b"\x00\xff", bytes),
        (UUID(int=7), UUID),
        (date(2026, 11, 23), date),
        ("a", Literal["a", "b"]),
        (1.5, float),
        (2, float),
        (True, bool),
    ],
    ids=lambda one: str(one)[:30],
)
def test_what_is_sent_is_what_is_read(value: Any, wanted: Any) -> None:
    sent = CODECS.message(value)
    assert sent.content_type == "application/json"
    read = CODECS.read(Message.from_octets(sent.encode()), wanted)
    assert read == (
        tuple(value) if wanted in (tuple[int, str], tuple[int, ...]) else set(value) if wanted == set[int] else value
    )


@pytest.mark.parametrize(
    ("body", "wanted", "told"),
    [
        ({"number": "7"}, Order, "number: expected a whole number, not '7'"),
        ({"number": True}, Order, "number: expected a whole number"),
        ({}, Order, "missing number"),
        ({"number": 1, "lines": [{"price": "1"}, {"price": 0.1}]}, Order, "lines.1.price: expected a decimal number"),
        ({"number": 1, "kind": "gold"}, Order, "kind: none of"),
        ({"number": 1}, Model, "customer: Field required"),
        ({"number": "x"}, Struct, "Expected `int`"),
        ([1], tuple[int, str], "expected a list of 2"),
        ("2026-13-01", date, "expected a date"),
        ("c", Literal["a", "b"], "expected 'a' or 'b'"),
        (7, str, "expected text, not 7"),
        (None, int, "expected a whole number"),
    ],
    ids=lambda one: str(one)[:30],
)
@pytest.mark.parametrize("how", ["JSON", "AMQP"])
def test_what_does_not_fit_is_refused_with_its_place(body: Any, wanted: Any, told: str, how: str) -> None:
    message = CODECS.message(body) if how == "JSON" else Message(body)
    with pytest.raises(MessageUnfit, match="(?i)" + told.replace(".", r"\.")):
        CODECS.read(message, wanted)


def test_content_types() -> None:
    """A body without one is JSON, or what it is."""
    assert CODECS.read(Message(b'{"number": 1}'), Order) == Order(1)
    assert CODECS.read(Message({"number": 1}), Order) == Order(1)
    assert CODECS.read(Message({"number": 1, "customer": "Ada"}), Model) == Model(number=1, customer="Ada")
    assert CODECS.read(Message(b"\x00"), bytes) == b"\x00"
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/cloudevents+json"):
        assert CODECS.read(Message(b'{"number": 1}', content_type=kind), Order) == Order(1)
    assert CODECS.read(Message('{"number": 1}', content_type="application/json"), Order) == Order(1)
    for message, told in (
        (Message(b"{", content_type="application/json"), "no JSON"),
        (Message(b"<a/>", content_type="text/xml"), "content type is 'text/xml', and known are application/json"),
        (Message(b"\xff"), "no JSON"),
    ):
        with pytest.raises(MessageUnfit, match=told):
            CODECS.read(message, Order)


def test_a_codec_of_ones_own() -> None:
    class Comma:
        def encode(self, value: Any) -> bytes:
            return ",".join(map(str, value)).encode()

        def decode(self, octets: bytes, wanted: Any) -> Any:
            return wanted(map(int, octets.split(b",")))

    codecs = Codecs({"text/csv": Comma()})
    message = codecs.message([1, 2], "text/csv")
    assert message.body == b"1,2"
    assert codecs.read(message, tuple) == (1, 2)
    with pytest.raises(MessageUnfit, match="ValueError"):
        codecs.read(Message(b"x", content_type="text/csv"), tuple)
    with pytest.raises(ValueError, match="no codec is known"):
        codecs.message([1], "text/html")


def test_what_json_does_not_have_is_refused_when_it_is_sent() -> None:
    with pytest.raises(TypeError, match="is no JSON"):
        CODECS.message(object())
    with pytest.raises(ValueError, match="not JSON compliant"):
        CODECS.message(float("nan"))
    with pytest.raises(UnsupportedType, match="no message can be made into it"):
        reader_of(type("Odd", (), {}))
