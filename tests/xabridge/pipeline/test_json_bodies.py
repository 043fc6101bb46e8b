"""These tests read JSON bodies by a schema: what fits, what is bad, and how a JSON Schema becomes columns."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from xabridge.pipeline.core import Messages
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
