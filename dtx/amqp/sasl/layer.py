"""The part that both sides of AMQP's SASL share: the header, the frames, and an exchange that waits for computations.

Each side sends the header AMQP 3 1 0 0; then, in frames of type 1 (size(4) doff(1) type(1) ignored(2) and a
described list) of at most 512 octets:
  server  mechanisms 0x40 [symbols]            client  init 0x41 [mechanism, initial response, hostname]
  server  challenge  0x42 [octets]             client  response 0x43 [octets]
  server  outcome    0x44 [code, octets]       code 0 ok, 1 auth, 2 system, 3 permanent, 4 temporary
After outcome 0 both sides begin anew with the header AMQP 0 1 0 0, which with all behind it is `rest`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from dtx.amqp.decoding import DecodeError, decode
from dtx.amqp.encoding import encode
from dtx.amqp.frames import AMQP_HEADER
from dtx.amqp.sasl.scram import ScramError
from dtx.amqp.values import Described, Ulong

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.sasl.mechanisms import Compute
    from dtx.amqp.values import Value

V = TypeVar("V")

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
MAX_FRAME: Final = 512
OUTCOME_OK: Final = 0
MAX_AHEAD: Final = 64 * 1024
"""Octets that a peer may send ahead of a computation's end."""

_FRAME: Final = struct.Struct(">IBBH")
_frame_at: Final[Callable[[bytes], tuple[int, int, int, int]]] = _FRAME.unpack_from


class SaslError(Exception):
    """Authentication failed, or the peer does not speak AMQP's SASL. The message holds no secrets."""


class State(Enum):
    """The states of one side's exchange."""

    HEADER = "waits for the peer's header"
    MECHANISMS = "client waits for the mechanisms"
    INIT = "server waits for the choice of a mechanism"
    EXCHANGE = "in the conversation of a mechanism"
    COMPUTING = "waits for a computation"
    DONE = "authenticated"
    FAILED = "failed"


class Frame(Enum):
    """The SASL frames, by descriptor."""

    MECHANISMS = 0x40
    INIT = 0x41
    CHALLENGE = 0x42
    RESPONSE = 0x43
    OUTCOME = 0x44


_SYMBOLS: Final[dict[Value, int]] = {f"amqp:sasl-{frame.name.lower()}:list": frame.value for frame in Frame}


class SaslLayer(ABC):
    """What both sides share: header, frames, output, computations."""

    def __init__(self, legal: frozenset[tuple[State, Frame]]) -> None:
        self.state = State.HEADER
        self.rest = b""
        self.failure: SaslError | None = None
        self.computation: Callable[[], object] | None = None
        self._legal = legal
        self._input = b""
        self._output: list[bytes] = []

    @property
    def done(self) -> bool:
        """Whether the peer is authenticated; from now on all bytes are AMQP's, those in `rest` first."""
        return self.state is State.DONE

    @property
    def failed(self) -> bool:
        """Whether the connection is to be closed once the output is sent; `failure` says why."""
        return self.state is State.FAILED

    def output(self) -> bytes:
        """The octets to be sent now."""
        octets = b"".join(self._output)
        self._output.clear()
        return octets

    def feed(self, data: bytes) -> None:
        """Takes what the peer sent. Then send `output`, and look at `computation`, `done` and `failed`.

        While there is a computation, `feed` only collects: better to read nothing more until `computed`.
        """
        self._input += data
        if self.state is State.COMPUTING and len(self._input) > MAX_AHEAD:
            self._fail("the peer sent too much ahead of the outcome")
        try:
            while self._step():
                pass
        except (DecodeError, ScramError, SaslError) as error:
            self._fail(str(error))
        if self.state is State.DONE:
            self.rest += self._input
            self._input = b""

    def computed(self, result: object) -> None:
        """Goes on with the result of `computation`, which the caller carried out."""
        if self.state is not State.COMPUTING:
            message: str = self.state.value
            raise ValueError(f"no computation is outstanding: {message}")
        self.computation = None
        self.state = State.EXCHANGE
        try:
            self._converse(result)
        except (ScramError, SaslError) as error:
            self._fail(str(error))
        self.feed(b"")

    def _fail(self, reason: str) -> None:
        self.state = State.FAILED
        self.failure = SaslError(reason)
        self._input = b""

    def _step(self) -> bool:
        """Takes one header or frame from the input; whether there was one."""
        if self.state is State.HEADER:
            header = self._input[: len(SASL_HEADER)]
            if len(header) < len(SASL_HEADER) and header in {
                SASL_HEADER[: len(header)],
                AMQP_HEADER[: len(header)],
            }:
                return False
            self._header(header)
            return True
        if self.state in {State.COMPUTING, State.DONE, State.FAILED} or len(self._input) < _FRAME.size:
            return False

        size, doff, kind, _ = _frame_at(self._input)
        start = 4 * doff
        if not start < size <= MAX_FRAME or doff < 2 or kind != 1:
            raise SaslError(f"not a SASL frame: {size} octets, type {kind}, body at {start}")
        if len(self._input) < size:
            return False
        frame, self._input = self._input[:size], self._input[size:]
        self._frame(frame, start)
        return True

    def _frame(self, data: bytes, start: int) -> None:
        value = decode(data[start:])
        if type(value) is not Described or type(value.value) is not list:
            raise SaslError("a SASL frame is no described list")
        descriptor, body = value.descriptor, value.value
        try:
            frame = Frame(descriptor if isinstance(descriptor, int) else _SYMBOLS[descriptor])
        except (ValueError, KeyError, TypeError):
            raise SaslError(f"unknown SASL frame {descriptor!r:.60}") from None
        if (self.state, frame) not in self._legal:
            raise SaslError(f"a SASL {frame.name} frame, while this side {self.state.value}")
        self._handle(frame, body)

    def _send(self, frame: Frame, *items: Value) -> None:
        body = encode(Described(Ulong(frame.value), list(items)))
        if _FRAME.size + len(body) > MAX_FRAME:
            raise SaslError(f"a SASL {frame.name} frame would exceed {MAX_FRAME} octets")
        self._output.append(_FRAME.pack(_FRAME.size + len(body), 2, 1, 0) + body)

    def _compute(self, request: Compute[object]) -> None:
        self.computation = request.work
        self.state = State.COMPUTING

    @abstractmethod
    def _header(self, header: bytes) -> None:
        """Takes the peer's header, whatever it is."""

    @abstractmethod
    def _handle(self, frame: Frame, body: list[Value]) -> None:
        """Takes a frame that is legal now."""

    @abstractmethod
    def _converse(self, answer: object) -> None:
        """Goes on with the conversation."""


def item(body: list[Value], index: int, kind: type[V]) -> V | None:
    """A field of a frame, None where it is left out."""
    value = body[index] if index < len(body) else None
    if value is None:
        return None
    if type(value) is not kind:
        raise SaslError(f"field {index} of a SASL frame is no {kind.__name__}")
    return value
