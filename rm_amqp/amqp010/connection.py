"""A connection, without I/O: octets of the network in, octets to be written out.

    HEADER --header--> START --start--> SECURE --tune--> OPENING --open-ok--> OPEN --close--> CLOSED
                                        SECURE --secure--> SECURE

A connection carries one session at a time. What the peer says against us (a close, a redirect, another protocol) is a
`ConnectionLost`, which names the cause; octets that are no AMQP 0-10 are one as well.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.protocol_detection import protocol_of
from dtx.amqp.sasl import mechanisms
from dtx.amqp.sasl.layer import SaslError
from dtx.amqp.sasl.mechanisms import Compute
from rm_amqp.amqp010.frames import MAX_ASSEMBLY, MAX_FRAME, MIN_FRAME, PROTOCOL, FrameReader, Segment, write_segments
from rm_amqp.amqp010.session import Session
from rm_amqp.amqp010.structs import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionHeartbeat,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionRedirect,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    read_control,
    write_control,
)
from rm_amqp.amqp010.values import WireError
from rm_amqp.errors import Cause, ConnectionLost
from xa.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.sasl.client import ClientPolicy
    from dtx.amqp.sasl.mechanisms import ClientConversation
    from rm_amqp.amqp010.frames import Assembly
    from rm_amqp.amqp010.structs import Control

MAX_COMPUTATIONS: Final = 16
"""Steps of one SASL conversation."""
FORCED: Final = 320
INVALID_PATH: Final = 402
FRAMING_ERROR: Final = 501


class ConnectionState(Enum):
    """What is awaited from the peer."""

    HEADER = "the protocol's header"
    START = "start"
    SECURE = "a challenge, or tune"
    OPENING = "open-ok"
    OPEN = "nothing: it is open"
    CLOSED = "nothing any more"


HEADER, START, SECURE, OPENING, OPEN, CLOSED = ConnectionState
HANDSHAKE: Final[dict[tuple[ConnectionState, type[Control]], ConnectionState]] = {
    (START, ConnectionStart): SECURE,
    (SECURE, ConnectionSecure): SECURE,
    (SECURE, ConnectionTune): OPENING,
    (OPENING, ConnectionOpenOk): OPEN,
}
"""The transitions of the handshake; there are no others. A close, a redirect and a heartbeat may come in any state."""


class Connection:
    """One connection, the client's side."""

    def __init__(
        self,
        policy: ClientPolicy,
        where: str,
        virtual_host: str,
        heartbeat_s: int,
        *,
        encrypted: bool,
        nonce: Callable[[int], bytes],
    ) -> None:
        self.state = HEADER
        self.session: Session | None = None
        self.server: dict[str, Any] = {}
        """What the server says of itself."""
        self.heartbeat_s = heartbeat_s
        """How often each side says something; what is agreed on, once the connection is open."""
        self.max_frame = MIN_FRAME
        self._policy = policy

        self._where = where
        self._virtual_host = virtual_host
        self._encrypted = encrypted
        self._nonce = nonce
        self._mechanism = ""
        self._conversation: ClientConversation | None = None
        self._steps = 0
        self._frames = FrameReader()
        self._begun = b""
        self._output: list[bytes] = [PROTOCOL]

    @property
    def is_open(self) -> bool:
        """Whether sessions can be attached."""
        return self.state is OPEN

    def output(self) -> bytes:
        """The octets to be written."""
        octets = b"".join(self._output)
        self._output.clear()
        return octets

    def receive(self, octets: bytes) -> None:
        """Takes octets of the network. ConnectionLost: the connection is at its end."""
        try:
            if self.state is HEADER:
                octets = self._header(octets)
            for assembly in self._frames.feed(octets):
                self._assembly(assembly)
        except WireError as error:
            self._control(ConnectionClose(FRAMING_ERROR, "these octets are no AMQP 0-10"))
            self.state = CLOSED
            raise ConnectionLost(Cause.LOST, f"the broker at {self._where} sent no AMQP 0-10: {error}") from None
        except ConnectionLost:
            self.state = CLOSED
            raise
        if self.session is not None:
            self.session.tell_processed()

    def attach(self, name: bytes) -> Session:
        """Begins a session; the one before it has ended."""
        self.session = Session(name, 0, self.max_frame, self._output.append)
        self.session.attach()
        return self.session

    def heartbeat(self) -> None:
        """Says that we are there."""
        if self.state is OPEN:
            self._control(ConnectionHeartbeat())

    def close(self) -> None:
        """Takes leave."""
        if self.state is OPEN:
            if self.session is not None:
                self.session.detach()
            self._control(ConnectionClose(200, "bye"))
        self.state = CLOSED

    # --- from the peer ----------------------------------------------------------------------------------------
    def _header(self, octets: bytes) -> bytes:
        self._begun += octets
        if len(self._begun) < len(PROTOCOL):
            if not PROTOCOL.startswith(self._begun) and not self._begun.startswith(b"AMQP"):
                raise WireError(f"it begins with {protocol_of(self._begun)}")
            return b""
        header = self._begun[: len(PROTOCOL)]
        if header != PROTOCOL:
            if header.startswith(b"AMQP"):
                reason = f"offers AMQP {'.'.join(map(str, header[5:]))}, not 0-10; switch on 0-10 at this port"
                raise ConnectionLost(Cause.UNUSABLE, f"the broker at {self._where} {reason}")
            raise WireError(f"it begins with {protocol_of(header)}")
        self.state = START
        return self._begun[len(PROTOCOL) :]

    def _assembly(self, assembly: Assembly) -> None:
        if not assembly.is_command:
            control = read_control(assembly.method)
            if control.CODE >> 8 == 1:
                self._connection_control(control)
                return
            if self._session(assembly.channel) is not None:
                self._session(assembly.channel).control(control)  # type: ignore[union-attr]
            return
        session = self._session(assembly.channel)
        if session is not None:
            session.command(assembly)

    def _session(self, channel: int) -> Session | None:
        if self.state is not OPEN:
            raise WireError("a session before the connection is open")
        if channel:
            raise WireError(f"channel {channel} has no session")
        return self.session

    def _connection_control(self, control: Control) -> None:
        match control:
            case ConnectionHeartbeat() | ConnectionCloseOk():
                return
            case ConnectionClose(reply_code=code, reply_text=text):
                self._control(ConnectionCloseOk())
                raise self._closed(code or 0, text or "")
            case ConnectionRedirect(host=host):
                reason = f"redirects to {printable(host or '')}; put that address into the open string"
                raise ConnectionLost(Cause.UNUSABLE, f"the broker at {self._where} {reason}")
        target = HANDSHAKE.get((self.state, type(control)))
        if target is None:
            raise WireError(f"{type(control).__name__} where {self.state.value} is awaited")

        match control:
            case ConnectionStart():
                self._start(control)
            case ConnectionSecure(challenge=challenge):
                self._control(ConnectionSecureOk(self._converse(challenge or b"")))
            case ConnectionTune():
                self._tune(control)
            case ConnectionOpenOk():
                self._frames.longest = MAX_ASSEMBLY
        self.state = target

    def _closed(self, code: int, text: str) -> ConnectionLost:
        cause = Cause.LOST if self.state is OPEN else Cause.UNUSABLE
        words = printable(text)
        if self.state is SECURE:
            reason = f"refuses {self._mechanism} as {self._policy.user or 'anonymous'!r}: {words or code}"
        elif code == INVALID_PATH:
            reason = f"has no virtual host {self._virtual_host!r}: {words}; it is the path of the open string"
        else:
            reason = f"closed the connection: {words or 'without a word'} ({code})"
        return ConnectionLost(cause, f"the broker at {self._where} {reason}")

    # --- SASL ---------------------------------------------------------------------------------------------------
    def _start(self, start: ConnectionStart) -> None:
        self.server = start.server_properties or {}
        offered = [str(name) for name in start.mechanisms or ()]
        policy = self._policy
        try:
            self._mechanism = policy.chosen(offered, self._encrypted)
        except SaslError as error:
            raise ConnectionLost(Cause.UNUSABLE, f"the broker at {self._where} can't be used: {error}") from None
        if self._mechanism == mechanisms.SCRAM:
            self._conversation = mechanisms.scram_client(policy.user, policy.password, self._nonce)
        elif self._mechanism == mechanisms.PLAIN:
            self._conversation = mechanisms.plain_client(policy.user, policy.password)
        else:
            self._conversation = mechanisms.wordless_client()
        properties = {"product": "xabridge", "qpid.client_pid": 0}
        self._control(ConnectionStartOk(properties, self._mechanism, self._converse(None), "en_US"))

    def _converse(self, challenge: object) -> bytes:
        """Our answer."""
        if self._conversation is None:
            return b""
        answer: object = challenge
        for _ in range(MAX_COMPUTATIONS):
            try:
                request = self._conversation.send(answer)
            except StopIteration:
                self._conversation = None
                return b""
            except (SaslError, ValueError) as error:
                raise ConnectionLost(
                    Cause.UNUSABLE, f"the broker at {self._where} does not prove who it is: {error}"
                ) from None

            if not isinstance(request, Compute):
                return request.octets
            answer = request.work()
        raise WireError("a conversation without an end")

    def _tune(self, tune: ConnectionTune) -> None:
        if self._mechanism == mechanisms.SCRAM and self._conversation is not None:
            raise ConnectionLost(
                Cause.UNUSABLE, f"the broker at {self._where} did not prove that it knows the password"
            )
        self.max_frame = min(tune.max_frame_size or MAX_FRAME, MAX_FRAME)
        if self.max_frame < MIN_FRAME:
            raise WireError(f"frames of at most {self.max_frame} octets")
        if tune.heartbeat_max is not None:
            self.heartbeat_s = min(self.heartbeat_s, tune.heartbeat_max)
        self.heartbeat_s = max(self.heartbeat_s, tune.heartbeat_min or 0)
        self._control(ConnectionTuneOk(tune.channel_max, self.max_frame, self.heartbeat_s))
        self._control(ConnectionOpen(self._virtual_host or None))

    def _control(self, control: Control) -> None:
        self._output.append(write_segments(0, self.max_frame, [(Segment.CONTROL, write_control(control))]))
