"""These tests read JSON bodies by a schema: what fits, what is bad, and how a JSON Schema becomes columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from rm_amqp import Message
from rm_amqp.message import encoded
from xabridge.pipeline.core import Messages
from xabridge.pipeline.core.task.message_decoder import MessageFilter, decode_messages
from xabridge.pipeline.json_schema import ddl_of
from xabridge.pipeline.spark.json_bodies import json_reader
from xabridge.pipeline.spark.message_rows import batch_of

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


def test_the_first_and_the_last_moment_are_read() -> None:
    type_ = pa.struct({"at": ZONED})
    ends = [
        json_reader(type_)(f'{{"at": "{at}"}}') for at in ("0001-01-01T00:00:00-14:00", "9999-12-31T23:59:59+14:00")
    ]
    assert pa.array(ends, type_).null_count == 0


def test_large_decimals_are_not_rounded() -> None:
    amount = "123456789012345678901234567890.12345678"
    type_ = pa.struct({"amount": pa.decimal128(38, 8)})
    for body in (f'{{"amount": {amount}}}', f'{{"amount": "{amount}"}}'):
        assert column(type_, body) == [{"amount": Decimal(amount)}]
    assert column(type_, '{"amount": 1e2}', '{"amount": 1.100000000000}') == [
        {"amount": Decimal(100)},
        {"amount": Decimal("1.1")},
    ]


WIDE = pa.struct({**{field.name: field.type for field in EVERY}, "float_": pa.float32(), "large": pa.int64()})
NINES = "9" * 5000
FAR = "1e99999999999999999999"
"""A number that Python can't read as a Decimal."""
BAD = {
    "flag": ["1", NINES],
    "small": ["128", "true", "1.5", "9" * 39, "9" * 41],
    "large": ["9223372036854775808", "-9223372036854775809", "1e2", NINES, "-" + "9" * 1_000_000, FAR],
    "ratio": ["1" + "0" * 400, '"1"', NINES, "1e999", "-1e999", FAR],
    "float_": ["3.5e38", "-1e39"],
    "amount": [
        *("1.005", "100000000", '"NaN"', '"many"', '"1_000"', '" 1"', '"\\u0661"', NINES, f'"{NINES}"', "1e999", FAR),
        *(f'"{FAR}"', "1e-99999999999999999999", "1e-999999999999999999"),
    ],
    "text": ["5", NINES, '"\\ud83d"', '"\\ude00\\ud83d"', '"\\ud800"'],
    "at": [
        *('"2026-11-21T23:12:07"', '"yesterday"', '"0001-01-01T00:00:00+23:00"', '"9999-12-31T23:59:59-23:00"'),
        *(NINES, '"\\ud800"'),
    ],
    "local": ['"2026-11-21T23:12:07Z"'],
    "day": ['"2026-02-30"', '"\\ud800"'],
    "raw": ['"?"', '"\\ud800"'],
    "lines": ["{}", '[{"price": 1.2345}]', f"[{NINES}]", "[" * 100_000 + "]" * 100_000, "[" * 200 + "]" * 200],
    "tags": ["[]", '{"x": "1"}', f'{{"x": {NINES}}}', '{"\\ud800": 1}', '{"\\ud800": "x"}'],
}


@pytest.mark.parametrize("name", BAD)
def test_a_value_that_does_not_fit_is_bad(name: str) -> None:
    """The reason says which field, is text itself, and is not Python's."""
    good = encoded(Message(b"{}", inferred=True))
    for literal in BAD[name]:
        sorting = MessageFilter(body=json_reader(WIDE))
        bad = encoded(Message(f'{{"{name}": {literal}}}'.encode(), inferred=True))
        (messages,) = decode_messages([(None, one) for one in (good, bad, good)], 10, sorting)
        assert len(messages) == 2
        ((place, why),) = sorting.bad.items()
        assert place == 1
        field = "price" if "price" in literal else name
        assert (field in why and "which is no " in why) or "nested too deeply" in why, literal[:50]
        assert len(why.encode()) < 200


@pytest.mark.parametrize(
    ("name", "literal", "read"),
    [
        ("large", "9223372036854775807", (1 << 63) - 1),
        ("large", "-9223372036854775808", -1 << 63),
        ("large", "-0", 0),
        ("large", '1, "large": 2', 2),
        ("ratio", f"0.{NINES}", 1.0),
        ("ratio", "9" * 300, 1e300),
        ("ratio", "1e-999", 0.0),
        ("ratio", "-0", 0.0),
        ("ratio", "-0.0", -0.0),
        ("float_", "3.4028234e38", 3.4028234663852886e38),
        ("amount", "1." + "0" * 5000, Decimal(1)),
        ("amount", "1.1" + "0" * 60, Decimal("1.1")),
        ("amount", "1" + "0" * 5000 + "e-5000", Decimal(1)),
        ("amount", "0e999999", Decimal(0)),
        ("amount", "-0", Decimal(0)),
        ("amount", "-0.00", Decimal(0)),
        ("text", '"\\ud83d\\ude00"', "\U0001f600"),
        ("text", '"\\u0000"', "\0"),
        ("tags", '{"x": 1, "y": 2, "x": 3}', [("x", 3), ("y", 2)]),
    ],
)
def test_what_is_json_and_strange_is_read_exactly(name: str, literal: str, read: Any) -> None:
    (row,) = column(WIDE, f'{{"{name}": {literal}}}')
    assert row[name] == read
    assert not isinstance(read, float) or str(row[name]) == str(read), "the sign of zero, too"


def test_fields_that_a_schema_has_more_or_less_are_no_matter() -> None:
    assert column(ORDER, '{"number": 2, "product": "globe"}') == [{"number": 2, "product": "globe"}]
    for literal in ("1", NINES, FAR, "1e999", '"\\ud800"', '{"\\ud800": -0}'):
        assert column(ORDER, f'{{"number": 1, "other": {literal}}}') == [{"number": 1, "product": None}]


def test_keys_of_a_map_fit_their_type() -> None:
    days = pa.struct({"days": pa.map_(pa.date32(), pa.int32())})
    assert column(days, '{"days": {"2026-11-21": 1}}') == [{"days": [(date(2026, 11, 21), 1)]}]
    with pytest.raises(ValueError, match='a key of days is "today", which is no date32'):
        json_reader(days)('{"days": {"today": 1}}')


def test_constants_are_no_json() -> None:
    for constant in ("NaN", "Infinity", "-Infinity"):
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
