"""Codecs: how a value becomes a message's body, and a body what a handler declares.

A message says in its content type what its body is. `Codecs` holds a codec for each content type that an application
knows; JSON is one of them, and what is sent without saying more. A codec of your own is an entry:

    app = App(codecs={"application/x-protobuf": Protobuf()})

A body without a content type is JSON if it is octets, and otherwise the value itself that AMQP carries: so a dict that
`Message({"number": 7})` sends can be read as a model too.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, Unpack
from uuid import UUID

from rm_amqp.message import Message
from xabridge.app.conversion import MessageUnfit, json_reader_of, reader_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

JSON: Final = "application/json"


class MessageFields(TypedDict, total=False):
    """The fields of a message that is sent, beside its body and its content type: see `Message`."""

    id: int | str | bytes | UUID | None
    subject: str | None
    correlation_id: int | str | bytes | UUID | None
    reply_to: str | None
    properties: dict[str, Any] | None
    annotations: Mapping[Any, Any] | None
    instructions: Mapping[Any, Any] | None
    durable: bool
    priority: int
    ttl: float
    delay: float
    deliver_at: float
    content_encoding: str | None
    user_id: bytes
    expiry_time: float
    creation_time: float
    group_id: str | None
    group_sequence: int
    reply_to_group_id: str | None


class Codec(Protocol):
    """What knows one content type."""

    def encode(self, value: Any) -> bytes:
        """The octets of a value; TypeError or ValueError for one that it does not know."""
        ...

    def decode(self, octets: bytes, wanted: Any) -> Any:
        """The value, as the type that the handler declares; any exception means that the message does not fit."""
        ...


class JsonCodec:
    """JSON. Models of pydantic, structs of msgspec, dataclasses, and what the standard library has."""

    def encode(self, value: Any) -> bytes:
        if hasattr(value, "__pydantic_validator__"):
            octets: bytes = _adapter_of(value).dump_json(value)
            return octets
        if hasattr(value, "__struct_fields__"):
            import msgspec  # noqa: PLC0415 — the maker of the value has loaded it

            return msgspec.json.encode(value)
        return _encode(value).encode()

    def decode(self, octets: bytes, wanted: Any) -> Any:
        read = _json_reader(wanted)
        if read is not None:
            return read(octets)
        try:
            value = json.loads(octets)
        except ValueError as error:
            raise MessageUnfit(f"the body is no JSON: {error}") from error
        return _reader(wanted)(value)


def _as_json(value: Any) -> Any:
    """What JSON does not have, as what it has."""
    if hasattr(value, "__pydantic_validator__"):
        return _adapter_of(value).dump_python(value, mode="json")
    if hasattr(value, "__struct_fields__"):
        import msgspec  # noqa: PLC0415 — as above

        return msgspec.to_builtins(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for kind, write in _WRITTEN:
        if isinstance(value, kind):
            return write(value)
    raise TypeError(
        f"{type(value).__qualname__} is no JSON: send a model of pydantic, a struct of msgspec, a dataclass, or a "
        "plain value; of a model of an ORM (Django, SQLAlchemy) a dict of its fields"
    )


_encode: Final = json.JSONEncoder(default=_as_json, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_WRITTEN: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (Enum, lambda value: value.value),
    ((datetime, date, time), lambda value: value.isoformat()),
    ((UUID, Decimal), str),
    ((set, frozenset), list),
    ((bytes, bytearray), lambda value: base64.b64encode(value).decode()),
)


def _adapter_of(value: Any) -> Any:
    kind: Any = type(value)
    return _adapter(kind)


@lru_cache(maxsize=1000)
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter  # noqa: PLC0415 — the maker of the type has loaded it

    return TypeAdapter(kind)


_reader = lru_cache(maxsize=1000)(reader_of)
_json_reader = lru_cache(maxsize=1000)(json_reader_of)


class Codecs:
    """The codecs of an application, by content type."""

    def __init__(self, own: Mapping[str, Codec] | None = None) -> None:
        self._of: dict[str, Codec] = {JSON: JsonCodec(), **(own or {})}
        self.has_own = bool(own)

    def message(self, value: Any, content_type: str = JSON, **more: Unpack[MessageFields]) -> Message:
        """The message that carries `value`; a Message is sent as it is. `more` are fields of `Message`. TypeError:
        there is no such field, or a Message would not get it."""
        if isinstance(value, Message):
            if more:
                raise TypeError(f"{', '.join(more)}: a Message is sent as it is: set its fields there")
            return value
        codec = self._of.get(content_type)
        if codec is None:
            raise ValueError(f"{content_type}: no codec is known for it; known are {', '.join(sorted(self._of))}")
        return Message(codec.encode(value), inferred=True, content_type=content_type, **more)

    def read(self, message: Message, wanted: Any) -> Any:
        """The body of `message` as a `wanted`; MessageUnfit if it does not fit."""
        if wanted is Message:
            return message
        try:
            return self._read(message, wanted)
        except MessageUnfit:
            raise
        except Exception as error:
            raise MessageUnfit(f"{type(error).__name__}: {error}") from error

    def _read(self, message: Message, wanted: Any) -> Any:
        body = message.body
        kind = (message.content_type or "").partition(";")[0].strip().lower()
        if isinstance(body, str) and kind:
            body = body.encode()
        if isinstance(body, bytes):
            if wanted is bytes and kind != JSON:
                return body
            codec = self._of.get(kind or JSON) or (self._of[JSON] if kind.endswith("+json") else None)
            if codec is None:
                known = ", ".join(sorted(self._of))
                raise MessageUnfit(f"its content type is {message.content_type!r}, and known are {known}")
            return codec.decode(body, wanted)
        return _reader(wanted)(body)
