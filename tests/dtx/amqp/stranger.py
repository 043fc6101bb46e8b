"""Stranger: a peer that says any performatives, one frame after the other, to an application on our endpoint."""

from __future__ import annotations

from typing import Any, TypeVar

from dtx.amqp.connection import Connection
from dtx.amqp.frames import AMQP_HEADER, FrameReader, performative_frame
from dtx.amqp.link import ReceiverLink, SenderLink
from dtx.amqp.performatives import Attach, Begin, Close, Detach, End, Flow, Open, Performative, Source, Target
from tests.dtx.amqp.ends import Application

T = TypeVar("T")
WINDOW = 2**31 - 1


class Stranger:
    """`heard` has what the application said since it was asked last: channel, performative, payload."""

    def __init__(self, end: Application | None = None, said: Open | None = None) -> None:
        self.end = end or Application(Connection("server", max_frame_size=65_536), credit=10)
        self._reader = FrameReader(2**24)
        self.send(AMQP_HEADER + performative_frame(0, said or Open("stranger")))
        self.listen(Open)

    def send(self, octets: bytes) -> None:
        self.end.receive(octets)

    def say(self, *performatives: Performative, channel: int = 0, payload: bytes = b"") -> None:
        """Says frames, all at once."""
        octets = b""
        for performative in performatives:
            made = performative_frame(channel, performative) + payload
            octets += len(made).to_bytes(4, "big") + made[4:]
        self.send(octets)

    def hear(self) -> list[tuple[int, Performative, bytes]]:
        """What the application says now."""
        octets = self.end.output()
        self._reader.feed(octets)
        if not self._reader.started and not self._reader.header():
            return []
        found = []
        while (one := self._reader.next()) is not None:
            channel, performative, payload = one
            if performative is not None:
                found.append((channel, performative, payload))
        return found

    def listen(self, *kinds: type) -> list[Any]:
        """The performatives that the application says now: exactly of these kinds, in this order."""
        found = [performative for _, performative, _ in self.hear()]
        assert [type(one) for one in found] == list(kinds), found
        return found

    def ask(self, kind: type[T], *performatives: Performative, channel: int = 0) -> T:
        """Says frames; the one performative of this kind among the answers."""
        self.say(*performatives, channel=channel)
        found = [performative for _, performative, _ in self.hear() if isinstance(performative, kind)]
        assert len(found) == 1, found
        return found[0]

    def begin(self, channel: int = 0, *, window: int = WINDOW, number: int = 0) -> Begin:
        """Begins a session."""
        return self.ask(Begin, Begin(None, number, window, WINDOW), channel=channel)

    def attach(self, name: str, handle: int, *, receiver: bool, channel: int = 0, **more: Any) -> Attach:
        """Attaches a link."""
        return self.ask(Attach, attach(name, handle, receiver=receiver, **more), channel=channel)


def attach(name: str, handle: int, *, receiver: bool, **more: Any) -> Attach:
    """An attach with a source and a target."""
    count = None if receiver else 0
    return Attach(
        name, handle, receiver, source=Source("a"), target=Target("b"), **{"initial_delivery_count": count, **more}
    )


def flow(number: int = 0, **more: object) -> Flow:
    return Flow(0, WINDOW, number, WINDOW, **more)  # type: ignore[arg-type]


def error_of(performative: Detach | End | Close) -> str:
    """The condition with which something is ended."""
    assert performative.error is not None
    return performative.error.condition


def begun(**more: Any) -> Stranger:
    """A stranger with a session."""
    stranger = Stranger(**more)
    stranger.begin()
    return stranger


def sending(stranger: Stranger | None = None, **more: int) -> tuple[Stranger, ReceiverLink]:
    """A stranger that sends on a link, `in`, and our end of it."""
    stranger = stranger or Stranger()
    stranger.begin()
    stranger.attach("in", 0, receiver=False, **more)
    stranger.hear()
    (link,) = stranger.end.links
    assert isinstance(link, ReceiverLink)
    return stranger, link


def receiving(
    credit: int = 10, stranger: Stranger | None = None, *, window: int = WINDOW
) -> tuple[Stranger, SenderLink]:
    """A stranger that receives on a link, `out`, and our end of it."""
    stranger = stranger or Stranger()
    stranger.begin(window=window)
    stranger.attach("out", 0, receiver=True)
    stranger.say(Flow(0, window, 0, WINDOW, 0, 0, credit))
    (link,) = stranger.end.links
    assert isinstance(link, SenderLink)
    return stranger, link


def kept(connection: Connection) -> int:
    """How many things a connection keeps, in all of its tables and queues."""
    sessions = {*connection.sessions.values(), *connection._channels.values()}
    found = len(connection.links) + len(connection.sessions) + len(connection._channels) + len(connection._owed)
    found += len(connection._disposing) + len(connection._events) + len(connection._output)
    assert connection.kept_octets == sum(session.kept_octets for session in sessions)
    for session in sessions:
        found += len(session.links) + len(session._handles) + len(session._unanswered)
        links = session._handles.values()
        found += len(session.incoming) + len(session.outgoing) + len(session._lines)
        found += sum(link.queued for link in links if isinstance(link, SenderLink))
        own: list[int] = [len(link.unsettled) for link in links if isinstance(link, SenderLink | ReceiverLink)]
        assert sum(own) == len(session.incoming) + len(session.outgoing)
    return found
