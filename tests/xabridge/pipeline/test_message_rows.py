"""These tests convert messages to rows and rows to messages, without Spark: both ways keep every value."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, DataType, IntegerType, MapType, StringType, StructType, TimestampType

from rm_amqp import Message
from xabridge.pipeline import PipelineError
from xabridge.pipeline.core import Messages
from xabridge.pipeline.core.task.message_decoder import MessageFilter, decode_messages
from xabridge.pipeline.spark.json_bodies import json_reader
from xabridge.pipeline.spark.message_rows import batch_of, check_columns, columns_of, messages_of

TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "int": IntegerType(),
    "map<string,string>": MapType(StringType(), StringType()),
}


def schema(body: str, *names: str) -> pa.Schema:
    columns = columns_of("text" if body == "text" else "binary")
    fields = StructType()
    for name in names or columns:
        fields.add(name, TYPES[columns[name]])
    return to_arrow_schema(fields, timezone="UTC")


MESSAGES = Messages(
    body=[b"one", "zwei ü", None],
    address=["q", "q", "r"],
    message_id=["1", None, "3"],
    creation_time_ms=[1_700_000_000_123, None, 0],
    delivery_count=[0, 1, 2],
    priority=[4, None, 9],
    application_properties=[{"a": "1", "b": ""}, None, {}],
)


def test_a_message_becomes_a_row() -> None:
    batch = batch_of(MESSAGES, schema("binary"))
    assert batch.column("body").to_pylist() == [b"one", "zwei ü".encode(), None]
    assert batch.column("address").to_pylist() == ["q", "q", "r"]
    assert batch.column("creation_time").cast(pa.int64()).to_pylist() == [1_700_000_000_123_000, None, 0]
    assert batch.column("application_properties").to_pylist() == [[("a", "1"), ("b", "")], None, []]
    assert batch.column("subject").to_pylist() == [None, None, None]


def test_bodies_are_text_and_columns_are_those_that_were_asked_for() -> None:
    assert batch_of(MESSAGES, schema("text")).column("body").to_pylist() == ["one", "zwei ü", None]
    with pytest.raises(PipelineError, match=r"a message's body is not UTF-8 .* read it as binary"):
        batch_of(Messages(body=[b"\xff"]), schema("text", "body"))
    assert batch_of(MESSAGES, schema("binary", "message_id", "body")).schema.names == ["message_id", "body"]
    batch = batch_of(Messages(body=[b"a", b"b"]), schema("binary", "body", "delivery_count"))
    assert batch.column("delivery_count").to_pylist() == [0, 0], "without a header it was never delivered before"


def test_rows_become_the_messages_that_they_were() -> None:
    again = messages_of(batch_of(MESSAGES, schema("binary")))
    assert again.body == [b"one", "zwei ü".encode()], "a row without a body is no message"
    assert again.message_id == ["1", None]
    assert again.creation_time_ms == [1_700_000_000_123, None]
    assert again.priority == [4, None]
    assert again.application_properties == [{"a": "1", "b": ""}, None]
    assert again.annotations is None, "what only a received message has is not sent"
    assert again.delivery_count is None


def test_a_schema_that_was_asked_for_is_checked() -> None:
    check_columns({"body": "string", "application_properties": "map<string,string>"}, "text")
    check_columns({"body": "struct<a:int>"}, "binary", "a INT NOT NULL")
    check_columns({"body": "string", "bad": "struct<body:binary,reason:string>"}, "text", "", "bad")
    with pytest.raises(PipelineError, match="the schema lacks bad"):
        check_columns({"body": "string"}, "text", "", "bad")
    with pytest.raises(PipelineError, match="there is no column 'bdy'; there are body, address"):
        check_columns({"bdy": "string"}, "text")
    with pytest.raises(PipelineError, match="the column body is binary, not string: set the option body"):
        check_columns({"body": "string"}, "binary")


def test_the_column_for_bad_messages() -> None:
    columns = columns_of("binary", "n int", "oops")
    oops = pa.struct([("body", pa.binary()), ("reason", pa.string())])
    schema = pa.schema([("body", pa.struct([("n", pa.int32())])), ("oops", oops)])
    assert columns["oops"] == "struct<body:binary,reason:string>"
    sorting = MessageFilter(
        body=json_reader(schema.field("body").type), keep=True, is_bad=lambda row: row["body"]["n"] == 3
    )

    sent = [b'{"n": 1}', b"no json", b'{"n": "x"}', b'{"n": 3}', None]
    octets = [Message(body, inferred=True).encode() if body else b"no message" for body in sent]
    (chunk,) = decode_messages([("q", one) for one in octets], 10, sorting)
    rows = batch_of(chunk, schema).to_pylist()
    assert [row["body"] for row in rows] == [{"n": 1}, None, None, None, None]
    assert rows[0]["oops"] is None
    assert [row["oops"]["body"] for row in rows[1:]] == [b"no json", b'{"n": "x"}', b'{"n": 3}', b"no message"]
    assert [row["oops"]["reason"] for row in rows[3:4]] == ["True"]
    assert all(row["oops"]["reason"].startswith("it can't be read") for row in (*rows[1:3], rows[4]))
    assert chunk.address == ["q"] * 5
    assert sorting.bad == {}
