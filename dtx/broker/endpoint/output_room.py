"""OutputRoom: the room that the links of one connection have for what they send.

A link sends while little of its session waits for the socket, while the payloads that are being read fit into memory,
and until the turn of the connection is over. Where one of these stops it, it asks here to be woken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from dtx.store.contract import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.connection import Connection
    from dtx.broker.container import Container, ServedConnection

TURN_S: Final = 0.004
"""How long one peer is served before the others have their turn, unless it is said."""
DELIVERIES_PER_S: Final = 32_000
"""The messages that a peer is sent in a turn take about as long as the turn may."""


class WaitingLink(Protocol):
    """A link that sends, or waits for room: what its members mean, `dtx.broker.endpoint.link.Link` says."""

    @property
    def is_attached(self) -> bool: ...
    @property
    def queued(self) -> bool: ...
    @property
    def waiting_octets(self) -> int: ...

    def drain(self) -> None: ...


class OutputRoom:
    """What the links of `connection` may send. `endpoint` is our end of it in AMQP; `wake` has every link look whether
    it may send."""

    def __init__(
        self, container: Container, connection: ServedConnection, endpoint: Connection, wake: Callable[[], None]
    ) -> None:
        self._container = container
        self._connection = connection
        self.endpoint = endpoint
        self._wake = wake
        self.writable = True
        """Whether the peer takes what it is sent; the shell's to say."""
        self.limit = container.limits.output_octets
        self.little = min(CHUNK, self.limit)
        """A session with fewer octets to send has room."""
        self.loading = 0
        """Octets of messages that are read, or being read, and that are not sent yet."""

        self.allowance = int(DELIVERIES_PER_S * TURN_S)
        """Messages that links may still send before the others have their turn."""
        self.draining: dict[WaitingLink, None] = {}
        """Links whose peers want their credit used up or back."""
        self.awaits_turn = False
        """Whether links have more to send than went into the last turn."""
        self.is_free = False
        """Whether there is room that links do not know of yet."""
        self._full_of_payloads = False
        self._aborted: dict[WaitingLink, None] = {}
        self.withdrawing: list[Callable[[], None]] = []
        self.unsent: list[tuple[WaitingLink, Callable[[], None]]] = []

    # -- turns
    def begin_turn(self) -> None:
        """The links that have more than went into the last turn send it."""
        self.awaits_turn = False
        self._wake()

    def wants_turn(self) -> None:
        """Links have sent what they may send in one turn, and have more."""
        if not self.awaits_turn:
            self.awaits_turn = True
            self._container.wants_turn(self._connection)

    # -- room
    def when_sent(self, link: WaitingLink, call: Callable[[], None]) -> None:
        """Calls `call` when the link's session has little left to send; a link asks for one of a kind at a time."""
        self.unsent.append((link, call))

    def unloaded(self, octets: int) -> None:
        """The octets of a message are sent, or are not wanted any more: there may be room for others."""
        if self._full_of_payloads or self.loading >= self.limit > self.loading - octets:
            self._full_of_payloads = False
            self.has_room()
        self.loading -= octets

    def when_unloaded(self) -> None:
        """Links may send again when the next payload that is being read is there."""
        self._full_of_payloads = True

    def has_room(self) -> None:
        """Links may send again."""
        self.is_free = True
        self._container.touch(self._connection)

    # -- deliveries that are aborted
    def aborted(self, link: WaitingLink) -> None:
        """A delivery of `link` was aborted; that has to be sent to the peer."""
        self._aborted[link] = None

    def when_withdrawn(self, call: Callable[[], None]) -> None:
        """Calls `call` when no delivery is in the middle of being aborted: a discharge that failed is
        answered after its last partial delivery has ended."""
        if self._aborting():
            self.withdrawing.append(call)
        else:
            call()

    def _aborting(self) -> bool:
        for link in tuple(self._aborted):
            if not link.is_attached or not link.queued:
                del self._aborted[link]
        return bool(self._aborted)

    # -- octets
    def before_output(self) -> None:
        """Octets are to be sent: where there is room, links send more before."""
        if self.is_free:
            self.is_free = False
            self._wake()
            self._container.resource.settle()
        for link in tuple(self.draining):
            link.drain()

    def after_output(self) -> None:
        """Octets were taken to be sent: calls those that waited for them to leave."""
        if self.unsent:
            self._call_sent()
        if self.withdrawing and not self._aborting():
            calls, self.withdrawing = self.withdrawing, []
            for call in calls:
                call()

    def _call_sent(self) -> None:
        unsent, self.unsent = self.unsent, []
        for link, call in unsent:
            if not link.is_attached:
                continue
            if link.waiting_octets < self.little:
                call()
                self._container.touch(self._connection)
            else:
                self.unsent.append((link, call))
        if len(self.unsent) < len(unsent):
            self._container.resource.settle()  # what was called may have asked the store for payloads
