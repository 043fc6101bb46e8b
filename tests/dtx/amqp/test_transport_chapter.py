"""The transport chapter of AMQP 1.0, sentence by sentence, at one end that is ours and one that says anything.

`docs/amqp-endpoint.md` has the table; a docstring here quotes the sentences, or says them in short where it begins
with the number of a section."""

from __future__ import annotations

from typing import Any

import pytest

from dtx.amqp.conditions import Condition
from dtx.amqp.connection import Connection
from dtx.amqp.delivery import PARTIAL, SETTLED, SETTLED_THERE, UNSETTLED, IncomingDelivery
from dtx.amqp.events import ConnectionClosed, ConnectionOpened, Disposed, Event, LinkAttached, SessionEnded, Transferred
from dtx.amqp.frames import AMQP_HEADER, HEARTBEAT, frame, performative_frame
from dtx.amqp.link import Link, ReceiverLink, SenderLink
from dtx.amqp.performatives import (
    MAX_UINT,
    RECEIVER_FIRST,
    RECEIVER_SECOND,
    SENDER_SETTLED,
    SENDER_UNSETTLED,
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
from dtx.amqp.states import ConnectionState, LinkState, SessionState
from tests.cases import each
from tests.dtx.amqp.ends import ACCEPTED, REFUSED, Application, Ends, ends
from tests.dtx.amqp.stranger import WINDOW, Stranger, attach, begun, error_of, flow, kept, receiving, sending


def closing(octets: bytes) -> tuple[str, Connection]:
    """The condition with which a server closes a connection that begins with these octets."""
    server = Connection("server")
    server.feed(octets)
    event = server.next_event()
    assert isinstance(event, ConnectionClosed)
    assert not event.by_peer
    assert event.error is not None
    return event.error.condition, server


def linked(**how: Any) -> tuple[Ends, Session, Link]:
    """Two ends with a session, and a link on which the client sends."""
    both = ends(**how)
    session = both.client.begin()
    both.settle()
    link = both.client.attach(session, "x", receives=False)
    both.settle()
    return both, session, link


def two() -> tuple[Application, Application]:
    """Two ends that have said nothing yet."""
    return Application(Connection("client")), Application(Connection("server"))


class Mute:
    """Answers nothing."""

    def answer(self, event: Event) -> None:
        """Leaves an event as it is."""


# -- 2.2 version negotiation
def test_the_header_comes_first() -> None:
    """Prior to sending any frames on a connection, each peer MUST start by sending a protocol header that indicates
    the protocol version used on the connection.

    The AMQP peer which acted in the role of the TCP client (i.e. the peer that actively opened the connection) MUST
    immediately send its outgoing protocol header on establishment of the TCP connection.

    When the client opens a new socket connection to a server, it MUST send a protocol header with the client's
    preferred protocol version.

    If the requested protocol version is supported, the server MUST send its own protocol header with the requested
    version to the socket, and then proceed according to the protocol definition."""
    client, server = Connection("client"), Connection("server")
    client.open()
    octets = client.output()
    assert octets.startswith(AMQP_HEADER)
    server.feed(octets)
    assert isinstance(server.next_event(), ConnectionOpened)
    server.open()
    assert server.output().startswith(AMQP_HEADER)


@each(
    "octets", [b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x00", b"AMQP\x03\x01\x00\x00", b"GET / HTTP/1.1", bytes(8)]
)
def test_another_header_is_answered_by_ours(octets: bytes) -> None:
    """If the requested protocol version is not supported, the server MUST send a protocol header with a supported
    protocol version and then close the socket.

    If the server cannot parse the protocol header, the server MUST send a valid protocol header with a supported
    protocol version and then close the socket.

    If the incoming and outgoing protocol headers do not match, both peers MUST close their outgoing stream and
    SHOULD read the incoming stream until it is terminated."""
    _, connection = closing(octets)
    assert connection.output() == AMQP_HEADER
    assert connection.finished


def test_what_stands_behind_the_header_is_of_its_version() -> None:
    """Any data appearing beyond the protocol header MUST match the version indicated by the protocol header."""
    assert closing(AMQP_HEADER + AMQP_HEADER)[0] == Condition.FRAMING_ERROR


# -- 2.3 framing
@each("octets", [0, 1, 200, 70_000])
def test_the_size_of_a_frame_counts_all_of_it(octets: int) -> None:
    """This is an unsigned 32-bit integer that MUST contain the total frame size of the frame header, extended header,
    and frame body."""
    stranger, link = receiving()
    link.send(b"0", bytes(octets))
    at, said = 0, stranger.end.output()
    while at < len(said):
        at += int.from_bytes(said[at : at + 4], "big")
    assert at == len(said) > octets
    peer = Connection("peer")
    opened = performative_frame(0, Open("stranger"))
    size = (len(opened) + 8).to_bytes(4, "big")
    peer.feed(AMQP_HEADER + size + b"\x04" + opened[5:8] + b"extended" + opened[8:])
    assert isinstance(peer.next_event(), ConnectionOpened)


@each("octets", [b"\x00\x53\x24\x45", b"\x00\x53\x19\x45", b"\x00\xa3\x01x\x45", b"\x45"])
def test_a_frame_has_a_performative(octets: bytes) -> None:
    """The performative MUST be one of those defined in section 2.7 and is encoded as a described type in the AMQP type
    system."""
    assert closing(AMQP_HEADER + frame(0, octets))[0] == Condition.DECODE_ERROR


# -- 2.4 connections
def test_open_comes_before_other_frames() -> None:
    """After establishing or accepting a TCP connection and sending the protocol header, each peer MUST send an open
    frame before sending any other frames.

    The first frame sent on a connection in either direction MUST contain an open performative."""
    connection = Connection("client")
    with pytest.raises(ValueError, match="connection is"):
        connection.begin()
    assert closing(AMQP_HEADER + performative_frame(0, Begin(None, 0, 1, 1)))[0] == Condition.NOT_ALLOWED


def test_an_open_says_the_limits_and_english() -> None:
    """A peer MUST support at least the en-US locale (see subsection 2.8.12 IETF Language Tag).

    If the receiver of the offered-capabilities requires an extension capability which is not present in the
    offered-capability list then it MUST close the connection.

    The sender MUST NOT attempt to use any capabilities it did not declare in the desired-capabilities field."""
    both = ends(server=Connection("server", max_frame_size=1000, channel_max=7, idle_timeout_ms=500))
    remote = both.client.connection.remote
    assert remote == Open("server", None, 1000, 7, 250)
    assert (remote.outgoing_locales, remote.desired_capabilities) == ((), ())
    for offered in ((), ("anything",)):  # nothing is required
        stranger = Stranger(said=Open("stranger", offered_capabilities=offered))
        stranger.begin()


def test_sessions_and_links_use_no_capability() -> None:
    """The sender MUST NOT attempt to use any capability other than those it has declared in desired-capabilities
    field."""
    stranger = Stranger()
    stranger.say(Begin(None, 0, WINDOW, WINDOW, offered_capabilities=("anything",)))
    (begun,) = stranger.listen(Begin)
    attached = stranger.attach("x", 0, receiver=True, offered_capabilities=("anything",))
    assert (begun.desired_capabilities, attached.desired_capabilities) == ((), ())


@each("octets", [300, 600, 5000])
def test_frames_fit_the_peer(octets: int) -> None:
    """After sending the open frame and reading its partner's open frame a peer MUST operate within mutually
    acceptable limitations from this point forward.

    During the initial connection negotiation, the two peers MUST agree upon a maximum frame size.

    A peer MUST NOT send frames larger than its partner can handle."""
    stranger = begun(said=Open("stranger", max_frame_size=512))
    name = "x" * octets
    stranger.say(attach(name, 0, receiver=False))

    answers = [one for _, one, _ in stranger.hear()]  # the rules look at the sizes
    if octets < 400:
        assert isinstance(answers[0], Attach)
        stranger.end.links[0].detach(error=Error("amqp:internal-error", "y" * 1000))
        (detach,) = stranger.listen(Detach)
        assert detach.error.description == "y" * 256
    else:
        (ended,) = answers
        assert isinstance(ended, End)
        assert error_of(ended) == Condition.FRAME_SIZE
        assert any(isinstance(event, SessionEnded) and not event.by_peer for event in stranger.end.events)
        stranger.say(End())
        assert kept(stranger.end.connection) == 0


def test_a_state_that_does_not_fit_ends_the_session() -> None:
    """2.4.1: also what an application says of a delivery keeps to the largest frame that the peer takes."""
    stranger, link = sending(Stranger(said=Open("stranger", max_frame_size=512)))
    stranger.say(Transfer(0, 0, b"0"))
    (delivery,) = stranger.end.incoming
    delivery.update(b"\x00\x53\x25" + b"\xb0\x00\x00\x03\xe8" + bytes(1000), settled=True)
    (ended,) = stranger.listen(End)
    assert error_of(ended) == Condition.FRAME_SIZE
    stranger.end.go_on()
    assert link.state is LinkState.GONE
    assert delivery.progress is SETTLED
    other, link = sending(Stranger(said=Open("stranger", max_frame_size=512)))
    other.say(Transfer(0, 0, b"0"))
    other.end.incoming[0].update(b"\x00\x53\x25" + b"\xb0\x00\x00\x03\xe8" + bytes(1000), settled=True)
    link.detach()  # what is said before ends the session, and the detach with it
    other.listen(End)


def test_a_tag_or_a_state_that_is_too_long_is_not_sent() -> None:
    """2.8.7: a delivery-tag has up to 32 octets; and the first transfer fits in the smallest frame."""
    _, link = receiving()
    for tag, state in ((bytes(33), None), (b"", bytes(257))):
        with pytest.raises(ValueError, match="too long"):
            link.send(tag, b"", state)
    assert link.credit == 10


def test_a_close_is_answered_and_is_the_last_frame() -> None:
    """Prior to closing a connection, each peer MUST write a close frame with a code indicating the reason for
    closing.

    This frame MUST be the last thing ever written onto a connection.

    Orderly shutdown requires that this frame MUST be written by the sender."""
    stranger, link = receiving(credit=2)
    link.send(b"0", b"x", more=True)
    stranger.hear()
    stranger.say(Close(Error("amqp:connection:forced")), flow(echo=True))
    (close,) = stranger.listen(Close)
    assert close.error is None
    assert stranger.end.connection.finished
    with pytest.raises(ValueError, match="connection is"):
        stranger.end.connection.begin()
    link.detach()
    assert stranger.end.output() == b""


@each("error", [None, Error("amqp:internal-error")])
def test_open_and_close_in_one_batch(error: Error | None) -> None:
    """However, implementations SHOULD send it on channel 0, and MUST send it on channel 0 if pipelined in a single
    batch with the corresponding open."""
    client, server = two()
    client.connection.open()
    client.connection.close(error)
    assert client.connection.state is ConnectionState.OC_PIPE
    octets = client.output()
    assert octets.endswith(performative_frame(0, Close(error)))
    server.receive(octets)
    client.receive(server.output())
    for end in (client, server):
        assert end.connection.finished
        end.rules.check_answers()
    assert not [event for event in client.events if isinstance(event, ConnectionOpened)]  # it was closed by then


def test_closing_before_anything_was_exchanged_opens_first() -> None:
    """2.4.3: a close frame is written also where the connection was not open yet."""
    client, server = two()
    client.connection.close()
    server.receive(client.output())
    client.receive(server.output())
    assert client.connection.finished
    assert server.connection.finished


def test_frames_behind_our_close_are_discarded() -> None:
    """In this case any incoming frames on the connection MUST be silently discarded until the peer's close frame is
    received."""
    stranger = begun()
    stranger.end.connection.close(Error("amqp:internal-error", "it has to end"))
    stranger.listen(Close)
    stranger.say(attach("x", 0, receiver=True), flow(echo=True), End(), Begin(None, 0, 1, 1))
    assert stranger.hear() == []
    assert stranger.end.connection.state is ConnectionState.DISCARDING
    stranger.say(Close())
    assert stranger.hear() == []
    assert stranger.end.connection.finished
    assert isinstance(stranger.end.events[-1], ConnectionClosed)


@each("channel", [0, 1, 1023])
def test_empty_frames(channel: int) -> None:
    """Implementations MUST be prepared to handle empty frames arriving on any valid channel, though implementations
    SHOULD use channel 0 when sending empty frames, and MUST use channel 0 if a maximum channel number has not yet been
    negotiated (i.e., before an open frame has been received)."""
    stranger = Stranger()
    stranger.send(HEARTBEAT[:6] + channel.to_bytes(2, "big"))
    assert stranger.hear() == []
    stranger.begin()


def test_heartbeats() -> None:
    """Implementations MUST be prepared to handle empty frames arriving on any valid channel, though implementations
    SHOULD use channel 0 when sending empty frames, and MUST use channel 0 if a maximum channel number has not yet been
    negotiated (i.e., before an open frame has been received).

    The idle timeout REQUIRED by the sender (see subsection 2.4.5).

    As they are a frame, they MUST NOT be sent after the close frame has been sent."""
    for busy in (False, True):
        stranger = Stranger(said=Open("stranger", idle_timeout_ms=1000))
        connection = stranger.end.connection
        silent_since, now = 0, 0
        for _ in range(200):
            due = connection.tick(now)
            assert now - silent_since <= 500  # half of what the peer asks for
            if connection.output():
                silent_since = now
            assert 0 < due - now <= 500
            if busy and now % 3 == 0:  # something is said just behind the call
                connection.write(HEARTBEAT)
                assert connection.output() == HEARTBEAT
                silent_since = now + 1
            now = due

        connection.close()
        connection.output()
        assert connection.tick(now + 10_000) == 0
        assert connection.output() == b""


def test_a_peer_that_is_silent_is_closed() -> None:
    """2.4.5: a peer that says nothing for the idle time-out is told so, and closed."""
    stranger = Stranger(Application(Connection("server", idle_timeout_ms=1000)))
    connection = stranger.end.connection
    assert connection.tick(0) == 1000
    stranger.send(HEARTBEAT)
    assert connection.tick(1000) == 2000
    assert connection.tick(1999) == 2000
    assert connection.tick(2000) == 0
    stranger.end.go_on()
    (close,) = stranger.listen(Close)
    assert error_of(close) == Condition.RESOURCE_LIMIT
    assert connection.finished


def test_time_in_which_nobody_could_read_is_not_the_peer_s_silence() -> None:
    """2.4.5: what the peer has said meanwhile is still unread."""
    stranger = Stranger(Application(Connection("server", idle_timeout_ms=1000)))
    connection = stranger.end.connection
    stranger.send(HEARTBEAT)
    assert connection.tick(0) == 1000
    assert connection.tick(10_500, held_ms=10_000) == 11_000
    assert connection.tick(11_000) == 0


def test_a_frame_that_is_too_large_closes() -> None:
    """A peer that receives an oversized frame MUST close the connection with the framing-error error-code."""
    stranger = Stranger()
    stranger.send((65_537).to_bytes(4, "big"))
    (close,) = stranger.listen(Close)
    assert error_of(close) == Condition.FRAMING_ERROR


def test_the_smallest_limit_is_taken_and_none_below_it() -> None:
    """Both peers MUST accept frames of up to 512 (MIN-MAX-FRAME-SIZE) octets."""
    with pytest.raises(ValueError, match="512"):
        Connection("server", max_frame_size=511)
    smaller = performative_frame(0, Open("stranger", max_frame_size=511))
    assert closing(AMQP_HEADER + smaller)[0] == Condition.INVALID_FIELD


def test_channels_up_to_the_last_one() -> None:
    """A peer MUST not use channel numbers outside the range that its partner can handle.

    A peer that receives a channel number outside the supported range MUST close the connection with the
    framing-error error-code."""
    stranger = Stranger(Application(Connection("server", channel_max=3)), Open("stranger", channel_max=1))
    assert [stranger.end.begin().channel, stranger.end.begin().channel] == [0, 1]
    with pytest.raises(ValueError, match="no channel above 1"):
        stranger.end.begin()
    for said in (Begin(None, 0, 1, 1), End(), flow(), Detach(0)):
        stranger = Stranger(Application(Connection("server", channel_max=3)))
        stranger.begin(channel=3)
        closed = stranger.ask(Close, said, channel=4)
        assert error_of(closed) == Condition.FRAMING_ERROR


# -- 2.5 sessions
def test_a_begin_answers_or_does_not() -> None:
    """If a session is locally initiated, the remote-channel MUST NOT be set.

    The remote-channel field of a begin frame MUST be empty for a locally initiated session, and MUST be set when
    announcing the endpoint created as a result of a remotely initiated session.

    When an endpoint responds to a remotely initiated session, the remote-channel MUST be set to the channel on which
    the remote session sent the begin."""
    stranger = Stranger()
    assert stranger.begin(channel=9).remote_channel == 9
    session = stranger.end.begin()
    (begun,) = stranger.listen(Begin)
    assert begun.remote_channel is None
    assert error_of(Stranger().ask(Close, Begin(5, 0, 1, 1))) == Condition.INVALID_FIELD
    stranger.say(Begin(session.channel, 0, 1, 1), channel=3)
    assert session.mapped


def test_a_session_that_is_begun_is_ended_once_it_is_answered() -> None:
    """2.5.5: nothing but the peer's begin leads on from where a begin is sent."""
    both = ends()
    session = both.client.begin()
    with pytest.raises(Exception, match="send end"):
        session.end()
    both.settle()
    session.end()
    both.settle()
    assert session.state is SessionState.ENDED
    session.end()
    with pytest.raises(ValueError, match="session is"):
        session.sender("x")


def test_an_error_ends_the_session_and_what_follows_is_discarded() -> None:
    """When a session is unable to process input, it MUST indicate this by issuing an END with an appropriate error
    indicating the cause of the problem.

    It MUST then proceed to discard all incoming frames from the remote endpoint until receiving the remote
    endpoint's corresponding end frame.

    In this case any incoming frames on the session MUST be silently discarded until the peer's end frame is
    received."""
    stranger, _ = sending()
    assert error_of(stranger.ask(End, Transfer(7, 0, b"0"))) == Condition.UNATTACHED_HANDLE
    stranger.say(Transfer(0, 0, b"0"), flow(echo=True), attach("y", 1, receiver=True), Detach(0), Detach(9))
    assert stranger.hear() == []
    stranger.say(End())
    assert stranger.hear() == []
    stranger.begin()


@each("count", [0, 2**32 - 2])
def test_the_windows(count: int) -> None:
    """This value MUST be decremented after every transfer frame is sent, and recomputed when informed of the remote
    session endpoint state."""
    stranger, link = receiving(stranger=Stranger(Application(Connection("server"), count=count)), window=2)
    stranger.say(Flow(count, 2, 0, WINDOW, 0, count, 10))
    for number in range(5):
        link.send(bytes((number,)), b"x")
    assert len(stranger.listen(Transfer, Transfer)) == 2
    stranger.say(Flow((count + 1) % 2**32, 2, 0, WINDOW))
    stranger.listen(Transfer)
    stranger.say(Flow((count + 3) % 2**32, 0, 0, WINDOW))
    assert stranger.hear() == []
    assert not link.idle
    stranger.say(Flow((count + 3) % 2**32, 9, 0, WINDOW))
    stranger.listen(Transfer, Transfer)
    assert link.idle


def test_a_flow_says_which_transfer_is_next() -> None:
    """When the endpoint receives a flow frame from its peer, it MUST update the next-incoming-id directly from the
    next-outgoing-id of the frame, and it MUST update the remote-outgoing-window directly from the outgoing-window
    of the frame."""
    stranger = Stranger()
    stranger.begin(number=7)
    stranger.say(flow(7, echo=True))
    assert stranger.listen(Flow)[0].next_incoming_id == 7
    stranger.say(flow(9, echo=True))
    assert stranger.listen(Flow)[0].next_incoming_id == 9


@each("outgoing", [0, 1, WINDOW])
def test_the_outgoing_window_of_the_peer_hinders_nobody(outgoing: int) -> None:
    """This value MUST be decremented after every incoming transfer frame is received, and recomputed when informed of
    the remote session endpoint state: it is not kept, as nothing depends on it."""
    stranger, _ = sending()
    stranger.say(Flow(0, WINDOW, 0, outgoing))
    stranger.say(*[Transfer(0, number, bytes((number,)), settled=True) for number in range(3)])
    assert len(stranger.end.messages["in"]) == 3
    assert not any(isinstance(one, End) for _, one, _ in stranger.hear())


def test_a_transfer_beyond_our_window_ends_the_session() -> None:
    """2.5.6: an endpoint sends no transfer beyond the other's incoming window."""
    stranger, _ = sending(Stranger(Application(Connection("server", window=2), credit=10)))
    ended = stranger.ask(End, *[Transfer(0, number, bytes((number,))) for number in range(3)])
    assert error_of(ended) == Condition.WINDOW_VIOLATION


@each("window", [1, 2, 3])
def test_our_window_is_opened_again(window: int) -> None:
    """2.5.6: a window that was used is told anew before nothing of it is left."""
    stranger, _ = sending(Stranger(Application(Connection("server", window=window), credit=100)))
    for number in range(10):
        stranger.say(Transfer(0, number, bytes((number,))))
        assert {type(one) for _, one, _ in stranger.hear()} <= {Flow, Disposition}
    assert len(stranger.end.messages["in"]) == 10


# -- 2.6 links
@each("receiver", [True, False])
def test_a_link_that_is_refused(*, receiver: bool) -> None:
    """2.6.3: an attach is always answered by an attach; where it is refused, without the terminus of the end that
    refuses, and with a detach and its error behind it.

    In this case, the session endpoint MUST immediately detach the newly created link endpoint."""
    stranger = begun()
    stranger.say(attach(REFUSED, 0, receiver=receiver))
    answer, detach = stranger.listen(Attach, Detach)
    assert (answer.source is None, answer.target is None) == (receiver, not receiver)
    assert answer.initial_delivery_count == (0 if receiver else None)
    assert (detach.closed, error_of(detach)) == (True, Condition.NOT_ALLOWED)
    stranger.say(Detach(0, closed=True))
    assert kept(stranger.end.connection) == 2


@each("receives", [True, False])
def test_a_link_is_detached_before_its_attach_was_answered(*, receives: bool) -> None:
    """2.6.3: the answer to an attach is the answer, also where the link was detached meanwhile: not a link of the
    peer's."""
    both = ends(credit=1)
    session = both.client.begin()
    both.settle()
    link = both.client.attach(session, "x", receives=receives)
    link.detach()
    with pytest.raises(ValueError, match="already"):
        both.client.attach(session, "x", receives=receives)
    both.settle()
    assert link.state is LinkState.GONE
    assert not [event for event in both.client.events if isinstance(event, LinkAttached)]
    for end in (both.client, both.server):
        end.rules.check_answers()
        assert kept(end.connection) == 2
    both.client.attach(session, "x", receives=receives)
    both.settle()


def test_a_link_has_one_name_in_each_direction() -> None:
    """Link names MUST uniquely identify the link amongst all links of the same direction between the two participating
    containers.

    If an attempt is made to attach the link subsequently when it is not suspended, then the link can be 'stolen', i.e.,
    the second attach succeeds and the first attach MUST then be closed with a link error of stolen."""
    stranger = begun()
    stranger.attach("x", 0, receiver=False)
    stranger.attach("x", 1, receiver=True)
    stranger.hear()
    stranger.say(attach("x", 2, receiver=True))
    detach, attached = stranger.listen(Detach, Attach)
    assert error_of(detach) == Condition.STOLEN
    assert attached.name == "x"


def test_a_link_is_in_one_session_at_a_time() -> None:
    """However, a link MUST NOT be attached to more than one session at a time."""
    both, _, _ = linked()
    second = both.client.begin()
    both.settle()
    with pytest.raises(ValueError, match="already"):
        second.sender("x")
    stranger = Stranger()
    stranger.begin(0)
    stranger.begin(1)
    stranger.attach("x", 0, receiver=True, channel=0)
    stranger.say(attach("x", 0, receiver=True), channel=1)
    detach, _attached = stranger.listen(Detach, Attach)
    assert error_of(detach) == Condition.STOLEN
    assert [link.session for link in stranger.end.connection.links.values()] == [stranger.end.sessions[1]]


def test_each_end_has_handles_of_its_own() -> None:
    """The two endpoints are not REQUIRED to use the same handle."""
    stranger = begun()
    stranger.say(attach("in", 7, receiver=False))
    assert [one.handle for one in stranger.listen(Attach, Flow)] == [0, 0]
    stranger.say(Transfer(7, 0, b"0"), Detach(7))
    assert len(stranger.end.messages["in"]) == 1
    assert [one.handle for one in stranger.listen(Detach)] == [0]


@pytest.mark.parametrize("closed", [True, False])
def test_a_link_that_is_attached_again_has_nothing_unsettled(*, closed: bool) -> None:
    """If either end of the link is already associated with a terminus, the attach frame MUST include its unsettled
    delivery state: it never is, as a link that is attached again is a new one. What the former one has sent, and was
    not closed, is live under its numbers, and is not resumed.

    The resume flag of the transfer frame MUST be set to true when resuming a delivery.

    The unsettled map MUST NOT contain null valued keys.

    When reattaching (as opposed to resuming), the unsettled map MUST be null.

    The sender MUST NOT send resumed transfers for deliveries not in its local unsettled map.

    If a resumed delivery spans more than one transfer performative, then the resume flag MUST be set to true on the
    first transfer of the resumed delivery."""
    stranger = begun()
    for _ in range(2):
        for name, handle, receiver in (("in", 0, False), ("out", 1, True)):
            answer = stranger.attach(name, handle, receiver=receiver)
            assert (answer.unsettled, answer.incomplete_unsettled) == (None, False)

        stranger.say(Transfer(0, len(stranger.end.incoming), b"0"), Flow(0, WINDOW, 0, WINDOW, 1, 0, 10))
        link = stranger.end.links[-1]
        assert isinstance(link, SenderLink)
        link.send(b"0", b"x")
        told = [one for _, one, _ in stranger.hear() if isinstance(one, Transfer)]
        assert [(one.delivery_tag, one.resume) for one in told] == [(b"0", False)]
        stranger.say(Detach(0, closed), Detach(1, closed))
        stranger.listen(Detach, Detach)
        session = stranger.end.sessions[0]
        assert bool(session.incoming) is not closed
        assert bool(session.outgoing) is not closed
        assert not link.waiting


def test_an_error_of_a_link_detaches_it() -> None:
    """When an error occurs at a link endpoint, the endpoint MUST be detached with appropriate error information
    supplied in the error field of the detach frame.

    The link endpoint MUST then be destroyed."""
    stranger, link = sending()
    stranger.say(Transfer(0, 0, b"0"))
    stranger.hear()
    detach = stranger.ask(Detach, Transfer(0, 1))
    assert (detach.closed, error_of(detach)) == (True, Condition.INVALID_FIELD)
    assert not link.session.incoming
    assert not stranger.end.connection.links
    stranger.say(Detach(0, closed=True))
    assert kept(stranger.end.connection) == 2


def test_what_crosses_the_detach_of_a_link_is_discarded() -> None:
    """If any input (other than a detach) related to the endpoint either via the input handle or delivery-ids be
    received, the session MUST be terminated with an errant-link session-error: it goes on, and the input is
    discarded.

    Since the link endpoint has been destroyed, the peer cannot reattach, and MUST resume the link in order to restore
    communication: it attaches the link anew.

    In order to disambiguate the resume request from a pipelined re-attach the resuming attach performative MUST contain
    a non-null value for its unsettled field: there is nothing to resume.

    Receipt of a pipelined attach MUST result in the session being terminated with an errant-link session-error: it is
    answered."""
    stranger, _ = sending()
    stranger.say(Transfer(0, 0, b"0"))
    stranger.ask(Detach, Transfer(0, 1))
    stranger.say(Transfer(0, 2, b"2"), flow(handle=0, delivery_count=3, echo=True))
    stranger.say(Disposition(receiver=False, first=0, settled=True))
    assert stranger.hear() == []
    assert len(stranger.end.messages["in"]) == 1
    stranger.say(Detach(0), attach("in", 0, receiver=False))
    stranger.listen(Attach, Flow)
    stranger.say(Transfer(0, 3, b"3", settled=True))
    assert len(stranger.end.messages["in"]) == 2


def test_a_link_is_closed_where_we_detach_it() -> None:
    """In this case, the endpoint MUST send a detach frame to inform the remote peer that the handle is no longer
    attached to the link endpoint.

    Note that one peer MAY send a closing detach while its partner is sending a non-closing detach. In this case, the
    partner MUST signal that it has closed the link by reattaching and then sending a closing detach."""
    _, _, link = linked()
    with pytest.raises(ValueError, match="only be closed"):  # so we are never that partner
        link.detach(closed=False)
    stranger, _ = sending()
    stranger.end.links[0].detach()
    stranger.listen(Detach)
    stranger.say(Detach(0))  # which crosses ours
    stranger.say(attach("in", 0, receiver=False), Detach(0, closed=True))
    answer, _credit, closing = stranger.listen(Attach, Flow, Detach)
    assert (answer.name, closing.closed) == ("in", True)


@each("count", [0, 5, MAX_UINT - 1])
def test_the_credit_of_a_sender(count: int) -> None:
    """The sender's value MUST always be maintained in such a way as to match the delivery-limit identified by the
    receiver.

    This means that the sender's link-credit variable MUST be set according to this formula when flow information is
    given by the receiver: link-credit(snd) := delivery-count(rcv) + link-credit(rcv) - delivery-count(snd).

    In the event that the receiver does not yet know the delivery-count, i.e., delivery-count(rcv) is unspecified, the
    sender MUST assume that the delivery-count(rcv) is the first delivery-count(snd) sent from sender to receiver, i.e.,
    the delivery-count(snd) specified in the flow state carried by the initial attach frame from the sender to the
    receiver.

    Additionally, whenever the sender increases delivery-count, it MUST decrease link-credit by the same amount in order
    to maintain the delivery-limit identified by the receiver."""
    stranger = begun(end=Application(Connection("server"), count=count))
    assert stranger.attach("out", 0, receiver=True).initial_delivery_count == count
    (link,) = stranger.end.links
    assert isinstance(link, SenderLink)

    def tell(counted: int | None, credit: int) -> None:
        number = None if counted is None else (count + counted) & MAX_UINT
        stranger.say(Flow(count, WINDOW, 0, WINDOW, 0, number, credit))

    tell(None, 3)
    assert link.credit == 3
    for left in (2, 1):
        link.send(bytes((left,)), b"x")
        assert (link.credit, link.delivery_count) == (left, (count + 3 - left) & MAX_UINT)
    tell(None, 3)
    assert link.credit == 1
    tell(1, 3)
    assert link.credit == 2
    tell(2, 0)
    assert link.credit == 0


@each("available", [None, 0, 7])
def test_what_a_sender_says_is_available_hinders_nobody(available: int | None) -> None:
    """If this happens, the receiver MUST maintain a floor of zero in its calculation of the value of available: it
    calculates none."""
    stranger, _ = sending()
    stranger.say(flow(handle=0, delivery_count=0, available=available))
    stranger.say(*[Transfer(0, number, bytes((number,)), settled=True) for number in range(3)])
    assert len(stranger.end.messages["in"]) == 3
    stranger.say(flow(handle=0, delivery_count=3, available=available, echo=True))
    told = [one for _, one, _ in stranger.hear() if isinstance(one, Flow)]
    assert {one.available for one in told} == {None}


def test_the_credit_is_never_exceeded() -> None:
    """If the link-credit is less than or equal to zero, i.e., the delivery-count is the same as or greater than the
    delivery-limit, a sender MUST NOT send more messages: also where credit is taken back that deliveries waited for the
    window with."""
    poor, link = receiving(0)
    link.send(b"0", b"x")
    assert poor.hear() == []
    stranger, link = receiving(3, window=0)
    for number in range(3):
        link.send(bytes((number,)), b"x")
    assert stranger.hear() == []
    stranger.say(Flow(0, 10, 0, WINDOW, 0, 0, 1))
    stranger.listen(Transfer)
    assert link.idle
    stranger.say(Flow(1, 10, 0, WINDOW, 0, 1, 5))
    stranger.listen(Transfer, Transfer)
    assert link.credit == 3


def test_a_delivery_without_credit_detaches() -> None:
    """2.6.7: a receiver whose credit is exceeded, also because it has taken it back, handles the message or detaches
    the link with transfer-limit-exceeded."""
    stranger, link = sending()
    link.give_credit(0)
    stranger.hear()
    assert error_of(stranger.ask(Detach, Transfer(0, 0, b"0"))) == Condition.TRANSFER_LIMIT
    assert kept(stranger.end.connection) == 4  # until the peer has detached it too


def test_a_drain_gives_back_what_is_not_used() -> None:
    """If the sender's drain flag is set and there are no available messages, the sender MUST advance its delivery-count
    until link-credit is zero, and send its updated flow state to the receiver."""
    stranger, link = receiving(3, window=0)
    link.send(b"0", b"x")
    stranger.say(Flow(0, 0, 0, WINDOW, 0, 0, 3, drain=True))
    assert stranger.hear() == []  # the application waits until it is sent
    link.drained()  # and need not: what waits is counted
    (told,) = stranger.listen(Flow)
    assert (told.delivery_count, told.link_credit, told.drain) == (2, 1, True)
    stranger.say(Flow(0, 10, 0, WINDOW))
    stranger.listen(Transfer)
    assert (link.delivery_count, link.credit) == (3, 0)


def test_a_flow_says_what_the_receiver_wants_of_drain() -> None:
    """2.7.4: only the receiver changes drain; the sender's value is the last one that the receiver told."""
    stranger, _ = receiving(3)
    for drain in (True, False, True):
        stranger.say(flow(handle=0, delivery_count=3, link_credit=0, drain=drain, echo=True))
        assert [one.drain for _, one, _ in stranger.hear() if isinstance(one, Flow)] == [drain]
    receiver, link = sending()
    link.give_credit(5, drain=True)
    receiver.listen(Flow)
    receiver.say(flow(handle=0, delivery_count=0, echo=True))
    assert [one.drain for one in receiver.listen(Flow)] == [True]


def test_handles() -> None:
    """The handle MUST NOT be used for other open links.

    An attempt to attach using a handle which is already associated with a link MUST be responded to with an
    immediate close carrying a handle-in-use session-error."""
    stranger, _ = sending()
    closed = stranger.ask(Close, attach("other", 0, receiver=True))
    assert error_of(closed) == Condition.HANDLE_IN_USE


def test_handles_up_to_the_last_one() -> None:
    """A peer MUST NOT attempt to attach a link using a handle value outside the range that its partner can handle.

    A peer that receives a handle outside the supported range MUST close the connection with the framing-error
    error-code."""
    both, session, link = linked(server=Connection("server", handle_max=1))
    both.client.attach(session, "b", receives=False)
    with pytest.raises(ValueError, match="no handle above 1"):
        both.client.attach(session, "c", receives=False)
    both.settle()
    link.detach()
    both.settle()
    both.client.attach(session, "c", receives=False)
    stranger = begun(end=Application(Connection("server", handle_max=1)))
    assert error_of(stranger.ask(Close, attach("x", 2, receiver=False))) == Condition.FRAMING_ERROR


@each("receives", [True, False])
def test_a_sender_has_an_initial_delivery_count(*, receives: bool) -> None:
    """This MUST NOT be null if role is sender, and it is ignored if the role is receiver."""
    stranger = begun(end=Application(Connection("server"), count=5))
    answer = stranger.attach("x", 0, receiver=not receives, initial_delivery_count=77)
    assert answer.initial_delivery_count == (None if receives else 5)
    (link,) = stranger.end.links
    assert link.delivery_count == (77 if receives else 5)


def test_each_end_says_how_it_settles() -> None:
    """2.8.2, 2.8.3: what is in force is what the sender says of the sender and the receiver of the receiver; the
    other end's value is a wish."""
    both = ends(credit=1)
    session = both.client.begin()
    both.settle()
    for receives in (True, False):
        link = session.receiver("in") if receives else session.sender("out")
        link.snd_settle_mode, link.rcv_settle_mode = SENDER_SETTLED, RECEIVER_SECOND
        link.attach(None, None)
        both.send(both.client)
        both.wires[both.client] = b""

    client = both.client.connection
    answers = Attach("in", 0, False, SENDER_UNSETTLED, RECEIVER_FIRST, initial_delivery_count=0)
    found: list[Link] = []
    for answer in (answers, Attach("out", 1, True, SENDER_UNSETTLED, RECEIVER_FIRST)):
        client.feed(performative_frame(0, answer))
        while (event := client.next_event()) is not None:
            found.append(event.link)  # type: ignore[union-attr] # they are attached
    assert [(link.snd_settle_mode, link.rcv_settle_mode) for link in found] == [
        (SENDER_UNSETTLED, RECEIVER_SECOND),
        (SENDER_SETTLED, RECEIVER_FIRST),
    ]


# -- 2.7.4 flow
def test_what_a_flow_has() -> None:
    """This value MUST be set if the peer has received the begin frame for the session, and MUST NOT be set if it has
    not.

    When the handle field is not set, this field MUST NOT be set.

    When the handle identifies that the flow state is being sent from the sender link endpoint to receiver link
    endpoint this field MUST be set to the current delivery-count of the link endpoint."""
    stranger, link = receiving(3)
    link.send(b"0", b"x")
    stranger.hear()
    stranger.say(flow(echo=True), flow(handle=0, delivery_count=0, link_credit=3, echo=True))
    session, of_link = sorted(stranger.listen(Flow, Flow), key=lambda one: one.handle is not None)
    assert session == Flow(0, 2048, 1, MAX_UINT)
    assert (of_link.next_incoming_id, of_link.handle, of_link.delivery_count, of_link.link_credit) == (0, 0, 1, 2)
    begun = stranger.end.begin()
    stranger.listen(Begin)
    begun.echo()
    assert stranger.hear() == []  # there is none before the peer's begin is here


def test_a_receiver_says_the_count_that_it_knows() -> None:
    """When the flow state is being sent from the receiver endpoint to the sender endpoint this field MUST be set to the
    last known value of the corresponding sending endpoint.

    In the event that the receiving link endpoint has not yet seen the initial attach frame from the sender this field
    MUST NOT be set."""
    stranger = begun()
    link = stranger.end.attach(stranger.end.sessions[0], "in", receives=True)
    assert isinstance(link, ReceiverLink)
    link.give_credit(5)
    link.echo()
    stranger.listen(Attach)  # there is no flow before the sender has answered
    stranger.say(attach("in", 0, receiver=False, initial_delivery_count=77))
    assert [(one.delivery_count, one.link_credit) for one in stranger.listen(Flow)] == [(77, 10)]
    for count, said in ((78, Transfer(0, 0, b"0", settled=True)), (80, flow(1, handle=0, delivery_count=80))):
        stranger.say(said)
        link.echo()
        assert [one.delivery_count for one in stranger.listen(Flow)] == [count]


def test_a_flow_for_no_link_ends_the_session() -> None:
    """If set to a handle that is not currently associated with an attached link, the recipient MUST respond by
    ending the session with an unattached-handle session error."""
    stranger = begun()
    assert error_of(stranger.ask(End, flow(handle=0))) == Condition.UNATTACHED_HANDLE


# -- 2.7.5 transfer
@each(
    ("second", "told"),
    [
        (Transfer(0, 1), "delivery 1 begins"),
        (Transfer(0, delivery_tag=b"1"), "delivery-tag changes"),
        (Transfer(0, message_format=1), "message-format changes"),
    ],
)
def test_further_transfers_are_of_the_same_delivery(second: Transfer, told: str) -> None:
    """However, messages transferred along a single link MUST NOT be interleaved.

    2.7.5: delivery-id, delivery-tag and message-format of a continuation transfer don't differ from those of the
    first."""
    stranger, _ = sending()
    detach = stranger.ask(Detach, Transfer(0, 0, b"0", 0, more=True), second)
    assert error_of(detach) == Condition.INVALID_FIELD
    assert told in detach.error.description  # type: ignore[union-attr] # error_of has looked


@each(("first", "field"), [(Transfer(0, None, b"0"), "delivery-id"), (Transfer(0, 0), "delivery-tag")])
def test_what_a_first_transfer_needs(first: Transfer, field: str) -> None:
    """Each delivery MUST be identified by a delivery-tag chosen by the sending application.

    The delivery-id MUST be supplied on the first transfer of a multi-transfer delivery.

    This field MUST be specified for the first transfer of a multi-transfer message and can only be omitted for
    continuation transfers."""
    stranger, _ = sending()
    detach = stranger.ask(Detach, first)
    assert error_of(detach) == Condition.INVALID_FIELD
    assert field in detach.error.description  # type: ignore[union-attr]
    sender, link = receiving(stranger=Stranger(said=Open("stranger", max_frame_size=512)))
    link.send(b"tag", bytes(1000))
    told = [one for _, one, _ in sender.hear() if isinstance(one, Transfer)]
    assert [(one.delivery_id, one.delivery_tag, one.message_format, one.more) for one in told] == [
        (0, b"tag", 0, True),
        (None, None, None, True),
        (None, None, None, False),
    ]


@each(
    ("flags", "settled"),
    [
        ((None,), False),
        ((False,), False),
        ((True,), True),
        ((None, None), False),
        ((True, None), True),
        ((None, True), True),
        ((True, False), True),
    ],
)
def test_the_settled_flag(flags: tuple[bool | None, ...], *, settled: bool) -> None:
    """If not set on the first (or only) transfer for a (multi-transfer) delivery, then the settled flag MUST be
    interpreted as being false.

    For subsequent transfers in a multi-transfer delivery if the settled flag is left unset then it MUST be
    interpreted as true if and only if the value of the settled flag on any of the preceding transfers was true; if
    no preceding transfer was sent with settled being true then the value when unset MUST be taken as false."""
    stranger, link = sending()
    for number, flag in enumerate(flags):
        first = {} if number else {"delivery_id": 0, "delivery_tag": b"0"}
        stranger.say(Transfer(0, settled=flag, more=number + 1 < len(flags), **first))  # type: ignore[arg-type]
    assert len(stranger.end.messages["in"]) == 1
    assert bool(stranger.end.incoming) is not settled
    assert bool(link.session.incoming) is not settled


@each(("mode", "flag", "refused"), [(SENDER_SETTLED, False, True), (SENDER_SETTLED, True, False)])
def test_a_sender_that_settles_everything(mode: int, *, flag: bool, refused: bool) -> None:
    """If the negotiated value for snd-settle-mode at attachment is settled, then this field MUST be true on at least
    one transfer frame for a delivery (i.e., the delivery MUST be settled at the sender at the point the delivery
    has been completely transferred)."""
    check_settle_mode(mode, flag=flag, refused=refused)


@each(("mode", "flag", "refused"), [(SENDER_UNSETTLED, False, False), (SENDER_UNSETTLED, True, True)])
def test_a_sender_that_settles_nothing(mode: int, *, flag: bool, refused: bool) -> None:
    """If the negotiated value for snd-settle-mode at attachment is unsettled, then this field MUST be false (or
    unset) on every transfer frame for a delivery (unless the delivery is aborted)."""
    check_settle_mode(mode, flag=flag, refused=refused)
    stranger, _ = sending(snd_settle_mode=mode)
    stranger.say(Transfer(0, 0, b"0", more=True), Transfer(0, settled=True, aborted=True))
    assert stranger.hear() == []


def check_settle_mode(mode: int, *, flag: bool, refused: bool) -> None:
    stranger, _ = sending(snd_settle_mode=mode)
    stranger.say(Transfer(0, 0, b"0", settled=flag))
    assert [error_of(one) for _, one, _ in stranger.hear() if isinstance(one, Detach)] == (
        [Condition.INVALID_FIELD] if refused else []
    )


def test_who_settles_first() -> None:
    """If first, this indicates that the receiver MUST settle the delivery once it has arrived without waiting for
    the sender to settle first.

    If second, this indicates that the receiver MUST NOT settle until sending its disposition to the sender and
    receiving a settled disposition from the sender."""
    stranger, _ = sending(rcv_settle_mode=RECEIVER_SECOND)
    for number, mode in enumerate((None, RECEIVER_FIRST, RECEIVER_SECOND)):
        stranger.say(Transfer(0, number, bytes((number,)), rcv_settle_mode=mode))
    assert [delivery.settles_second for delivery in stranger.end.incoming] == [True, False, True]
    stranger, _ = sending()
    stranger.say(Transfer(0, 0, b"0"), Transfer(0, 1, b"1", settled=True, rcv_settle_mode=RECEIVER_SECOND))
    assert [delivery.settles_second for delivery in stranger.end.incoming] == [False]
    detach = stranger.ask(Detach, Transfer(0, 2, b"2", rcv_settle_mode=RECEIVER_SECOND))
    assert error_of(detach) == Condition.INVALID_FIELD


def test_an_aborted_delivery_is_forgotten() -> None:
    """Aborted messages SHOULD be discarded by the recipient (any payload within the frame carrying the performative
    MUST be ignored).

    In this case the receiver MUST discard the message data that was transferred prior to the abort."""
    stranger, link = sending()
    stranger.say(Transfer(0, 0, b"0", more=True), payload=b"first")
    stranger.say(Transfer(0, more=True, aborted=True), payload=b"ignored")
    stranger.say(Transfer(0, 1, b"1"), payload=b"whole")
    assert stranger.end.messages["in"] == [b"whole"]
    assert list(link.session.incoming) == [1]


def test_an_earlier_delivery_is_aborted_while_another_one_goes_on() -> None:
    """2.6.14: a delivery may be aborted at any time before its last transfer, whatever else the link sends."""
    stranger, link = receiving(stranger=Stranger(said=Open("stranger", max_frame_size=512)), window=1)
    first = link.send(b"0", bytes(100_000))
    second = link.send(b"1", b"a", more=True)
    first.abort()
    with pytest.raises(ValueError, match="not complete"):
        link.send(b"2", b"")
    second.add(b"b", more=False)
    link.send(b"2", b"c")
    stranger.say(Flow(1, 10, 0, WINDOW))
    told = [(one.delivery_id, one.aborted, payload) for _, one, payload in stranger.hear() if isinstance(one, Transfer)]
    assert [one[:2] for one in told] == [(0, False), (None, True), (1, False), (2, False)]
    assert [one[2] for one in told[1:]] == [b"", b"ab", b"c"]


# -- 2.6.12 deliveries
def test_a_delivery_is_kept_until_both_ends_have_settled_it() -> None:
    """2.6.12: an end that settles first tells the other one, and forgets; an end that settles second tells nothing."""
    both, _, link = linked(credit=10)
    assert isinstance(link, SenderLink)
    sent = [link.send(bytes((number,)), b"x") for number in range(3)]
    both.settle()
    came: list[IncomingDelivery] = both.server.incoming
    came[0].update(ACCEPTED, settled=False)
    both.settle()
    assert (sent[0].progress, came[0].progress) == (UNSETTLED, UNSETTLED)
    codes = len(both.client.rules.sent_codes)

    came[1].update(ACCEPTED, settled=True)
    both.settle()
    assert (sent[1].progress, came[1].progress) == (SETTLED, SETTLED)
    assert len(both.client.rules.sent_codes) == codes
    both.client.answer = Mute().answer  # type: ignore[method-assign] # it does not settle at once
    came[2].settle()
    both.settle()
    assert sent[2].progress is SETTLED_THERE
    sent[2].settle()
    assert both.client.connection.output() == b""


def test_a_disposition_is_for_one_direction() -> None:
    """The disposition frame MAY reference deliveries from many different links associated with a session, although all
    links MUST have the directionality indicated by the specified role."""
    stranger = begun()
    for name, handle, receiver in (("in", 0, False), ("other", 1, False), ("out", 2, True)):
        stranger.attach(name, handle, receiver=receiver)
    stranger.say(Transfer(0, 0, b"0"), Transfer(1, 1, b"1"), Flow(0, WINDOW, 0, WINDOW, 2, 0, 1))
    link = stranger.end.links[2]
    assert isinstance(link, SenderLink)
    sent = link.send(b"0", b"x")  # with the delivery-id of the one that came
    stranger.hear()

    for delivery in stranger.end.incoming:
        delivery.update(ACCEPTED, settled=False)
    assert stranger.listen(Disposition) == [Disposition(True, 0, 1, settled=False, state=ACCEPTED)]
    stranger.say(Disposition(receiver=False, first=0, last=1, settled=True))
    assert sent.progress is UNSETTLED
    assert not link.session.incoming
    stranger.say(Disposition(receiver=True, first=0, settled=True))
    assert not link.session.outgoing


@pytest.mark.parametrize("detach", [Detach(0, closed=True), Detach(0, error=Error("app:failed"))])
def test_deliveries_end_with_their_link(detach: Detach) -> None:
    """As long as the links have not been closed or detached with an error then the deliveries are still "live" and the
    updated state MUST be applied."""
    stranger, link = receiving()
    sent = link.send(b"0", b"x")
    stranger.say(detach)
    stranger.hear()
    assert sent.progress is not UNSETTLED
    stranger.say(Disposition(receiver=True, first=0, state=ACCEPTED, settled=True))
    assert stranger.hear() == []
    (told,) = [event for event in stranger.end.events if isinstance(event, Disposed)]
    assert (told.deliveries, told.unknown) == ([], True)  # who has such a delivery hears that it is late


@pytest.mark.parametrize("forgotten", [False, True])
def test_deliveries_outlive_a_detach_that_does_not_close(*, forgotten: bool) -> None:
    """As long as the links have not been closed or detached with an error then the deliveries are still "live" and the
    updated state MUST be applied: also once both ends have detached the link, unless the caller forgets them."""
    stranger, link = receiving()
    sent = link.send(b"0", b"x")
    partial = link.send(b"1", b"y", more=True)
    stranger.say(Detach(0))
    link.detach(closed=False)
    stranger.hear()
    assert sent.progress is UNSETTLED
    assert partial.progress is not PARTIAL
    if forgotten:
        link.session.forget(link)

    stranger.say(Disposition(receiver=True, first=0, last=1, state=ACCEPTED, settled=True))
    (told,) = [event for event in stranger.end.events if isinstance(event, Disposed)]
    assert (told.deliveries, told.unknown) == ([] if forgotten else [sent], True)
    sent.settle()
    assert not link.session.outgoing
    assert not link.unsettled


@pytest.mark.parametrize("forgotten", [False, True])
def test_an_outcome_is_sent_behind_a_senders_detach_that_does_not_close(*, forgotten: bool) -> None:
    """The same in the other direction: what has come as a whole is live, also once both ends have detached the link."""
    stranger, link = sending()
    stranger.say(Transfer(0, 0, b"0"), Transfer(0, 1, b"1", more=True), Detach(0))
    stranger.hear()
    received, *_ = (event.delivery for event in stranger.end.events if isinstance(event, Transferred))
    link.detach(closed=False)
    assert list(link.session.incoming) == [0]
    if forgotten:
        link.session.forget(link)
    received.update(ACCEPTED, settled=True)
    sent = [(one.first, one.settled) for _, one, _ in stranger.hear() if isinstance(one, Disposition)]
    assert sent == ([] if forgotten else [(0, True)])
    assert not link.session.incoming
    assert not link.unsettled


def test_deliveries_end_with_their_session() -> None:
    """2.5.4: what is unsettled on the links of a session that is ended is not live any more."""
    stranger, link = receiving()
    sent = link.send(b"0", b"x")
    stranger.say(Detach(0))
    link.detach(closed=False)
    stranger.say(End())
    assert sent.progress is not UNSETTLED
    assert not link.session.outgoing
    assert not link.unsettled


def test_deliveries_in_a_row_are_told_once() -> None:
    """2.7.6: a disposition is for a range of delivery-ids, also where they wrap around."""
    stranger, _ = sending()
    for number in (MAX_UINT - 1, MAX_UINT, 0, 1):
        stranger.say(Transfer(0, number, number.to_bytes(4, "big")))
    for delivery in stranger.end.incoming:
        delivery.update(ACCEPTED, settled=True)
    assert stranger.listen(Disposition) == [Disposition(True, MAX_UINT - 1, 1, settled=True, state=ACCEPTED)]


def test_a_delivery_that_is_settled_before_its_end_came() -> None:
    """2.6.12: a disposition may settle a delivery of which more is to come; then it is settled when it is complete."""
    stranger, link = sending()
    stranger.say(Transfer(0, 0, b"0", more=True), Disposition(receiver=False, first=0, settled=True), Transfer(0))
    assert len(stranger.end.messages["in"]) == 1
    assert not link.session.incoming
    assert stranger.hear() == []
