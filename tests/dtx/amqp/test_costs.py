"""What one frame costs does not grow with what waits or is not settled: a peer chooses how much that is, and the others
of a broker wait meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dtx.amqp.connection import Connection
from dtx.amqp.delivery import OutgoingDelivery
from dtx.amqp.events import ConnectionOpened, Disposed, LinkAttached, SessionBegun
from dtx.amqp.frames import AMQP_HEADER, performative_frame
from dtx.amqp.link import SenderLink
from dtx.amqp.performatives import Begin, Detach, Disposition, End, Flow, Open, Performative, Source
from dtx.amqp.session import FOUND
from tests.cases import each
from tests.dtx.amqp.ends import ACCEPTED, RECEIVED
from tests.dtx.amqp.stranger import attach, kept

LINKS = 100
OPEN = 2**31 - 1


class Backlog:
    """A server that has so many deliveries for a peer, on many links; with a `window` of 0 all of them wait."""

    def __init__(self, count: int, window: int) -> None:
        self.connection = Connection("server")
        self.links: list[SenderLink] = []
        self.connection.feed(AMQP_HEADER)
        self.say(Open("stranger"), Begin(None, 0, window, OPEN))
        self.say(*(attach(f"{number}", number, receiver=True) for number in range(LINKS)))
        for number in range(LINKS):
            self.flow(number, count, window=window)
        links = self.links
        self.deliveries: list[OutgoingDelivery] = [
            links[number % LINKS].send(b"%d" % number, b"octets") for number in range(count)
        ]
        self.connection.output()

    def say(self, *performatives: Performative) -> list[Disposed]:
        """Frames of the peer, and what they told of deliveries."""
        self.connection.feed(b"".join(performative_frame(0, one) for one in performatives))
        found = []
        while (event := self.connection.next_event()) or self.connection.unfinished:
            if isinstance(event, ConnectionOpened):
                self.connection.open()
            elif isinstance(event, SessionBegun):
                event.session.begin()
            elif isinstance(event, LinkAttached):
                assert isinstance(event.link, SenderLink)
                event.link.attach(Source("a"), event.link.remote.target if event.link.remote else None)
                self.links.append(event.link)
            elif isinstance(event, Disposed):
                found.append(event)
        return found

    def flow(self, handle: int, credit: int, window: int = 0, times: int = 1) -> None:
        self.say(*[Flow(0, window, 0, OPEN, handle, 0, credit)] * times)


def grows_less(act: Callable[[Backlog], object], most: float, *, window: int = 0) -> bool:
    """Whether `act` takes less than `most` times as long where eight times as much is there. The machine may be busy,
    so the least of three times counts; one of the long ones is enough if it says so."""
    small = min(_took_s(act, Backlog(1_000, window)) for _ in range(3))
    return any(_took_s(act, Backlog(8_000, window)) < most * small for _ in range(3))


def _took_s(act: Callable[[Backlog], object], backlog: Backlog) -> float:
    began = time.process_time()
    act(backlog)
    return time.process_time() - began


LINEAR = 24
"""Eight, with room for a busy machine. What is quadratic grows by 64."""
NOT_AT_ALL = 3


def detach(backlog: Backlog) -> None:
    backlog.say(*(Detach(number, closed=True) for number in range(LINKS)))


def abort_the_last_ones_first(backlog: Backlog) -> None:
    for delivery in reversed(backlog.deliveries):
        delivery.abort()


def flow_after_credit_was_taken_back(backlog: Backlog) -> None:
    for number in range(LINKS):
        backlog.flow(number, 0)
    backlog.flow(0, 0, window=1000, times=300)


def ask_whether_a_link_is_idle(backlog: Backlog) -> None:
    backlog.say(attach("another", LINKS, receiver=True))
    backlog.flow(LINKS, 1)
    backlog.links[-1].send(b"the last one", b"octets")
    assert not any(backlog.links[-1].idle for _ in range(300))


def attach_and_detach(backlog: Backlog) -> None:
    for _ in range(100):
        backlog.say(attach("another", LINKS, receiver=True), Detach(LINKS, closed=True))
        backlog.links.pop().detach()


def dispose_of_nothing(backlog: Backlog) -> None:
    assert not backlog.say(*[Disposition(True, 0, OPEN - 1)] * 300)


@pytest.mark.slow
@each(
    ("act", "most", "window"),
    [
        (lambda backlog: backlog.say(End()), LINEAR, 0),
        (detach, LINEAR, 0),
        (detach, LINEAR, OPEN),
        (abort_the_last_ones_first, LINEAR, 0),
        (flow_after_credit_was_taken_back, NOT_AT_ALL, 0),
        (ask_whether_a_link_is_idle, NOT_AT_ALL, 0),
        (attach_and_detach, NOT_AT_ALL, 0),
        (attach_and_detach, NOT_AT_ALL, OPEN),
        (dispose_of_nothing, NOT_AT_ALL, OPEN),
    ],
)
def test_what_an_act_costs_beside_many_deliveries(act: Callable[[Backlog], object], most: float, window: int) -> None:
    assert grows_less(act, most, window=window)


def test_what_is_said_of_many_deliveries_is_told_in_steps() -> None:
    """So that the others have their turn meanwhile."""
    for first, last in ((0, 999), (0, OPEN - 1), (2**32 - 5, 999)):
        backlog = Backlog(1000, OPEN)
        found = backlog.say(Disposition(True, first, last, state=RECEIVED))
        assert [len(one.deliveries) for one in found] == [FOUND] * (1000 // FOUND) + [1000 % FOUND]
        assert [one for step in found for one in step.deliveries] == backlog.deliveries
        assert [step.unknown for step in found[:-1]] == [False] * (1000 // FOUND)
        assert found[-1].unknown is (last - first != 999)


def test_a_disposition_about_deliveries_that_are_settled_already() -> None:
    backlog = Backlog(3000, OPEN)
    for delivery in backlog.deliveries[:2990]:
        delivery.settle()
    found = backlog.say(Disposition(True, 0, 2998, settled=True, state=ACCEPTED), Disposition(True, 2999, settled=True))
    assert [one for step in found for one in step.deliveries] == backlog.deliveries[2990:]
    assert [step.unknown for step in found] == [True, False]


def test_a_session_that_is_ended_within_a_disposition() -> None:
    backlog = Backlog(1000, OPEN)
    connection = backlog.connection
    (session,) = connection.sessions.values()
    connection.feed(performative_frame(0, Disposition(True, 0, 999, state=ACCEPTED)))
    assert isinstance(connection.next_event(), Disposed)
    waits = connection.has_input
    session.end()
    assert connection.next_event() is None
    assert (waits, connection.has_input) == (True, False)
    backlog.say(End())
    connection.output()
    assert kept(connection) == 0


def test_what_waits_goes_on_in_the_order_in_which_it_was_given() -> None:
    """Whatever happens to links in between: one loses its credit and gets it back, another one goes."""
    backlog = Backlog(300, 0)
    backlog.flow(1, 0)
    backlog.say(Detach(2, closed=True))
    backlog.deliveries[0].abort()
    backlog.deliveries[103].abort()
    gone = {0, 103, 2, 102, 202}
    kept_back = {1, 101, 201}
    backlog.say(Flow(0, 1000, 0, OPEN))
    sent = [number for number, one in enumerate(backlog.deliveries) if one.id >= 0]
    assert sent == [number for number in range(300) if number not in gone | kept_back]
    assert [backlog.deliveries[number].id for number in sent] == list(range(len(sent)))
    backlog.flow(1, 300, window=1000)
    assert [backlog.deliveries[number].id - len(sent) for number in sorted(kept_back)] == [0, 1, 2]
    assert not any(link.queued for link in backlog.links if link.attached)
