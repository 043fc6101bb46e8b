"""AMQP messages as rows: the columns of the format `amqp`, their types, and messages ↔ Arrow batches.

The option `body` says whether bodies are octets or text. Values of an AMQP message that have no type in Spark come as
text (`xabridge.pipeline.core.messages`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from xabridge.pipeline.core import Messages, PipelineError
from xabridge.pipeline.spark.json_values import json_texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from xabridge.pipeline.options import Body

MAP: Final = "map<string,string>"
COLUMNS: Final[Mapping[str, str]] = {
    "body": "binary",
    "address": "string",
    "message_id": "string",
    "correlation_id": "string",
    "subject": "string",
    "reply_to": "string",
    "content_type": "string",
    "group_id": "string",
    "creation_time": "timestamp",
    "priority": "int",
    "delivery_count": "int",
    "application_properties": MAP,
    "annotations": MAP,
}
"""Column → its Spark type. The source yields them; what a sink does not read is in `RECEIVED`."""

BAD: Final = "struct<body:binary,reason:string>"
"""The type of the column for bad messages."""

JSON: Final = "application/json"

RECEIVED: Final = frozenset({"address", "delivery_count", "annotations"})
"""The columns that only a received message has."""

SENT: Final = tuple(name for name in COLUMNS if name not in RECEIVED)


def columns_of(body: Body, body_schema: str = "", bad_column: str = "") -> dict[str, str]:
    """The columns of a source with these bodies, or with JSON bodies of these columns; and with a column for bad
    messages."""
    kind = f"struct<{body_schema}>" if body_schema else "string" if body == "text" else "binary"
    return {**COLUMNS, "body": kind, **({bad_column: BAD} if bad_column else {})}


def check_columns(wanted: Mapping[str, str], body: Body, body_schema: str = "", bad_column: str = "") -> None:
    """PipelineError: a schema was requested that has other columns than the source."""
    known = columns_of(body, body_schema, bad_column)
    if bad_column and bad_column not in wanted:
        raise PipelineError(f"format amqp: the schema lacks {bad_column}, which is the column for bad messages: add it")
    for name, type_ in wanted.items():
        if name not in known:
            raise PipelineError(f"format amqp: there is no column {name!r}; there are {', '.join(known)}")
        if body_schema and name == "body" and type_.startswith("struct<"):
            continue  # Spark writes types in its own way
        if type_ != known[name]:
            hint = ": set the option body" if name == "body" else ""
            raise PipelineError(f"format amqp: the column {name} is {known[name]}, not {type_}{hint}")


def batch_of(messages: Messages, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of `messages`, with the columns of `schema`. PipelineError: a body is no text, and should be."""
    arrays = [_array(messages, field) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(messages: Messages, field: pa.Field) -> pa.Array:
    if field.name == "body" and pa.types.is_struct(field.type):
        return pa.array(messages.body, type=field.type)
    if field.name == "body":
        return pa.array(_bodies(messages, as_text=not pa.types.is_binary(field.type)), type=field.type)
    if field.name not in COLUMNS:  # the one for bad messages
        bad = messages.bad or [None] * len(messages)
        return pa.array([None if one is None else {"body": one[0], "reason": one[1]} for one in bad], type=field.type)
    name = "creation_time_ms" if field.name == "creation_time" else field.name
    values: Sequence[Any] | None = getattr(messages, name)
    if name == "delivery_count":  # a message without a header was never delivered before
        values = [count or 0 for count in values or [0] * len(messages)]
    if values is None:
        return pa.nulls(len(messages), field.type)

    if pa.types.is_map(field.type):
        values = [None if entry is None else list(entry.items()) for entry in values]
    elif pa.types.is_timestamp(field.type):
        values = [None if milliseconds is None else milliseconds * 1000 for milliseconds in values]
    return pa.array(values, type=field.type)


def _bodies(messages: Messages, *, as_text: bool) -> Sequence[object]:
    if not as_text:
        return [body.encode() if isinstance(body, str) else body for body in messages.body]
    try:
        return [body.decode() if isinstance(body, bytes) else body for body in messages.body]
    except UnicodeDecodeError as error:
        raise PipelineError(
            f"format amqp: a message's body is not UTF-8 ({error}), and the option body says text; read it as binary, "
            "and let the query decode it"
        ) from error


def with_body(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of `batch` that have a body."""
    bodies = batch.column("body")
    return batch.filter(bodies.is_valid()) if bodies.null_count else batch


def messages_of(batch: pa.RecordBatch) -> Messages:
    """The rows of `batch` as messages. A row whose body is null is left out; a nested body becomes JSON."""
    batch = with_body(batch)
    columns = {name: _values(batch.column(name)) for name in SENT if name in batch.schema.names}
    if pa.types.is_nested(batch.column("body").type):
        columns["body"] = json_texts(batch.column("body"))
        columns.setdefault("content_type", [JSON] * len(batch))
    if "creation_time" in columns:
        columns["creation_time_ms"] = columns.pop("creation_time")
    return Messages(**columns)


def _values(array: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", tz=array.type.tz), safe=False).cast(pa.int64())
    values: list[Any] = array.to_pylist()
    if pa.types.is_map(array.type):
        return [None if value is None else dict(value) for value in values]
    return values
