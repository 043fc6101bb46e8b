"""Performatives as far as they are looked at in front of proton: those whose handles or properties it hides.

A performative is a described list; `decoded` gives of begin, attach, flow, transfer, detach and end what a
`Seen` holds, and None of the others and of a flow that concerns the session only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from dtx.protocol.decoding import DecodeError, decode_from, fields
from dtx.protocol.values import Described, Uint, Ushort

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

FRAMING_ERROR: Final = "amqp:connection:framing-error"
DECODE_ERROR: Final = "amqp:decode-error"

OPEN: Final = 0x10
BEGIN: Final = 0x11
ATTACH: Final = 0x12
FLOW: Final = 0x13
TRANSFER: Final = 0x14
DISPOSITION: Final = 0x15
DETACH: Final = 0x16
END: Final = 0x17
CLOSE: Final = 0x18

ECHO: Final = 9
PROPERTIES: Final = 10
"""Fields of a flow."""

CODES: Final = {
    "amqp:open:list": OPEN,
    "amqp:begin:list": BEGIN,
    "amqp:attach:list": ATTACH,
    "amqp:flow:list": FLOW,
    "amqp:transfer:list": TRANSFER,
    "amqp:disposition:list": DISPOSITION,
    "amqp:detach:list": DETACH,
    "amqp:end:list": END,
    "amqp:close:list": CLOSE,
}
"""What the descriptor may be in place of its number."""


class FrameError(Exception):
    """The peer's bytes are no AMQP frames, or too large ones; the connection is closed with `condition`."""

    def __init__(self, condition: str, message: str) -> None:
        super().__init__(message)
        self.condition = condition


@dataclass(frozen=True, slots=True)
class BeginSeen:
    """A session begins on `channel`; `remote_channel` is set where it answers our begin on that channel."""

    channel: int
    remote_channel: int | None


@dataclass(frozen=True, slots=True)
class EndSeen:
    """The session on `channel` ends."""

    channel: int


@dataclass(frozen=True, slots=True)
class AttachSeen:
    """A link endpoint attaches: from now on its frames carry `channel` and `handle`. `default_outcome` is
    that of its source: what is applied to deliveries that end without an outcome. `cut`: its name, or an address,
    holds the character NUL, where proton cuts it."""

    channel: int
    handle: int
    name: str
    receiver: bool
    default_outcome: Described | None = None
    cut: bool = False


@dataclass(frozen=True, slots=True)
class DetachSeen:
    """The link endpoint with `handle` on `channel` detaches."""

    channel: int
    handle: int


@dataclass(frozen=True, slots=True)
class FlowSeen:
    """A flow of a link with properties, or without (an empty mapping) of one that had some before; or one
    that asks for an `echo`: the state of the link as the other side has it, which proton doesn't give."""

    channel: int
    handle: int
    properties: Mapping[Any, Any]
    echo: bool = False


@dataclass(frozen=True, slots=True)
class ContinuationSeen:
    """A transfer that continues a delivery; `state` None where it carries none."""

    channel: int
    handle: int
    state: Described | None
    more: bool
    aborted: bool


Seen: TypeAlias = BeginSeen | EndSeen | AttachSeen | DetachSeen | FlowSeen | ContinuationSeen


class Fields:
    """The fields of one performative, decoded one by one when asked for."""

    __slots__ = ("_data", "_starts")

    def __init__(self, data: bytes, start: int, stop: int) -> None:
        self._data = data
        self._starts = fields(data, start, stop)

    def _has(self, index: int) -> bool:
        return index < len(self._starts) - 1 and self._data[self._starts[index]] != 0x40

    def optional(self, index: int, kind: type[T]) -> T | None:
        """The field, or None where it is null or left out."""
        if not self._has(index):
            return None
        value, _ = decode_from(self._data, self._starts[index], self._starts[index + 1])
        if type(value) is not kind:
            raise DecodeError(f"field {index} is no {kind.__name__.lower()}: {value!r:.40}")
        return value

    def mandatory(self, index: int, kind: type[T]) -> T:
        """The field, which must be there."""
        value = self.optional(index, kind)
        if value is None:
            raise DecodeError(f"field {index} is missing")
        return value

    def flag(self, index: int) -> bool:
        """A boolean, false where it is left out."""
        return self.optional(index, bool) or False

    def octets(self, count: int) -> list[bytes]:
        """The first `count` fields as they are encoded, null where they are left out."""
        pairs = zip(self._starts, self._starts[1:], strict=False)
        return [self._data[start:stop] for start, stop in pairs][:count] + [b"\x40"] * (count - len(self._starts) + 1)


def _begin(channel: int, given: Fields) -> BeginSeen:
    return BeginSeen(channel, given.optional(0, Ushort))


def _attach(channel: int, given: Fields) -> AttachSeen:
    name, handle, receiver = given.mandatory(0, str), given.mandatory(1, Uint), given.mandatory(2, bool)
    source, target = (_terminus(given.optional(index, Described)) for index in (5, 6))
    default = source[8] if len(source) > 8 else None
    cut = any("\0" in text for text in (name, *source[:1], *target[:1]) if isinstance(text, str))
    return AttachSeen(channel, handle, name, receiver, default if isinstance(default, Described) else None, cut)


def _terminus(given: Described | None) -> list[Any]:
    return given.value if given is not None and isinstance(given.value, list) else []


def _flow(channel: int, given: Fields) -> FlowSeen | None:
    handle = given.optional(4, Uint)
    if handle is None:
        return None
    return FlowSeen(channel, handle, given.optional(PROPERTIES, dict) or {}, given.flag(ECHO))


def _transfer(channel: int, given: Fields) -> ContinuationSeen:
    handle, state = given.mandatory(0, Uint), given.optional(7, Described)
    return ContinuationSeen(channel, handle, state, given.flag(5), given.flag(9))


def _detach(channel: int, given: Fields) -> DetachSeen:
    return DetachSeen(channel, given.mandatory(0, Uint))


def _end(channel: int, _given: Fields) -> EndSeen:
    return EndSeen(channel)


_DECODERS: Final[dict[int, Callable[[int, Fields], Seen | None]]] = {
    BEGIN: _begin,
    ATTACH: _attach,
    FLOW: _flow,
    TRANSFER: _transfer,
    DETACH: _detach,
    END: _end,
}


def decoded(code: int, channel: int, data: bytes, start: int, stop: int) -> Seen | None:
    """The fields of a performative, for those that are read here."""
    decoder = _DECODERS.get(code)
    if decoder is None:
        return None
    try:
        return decoder(channel, Fields(data, start, stop))
    except DecodeError as error:
        raise FrameError(DECODE_ERROR, f"performative {code:#x} on channel {channel}: {error}") from error
