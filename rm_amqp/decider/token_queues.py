"""The token queues as one channel uses them: reading tokens, holding one, replacing it.

All of these methods are steps. A token is held from `acquire` until it is released, or until the transaction that
retires it is over. If one of them raises any other error than those named here, a token may be on its way, and the
caller has to close the connection.

A client that holds a token knows which founding counts (`rm_amqp.decider.token_queue_creation`), and this never
changes. So a client that finds an unused token of another founding, which holds nothing, drops it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import DecodeError
from dtx.protocol.conditions import RefusedError, refused
from dtx.protocol.replies import ACCEPTED, RELEASED
from rm_amqp.channel.work import TAKE
from rm_amqp.connection.endpoint import Change, until
from rm_amqp.connection.links import Receiver
from rm_amqp.decider.tokens import FoundingMessage, OtherVersionError, Token, WrongTokenError
from rm_amqp.errors import TimedOut
from rm_amqp.message import Message
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rm_amqp.channel.nodes import Nodes, QueuePeek
    from rm_amqp.connection.endpoint import Endpoint
    from rm_amqp.connection.links import Answer, ArrivedMessage, Sender
    from rm_amqp.decider.channel import LocalWork
    from rm_amqp.decider.election import Foundings

BROWSE_CREDIT: Final = 100
DRAIN_AGAIN_S: Final = 0.5
QUEUE: Final = ("queue",)
"""The capability that brokers know who have topics as well."""


async def _all_of(peek: QueuePeek, deadline: float) -> list[ArrivedMessage]:
    found: list[ArrivedMessage] = []
    while True:
        page = await peek.page(BROWSE_CREDIT, deadline)
        found += page
        if len(page) < BROWSE_CREDIT:
            peek.close()
            return found


class TokenBusyError(Exception):
    """The token could not be acquired in time: another client holds it, or it is lost. Nothing was changed."""


@dataclass(frozen=True, slots=True, eq=False)
class HeldToken:
    """A token that this client has acquired. `deliveries`: how often it was delivered before, in vain."""

    token: Token
    arrived: ArrivedMessage
    deliveries: int


class TokenQueues:
    """Those of one channel, by the name of the founding queue."""

    def __init__(self, endpoint: Endpoint, name: str, nodes: Nodes) -> None:
        self.name = name
        self._nodes = nodes
        self._endpoint = endpoint
        self._receivers: dict[int, Receiver] = {}
        self._senders: dict[str, Sender] = {}

    def address(self, slot: int) -> str:
        """The queue of a slot."""
        return f"{self.name}.{slot}"

    @property
    def locks_lapse(self) -> bool:
        """Whether a token that is held may be given to others, or to its holder once more."""
        return self._nodes.confirms

    # -- looking
    async def foundings(self, deadline: float) -> Foundings:
        """Every founding that is there. WrongTokenError: the queue holds something else."""
        arrived = await self._browsed(self.name, deadline)
        return frozenset(FoundingMessage.decode(self._read(each, self.name).body) for each in arrived)

    async def shown(self, slot: int, deadline: float) -> list[Token]:
        """The tokens that a slot's queue shows. Acquired ones may be missing. Messages that are no tokens are skipped,
        because a client that takes one gets an error. OtherVersionError."""
        tokens = []
        for arrived in await self._browsed(self.address(slot), deadline):
            try:
                tokens.append(Token.decode(self._read(arrived, self.address(slot)).body))
            except OtherVersionError:
                raise
            except WrongTokenError:
                continue
        return tokens

    async def _browsed(self, address: str, deadline: float) -> list[ArrivedMessage]:
        """Every message that a queue shows; they stay there."""
        peek = await self._nodes.peek(self._endpoint, address, deadline)
        if peek is not None:
            return await _all_of(peek, deadline)
        browser = Receiver(self._endpoint, address, browse=True, name="browse", capabilities=self._nodes.capabilities)
        await self._attached(browser, deadline)
        if browser.moves:
            browser.close()
            raise refused(Code.XAER_RMERR, f"{address} can't be browsed", condition=Condition.NOT_IMPLEMENTED)

        found: list[ArrivedMessage] = []
        full = True
        while full:
            first = await self._next(browser, self._endpoint.clock(), deadline, BROWSE_CREDIT)
            page = [first, *browser.arrived] if first is not None else []
            browser.arrived.clear()
            for arrived in page:
                browser.settle(arrived, None, RELEASED)
            found += page
            full = len(page) >= BROWSE_CREDIT
        browser.close()
        return found

    # -- holding
    async def acquire(self, founding: FoundingMessage, slot: int, until_s: float, deadline: float) -> HeldToken:
        """Holds the token of a slot, waiting for it until `until_s`; the broker may take until `deadline` to say that
        there is none. TokenBusyError; WrongTokenError: the queue holds a message that is not ours."""
        receiver = await self._receiver(slot, deadline)
        while True:
            arrived = await self._next(receiver, until_s, deadline)
            if arrived is None:
                raise TokenBusyError(f"the token of {self.address(slot)} is held by another process, or does not exist")
            held = await self._held(arrived, founding, slot)
            if held is not None:
                return held

    async def _receiver(self, slot: int, deadline: float) -> Receiver:
        receiver = self._receivers.get(slot)
        if receiver is None or not receiver.attached:
            receiver = self._receivers[slot] = self._nodes.receiver(self._endpoint, self.address(slot), "token")
            await self._attached(receiver, deadline)
        return receiver

    async def _held(self, arrived: ArrivedMessage, founding: FoundingMessage, slot: int) -> HeldToken | None:
        """The token that came; None where it was one of a founding that does not count, which is dropped."""
        held = await self._token_in(arrived, slot, founding)
        if held.token.founder != founding.founder:
            arrived.link.settle(arrived, None, ACCEPTED)
            return None
        return held

    async def _token_in(self, arrived: ArrivedMessage, slot: int, founding: FoundingMessage | None = None) -> HeldToken:
        """The token that came, which has its place there. WrongTokenError: it has not, and is given back."""
        try:
            message = self._read(arrived, self.address(slot))
            token = Token.decode(message.body)
            token.check(founding, slot)
        except OtherVersionError:
            await self._release(arrived)
            raise
        except WrongTokenError as error:
            await self._release(arrived)
            raise WrongTokenError(f"a message in {self.address(slot)} is not its token: {error}") from None
        return HeldToken(token, arrived, int(message.delivery_count))

    async def take(self, slot: int, wait_s: float, deadline: float) -> HeldToken | None:
        """Holds one more token of a slot's queue, while it is not known yet which founding counts. None: none came in
        time. WrongTokenError: what came is no token."""
        receiver = await self._receiver(slot, deadline)
        arrived = await self._next(receiver, self._endpoint.clock() + wait_s, deadline)
        return None if arrived is None else (await self._token_in(arrived, slot))

    async def check_alone(self, held: HeldToken, founding: FoundingMessage, deadline: float) -> None:
        """TokenBusyError where the token is not held any more. WrongTokenError where the queue holds another token
        beside the one that is held: it was copied, and it is unknown which of them is right."""
        slot, receiver = held.token.slot, held.arrived.link
        while True:
            arrived = await self._next(receiver, self._endpoint.clock(), deadline)
            if arrived is None:
                return
            other = await self._held(arrived, founding, slot)
            if other is not None:
                await self._release(other.arrived)
                await self._release(held.arrived)
                if self.locks_lapse and other.token == held.token:
                    raise TokenBusyError(f"the lock on the token of {self.address(slot)} has run out")
                generations = f"{held.token.generation} and {other.token.generation}"
                raise WrongTokenError(f"{self.address(slot)} holds two tokens, of generations {generations}")

    async def release(self, held: HeldToken) -> None:
        """Others may have the token again, as it is."""
        await self._release(held.arrived)

    async def _release(self, arrived: ArrivedMessage) -> None:
        """Gives a message back. It is written before anything else happens, an error included."""
        arrived.link.settle(arrived, None, RELEASED)
        await Change(self._endpoint, self._endpoint.clock())

    async def replace(self, work: LocalWork, held: Sequence[HeldToken], token: Token, deadline: float) -> None:
        """Sends `token` in place of the held ones, in this transaction. Their retirements leave with the discharge,
        which follows; where the broker confirms outcomes, they leave with the token, and are confirmed when this
        returns. RefusedError: the broker does not take it; the transaction has to be rolled back."""
        if self._nodes.confirms:
            for each in held:
                self._retire(each, work)
        await self.send([(self.address(token.slot), token.encode())], work, deadline)
        if not self._nodes.confirms:
            for each in held:
                self._retire(each, work)

    @staticmethod
    def _retire(held: HeldToken, work: LocalWork) -> None:
        work.tell(held.arrived, TAKE)

    async def send(self, bodies: Iterable[tuple[str, str]], work: LocalWork, deadline: float) -> None:
        """Sends these bodies to their addresses, in this transaction; the broker has taken them when it returns.
        RefusedError: it does not."""
        for address, body in bodies:
            work.await_answer(await self._send(address, body, work, deadline))
        if not (await until(self._endpoint, work.all_taken, deadline)):
            raise TimedOut("the broker did not say in time that it has taken the token")
        self._endpoint.check()
        if work.refusal is not None:
            raise RefusedError(work.refusal)

    # -- links
    async def _send(self, address: str, body: str, work: LocalWork, deadline: float) -> Answer:
        octets = Message(body=body, durable=True, content_type="application/json").encode()
        sender = self._senders.get(address)
        if sender is None or not sender.attached:
            await self._nodes.check(self._endpoint, address, deadline)
            sender = self._senders[address] = self._nodes.sender(self._endpoint, address)
            await self._attached(sender, deadline)
        if 0 < sender.max_octets < len(octets):
            reason = f"a token of {len(octets)} octets; the broker takes at most {sender.max_octets} for {address}"
            raise refused(Code.XAER_RMERR, reason, condition=Condition.MESSAGE_SIZE)
        while sender.credit <= 0:
            self._check(sender)
            await Change(self._endpoint, deadline, f"the broker takes no messages for {address} now")
        return sender.send(octets, work.delivery_state())

    async def _attached(self, link: Receiver | Sender, deadline: float) -> None:
        if not (await until(self._endpoint, lambda: link.answered, deadline)):
            raise TimedOut("the broker did not answer the attach in time")
        self._check(link)

    def _check(self, link: Receiver | Sender) -> None:
        self._endpoint.check()
        if link.refusal is not None:
            raise RefusedError(link.refusal)

    async def _next(
        self, receiver: Receiver, until_s: float, deadline: float, credit: int = 1
    ) -> ArrivedMessage | None:
        """The next message that comes until `until_s`; None where none does. No credit is left when none has come, nor
        with a `credit` of 1."""
        if not receiver.arrived and receiver.credit <= 0:
            receiver.flow(credit)
        happened: Callable[[], object] = lambda: receiver.arrived or receiver.refusal is not None  # noqa: E731
        if not (await until(self._endpoint, happened, until_s)):
            await self._drained(receiver, deadline)
        self._check(receiver)
        return receiver.arrived.popleft() if receiver.arrived else None

    async def _drained(self, receiver: Receiver, deadline: float) -> None:
        """Waits until the broker has given all credit back. It is asked again now and then: ActiveMQ Artemis passes
        over a drain that comes while it is about to end the one before."""
        drained: Callable[[], object] = lambda: not receiver.draining or receiver.refusal is not None  # noqa: E731
        while True:
            receiver.drain()
            again_s = self._endpoint.clock() + DRAIN_AGAIN_S
            if await until(self._endpoint, drained, min(again_s, deadline)):
                return
            if self._endpoint.clock() >= deadline:
                raise TimedOut(f"the broker did not say in time that {receiver.address} is empty")

    @staticmethod
    def _read(arrived: ArrivedMessage, address: str) -> Message:
        try:
            return Message.from_octets(arrived.octets)
        except DecodeError as error:
            raise WrongTokenError(f"a message in {address} can't be read: {error}") from None
