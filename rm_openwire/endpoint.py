"""Endpoint: the client's side of one OpenWire connection, without I/O.

Octets from the broker go into `receive`; octets for the broker are in `outgoing` until the caller has written them.
`ask` sends a command whose answer is wanted, and `answer` takes that answer when it has come. Messages for a
consumer wait in `arrived`.

    1. Either side sends its `WireFormatInfo` first. The lower version of both counts; below 10 nothing is understood.
       This side switches tight encoding, cache and stack traces off, which does so for both.
    2. The broker sends a `BrokerInfo`, and answers commands that ask for it. Artemis sometimes answers a message twice;
       the second answer is ignored. An exception that belongs to nothing that was asked breaks the connection: Artemis
       may attribute one to the wrong command, so that nothing that is under way can be trusted then.
    3. Either side sends `KeepAliveInfo` when it was silent for a while.

Whatever goes wrong raises `ConnectionLost`; the connection can't be used any further.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.protocol_detection import LONGEST, protocol_of
from rm_openwire.errors import ConnectionLost, Refused
from rm_openwire.primitives import decode_map, encode_map
from rm_openwire.wire import (
    MAX_FRAME,
    MAX_VERSION,
    MIN_VERSION,
    BrokerInfo,
    Command,
    ConnectionControl,
    ConnectionFault,
    ConsumerId,
    ConsumerInfo,
    DecodeError,
    ExceptionResponse,
    FrameReader,
    KeepAliveInfo,
    MessageDispatch,
    Response,
    ShutdownInfo,
    WireFormatInfo,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_GREETING: Final = b"\x01Active"
"""Behind its length, the first frame's type and the beginning of the magic."""
MAX_WAITING: Final = 100_000
"""Messages that wait for one consumer. It asks for what it gets, so that a broker that sends more is broken."""


class Endpoint:
    """One connection's state. `idle_timeout_s`: after so much silence either side gives the other up."""

    def __init__(self, idle_timeout_s: float) -> None:
        self.outgoing = bytearray()
        self.broker: BrokerInfo | None = None
        self.offer: Mapping[str, Any] = {}
        """What the broker offered in its `WireFormatInfo`."""
        self.version = 0
        self.arrived: dict[ConsumerId, deque[MessageDispatch]] = {}
        self._reader = FrameReader()
        self._begun = b""
        self._last_id = 0
        self._answers: dict[int, Response | None] = {}

        offer = {
            "TightEncodingEnabled": False,
            "CacheEnabled": False,
            "StackTraceEnabled": False,
            "SizePrefixDisabled": False,
            "TcpNoDelayEnabled": True,
            "MaxInactivityDuration": int(idle_timeout_s * 1000),
            "MaxInactivityDurationInitalDelay": int(idle_timeout_s * 1000),
            "MaxFrameSize": MAX_FRAME,
            "ProviderName": "xabridge",
        }
        self.outgoing += encode(WireFormatInfo(version=MAX_VERSION, properties=encode_map(offer)))

    @property
    def is_classic(self) -> bool:
        """Whether the broker is ActiveMQ Classic, which makes its id from the name of its machine; otherwise it is
        Artemis, whose id is that of its node."""
        broker = self.broker
        return broker is not None and broker.broker_id is not None and broker.broker_id.value.startswith("ID:")

    # --- sending ----------------------------------------------------------------------------------------------
    def send(self, command: Command) -> None:
        """Sends a command that is not answered."""
        self._last_id += 1
        command.command_id = self._last_id
        self.outgoing += encode(command)

    def ask(self, command: Command) -> int:
        """Sends a command that is answered, and tells its number."""
        command.response_required = True
        self.send(command)
        self._answers[self._last_id] = None
        return self._last_id

    def answer(self, number: int) -> Response | None:
        """The answer to the command of this number, which is given once; None: it has not come. Refused: it is an
        exception."""
        response = self._answers[number]
        if response is None:
            return None
        del self._answers[number]
        if isinstance(response, ExceptionResponse):
            if response.exception is None:
                raise ConnectionLost("the broker answered with an exception that says nothing")
            raise Refused(response.exception)
        return response

    def is_answered(self, number: int) -> bool:
        """Whether the answer to the command of this number has come, and was not taken."""
        return self._answers.get(number) is not None

    def add_consumer(self, info: ConsumerInfo) -> deque[MessageDispatch]:
        """Where messages for the consumer will be."""
        assert info.consumer_id is not None  # noqa: S101 — the caller's
        waiting = self.arrived[info.consumer_id] = deque()
        return waiting

    # --- receiving --------------------------------------------------------------------------------------------
    def receive(self, octets: bytes) -> None:
        """Octets from the broker."""
        if not self.version:
            self._begun = (self._begun + octets)[:LONGEST]
        try:
            for command in self._reader.feed(octets):
                if self.version:
                    self._take(command)
                else:
                    self._negotiate(command)
        except DecodeError as error:
            if self.version or self._begun[4:].startswith(_GREETING):
                raise ConnectionLost(f"what the broker sent can't be read: {error}") from None
            what = f"it begins with {protocol_of(self._begun)}"
            raise ConnectionLost(f"{what}: it does not speak OpenWire at this port") from None

    def _negotiate(self, command: Any) -> None:
        if not isinstance(command, WireFormatInfo):
            raise ConnectionLost(f"the broker begins with a {type(command).__name__}; it does not speak OpenWire")
        self.offer = decode_map(command.properties) if command.properties is not None else {}
        self.version = min(command.version, MAX_VERSION)
        self._reader.longest = MAX_FRAME
        if self.version < MIN_VERSION:
            raise ConnectionLost(f"the broker offers version {command.version} of OpenWire; {MIN_VERSION} is needed")
        if self.offer.get("SizePrefixDisabled") is True:
            raise ConnectionLost(
                "the broker sends frames without their length; switch wireFormat.sizePrefixDisabled off"
            )

    def _take(self, command: Any) -> None:
        if isinstance(command, Response):
            number = command.correlation_id

            if number in self._answers and self._answers[number] is None:
                self._answers[number] = command
            elif isinstance(command, ExceptionResponse) or not 0 < number <= self._last_id:
                raise ConnectionLost(f"the broker answered a request that was not sent: {_said(command)}")
        elif isinstance(command, MessageDispatch):
            self._dispatched(command)
        elif isinstance(command, KeepAliveInfo):
            if command.response_required:
                self.send(KeepAliveInfo())
        elif isinstance(command, BrokerInfo):
            self.broker = command
        elif isinstance(command, ConnectionFault):
            raise ConnectionLost(f"the broker ended the connection: {command.exception}")
        elif isinstance(command, ShutdownInfo) or (isinstance(command, ConnectionControl) and command.close):
            raise ConnectionLost("the broker ends the connection")
        elif not isinstance(command, Command):
            raise ConnectionLost(f"the broker sent a second {type(command).__name__}")

    def _dispatched(self, dispatch: MessageDispatch) -> None:
        if dispatch.consumer_id is None:
            raise ConnectionLost("the broker sent a message to no consumer")
        waiting = self.arrived.get(dispatch.consumer_id)
        if waiting is None:
            return  # it was under way when the consumer was closed; the broker has it back
        if len(waiting) >= MAX_WAITING:
            raise ConnectionLost("the broker sends more messages than were asked for")
        waiting.append(dispatch)


def _said(response: Response) -> str:
    return str(response.exception) if isinstance(response, ExceptionResponse) else type(response).__name__
