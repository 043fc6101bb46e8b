"""These tests read JSON bodies by a schema: what fits, what is bad, and how a JSON Schema becomes columns."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from rm_amqp import Message
from rm_amqp.message import encoded
from xabridge.pipeline.core import Messages
from xabridge.pipeline.core.task.message_decoder import Sorting, decode_messages
from xabridge.pipeline.json_schema import ddl_of
from xabridge.pipeline.spark.json_bodies import json_reader
from xabridge.pipeline.spark.message_rows import batch_of

if TYPE_CHECKING:
    from collections.abc import Mapping

ZONED = pa.timestamp("us", tz="UTC")
ORDER = pa.struct([pa.field("number", pa.int64(), nullable=False), pa.field("product", pa.string())])
EVERY = pa.struct(
    {
        "flag": pa.bool_(),
        "small": pa.int8(),
        "ratio": pa.float64(),
        "amount": pa.decimal128(10, 2),
        "text": pa.string(),
        "at": ZONED,
        "local": pa.timestamp("us"),
        "day": pa.date32(),
        "raw": pa.binary(),
        "lines": pa.list_(pa.struct({"sku": pa.string(), "price": pa.decimal128(6, 3)})),
        "tags": pa.map_(pa.string(), pa.int32()),
    }
)
FULL: Mapping[str, Any] = {
    "flag": True,
    "small": -128,
    "ratio": 1,
    "amount": 1234.50,
    "text": "zwei ü",
    "at": "2026-11-21T23:12:07+02:00",
    "local": "2026-11-21T23:12:07",
    "day": "2026-11-21",
    "raw": "AP8=",
    "lines": [{"sku": "a", "price": "1.250"}, None, {}],
    "tags": {"x": 1, "y": None},
    "of a newer producer": 1,
}


def column(type_: pa.StructType, *bodies: bytes | str) -> list[Any]:
    """What the column body has."""
    reader = json_reader(type_)
    read: list[Any] = [reader(body) for body in bodies]
    found = batch_of(Messages(body=read), pa.schema({"body": type_}))
    values: list[Any] = found.column("body").to_pylist()
    return values


def test_every_type_comes_as_what_it_is() -> None:
    (row,) = column(EVERY, json.dumps(FULL))
    assert row == {
        "flag": True,
        "small": -128,
        "ratio": 1.0,
        "amount": Decimal("1234.50"),
        "text": "zwei ü",
        "at": datetime(2026, 11, 21, 21, 12, 7, tzinfo=UTC),
        "local": datetime(2026, 11, 21, 23, 12, 7),  # noqa: DTZ001 — it has no zone
        "day": date(2026, 11, 21),
        "raw": b"\x00\xff",
        "lines": [{"sku": "a", "price": Decimal("1.250")}, None, {"sku": None, "price": None}],
        "tags": [("x", 1), ("y", None)],
    }


def test_the_ends_of_what_a_type_holds() -> None:
    body = '{"amount": 0e999999, "at": "0001-01-01T00:00:00-14:00"}'
    (first,) = column(pa.struct({"amount": pa.decimal128(10, 2)}), body)
    assert first == {"amount": Decimal(0)}
    ends = [json_reader(pa.struct({"at": ZONED}))(one) for one in (body, '{"at": "9999-12-31T23:59:59+14:00"}')]
    assert pa.array(ends, pa.struct({"at": ZONED})).null_count == 0


def test_a_message_that_lacks_a_new_column_has_null_there() -> None:
    assert column(ORDER, b'{"number": 1}', '{"number": 2, "product": "globe"}') == [
        {"number": 1, "product": None},
        {"number": 2, "product": "globe"},
    ]


def test_large_decimals_are_not_rounded() -> None:
    amount = "123456789012345678901234567890.12345678"
    type_ = pa.struct({"amount": pa.decimal128(38, 8)})
    for body in (f'{{"amount": {amount}}}', f'{{"amount": "{amount}"}}'):
        assert column(type_, body) == [{"amount": Decimal(amount)}]
    assert column(type_, '{"amount": 1e2}', '{"amount": 1.100000000000}') == [
        {"amount": Decimal(100)},
        {"amount": Decimal("1.1")},
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flag", 1),
        ("small", 128),
        ("small", True),
        ("small", 1.5),
        ("ratio", 10**400),
        ("ratio", "1"),
        ("amount", 1.005),
        ("amount", 100_000_000),
        ("amount", "NaN"),
        ("amount", "many"),
        ("amount", "1_000"),
        ("amount", " 1"),
        ("amount", "\u0661"),
        ("text", 5),
        ("text", "\ud800"),
        ("at", "2026-11-21T23:12:07"),
        ("local", "2026-11-21T23:12:07Z"),
        ("at", "yesterday"),
        ("at", "0001-01-01T00:00:00+23:00"),
        ("at", "9999-12-31T23:59:59-23:00"),
        ("day", "2026-02-30"),
        ("raw", "?"),
        ("lines", {}),
        ("lines", [{"price": 1.2345}]),
        ("tags", []),
        ("tags", {"x": "1"}),
    ],
)
def test_a_value_that_does_not_fit_is_bad(name: str, value: object) -> None:
    with pytest.raises(ValueError, match="which is no"):
        json_reader(EVERY)(json.dumps({name: value}))


WIDE = pa.struct({**{field.name: field.type for field in EVERY}, "float_": pa.float32(), "large": pa.int64()})
DEEP = "[" * 100_000 + "]" * 100_000
FAR = "1e99999999999999999999"
"""A number that Python can't read as a Decimal."""


@pytest.mark.parametrize(
    ("name", "literal", "read"),
    [
        ("large", "9223372036854775807", (1 << 63) - 1),
        ("large", "9223372036854775808", None),
        ("large", "-9223372036854775808", -1 << 63),
        ("large", "-9223372036854775809", None),
        ("large", "-0", 0),
        ("large", "1e2", None),
        ("large", "9" * 5000, None),
        ("large", "-" + "9" * 1_000_000, None),
        ("large", FAR, None),
        ("small", "9" * 39, None),
        ("small", "9" * 41, None),
        ("ratio", "9" * 5000, None),
        ("ratio", "0." + "9" * 5000, 1.0),
        ("ratio", "9" * 300, 1e300),
        ("ratio", "1e999", None),
        ("ratio", "-1e999", None),
        ("ratio", FAR, None),
        ("ratio", "1e-999", 0.0),
        ("ratio", "-0", 0.0),
        ("ratio", "-0.0", -0.0),
        ("float_", "3.4028234e38", 3.4028234663852886e38),
        ("float_", "3.5e38", None),
        ("float_", "-1e39", None),
        ("amount", "9" * 5000, None),
        ("amount", '"' + "9" * 5000 + '"', None),
        ("amount", "1." + "0" * 5000, Decimal(1)),
        ("amount", "1.1" + "0" * 60, Decimal("1.1")),
        ("amount", "1" + "0" * 5000 + "e-5000", Decimal(1)),
        ("amount", "1e999", None),
        ("amount", FAR, None),
        ("amount", f'"{FAR}"', None),
        ("amount", "1e-99999999999999999999", None),
        ("amount", "1e-999999999999999999", None),
        ("amount", "-0", Decimal(0)),
        ("amount", "-0.00", Decimal(0)),
        ("text", "9" * 5000, None),
        ("text", '"\\ud83d\\ude00"', "\U0001f600"),
        ("text", '"\\ud83d"', None),
        ("text", '"\\ude00\\ud83d"', None),
        ("text", '"\\u0000"', "\0"),
        ("flag", "9" * 5000, None),
        ("at", "9" * 5000, None),
        ("at", '"\\ud800"', None),
        ("day", '"\\ud800"', None),
        ("raw", '"\\ud800"', None),
        ("tags", '{"x": ' + "9" * 5000 + "}", None),
        ("tags", '{"\\ud800": 1}', None),
        ("tags", '{"\\ud800": "x"}', None),
        ("tags", '{"x": 1, "y": 2, "x": 3}', [("x", 3), ("y", 2)]),
        ("lines", "[" + "9" * 5000 + "]", None),
        ("lines", DEEP, None),
        ("lines", "[" * 200 + "]" * 200, None),
        ("large", '1, "large": 2', 2),
    ],
)
def test_what_is_json_and_strange(name: str, literal: str, read: Any) -> None:
    """It is read exactly, or the message is bad: the reason says which field, is text itself, and is not Python's."""
    body = f'{{"{name}": {literal}}}'.encode()
    if read is not None:
        (row,) = column(WIDE, body)
        assert row[name] == read
        assert not isinstance(read, float) or str(row[name]) == str(read), "the sign of zero, too"
        return
    sorting = Sorting(body=json_reader(WIDE))
    octets = [(None, encoded(Message(one, inferred=True))) for one in (b"{}", body, b"{}")]
    (messages,) = decode_messages(octets, 10, sorting)
    assert len(messages) == 2
    ((place, why),) = sorting.bad.items()
    assert place == 1
    assert name in why or "nested too deeply" in why
    assert "which is no " in why or "nested too deeply" in why
    assert len(why.encode()) < 200


def test_a_strange_number_in_a_field_that_is_left_out_is_no_matter() -> None:
    for literal in ("9" * 5000, FAR, "1e999", '"\\ud800"', '{"\\ud800": -0}'):
        assert column(ORDER, f'{{"number": 1, "other": {literal}}}') == [{"number": 1, "product": None}]


def test_keys_of_a_map_fit_their_type() -> None:
    days = pa.struct({"days": pa.map_(pa.date32(), pa.int32())})
    assert column(days, '{"days": {"2026-11-21": 1}}') == [{"days": [(date(2026, 11, 21), 1)]}]
    with pytest.raises(ValueError, match='a key of days is "today", which is no date32'):
        json_reader(days)('{"days": {"today": 1}}')


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_constants_are_no_json(constant: str) -> None:
    for name in ("ratio", "amount", "other"):
        with pytest.raises(ValueError, match=f"{constant} is not JSON"):
            json_reader(EVERY)(f'{{"{name}": {constant}}}')


@pytest.mark.parametrize("body", [None, b"", b"{", b"\xff", b"[]", b"null", b'{"number": NaN}', b"{}", b"[" * 100_000])
def test_a_body_that_does_not_fit_is_bad(body: bytes | None) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_reader(ORDER)(body)


def test_a_json_schema_becomes_columns() -> None:
    schema = {
        "type": "object",
        "title": "order",
        "required": ["number", "note"],
        "properties": {
            "number": {"type": "integer", "minimum": 1},
            "note": {"type": ["string", "null"]},
            "a`b": {"type": "number"},
            "amount": {"type": "number", "multipleOf": 0.01},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "raw": {"type": "string", "contentEncoding": "base64"},
            "tags": {"type": "object", "additionalProperties": {"type": "boolean"}},
            "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        },
    }
    assert ddl_of(json.dumps(schema)) == (
        "`number` bigint NOT NULL, `note` string, `a``b` double, `amount` decimal(38,2), `at` timestamp, `day` date, "
        "`raw` binary, `tags` map<string,boolean>, `lines` array<struct<`sku` string>>"
    )
    assert ddl_of(" number bigint, product string ") == "number bigint, product string"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "Expecting"),
        ('{"type": "string"}', "has to be of an object"),
        ('{"type": "object", "properties": {"a": {"$ref": "#/b"}}}', r"the property 'a' has \$ref"),
        ('{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}', "has string and integer"),
        ('{"type": "object", "properties": {"a": {}}}', "the property 'a' needs one type, and has none"),
        ('{"type": "object", "properties": {"a": {"type": "array"}}}', "the items of the property 'a' is no schema"),
        ('{"type": "object", "properties": {"a": {"type": "text"}}}', "has the type text, which Spark has not"),
    ],
)
def test_a_schema_without_columns_is_refused(schema: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ddl_of(schema)
