"""BulkChannel: a transactional channel that also takes, sends and reads messages by the thousand, as octets.

What is gathered is acquired and settled by the broker, for the branch, when it sends it: nothing has to be told of each
message, and what is lost on the way is lost with the branch. Nothing is ever sent ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dtx.protocol.conditions import Condition, refused
from rm_amqp.channel import Channel
from rm_amqp.links import Taker
from rm_amqp.loss import TimedOut
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_amqp.association import Association
    from rm_amqp.core import Core, Steps
    from rm_amqp.links import Arrived, Receiver
    from rm_amqp.settings import Settings

BROWSED: Final = 100
"""Messages that a browse asks for at a time."""
READ: Final = 5_000
"""Messages that a reading in bulk asks for at a time."""


def selected(core: Core, settings: Settings, deadline: float) -> Steps[BulkChannel]:
    """A channel over this connection, selected for distributed transactions."""
    channel = BulkChannel(core, settings)
    yield from channel.select(deadline)
    return channel


class BulkChannel(Channel):
    """One transactional channel."""

    def __init__(self, core: Core, settings: Settings) -> None:
        super().__init__(core, settings)
        self._takers: dict[str, Taker] = {}

    # -- browsing
    def browser(self, address: str, association: Association | None, deadline: float) -> Steps[Receiver]:
        """A link that reads an address without taking anything from it."""
        self.check_work(association)
        receiver = self.receives(self.core, address, settled=True, browse=True, name="browse")
        yield from self._attached(receiver, deadline)
        return receiver

    def browse(self, receiver: Receiver, association: Association | None, deadline: float) -> Steps[list[Arrived]]:
        """The next messages that the link reads; fewer than BROWSED at the end."""
        self._check_link(receiver)
        receiver.flow(BROWSED)
        yield from self._drained(receiver, association, deadline)
        self._check_link(receiver)
        found = list(receiver.arrived)
        receiver.arrived.clear()
        return found

    # -- in bulk
    def gather(self, address: str, count: int, association: Association, patience: float) -> Steps[list[bytes]]:
        """What an address has now, at most `count`: taken by the branch, in the order in which it holds them."""
        self.check_work(association)
        taker = yield from self._taker(address, association, patience)
        taker.flow(count)
        yield from self._drained(taker, association, patience)
        self._check_link(taker)
        return taker.take()

    def _taker(self, address: str, association: Association, deadline: float) -> Steps[Taker]:
        taker = self._takers.get(address)
        if taker is None or not taker.attached or not taker.alive:
            self._takers.pop(address, None)
            self._make_room(self._takers)
            taker = self._takers[address] = Taker(self.core, address, name="gather")
            yield from self._attached(taker, deadline)
        self._acquire(taker, association)
        return taker

    def _stop_acquiring(self) -> None:
        """As Channel says."""
        super()._stop_acquiring()
        for taker in self._takers.values():
            if taker.alive:
                self.core.say_transaction(taker.name, {})

    def post(self, address: str, messages: Sequence[bytes], association: Association, deadline: float) -> Steps[None]:
        """Sends many messages; what is wrong with one is told when the branch is ended."""
        self.check_work(association)
        sender = self._senders.get(address)
        if sender is None or not sender.attached or not sender.alive:
            sender = yield from self._sender(address, deadline)
        longest = max(map(len, messages), default=0)
        if sender.max_octets and longest > sender.max_octets:
            told = f"a message of {longest} octets; the broker takes at most {sender.max_octets} for {address}"
            raise refused(Code.XAER_INVAL, told, condition=Condition.MESSAGE_SIZE)
        sent = 0
        while sent < len(messages):
            credit = sender.credit
            for octets in messages[sent : sent + credit]:
                self._post(sender, octets, association)
            sent += credit
            if sent >= len(messages):
                break
            self._check_link(sender)
            if self.core.clock() >= deadline:
                raise TimedOut(f"the broker takes no messages for {address} now")
            yield deadline
            self.check_work(association)

    def reader(self, address: str, deadline: float) -> Steps[Taker]:
        """A link that reads an address in bulk, taking nothing from it."""
        self.check()
        taker = Taker(self.core, address, browse=True, name="read")
        yield from self._attached(taker, deadline)
        return taker

    def read(self, taker: Taker, count: int, deadline: float) -> Steps[list[bytes]]:
        """The next messages that the link reads, at most `count`; none at the end."""
        self._check_link(taker)
        taker.flow(count)
        yield from self._drained(taker, None, deadline)
        self._check_link(taker)
        return taker.take()
