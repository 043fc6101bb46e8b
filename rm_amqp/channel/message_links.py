"""The links over which a channel sends, receives and reads messages, and the steps that use them.

A link is made at the first use of its address, and kept for the next transaction. What is done belongs to a `Work`;
with None it is outside of any transaction. Everything here is steps (`rm_amqp.connection.endpoint.Steps`).

With `prefetch` the broker sends messages ahead of their receipt, and a consumer puts back what it has received and not
begun, for its next transaction. After a rollback these prefetched messages must be returned before the next receive:
the broker redelivers what was rolled back behind them, and messages would arrive out of their order. `recall` says that
this is due.

What is gathered, posted and read in bulk is by the thousand, as octets. The broker acquires and settles what is
gathered, for the branch, when it sends it: nothing has to be sent for each message, and what is lost on the way is lost
with the branch. Nothing of it is ever prefetched.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.conditions import Condition
from dtx.protocol.addresses import TXN_ID
from dtx.protocol.capabilities import TOPICS
from dtx.protocol.conditions import RefusedError, refused
from dtx.protocol.replies import ACCEPTED
from rm_amqp.channel.nodes import Queues
from rm_amqp.channel.work import ACTIVE
from rm_amqp.connection.endpoint import Change, until
from rm_amqp.connection.links import ATTACHED, BulkReceiver, Receiver, Sender
from rm_amqp.errors import TimedOut
from xa import Code, xa_error
from xa.topics import TOPIC, source_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_amqp.channel.nodes import Nodes, QueuePeek
    from rm_amqp.channel.work import Work
    from rm_amqp.connection.endpoint import Endpoint
    from rm_amqp.connection.links import ArrivedMessage, Control, Link
    from rm_amqp.settings import Settings

    Browser = Receiver | QueuePeek

IDLE_S: Final = 1.0
"""How long prefetched messages are kept for an address from which no one receives any more."""
MAX_LINKS: Final = 64
"""Links to addresses that are kept for the next transaction."""
BROWSED: Final = 100
"""Messages that a browse asks for at a time."""
SOON: Final = 32
"""A credit for so many messages leaves at once. A smaller one waits for the next octets that are written."""
READ: Final = 5_000
"""Messages that a reading in bulk asks for at a time."""


class MessageLinks:
    """The links of one channel. `control` is its control link, without which no work can be done; `nodes` makes the
    links."""

    def __init__(self, endpoint: Endpoint, settings: Settings, control: Control, nodes: Nodes | None = None) -> None:
        self.recall = False
        """Whether a branch that received here did not commit, and prefetched messages must be returned."""
        self._endpoint = endpoint
        self._settings = settings
        self._control = control
        self._nodes: Nodes = nodes or Queues()
        self._senders: dict[str, Sender] = {}
        self._receivers: dict[tuple[str, bool], Receiver] = {}
        self._bulk_receivers: dict[str, BulkReceiver] = {}

    # -- checks
    def check(self) -> None:
        """ConnectionLost, or RefusedError, where the channel can't be used any more."""
        self._endpoint.check()
        if self._control.refusal is not None:
            raise RefusedError(self._control.refusal)

    def check_offered(self, capability: str) -> None:
        """XAER_INVAL where the broker does not offer a capability that a message needs."""
        if capability not in self._endpoint.offered:
            broker = self._endpoint.broker
            why = f"work: the message is to be delivered later, and the broker at {broker} does not offer {capability}"
            raise xa_error(Code.XAER_INVAL, why)

    def offers(self, capability: str) -> bool:
        """Whether the broker offers a capability."""
        return capability in self._endpoint.offered

    def check_work(self, work: Work | None) -> None:
        """RefusedError where no work can be done for the work any more."""
        if self._control.state is not ATTACHED:
            self.check()
        if work is None:
            return
        if work.state is not ACTIVE:
            code = Code.XA_RBROLLBACK if work.failed else Code.XAER_PROTO
            raise refused(code, "the association was ended meanwhile", work.xid)
        opening = work.opening
        if opening is not None and opening.there:
            if opening.refusal is not None:
                raise RefusedError(opening.refusal)
            work.opening = None

    def check_outcome(self, outcome: bytes) -> None:
        """RefusedError for an outcome that the broker takes for another one."""
        self._nodes.check_outcome(outcome)

    def _check_link(self, link: Link) -> None:
        self._endpoint.check()
        if link.refusal is not None:
            raise RefusedError(link.refusal)

    def _check_address(self, address: str, *, receives: bool) -> None:
        """RefusedError for a topic that the broker does not have, or from which nothing can be received."""
        if not address.startswith(TOPIC):
            return
        if TOPICS not in self._endpoint.offered:
            raise refused(Code.XAER_INVAL, f"the broker at {self._endpoint.broker} has no topics ({address})")
        if receives:
            try:
                source_of(address, None)
            except ValueError as error:
                raise refused(Code.XAER_INVAL, str(error)) from None

    # -- sending
    async def send(self, address: str, octets: bytes, work: Work | None, deadline: float) -> None:
        """Sends a message; it is the broker's when this returns, or when the branch is committed."""
        self.check_work(work)
        sender = self._senders.get(address)
        if sender is None or sender.state is not ATTACHED:
            sender = await self.attached_sender(address, deadline)
            self.check_work(work)
        self._check_size(sender, octets)
        while sender.credit <= 0:
            self._check_link(sender)
            await Change(self._endpoint, deadline, f"the broker takes no messages for {address} now")
            self.check_work(work)

        if work is not None:
            work.post(sender, octets)
            return
        answer = sender.send(octets)
        if not (await until(self._endpoint, lambda: answer.there, deadline)):
            raise TimedOut(f"the broker did not confirm the message for {address}")
        if answer.refusal is not None:
            raise RefusedError(answer.refusal)

    async def post(self, address: str, messages: Sequence[bytes], work: Work, deadline: float) -> None:
        """Sends many messages. If the broker refuses one, the end of the branch raises the error."""
        self.check_work(work)
        sender = self._senders.get(address)
        if sender is None or sender.state is not ATTACHED:
            sender = await self.attached_sender(address, deadline)
            self.check_work(work)

        self._check_size(sender, max(messages, key=len, default=b""))
        sent = 0
        while sent < len(messages):
            credit = sender.credit
            for octets in messages[sent : sent + credit]:
                work.post(sender, octets)
            sent += credit
            if sent >= len(messages):
                break
            self._check_link(sender)
            await Change(self._endpoint, deadline, f"the broker takes no messages for {address} now")
            self.check_work(work)

    @staticmethod
    def _check_size(sender: Sender, octets: bytes) -> None:
        if 0 < sender.max_octets < len(octets):
            message = (
                f"a message of {len(octets)} octets; the broker takes at most {sender.max_octets} for {sender.address}"
            )
            raise refused(Code.XAER_INVAL, message, condition=Condition.MESSAGE_SIZE)

    async def all_sent(self, work: Work, deadline: float) -> None:
        """Waits until every message has left, because the end may not overtake one that waits for credit."""
        if work.senders:
            self._endpoint.stage()
        for sender in work.senders:
            while sender.queued:
                await Change(self._endpoint, deadline, "the broker did not take all messages in time")
                self._endpoint.stage()

    # -- receiving
    async def receive(
        self,
        address: str,
        work: Work | None,
        deadline: float,
        patience: float,
        *,
        acquire: bool = False,
    ) -> ArrivedMessage | None:
        """The next message from an address, None where none comes until `deadline`. With `acquire` the branch has
        taken it already when it comes. `patience` bounds what the broker may take to say that there is none."""
        self.check_work(work)
        acquire = acquire and not self._nodes.confirms
        if self.recall:
            await self._return_prefetched(work, patience)
        receiver = await self.attached_receiver(address, work, patience, acquire=acquire)
        prefetch = 0 if acquire else self._settings.prefetch
        while not receiver.arrived:
            self._check_link(receiver)
            self.check_work(work)
            if receiver.credit <= 0:
                receiver.flow(prefetch or 1)
            if self._endpoint.clock() >= deadline:
                await self._drained(receiver, work, patience)
                break
            await Change(self._endpoint, deadline)

        self.check_work(work)  # a message that is taken after the end would have no outcome
        if not receiver.arrived:
            return None
        _prefetch(receiver, prefetch, 1)
        return receiver.arrived.popleft()

    async def receive_batch(
        self, address: str, count: int, work: Work | None, deadline: float, patience: float
    ) -> list[ArrivedMessage]:
        """The first message that comes until `deadline`, and what else the broker has at once, at most `count`."""
        self.check_work(work)
        if self.recall:
            await self._return_prefetched(work, patience)
        receiver = await self.attached_receiver(address, work, patience, acquire=False)
        missing = count - len(receiver.arrived) - receiver.credit
        if missing > 0:
            receiver.flow(missing)

        while not receiver.arrived and self._endpoint.clock() < deadline:
            self._check_link(receiver)
            self.check_work(work)
            await Change(self._endpoint, deadline)
        if len(receiver.arrived) < count and receiver.credit > 0:
            await self._drained(receiver, work, patience)
        if _prefetch(receiver, self._settings.prefetch, min(count, len(receiver.arrived))) >= SOON:
            # the broker sends them while the batch is read and handled
            await Change(self._endpoint, self._endpoint.clock())
            self._check_link(receiver)
        self.check_work(work)
        return [receiver.arrived.popleft() for _ in range(min(count, len(receiver.arrived)))]

    async def gather(self, address: str, count: int, work: Work, patience: float) -> list[bytes]:
        """The messages that an address has now, at most `count`: taken by the branch, in the order in which it holds
        them."""
        self.check_work(work)
        if not work.takes_in_bulk:
            found = await self.receive_batch(address, count, work, self._endpoint.clock(), patience)
            for arrived in found:
                work.hold(arrived, arrived)
            return [arrived.octets for arrived in found]

        receiver = self._bulk_receivers.get(address)
        if receiver is None or receiver.state is not ATTACHED:
            self._bulk_receivers.pop(address, None)
            self._make_room(self._bulk_receivers)
            self._check_address(address, receives=True)
            receiver = self._bulk_receivers[address] = BulkReceiver(self._endpoint, address, name="gather")
            await self.attached(receiver, patience)
        self._acquire_for(work, receiver)
        receiver.flow(count)
        await self._drained(receiver, work, patience)
        self._check_link(receiver)
        self.check_work(work)
        return receiver.take()

    def settle(self, arrived: ArrivedMessage) -> None:
        """Outside of any transaction: the message is taken."""
        arrived.link.settle(arrived, None, ACCEPTED)

    def stop_acquiring(self) -> str:
        """The txn-id is about to be discharged: no flow names it any more. What came over a link for this branch and
        was not received goes back with the link, so that the next branch does not take it for its own.

        The address from which something was gathered that was not received, or the empty string: the branch has taken
        it, and may not be committed."""
        for key, receiver in tuple(self._receivers.items()):
            if key[1] and not self._stops_acquiring(receiver):
                del self._receivers[key]
        unread = ""
        for address, bulk in tuple(self._bulk_receivers.items()):
            if not self._stops_acquiring(bulk):
                del self._bulk_receivers[address]
                unread = address
        return unread

    def _stops_acquiring(self, receiver: Receiver) -> bool:
        """Whether the link can be kept for the next branch."""
        if receiver.alive:
            self._endpoint.set_flow_properties(receiver.name, {})
        if receiver.idle:
            return True
        receiver.close()
        return False

    async def _return_prefetched(self, work: Work | None, patience: float) -> None:
        for receiver in [receiver for receiver in self._receivers.values() if receiver.attached]:
            await self._drained(receiver, work, patience)
            receiver.give_back()
        self._endpoint.stage()  # proton would write the next credit before them, and later messages would come first
        self.recall = False

    async def _drained(self, receiver: Receiver, work: Work | None, patience: float) -> None:
        """The broker sends what it has, up to the credit, and gives back the rest."""
        if receiver.credit > 0 and not receiver.draining:
            receiver.drain()
        while receiver.draining:
            self._check_link(receiver)
            self.check_work(work)
            await Change(self._endpoint, patience, f"the broker did not say in time that {receiver.address} is empty")

    # -- reading without taking
    async def browser(self, address: str, work: Work | None, deadline: float) -> Browser:
        """Reads an address without taking anything from it."""
        self.check_work(work)
        self._check_address(address, receives=True)
        peek = await self._nodes.peek(self._endpoint, address, deadline)
        if peek is not None:
            return peek
        receiver = Receiver(
            self._endpoint, address, settled=True, browse=True, name="browse", capabilities=self._nodes.capabilities
        )
        await self.attached(receiver, deadline)
        return receiver

    async def browse(self, receiver: Browser, work: Work | None, deadline: float) -> list[ArrivedMessage]:
        """The next messages that it reads; fewer than BROWSED at the end."""
        if not isinstance(receiver, Receiver):
            self.check_work(work)
            return await receiver.page(BROWSED, deadline)
        self._check_link(receiver)
        receiver.flow(BROWSED)
        await self._drained(receiver, work, deadline)
        self._check_link(receiver)
        found = list(receiver.arrived)
        receiver.arrived.clear()
        return found

    async def reader(self, address: str, deadline: float) -> BulkReceiver:
        """A link that reads an address in bulk, taking nothing from it."""
        self.check()
        self._check_address(address, receives=True)
        receiver = BulkReceiver(self._endpoint, address, browse=True, name="read")
        await self.attached(receiver, deadline)
        return receiver

    async def read(self, receiver: BulkReceiver, count: int, deadline: float) -> list[bytes]:
        """The next messages that the link reads, at most `count`; none at the end."""
        self._check_link(receiver)
        receiver.flow(count)
        await self._drained(receiver, None, deadline)
        self._check_link(receiver)
        return receiver.take()

    # -- attaching
    async def attached(self, link: Link, deadline: float) -> None:
        """Waits until the broker has attached a link. RefusedError: it does not."""
        if not (await until(self._endpoint, lambda: link.answered, deadline)):
            raise TimedOut("the broker did not answer the attach in time")
        self._check_link(link)

    async def attached_sender(self, address: str, deadline: float) -> Sender:
        """A link to an address, made where there is none."""
        sender = self._senders.get(address)
        if sender is None or sender.state is not ATTACHED:
            self._senders.pop(address, None)
            self._make_room(self._senders)
            self._check_address(address, receives=False)
            await self._nodes.check(self._endpoint, address, deadline)
            sender = self._senders[address] = self._nodes.sender(self._endpoint, address)
            await self.attached(sender, deadline)
        return sender

    async def attached_receiver(self, address: str, work: Work | None, deadline: float, *, acquire: bool) -> Receiver:
        """A link from an address, made where there is none. With `acquire` the broker acquires what it sends over it
        from now on for the work's branch."""
        receiver = self._receivers.get((address, acquire))
        if receiver is None or receiver.state is not ATTACHED:
            self._receivers.pop((address, acquire), None)
            self._make_room(self._receivers)
            self._check_address(address, receives=True)
            name = "acquire" if acquire else "receive"
            receiver = self._nodes.receiver(self._endpoint, address, name)
            self._receivers[address, acquire] = receiver
            await self.attached(receiver, deadline)
        receiver.used = True
        if acquire and work is not None:
            self._acquire_for(work, receiver)
        return receiver

    def _acquire_for(self, work: Work, receiver: Receiver) -> None:
        self._endpoint.set_flow_properties(receiver.name, {TXN_ID: work.txn_id})

    def _make_room(self, links: dict[Any, Any]) -> None:
        """Closes a link that nothing depends on, where there are too many."""
        if len(links) >= MAX_LINKS:
            self._endpoint.stage()
            key = next((key for key, link in links.items() if link.idle), None)
            if key is not None:
                links.pop(key).close()

    # -- at rest
    @property
    def is_ahead(self) -> bool:
        """Whether messages are here, or on their way, that were not received."""
        return any(receiver.arrived or receiver.credit > 0 for receiver in self._receivers.values())

    def put_down(self, now: float) -> bool:
        """Notes that the channel is not in use any more; whether it `is_late`, because it was used for something else
        all the time."""
        late = False
        for receiver in tuple(self._receivers.values()):
            if receiver.used:
                receiver.used, receiver.resting_since = False, now
            elif receiver.resting_since < now - IDLE_S:
                late = True
        return late

    def is_late(self, now: float) -> bool:
        """Whether messages may have been prefetched for an address from which no one has received for a while."""
        return any(receiver.resting_since < now - IDLE_S for receiver in tuple(self._receivers.values()))

    def release_prefetched(self, now: float) -> None:
        """What was prefetched for addresses from which no one has received for a while is given back, first the credit
        and then, at the next call, the messages. It waits for nothing."""
        if self._control.state is not ATTACHED:
            return
        for receiver in self._receivers.values():
            if receiver.resting_since >= now - IDLE_S or receiver.draining:
                continue
            if receiver.attached and receiver.credit > 0:
                receiver.drain()
                continue
            if receiver.attached:
                receiver.give_back()
            receiver.resting_since = math.inf

    async def empty(self, deadline: float) -> None:
        """The channel is about to be closed: what was prefetched is given back, and what is on its way. It was not
        seen, so that it does not count as delivered, as it would with the end of its link."""
        receivers = [receiver for receiver in self._receivers.values() if receiver.attached]
        for receiver in receivers:
            if receiver.credit > 0:
                receiver.drain()
        await until(self._endpoint, lambda: not any(one.draining for one in receivers), deadline)
        for receiver in receivers:
            receiver.give_back()


def _prefetch(receiver: Receiver, prefetch: int, received: int) -> int:
    """Lets the broker send messages ahead, where there are fewer than half of them beside those that are `received`
    now; how many more. What has arrived and is not received counts: otherwise every receive would ask for more, and the
    client would hold all that a queue has."""
    ahead = receiver.credit + len(receiver.arrived) - received
    if 2 * ahead >= prefetch:
        return 0
    receiver.flow(prefetch - ahead)
    return prefetch - ahead
