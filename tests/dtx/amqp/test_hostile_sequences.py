"""Legal performatives in any order and number, as nobody in their right mind would send them. Whatever asks for an
answer gets one, nothing is raised, and what is kept is bounded by what there is."""

from __future__ import annotations

from collections import Counter

import pytest

from dtx.amqp.conditions import Condition
from dtx.amqp.connection import Connection
from dtx.amqp.frames import frame, transfer_body
from dtx.amqp.link import MAX_UNSETTLED
from dtx.amqp.performatives import (
    MAX_UINT,
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
from tests.cases import each
from tests.dtx.amqp.ends import ACCEPTED, Application
from tests.dtx.amqp.stranger import WINDOW, Stranger, attach, begun, error_of, flow, kept, receiving, sending


def kinds(stranger: Stranger) -> Counter[str]:
    return Counter(type(performative).__name__ for _, performative, _ in stranger.hear())


def test_seventy_sessions_and_links() -> None:
    """Sessions one after the other on one channel, and on as many channels; links of one name and handle."""
    stranger = Stranger()
    for _ in range(70):
        stranger.say(Begin(None, 0, 10, 10), End())
    assert kinds(stranger) == {"Begin": 70, "End": 70}
    assert kept(stranger.end.connection) == 0

    for channel in range(70):
        stranger.say(Begin(None, 0, 10, 10), channel=channel)
    found = stranger.hear()
    assert [one.remote_channel for _, one, _ in found if isinstance(one, Begin)] == list(range(70))
    assert len({channel for channel, _, _ in found}) == 70
    for channel in reversed(range(70)):
        stranger.say(End(), channel=channel)
    assert kinds(stranger) == {"End": 70}
    assert kept(stranger.end.connection) == 0
    stranger.begin()
    for number in range(70):
        stranger.say(attach("same", 0, receiver=number % 2 == 0), Detach(0, closed=number % 3 == 0))
    told = kinds(stranger)
    assert (told["Attach"], told["Detach"]) == (70, 70)
    assert kept(stranger.end.connection) == 2  # the session by both of its channels


@pytest.mark.slow
def test_deliveries_that_are_never_settled_are_bounded() -> None:
    """The sender chooses their numbers, by which they are kept."""
    stranger = begun(end=Application(Connection("server", window=2**30), credit=2**30))
    stranger.attach("in", 0, receiver=False, rcv_settle_mode=1)
    (session,) = stranger.end.connection.sessions.values()
    bodies = (transfer_body(0, 3 * number, b"t", None, settled=False, more=False) for number in range(MAX_UNSETTLED))
    stranger.send(b"".join(frame(0, body) for body in bodies))
    assert len(session.incoming) == MAX_UNSETTLED
    stranger.hear()
    stranger.say(Transfer(0, 3 * MAX_UNSETTLED, b"t"))
    (detach,) = [one for _, one, _ in stranger.hear() if isinstance(one, Detach)]
    assert error_of(detach) == Condition.RESOURCE_LIMIT
    assert not session.incoming


def test_who_takes_one_handle_and_attaches_two() -> None:
    stranger = Stranger()
    stranger.say(Begin(None, 0, 10, 10, handle_max=0))
    stranger.listen(Begin)
    stranger.attach("first", 5, receiver=True)
    assert error_of(stranger.ask(End, attach("second", 6, receiver=True))) == Condition.RESOURCE_LIMIT
    stranger.say(End())
    assert kept(stranger.end.connection) == 0
    other = Stranger(said=Open("stranger", channel_max=0))  # one channel
    other.begin(channel=0)
    assert error_of(other.ask(Close, Begin(None, 0, 1, 1), channel=1)) == Condition.NOT_ALLOWED


@each("receiver", [True, False])
def test_a_session_and_a_link_are_echoed_once_for_all_that_ask_at_once(*, receiver: bool) -> None:
    stranger = begun()
    for times in (1, 1000):
        stranger.say(*[flow(echo=True) for _ in range(times)])
        (told,) = stranger.listen(Flow)
        assert (told.handle, told.next_incoming_id, told.incoming_window) == (None, 0, 2048)
    handle = stranger.attach("x", 7, receiver=receiver).handle
    counted = {"delivery_count": 0, "link_credit": 3} if receiver else {"delivery_count": 0}
    stranger.say(*[flow(handle=7, echo=True, **counted) for _ in range(100)])
    (answer,) = stranger.listen(Flow)
    assert (answer.handle, answer.delivery_count, answer.link_credit) == (handle, 0, 3 if receiver else 10)


@each("credit", [0, 1, 100, MAX_UINT])
def test_a_drain_is_answered_also_where_there_is_no_credit(credit: int) -> None:
    stranger = begun()
    stranger.attach("x", 0, receiver=True)
    stranger.say(flow(handle=0, delivery_count=0, link_credit=credit, drain=True))
    (answer,) = stranger.listen(Flow)
    used = min(credit, 2**31 - 1)  # serial numbers count no further
    assert (answer.delivery_count, answer.link_credit, answer.drain) == (used, 0, True)
    stranger.say(flow(handle=0, delivery_count=used, link_credit=0, drain=True))  # again
    stranger.listen(Flow)


def test_a_detach_in_the_middle_of_a_large_delivery() -> None:
    """70 MB in more than a thousand frames, of which nothing is kept when the link is detached."""
    stranger = begun()
    stranger.attach("x", 0, receiver=False)
    stranger.hear()
    payload = bytes(65_000)
    frames = 70_000_000 // len(payload) + 1
    assert frames > 1024
    stranger.say(Transfer(0, 0, b"0", more=True), payload=payload)
    for _ in range(frames - 1):
        stranger.say(Transfer(0, more=True), payload=payload)
        assert all(isinstance(one, Flow) for _, one, _ in stranger.hear())  # the window is opened again and again

    assert stranger.end.connection._reader.pending == 0
    assert sum(map(len, stranger.end.partial["x"])) == frames * len(payload)
    stranger.say(Detach(0))
    assert [(one.handle, one.closed) for one in stranger.listen(Detach)] == [(0, False)]
    assert kept(stranger.end.connection) == 2
    assert not stranger.end.partial
    stranger.attach("x", 0, receiver=False)


@each(("first", "last"), [(0, WINDOW), (0, 4), (0, 5), (0, MAX_UINT), (3, 2)])
def test_a_disposition_settles_what_is_in_its_range(first: int, last: int) -> None:
    """All numbers are no range of serial numbers, nor is one that ends before it begins."""
    stranger, link = receiving(5)
    for number in range(5):
        link.send(bytes((number,)), b"x")
    stranger.hear()
    stranger.say(*[Disposition(receiver=True, first=first, last=last, settled=True, state=ACCEPTED)] * 100)
    stranger.say(Disposition(receiver=False, first=0, last=WINDOW, settled=True))  # of none that there is
    told = [error_of(one) for _, one, _ in stranger.hear() if isinstance(one, End)]
    assert told == ([Condition.INVALID_FIELD] if (first, last) in {(0, MAX_UINT), (3, 2)} else [])
    assert not link.session.outgoing


def test_a_delivery_is_not_resumed() -> None:
    """If the sending application marks the resend attempt as a resumed delivery then it MUST be ignored by the
    receiver.

    The receiver MUST ignore resumed deliveries that are not in its local unsettled map: the link is detached, so that
    the sender hears of it."""
    stranger, _ = sending()
    assert error_of(stranger.ask(Detach, Transfer(0, 0, b"0", resume=True))) == Condition.NOT_IMPLEMENTED
    stranger.say(Transfer(0, 1, b"1"), Detach(0))  # the peer did not know
    assert stranger.hear() == []
    stranger.attach("in", 0, receiver=False)


@each(("first", "second"), [(0, 0), (0, 1)])
def test_a_link_is_stolen(first: int, second: int) -> None:
    stranger = Stranger()
    for channel in {first, second}:
        stranger.begin(channel)
    stranger.attach("x", 0, receiver=False, channel=first)
    stranger.hear()
    stranger.say(attach("x", 1, receiver=False), channel=second)
    found = stranger.hear()
    detached = [(channel, one) for channel, one, _ in found if isinstance(one, Detach)]
    assert [channel for channel, _ in detached] == [stranger.end.sessions[first].channel]
    assert error_of(detached[0][1]) == Condition.STOLEN
    assert sum(isinstance(one, Attach) for _, one, _ in found) == 1
    stranger.say(attach("x", 2, receiver=True), channel=second)  # the other direction is another link
    assert kinds(stranger) == {"Attach": 1}


def test_frames_that_cross_our_end_are_no_errors() -> None:
    stranger = begun()
    stranger.attach("x", 0, receiver=False)
    stranger.end.sessions[0].end(Error(Condition.INTERNAL_ERROR, "it has to end"))
    stranger.say(Transfer(0, 0, b"0"), flow(handle=0, echo=True), attach("y", 1, receiver=True), Detach(0))
    stranger.say(Disposition(receiver=False, first=0), flow(echo=True))
    assert kinds(stranger) == {"End": 1}
    stranger.say(End())
    assert stranger.hear() == []
    stranger.begin()
