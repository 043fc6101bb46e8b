"""The AMQP clients of the at-least-once job: `proton`, the ordinary one of Python, with its messages, and `lean`, the
engine of our own client without transactions, with messages as octets, as the pipelines have it. A Python worker keeps
what it has opened. It accepts a message when a later batch is read, because Spark has logged the message's own batch by
then."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
from proton import Delivery, Message
from proton.utils import BlockingConnection

from dtx.protocol.replies import ACCEPTED, RELEASED
from rm_amqp import AmqpResource
from rm_amqp.connection.endpoint import Change
from xa import TMREGISTER, TMUSEASYNC
from xabridge.pipeline.core import Messages
from xabridge.pipeline.core.task.message_decoder import decode_messages
from xabridge.pipeline.core.task.message_encoder import encode_messages
from xabridge.testing.no_transaction import NoTransaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rm_amqp.channel.message_links import MessageLinks
    from rm_amqp.connection.links import Answer, ArrivedMessage

CHUNK: Final = 10_000
TIMEOUT_S: Final = 120.0
RMID: Final = 1


class PlainClient(Protocol):
    """What the job asks of a client."""

    def settle_before(self, queue: str, batch: int) -> None:
        """Accepts what was received for earlier batches; gives back what was for this one: it is read again."""

    def receive(self, queue: str, batch: int, count: int) -> Iterator[Sequence[Any]]:
        """The bodies of so many messages, which are there."""

    def send(self, address: str, bodies: Sequence[str]) -> None:
        """Sends messages, without waiting for an answer."""

    def wait(self) -> None:
        """Waits until every message is accepted."""


class ProtonClient:
    """BlockingConnection, with sends that don't wait each for their answer."""

    def __init__(self, address: str) -> None:
        self._connection = BlockingConnection(address, allowed_mechs="ANONYMOUS", timeout=TIMEOUT_S)
        self._links: dict[str, Any] = {}
        self._held: deque[tuple[str, int, Any]] = deque()
        self._sent: deque[Any] = deque()

    def settle_before(self, queue: str, batch: int) -> None:
        while self._held:
            source, received, delivery = self._held.popleft()
            again = source == queue and received >= batch
            delivery.update(Delivery.RELEASED if again else Delivery.ACCEPTED)
            delivery.settle()

    def receive(self, queue: str, batch: int, count: int) -> Iterator[Sequence[Any]]:
        receiver = self._links.get(queue)
        if receiver is None:
            receiver = self._links[queue] = self._connection.create_receiver(queue, credit=0)
        receiver.link.flow(count)
        fetcher: Any = receiver.fetcher
        for start in range(0, count, CHUNK):
            wanted = min(CHUNK, count - start)
            # BlockingReceiver.receive would ask for one more message whenever everything it asked for is there
            self._connection.wait(partial(_there, fetcher.incoming, wanted), timeout=TIMEOUT_S)
            messages = [fetcher.pop() for _ in range(wanted)]  # a body is a view into its message
            yield [bytes(message.body) for message in messages]
        self._held.extend((queue, batch, delivery) for delivery in fetcher.unsettled)
        fetcher.unsettled.clear()

    def send(self, address: str, bodies: Sequence[str]) -> None:
        sender = self._links.get(f">{address}")
        if sender is None:
            sender = self._links[f">{address}"] = self._connection.create_sender(address)
        for body in bodies:
            if not sender.link.credit:
                self._connection.wait(lambda: sender.link.credit > 0, timeout=TIMEOUT_S)
            self._sent.append(sender.link.send(Message(body=body, durable=True)))

    def wait(self) -> None:
        self._connection.wait(self._accepted, timeout=TIMEOUT_S)

    def _accepted(self) -> bool:
        while self._sent and self._sent[0].settled:
            delivery = self._sent.popleft()
            if delivery.remote_state != Delivery.ACCEPTED:
                raise RuntimeError(f"a message was not accepted: {delivery.remote_state}")
            delivery.settle()
        return not self._sent


def _there(incoming: Sequence[Any], wanted: int) -> bool:
    return len(incoming) >= wanted


class LeanClient:
    """Links of `rm_amqp`, outside of any transaction."""

    def __init__(self, address: str) -> None:
        rm = AmqpResource(NoTransaction(), TMUSEASYNC | TMREGISTER)
        rm.open(f"amqp://{address}/?timeout={TIMEOUT_S}", RMID)
        self._session = rm.session(RMID)
        self._deadline = self._session.operations.deadline
        self._do = self._session.run
        self._held: deque[tuple[str, int, ArrivedMessage]] = deque()
        self._answers: deque[Answer] = deque()

    def settle_before(self, queue: str, batch: int) -> None:
        async def steps(_links: MessageLinks, _: object) -> None:
            while self._held:
                source, received, arrived = self._held.popleft()
                again = source == queue and received >= batch
                arrived.link.settle(arrived, None, RELEASED if again else ACCEPTED)

        self._do(steps)

    def receive(self, queue: str, batch: int, count: int) -> Iterator[Sequence[Any]]:
        async def steps(links: MessageLinks, _: object) -> list[ArrivedMessage]:
            deadline = self._deadline(None)
            receiver = await links.attached_receiver(queue, None, deadline, acquire=False)
            receiver.flow(count)
            while len(receiver.arrived) < count:
                if receiver.endpoint.clock() >= deadline:
                    raise RuntimeError(f"{queue}: {len(receiver.arrived)} of {count} messages came")
                await Change(receiver.endpoint, deadline)
            return [receiver.arrived.popleft() for _ in range(count)]

        arrived = self._do(steps)
        self._held.extend((queue, batch, each) for each in arrived)
        for messages in decode_messages(((queue, each.octets) for each in arrived), CHUNK):
            yield messages.body

    def send(self, address: str, bodies: Sequence[str]) -> None:
        octets = encode_messages(Messages(bodies))

        async def steps(links: MessageLinks, _: object) -> None:
            deadline = self._deadline(None)
            sender = await links.attached_sender(address, deadline)
            left = deque(octets)
            while left:
                for _ in range(min(sender.credit, len(left))):
                    self._answers.append(sender.send(left.popleft()))
                if left:
                    await Change(sender.endpoint, deadline)

        self._do(steps)

    def wait(self) -> None:
        async def steps(_links: MessageLinks, _: object) -> None:
            deadline = self._deadline(None)
            while self._answers:
                if not self._answers[0].there:
                    await Change(self._answers[0].link.endpoint, deadline)
                elif self._answers.popleft().refusal is not None:
                    raise RuntimeError("a message was not accepted")

        self._do(steps)


CLIENTS: Final[Mapping[str, Callable[[str], PlainClient]]] = {"proton": ProtonClient, "lean": LeanClient}


class Opened:
    """What one Python worker has open."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], PlainClient] = {}
        self._databases: dict[str, psycopg.Connection[Any]] = {}

    def client(self, kind: str, address: str) -> PlainClient:
        """The client of a broker."""
        if (kind, address) not in self._clients:
            self._clients[kind, address] = CLIENTS[kind](address)
        return self._clients[kind, address]

    def database(self, url: str) -> psycopg.Connection[Any]:
        """The connection to a database."""
        if url not in self._databases:
            self._databases[url] = psycopg.connect(url)
        return self._databases[url]


MINE: Final = Opened()
