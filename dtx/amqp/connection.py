"""Connection: one end of an AMQP 1.0 connection, without I/O.

    connection.feed(octets)                     what the peer sent
    while (event := connection.next_event()):   what that means, one event after the other
        ...                                     the caller answers: open, begin, attach, send, update
    octets = connection.output()                what is to be sent to the peer
    connection.tick(now_ms)                     when time passes: heartbeats, and the peer's silence

`next_event` reads one frame at a time, so that a caller who has other peers to serve can stop at any event and go on
later. What the peer does wrong is answered here, as the specification says: the link, the session or the connection is
ended with the error, and an event says that. After `ConnectionClosed` nothing more is read. A caller who has outcomes
of earlier messages on their way `answers_errors` itself: it sends them, and then detaches, ends or closes with the
error of the event. Meanwhile nothing more is read of what has failed.

Either end may open. The one that accepts connections waits for the peer's header, and answers what the events say. An
open, a begin and an attach of the peer have to be answered before the next event is asked for: what the peer sent
behind them may need the answer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition, ProtocolError, Scope
from dtx.amqp.events import ConnectionClosed, ConnectionOpened, SessionBegun, SessionEnded, WorkDropped
from dtx.amqp.frames import (
    AMQP_HEADER,
    FRAME_HEADER,
    HEARTBEAT,
    MIN_MAX_FRAME_SIZE,
    FrameReader,
    body_within,
    frame,
)
from dtx.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Transfer,
)
from dtx.amqp.session import Session
from dtx.amqp.states import CONNECTION, ConnectionState, ConnectionVerb, SessionState
from xa.machine import IllegalTransition, advance

if TYPE_CHECKING:
    from dtx.amqp.events import Event
    from dtx.amqp.link import Link
    from dtx.amqp.performatives import Performative
    from dtx.amqp.session import DispositionSteps
    from dtx.amqp.values import Map

MANY: Final = 2**62
LARGEST_FRAME: Final = 1 << 18
"""Octets of the largest frame that we make, whatever the peer takes."""
MAX_KEPT: Final = 2 << 20
"""Octets of the begins and attaches of the peer that are kept, with the names, addresses, filters and properties in
them, until their sessions and links are gone."""
MIN_IDLE_MS: Final = 200
"""The shortest time-out that a peer may ask for: it gets a heartbeat four times as often."""
OPENED: Final = ConnectionState.OPENED
_DEAF: Final = frozenset({ConnectionState.CLOSE_RCVD, ConnectionState.FAILED, ConnectionState.END})
"""Where nothing of the peer is read any more."""
_BEGUN_BY_PEER: Final = frozenset({SessionState.MAPPED, SessionState.BEGIN_RCVD})
_ENDED_BY_PEER: Final = frozenset({SessionState.END_RCVD, SessionState.END_EARLY})
_MAY_BEGIN: Final = frozenset({ConnectionState.OPEN_PIPE, ConnectionState.OPEN_SENT, OPENED})
_BEFORE_OPEN: Final = frozenset(
    {ConnectionState.START, ConnectionState.HDR_RCVD, ConnectionState.HDR_SENT, ConnectionState.HDR_EXCH}
)


class Connection:
    """One end of a connection. `window` is how many transfers a session may have on their way to us; `handle_max` and
    `channel_max` bound what the peer may use; `idle_timeout_ms` is how long the peer may be silent, 0 for as long as
    it likes. `answers_errors`: the caller says to the peer what has failed because of it."""

    def __init__(
        self,
        container: str,
        *,
        hostname: str | None = None,
        max_frame_size: int = 65_536,
        channel_max: int = 1023,
        handle_max: int = 1023,
        window: int = 2048,
        idle_timeout_ms: int = 0,
        answers_errors: bool = False,
    ) -> None:
        self.state = ConnectionState.START
        self.container = container
        self.hostname = hostname
        self.max_frame_size = max_frame_size
        self.channel_max = channel_max
        self.handle_max = handle_max
        self.window = window
        self.answers_errors = answers_errors
        self.remote: Open | None = None
        self.max_body = MIN_MAX_FRAME_SIZE - FRAME_HEADER
        """Octets of the body of a frame that we send."""
        self.links: dict[tuple[str, bool], Link] = {}
        """The links that neither side has detached, by their names and whether we are the receiver."""
        self.sessions: dict[int, Session] = {}
        """The sessions by the peer's channels, until both sides have ended them."""
        self._channels: dict[int, Session] = {}

        self._reader = FrameReader(max_frame_size)
        self._events: deque[Event] = deque()
        self._steps: DispositionSteps | None = None
        """Where the disposition that was read last is not done."""
        self.unfinished = False
        """Whether `next_event` has stopped before it had read everything."""
        self._output: list[bytes] = []
        self.output_octets = 0
        """Octets that `output` has not given yet."""
        self.kept_octets = 0
        """Octets of the peer's begins and attaches that are kept."""
        self._owed: dict[Session | Link, None] = {}
        self._disposing: dict[Session, None] = {}
        self._idle_timeout_ms = idle_timeout_ms
        self._remote_idle_ms = 0
        self._has_received = self._has_sent = True
        self._silent_at_ms = self._beat_at_ms = 0

    # -- octets
    def feed(self, octets: bytes) -> None:
        """Takes what the peer sent."""
        self._has_received = True
        if self.state not in _DEAF:
            self._reader.feed(octets)

    def next_event(self, frames: int = MANY) -> Event | None:
        """The next thing that the peer did; None when there is none until more is fed. It is None as well, and
        `unfinished` says so, when so many frames were read without an event: heartbeats, for example."""
        self.unfinished = False
        return self._events.popleft() if self._has_event(frames) else None

    def peek(self) -> Event | None:
        """What `next_event` will give, where that is in the next frame."""
        return self._events[0] if self._has_event(1) else None

    def _has_event(self, frames: int) -> bool:
        """Reads frames, at most so many, until there is an event; whether there is one."""
        events, reader = self._events, self._reader
        while not events:
            if self.state in _DEAF:
                return False
            steps = self._steps
            if steps is not None:
                more = steps.go_on(events)
                if not more:
                    self._steps = None
                if events or not more:
                    continue
                frames = 0
            if not frames:
                self.unfinished = True
                return False
            frames -= 1

            try:
                if not reader.started:
                    if not reader.header():
                        return False
                    self._received_header()
                found = reader.next()
                if found is None:
                    return False
                channel, performative, octets = found
                if performative is not None:
                    self._received(channel, performative, octets)
            except ProtocolError as error:
                self._fail(error)
        return True

    @property
    def has_input(self) -> bool:
        """Whether octets are fed that `next_event` has not looked at; they may be part of a frame."""
        waits = self._steps is not None or self._reader.pending > 0
        return bool(self._events) or (waits and self.state not in _DEAF)

    def output(self) -> bytes:
        """What is to be sent now; it is the caller's from now on."""
        self.flush()
        if not self._output:
            return b""
        octets = b"".join(self._output) if len(self._output) > 1 else self._output[0]
        self._output.clear()
        self.output_octets = 0
        self._has_sent = True
        return octets

    def flush(self) -> None:
        """Says what was kept back so that it can be said once."""
        if self._disposing:
            for session in self._disposing:
                session.flush_disposition()
            self._disposing.clear()
        if self._owed:
            owed = tuple(self._owed)
            self._owed.clear()
            for one in owed:
                one.echo()

    @property
    def ended(self) -> bool:
        """Whether nothing of the peer is read any more; there may be an event that says so."""
        return self.state is ConnectionState.END or self.state is ConnectionState.FAILED

    @property
    def owes_close(self) -> bool:
        """Whether the peer has closed the connection, or it has failed, and our close is not sent yet."""
        return self.state is ConnectionState.CLOSE_RCVD or self.state is ConnectionState.FAILED

    @property
    def finished(self) -> bool:
        """Whether nothing will ever be sent or read any more."""
        return self.state is ConnectionState.END and not self._output

    def keep(self) -> int:
        """The performative that was read last is kept: how many octets that are, which are to be let go."""
        octets = self._reader.octets
        if self.kept_octets + octets > MAX_KEPT:
            message = f"the names and properties of sessions and links have more than {MAX_KEPT} octets"
            raise ProtocolError(Scope.CONNECTION, Condition.RESOURCE_LIMIT, message)
        self.kept_octets += octets
        return octets

    def write(self, octets: bytes) -> None:
        """Adds a frame to the output."""
        self._output.append(octets)
        self.output_octets += len(octets)

    def owes_echo(self, one: Session | Link) -> None:
        """The state of a session or a link is to be sent to the peer, once, with the next output."""
        self._owed[one] = None

    def owes_nothing(self, one: Session | Link) -> None:
        """The state of a session or a link was sent to the peer."""
        self._owed.pop(one, None)

    def has_dispositions(self, session: Session) -> None:
        """A session has something to say of deliveries with the next output."""
        self._disposing[session] = None

    # -- what the caller does
    def open(self, offered: tuple[str, ...] = (), properties: Map | None = None) -> None:
        """Opens the connection, or answers the peer's open."""
        if self.state in {ConnectionState.START, ConnectionState.HDR_RCVD}:
            self._send_header()
        self.state = advance(CONNECTION, self.state, ConnectionVerb.SEND_OPEN)

        # Half of the time is announced, as the specification suggests: a late heartbeat ends nothing.
        idle_ms = self._idle_timeout_ms // 2 or None
        self._send(
            Open(
                self.container,
                self.hostname,
                self.max_frame_size,
                self.channel_max,
                idle_ms,
                offered_capabilities=offered,
                properties=properties,
            )
        )

    def begin(self) -> Session:
        """Begins a session of ours. ValueError before we have opened the connection, when it is closed, or when the
        peer takes no more sessions."""
        if self.state not in _MAY_BEGIN:
            raise ValueError(f"the connection is: {self.state.value}")
        session = self._new_session()
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Closes the connection, or answers the peer's close. Without effect when we have closed it."""
        if self.state in _BEFORE_OPEN or self.state is ConnectionState.OPEN_RCVD:
            self.open()
        if self.state in {*_MAY_BEGIN, ConnectionState.CLOSE_RCVD, ConnectionState.FAILED}:
            self._lose_sessions()
            verb = ConnectionVerb.SEND_CLOSE if error is None else ConnectionVerb.SEND_ERROR
            self.state = advance(CONNECTION, self.state, verb)
            self._send(Close(error))

    def fail(self) -> None:
        """Nothing of the peer is read any more, and `close` follows. Without effect where it is not open."""
        if self.state is OPENED:
            self.state = advance(CONNECTION, self.state, ConnectionVerb.FAIL)

    def lose(self) -> None:
        """The transport is gone."""
        self._lose_sessions()
        self.state = advance(CONNECTION, self.state, ConnectionVerb.LOSE)
        self._output.clear()
        self._events.clear()

    def tick(self, now_ms: int, held_ms: int = 0) -> int:
        """Sends a heartbeat where the peer expects one, and ends the connection where the peer was silent for too long.
        `held_ms`: how long nothing could be read, so that this is not the peer's silence. Returns when to call again, 0
        for never."""
        due = []
        if self._idle_timeout_ms and self.state not in _DEAF:
            self._silent_at_ms += held_ms
            if self._has_received:
                self._has_received = False
                self._silent_at_ms = now_ms + self._idle_timeout_ms
            elif now_ms >= self._silent_at_ms:
                message = f"nothing was received for {self._idle_timeout_ms} ms"
                self._fail(ProtocolError(Scope.CONNECTION, Condition.RESOURCE_LIMIT, message))
                return 0
            due.append(self._silent_at_ms)

        if self._remote_idle_ms and self.state is OPENED:
            # What was said between two calls may have been said just behind the first: a quarter of the peer's time
            # between the calls makes it half of that time at most in which it is sent nothing.
            if not self._has_sent and now_ms >= self._beat_at_ms:
                self.write(HEARTBEAT)
                self._has_sent = True
            if self._has_sent:
                self._has_sent = False
                self._beat_at_ms = now_ms + self._remote_idle_ms // 4
            due.append(self._beat_at_ms)
        return min(due, default=0)

    # -- what the peer does
    def _received_header(self) -> None:
        self.state = advance(CONNECTION, self.state, ConnectionVerb.RECEIVE_HEADER)
        if self.state is ConnectionState.HDR_RCVD:
            self._send_header()

    def _send_header(self) -> None:
        self.state = advance(CONNECTION, self.state, ConnectionVerb.SEND_HEADER)
        self.write(AMQP_HEADER)

    def _received(self, channel: int, performative: Performative, octets: bytes) -> None:
        kind = type(performative)
        if self.state is not OPENED or kind is Open or kind is Close:
            self._received_outside(channel, performative)
            return
        if type(performative) is Begin:
            self._received_begin(channel, performative)
            return
        session = self.sessions.get(channel)
        if session is None:
            message = f"a frame {kind.__name__.lower()}, and channel {channel} has no session"
            outside = channel > self.channel_max
            condition = Condition.FRAMING_ERROR if outside else Condition.NOT_ALLOWED
            raise ProtocolError(Scope.CONNECTION, condition, message)

        if type(performative) is End:
            if session.state in _ENDED_BY_PEER:
                raise ProtocolError(Scope.CONNECTION, Condition.NOT_ALLOWED, f"a second end on channel {channel}")
            if session.state in _BEGUN_BY_PEER:
                self._events.append(SessionEnded(session, performative.error, by_peer=True))
            session.received_end()
        elif session.state is SessionState.MAPPED:
            self._received_inside(session, performative, octets)
        else:  # we have ended it, and the peer did not know
            self.drop(performative)

    def drop(self, performative: Performative) -> None:
        """A frame of a session is not looked at. An event says so, if it may belong to a transaction."""
        if isinstance(performative, Transfer | Disposition) and performative.state is not None:
            self._events.append(WorkDropped(performative.state))

    def _received_inside(self, session: Session, performative: Performative, octets: bytes) -> None:
        """A frame of a session that both sides have begun."""
        try:
            self._received_in(session, performative, octets)
        except ProtocolError as error:
            if error.scope is Scope.CONNECTION:
                raise
            error_sent = Error(error.condition, error.description)
            if self.answers_errors:
                session.fail()
            else:
                session.end(error_sent)
            self._events.append(SessionEnded(session, error_sent, by_peer=False))
            self.drop(performative)

    def _received_in(self, session: Session, performative: Performative, octets: bytes) -> None:
        """A frame of a session that both sides have begun, and neither has ended."""
        if type(performative) is Transfer:
            session.received_transfer(performative, octets, self._events)
        elif type(performative) is Disposition:
            self._steps = session.received_disposition(performative)
        elif type(performative) is Flow:
            session.received_flow(performative, self._events)
        elif type(performative) is Attach:
            session.received_attach(performative, self._events)
        elif type(performative) is Detach:
            session.received_detach(performative, self._events)

    def _received_outside(self, channel: int, performative: Performative) -> None:
        """A frame of the connection itself, or one that comes before or behind it."""
        try:
            if type(performative) is Open:
                self._received_open(channel, performative)
            elif type(performative) is Close:
                self.state = advance(CONNECTION, self.state, ConnectionVerb.RECEIVE_CLOSE)
                if self.state is ConnectionState.CLOSE_RCVD:
                    self._lose_sessions()
                self._events.append(ConnectionClosed(performative.error, by_peer=True))
            else:
                self.state = advance(CONNECTION, self.state, ConnectionVerb.RECEIVE_OTHER)
        except IllegalTransition as error:
            state: str = error.state.value
            message = f"a frame {type(performative).__name__.lower()} while the connection is: {state}"
            raise ProtocolError(Scope.CONNECTION, Condition.NOT_ALLOWED, message) from None

    def _received_open(self, channel: int, remote: Open) -> None:
        self.state = advance(CONNECTION, self.state, ConnectionVerb.RECEIVE_OPEN)
        if channel:
            raise ProtocolError(Scope.CONNECTION, Condition.NOT_ALLOWED, f"an open on channel {channel}, not on 0")
        if remote.max_frame_size < MIN_MAX_FRAME_SIZE:
            message = f"max-frame-size is at least {MIN_MAX_FRAME_SIZE}, not {remote.max_frame_size}"
            raise ProtocolError(Scope.CONNECTION, Condition.INVALID_FIELD, message)
        idle_ms = remote.idle_timeout_ms or 0
        if 0 < idle_ms < MIN_IDLE_MS:
            message = f"an idle-time-out of {idle_ms} ms; {MIN_IDLE_MS} ms is the shortest that is supported"
            raise ProtocolError(Scope.CONNECTION, Condition.INVALID_FIELD, message)
        self.remote = remote
        self.max_body = min(remote.max_frame_size, LARGEST_FRAME) - FRAME_HEADER
        self._remote_idle_ms = idle_ms
        if self.state in {OPENED, ConnectionState.OPEN_RCVD}:  # we have not closed it meanwhile
            self._events.append(ConnectionOpened(remote))

    def _received_begin(self, channel: int, begin: Begin) -> None:
        if channel > self.channel_max:
            message = f"a begin on channel {channel}; the last one is {self.channel_max}"
            raise ProtocolError(Scope.CONNECTION, Condition.FRAMING_ERROR, message)
        before = self.sessions.get(channel)
        if before is not None and before.state is SessionState.END_RCVD:  # the peer does not wait for our end
            before.end()
        if channel in self.sessions:
            message = f"there is a session on channel {channel} already"
            raise ProtocolError(Scope.CONNECTION, Condition.NOT_ALLOWED, message)

        if begin.remote_channel is None:
            try:
                session = self._new_session()
            except ValueError as error:
                raise ProtocolError(Scope.CONNECTION, Condition.NOT_ALLOWED, str(error)) from None
        else:
            answered = self._channels.get(begin.remote_channel)
            if answered is None or answered.state is not SessionState.BEGIN_SENT:
                message = f"a begin that answers one on channel {begin.remote_channel}, and none was sent"
                raise ProtocolError(Scope.CONNECTION, Condition.INVALID_FIELD, message)
            session = answered
        session.received_begin(begin, channel)
        session.kept_octets += self.keep()
        self.sessions[channel] = session
        self._events.append(SessionBegun(session))

    def _fail(self, error: ProtocolError) -> None:
        """Ends the connection because of what the peer did. It is not listened to any more: a peer that can't keep to
        the protocol may not get to a close either."""
        sent_error = Error(error.condition, error.description)
        if self.answers_errors and self.state is OPENED:
            self.fail()
        else:
            self._end_with(sent_error)
        self._events.append(ConnectionClosed(sent_error, by_peer=False))

    def _end_with(self, error: Error) -> None:
        if self._reader.started:
            self.close(error)
        elif self.state is ConnectionState.START:  # a peer without AMQP 1.0 is sent the header that we speak (2.2)
            self._send_header()
        self._lose_sessions()
        self.state = advance(CONNECTION, self.state, ConnectionVerb.LOSE)

    # -- sessions
    def _new_session(self) -> Session:
        channel = next(number for number in range(len(self._channels) + 1) if number not in self._channels)
        limit = self.remote.channel_max if self.remote is not None else 0
        if channel > limit:
            raise ValueError(f"the peer takes no channel above {limit}")
        session = Session(self, channel)
        self._channels[channel] = session
        return session

    def free_session(self, session: Session) -> None:
        """Both sides have ended a session: its channels are free."""
        self.sessions.pop(session.remote_channel, None)
        if self._channels.pop(session.channel, None) is not None:
            self.kept_octets -= session.kept_octets

    def _lose_sessions(self) -> None:
        for session in tuple(self._channels.values()):
            session.lose()
        self.kept_octets = 0
        self.sessions.clear()
        self._channels.clear()
        self._owed.clear()
        self._disposing.clear()

    def _send(self, performative: Performative) -> None:
        body = body_within(performative, self.max_body)
        if body is None:
            raise ValueError(f"a frame of the peer's holds {self.max_body} octets; {performative} is larger")
        self.write(frame(0, body))

    def tell(self, event: Event) -> None:
        """Adds an event that comes from what the caller did."""
        self._events.append(event)
