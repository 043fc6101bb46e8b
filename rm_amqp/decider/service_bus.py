"""Azure Service Bus as a broker that decides: the nodes of one topic, within the documented rules for transactions.

    decider+amqps://KEY_NAME:KEY@NAMESPACE.servicebus.windows.net/?topic=shop

By its documentation a transaction spans one top-level entity, which is a queue, or a topic with all its subscriptions.
So everything that a transaction completes has to be in one topic: the messages of the application, and the tokens.

 - An address `orders` is the subscription `orders` of the topic. A message for it is sent to the topic with `to` set to
   the address, and the subscription has one rule, a correlation filter for that `to`.
 - `queue://NAME` and `topic://NAME` are other entities of the namespace. They can only be sent to: Service Bus
   transfers the message after the commit, by way of our topic (`com.microsoft:transfer-destination-address`).
 - Nothing can be browsed over a link. The management node of a subscription peeks, over links in a session beside the
   one that has the transactions, because management and transactions may not be mixed.
 - A lock on a message can run out at any moment. So outcomes are said unsettled, and the discharge waits for the
   answer to each (`ConfirmedReceiver`). A message is completed by one committed transaction at most, and the decisions
   rest on that: the one that completes a token has its successor decided or fenced in the same transaction.

A topic drops a message that no subscription wants, without a word. So before the first message for an address is sent,
its subscription's rules are read, and the address is refused if the message would not get there, or if more would.

The rules of the service, with their sources, are in docs/service-bus.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import DecodeError
from dtx.amqp.messages import with_to
from dtx.amqp.values import Described, Int, Long, Symbol, Ulong
from dtx.protocol.conditions import refused
from dtx.protocol.replies import ACCEPTED
from rm_amqp.channel.work import modify
from rm_amqp.connection import proton
from rm_amqp.connection.endpoint import Change, until
from rm_amqp.connection.links import ArrivedMessage, ConfirmedReceiver, Receiver, Sender
from rm_amqp.errors import TimedOut
from rm_amqp.message import Message
from xa import Code, xa_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_amqp.channel.nodes import QueuePeek
    from rm_amqp.connection.endpoint import Endpoint
    from rm_amqp.connection.links import Answer, Link
    from rm_amqp.settings import Settings
    from xa import XaError

DOMAINS: Final = (
    ".servicebus.windows.net",
    ".servicebus.chinacloudapi.cn",
    ".servicebus.usgovcloudapi.net",
    ".servicebus.cloudapi.de",
)
MAX_SUBSCRIPTION: Final = 50
"""Characters of a subscription's name."""
OTHER_ENTITIES: Final = ("queue://", "topic://")
TRANSFER: Final = Symbol("com.microsoft:transfer-destination-address")
PEEK: Final = "com.microsoft:peek-message"
RULES: Final = "com.microsoft:enumerate-rules"
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
CORRELATION_FILTER: Final = (Ulong(0x1370000009), Symbol("com.microsoft:correlation-filter:list"))
OK: Final = 200
NO_CONTENT: Final = 204
NO_MESSAGE: Final = "com.microsoft:message-not-found"
"""What is said instead of NO_CONTENT at times; Microsoft's own clients take it for the same."""
TO: Final = 2
"""The place of `to` in a correlation filter."""
MOST_RULES: Final = 10


def refuse_unfit(settings: Settings, slots: int) -> None:
    """XAER_INVAL for an open string with which Service Bus can't decide."""
    ours = [broker.host for broker in settings.brokers if broker.host.endswith(DOMAINS)]
    if ours and not settings.topic:
        raise _unfit(
            f"{ours[0]} is Azure Service Bus, where a transaction spans one top-level entity: name the topic whose "
            "subscriptions hold the application's messages and the tokens, with topic=NAME (docs/service-bus.md), or "
            "let the database decide and send messages by the outbox"
        )
    if not settings.topic:
        return

    longest = f"{settings.token_queue}.{slots}"
    if len(longest) > MAX_SUBSCRIPTION:
        raise _unfit(
            f"token_queue={settings.token_queue}: {longest} is to be the name of a subscription, which Service Bus "
            f"allows {MAX_SUBSCRIPTION} characters"
        )
    if settings.prefetch:
        raise _unfit(
            f"prefetch={settings.prefetch}: Service Bus locks a message when it sends it, and counts it as delivered "
            "when it is given back: leave prefetch away"
        )


def _unfit(reason: str) -> XaError:
    return xa_error(Code.XAER_INVAL, f"open: {reason}")


class TopicNodes:
    """The nodes of one topic. One object serves all channels of an instance, and remembers which addresses are
    sound."""

    confirms = True
    capabilities: Sequence[str] = ()

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._sound: set[str] = set()

    def subscription(self, address: str) -> str:
        """The path of the subscription that an address names."""
        return f"{self.topic}/Subscriptions/{address}"

    def sender(self, endpoint: Endpoint, address: str) -> Sender:
        other = _other_entity(address)
        return TransferSender(endpoint, self.topic, other) if other else TopicSender(endpoint, self.topic, address)

    def receiver(self, endpoint: Endpoint, address: str, name: str) -> Receiver:
        if _other_entity(address):
            raise refused(
                Code.XAER_INVAL,
                f"{address} can't be received from: a transaction of Service Bus completes messages of one top-level "
                f"entity, which is the topic {self.topic} here",
                condition=Condition.NOT_ALLOWED,
            )
        return ConfirmedReceiver(endpoint, self.subscription(address), name=name)

    async def peek(self, endpoint: Endpoint, address: str, deadline: float) -> QueuePeek | None:
        node = ManagementNode(endpoint, self.subscription(address))
        await node.attached(deadline)
        return SubscriptionPeek(node)

    def check_outcome(self, outcome: bytes) -> None:
        if outcome in _DEFERS:
            raise refused(
                Code.XAER_INVAL,
                "modify(undeliverable=True) would defer the message: Service Bus gives it then only to those who "
                "ask for it by its sequence number. Reject it or dead_letter it instead",
                condition=Condition.NOT_ALLOWED,
            )

    async def check(self, endpoint: Endpoint, address: str, deadline: float) -> None:
        if address in self._sound or _other_entity(address):
            return
        if len(address) > MAX_SUBSCRIPTION:
            why = f"{address}: the name of a subscription has at most {MAX_SUBSCRIPTION} characters"
            raise refused(Code.XAER_INVAL, why)

        node = ManagementNode(endpoint, self.subscription(address))
        await node.attached(deadline)
        asked = {"top": Int(MOST_RULES), "skip": Int(0)}
        _, answer = await node.ask(RULES, asked, deadline)
        node.close()
        filters = [_filter_in(rule) for rule in answer.get("rules") or []]
        if filters != [address]:
            raise refused(
                Code.XAER_INVAL,
                f"the subscription {address} of the topic {self.topic} has to have one rule, the correlation filter "
                f"To = {address!r}; it has {_list_rules(filters)}. Otherwise messages would get lost, or reach others",
                condition=Condition.PRECONDITION_FAILED,
            )
        self._sound.add(address)


_DEFERS: Final = frozenset(modify(failed=failed, undeliverable=True) for failed in (True, False))


def _other_entity(address: str) -> str:
    """The entity that an address names beside the topic; empty where it names a subscription."""
    for scheme in OTHER_ENTITIES:
        if address.startswith(scheme):
            return address.removeprefix(scheme)
    return ""


def _filter_in(rule: object) -> str | None:
    """The one value of `to` that a rule lets pass; None for every other rule."""
    described = rule.get("rule-description") if isinstance(rule, dict) else None
    fields = described.value if isinstance(described, Described) else None
    chosen = fields[0] if isinstance(fields, list) and fields else None
    if not isinstance(chosen, Described) or chosen.descriptor not in CORRELATION_FILTER:
        return None
    values: list[Any] = list(chosen.value) if isinstance(chosen.value, list) else []
    others = [value for place, value in enumerate(values) if place != TO and value]
    to = values[TO] if len(values) > TO else None
    return to if isinstance(to, str) and not others else None


def _list_rules(filters: list[str | None]) -> str:
    rules = [f"To = {to!r}" if to is not None else "another rule" for to in filters]
    return ", ".join(rules) or "none"


class TopicSender(Sender):
    """Sends messages for one subscription to its topic."""

    def __init__(self, endpoint: Endpoint, topic: str, to: str) -> None:
        self._to = to
        super().__init__(endpoint, topic)

    def send(self, octets: bytes, state: tuple[int, bytes] | None = None) -> Answer:
        return super().send(with_to(octets, self._to), state)


class TransferSender(Sender):
    """Sends messages to another entity, by way of the topic."""

    def __init__(self, endpoint: Endpoint, topic: str, destination: str) -> None:
        self._destination = destination
        super().__init__(endpoint, topic)

    def _set_termini(self, capabilities: Any) -> None:
        super()._set_termini(capabilities)
        proton.set_properties(self.pointer, {TRANSFER: self._destination})


# --- the management node --------------------
class _Requests(Sender):
    apart = True

    def __init__(self, endpoint: Endpoint, node: str, address: str) -> None:
        self._reply_to = address
        super().__init__(endpoint, node)

    def _set_termini(self, capabilities: Any) -> None:
        super()._set_termini(capabilities)
        proton.set_reply_address(self.pointer, self._reply_to, receiver=False)


class _Replies(Receiver):
    apart = True

    def __init__(self, endpoint: Endpoint, node: str, address: str) -> None:
        self._reply_to = address
        super().__init__(endpoint, node, settled=True, name="reply")

    def _before_attach(self) -> None:
        proton.set_reply_address(self.pointer, self._reply_to, receiver=True)


class ManagementNode:
    """The management node of an entity: requests, and their responses one after the other."""

    def __init__(self, endpoint: Endpoint, entity: str) -> None:
        self.entity = entity
        self._endpoint = endpoint
        node = f"{entity}/$management"
        self._reply_to = f"{endpoint.container}-{endpoint.name('reply-to')}"
        self.replies = _Replies(endpoint, node, self._reply_to)
        self._requests = _Requests(endpoint, node, self._reply_to)
        self._number = 0

    async def attached(self, deadline: float) -> None:
        """Waits until it can be asked. RefusedError: there is no such entity, or this user may not."""
        links: tuple[Link, ...] = (self.replies, self._requests)
        for link in links:
            if not (await until(self._endpoint, lambda link=link: link.answered, deadline)):  # type: ignore[misc]
                raise TimedOut(f"the broker did not answer the attach to {self.entity} in time")
            self._endpoint.check()
            if link.refusal is not None:
                self.close()
                raise refused(
                    link.refusal.code,
                    f"{self.entity}: {link.refusal.description or link.refusal.condition}",
                    condition=Condition(link.refusal.condition) if link.refusal.condition in _CONDITIONS else None,
                )

    async def ask(self, operation: str, body: dict[str, Any], deadline: float) -> tuple[int, dict[Any, Any]]:
        """The status and the body of the response. RefusedError: the request was refused."""
        self._number += 1
        request = Message(body, id=f"{self._number}", reply_to=self._reply_to, properties={"operation": operation})
        if self.replies.credit <= 0:
            self.replies.flow(1)
        while self._requests.credit <= 0:
            self._check(operation, deadline)
            await Change(self._endpoint, deadline)
        sent = self._requests.send(request.encode())
        while not self.replies.arrived:
            self._check(operation, deadline)
            if sent.there and sent.code != ACCEPTED:
                raise refused(Code.XAER_RMERR, f"{self.entity}: {operation} was refused ({sent.refusal})")
            await Change(self._endpoint, deadline)

        try:
            response = Message.from_octets(self.replies.arrived.popleft().octets)
        except DecodeError as error:
            raise refused(Code.XAER_RMERR, f"{self.entity}: {operation}: the response can't be read: {error}") from None
        properties = response.properties or {}
        status = properties.get("statusCode")
        if properties.get("errorCondition") == NO_MESSAGE:
            status = NO_CONTENT
        if status not in {OK, NO_CONTENT}:
            why = f"{status} {properties.get('statusDescription', '')}"
            raise refused(Code.XAER_RMERR, f"{self.entity}: {operation} was refused: {why}")
        return int(status), response.body if isinstance(response.body, dict) else {}

    def _check(self, operation: str, deadline: float) -> None:
        self._endpoint.check()
        for link in (self.replies, self._requests):
            if link.refusal is not None:
                raise refused(Code.XAER_RMERR, f"{self.entity}: {operation}: {link.refusal.description}")
        if self._endpoint.clock() >= deadline:
            raise TimedOut(f"the broker did not answer {operation} of {self.entity} in time")

    def close(self) -> None:
        """It is not asked any more."""
        self.replies.close()
        self._requests.close()


_CONDITIONS: Final = frozenset(condition.value for condition in Condition)


class SubscriptionPeek:
    """Reads the messages of a subscription, in the order of their sequence numbers, locked ones as well."""

    def __init__(self, node: ManagementNode) -> None:
        self._node = node
        self._next = 0

    async def page(self, count: int, deadline: float) -> list[ArrivedMessage]:
        found: list[ArrivedMessage] = []
        while len(found) < count:
            asked = {"from-sequence-number": Long(self._next), "message-count": Int(count - len(found))}
            status, answer = await self._node.ask(PEEK, asked, deadline)
            shown = [entry["message"] for entry in answer.get("messages") or []]
            if status == NO_CONTENT or not shown:
                break
            for octets in shown:
                found.append(ArrivedMessage(self._node.replies, bytes(octets)))
                self._next = max(self._next, _sequence_number(bytes(octets)) + 1)
        return found

    def close(self) -> None:
        self._node.close()


def _sequence_number(octets: bytes) -> int:
    """The number by which a message was enqueued."""
    try:
        number = (Message.from_octets(octets).annotations or {}).get(Symbol(SEQUENCE_NUMBER))
    except DecodeError as error:
        raise refused(Code.XAER_RMERR, f"a peeked message can't be read: {error}") from None
    if not isinstance(number, int):
        raise refused(Code.XAER_RMERR, f"a peeked message has no {SEQUENCE_NUMBER}")
    return int(number)
