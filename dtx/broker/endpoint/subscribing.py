"""Subscribing: links whose source is a topic or a subscription (`dtx.broker.queues.topics`), after the mapping of JMS.

A source that is a topic makes a subscription for the link, or for all links that share it:

    source                              subscription
    ----------------------------------  ---------------------------------------------------------------------------
    durable, expiry policy never        lasts, with the name of the link, in the peer's container; closing the link
                                        deletes it, if no other one has it; detaching the link does not
    the same, with `shared`             the same, with the name up to the last `|`; others of the container take part
    the same, with `global` as well     the same, for all containers
    any other, with `shared`            as for these, but it ends with its last link
    any other                           ends with the link
    none                                the durable one that was made with this name of a link
    `topic:PATTERN::NAME`               lasts; the `shared`, `global` one with this name; no link deletes it

The attach is answered when the subscription is durable, if it is to last: from then on it gets every message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dtx.amqp.conditions import Condition
from dtx.amqp.performatives import Source
from dtx.broker.access.permissions import Action
from dtx.broker.endpoint.link import check_permission
from dtx.broker.endpoint.outgoing_link import OutgoingLink
from dtx.broker.queues.subscription import Subscription
from dtx.broker.queues.topics import check_name, is_pattern, private_name, subscription_address
from dtx.broker.transactional_resource import not_stored
from dtx.protocol.conditions import refused
from xa import Code
from xa.topics import SUBSCRIPTION

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.link import SenderLink
    from dtx.broker.endpoint.link import LinkConnection, Session
    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.queues.queue import Queue
    from dtx.broker.queues.selector import Selector
    from dtx.store.contract import NotStored

TOPIC_CAPABILITY: Final = "topic"
SHARED: Final = "shared"
GLOBAL: Final = "global"
NEVER: Final = "never"
_GLOBAL_SUFFIX: Final = "|global"
"""How Qpid JMS names the first link of a subscription of all containers, and the one that looks it up."""


class SubscriptionLink(OutgoingLink):
    """A link that consumes from a subscription. `closing_deletes`: its close by the peer deletes one that lasts."""

    kind = "subscribe"

    def __init__(
        self,
        connection: LinkConnection,
        session: Session,
        endpoint: SenderLink,
        queue: Queue,
        *,
        default: Outcome | None,
        closing_deletes: bool,
    ) -> None:
        super().__init__(connection, session, endpoint, queue, default=default)
        self._closing_deletes = closing_deletes

    def gone(self) -> None:
        super().gone()
        subscription = self._queue.subscription
        if subscription is not None and not subscription.durable and not self._queue.attached:
            self.resource.topics.unsubscribe(self._queue)

    def closed_in_order(self, answer: Callable[[], None]) -> None:
        if self._closing_deletes and not self._queue.attached:
            self.resource.topics.unsubscribe(self._queue, lambda _: answer())
        else:
            answer()


def subscribe(
    connection: LinkConnection,
    session: Session,
    endpoint: SenderLink,
    source: Source,
    topic: str,
    *,
    selector: Selector | None,
    default: Outcome | None,
    answer: Source,
) -> SubscriptionLink:
    """A link from a topic, or from a pattern of topics; `answer` gets what is honoured of the source."""
    durable, shared = source.durable > 0 and source.expiry_policy == NEVER, SHARED in source.capabilities
    of_all = GLOBAL in source.capabilities
    own, name = connection.peer_container, endpoint.name
    if shared:
        name = name.rpartition("|")[0] or name
    name = _escaped(name) if of_all else f"{_escaped(own)}/{_escaped(name)}"
    if not shared and of_all:
        raise refused(Code.XAER_INVAL, f"a subscription that is {GLOBAL} is {SHARED} as well")
    if not durable:
        name = private_name(name if shared else connection.container.nonce(16).hex())
    name = check_name(topic, name, lasts=durable)

    resource = connection.container.resource
    may_make = connection.container.permissions.may(connection.identity, Action.CREATE, topic)
    if durable and name not in resource.queues and not may_make:
        message = f"there is no subscription {name!r}, and {connection.identity} may not make it"
        raise refused(Code.XAER_NOTA, message)
    queue = resource.subscribe(name, Subscription(topic, durable, shared, selector))
    if durable:
        answer.durable, answer.expiry_policy = source.durable, NEVER
    answer.capabilities = tuple(one for one in source.capabilities if one in {TOPIC_CAPABILITY, SHARED, GLOBAL})
    answer.distribution_mode = source.distribution_mode
    return SubscriptionLink(connection, session, endpoint, queue, default=default, closing_deletes=durable)


def subscription_at(connection: LinkConnection, address: str, *, selector: Selector | None) -> Queue:
    """The subscription with this address, made where there is none."""
    topic, name = subscription_address(address) or ("", "")
    address = f"{topic}{SUBSCRIPTION}{name}"
    check_permission(connection, address, Action.CONSUME)
    resource = connection.container.resource
    queue = resource.queues.get(address)
    if queue is None and not connection.container.permissions.may(connection.identity, Action.CREATE, address):
        message = f"there is no subscription {address!r}, and {connection.identity} may not make it"
        raise refused(Code.XAER_NOTA, message)
    if queue is not None and queue.subscription is not None and not queue.subscription.durable:
        message = f"the subscription {address!r} belongs to its links"
        raise refused(Code.XAER_INVAL, message, condition=Condition.NOT_ALLOWED)
    check_name(topic, name)
    return resource.subscribe(address, Subscription(topic, selector=selector))


def subscription_of_link(
    connection: LinkConnection, session: Session, endpoint: SenderLink
) -> tuple[SubscriptionLink, Source]:
    """The link for an attach without a source: to the durable subscription that was made by a link with this name."""
    names = [f"{_escaped(connection.peer_container)}/{_escaped(endpoint.name)}"]
    if endpoint.name.endswith(_GLOBAL_SUFFIX):
        names.append(_escaped(endpoint.name.removesuffix(_GLOBAL_SUFFIX)))
    found = [queue for name in names for queue in connection.container.resource.topics.named(name)]
    if not found:
        raise refused(Code.XAER_NOTA, f"there is no subscription with the name {endpoint.name!r}")
    if len(found) > 1:
        topics = ", ".join(sorted(queue.name for queue in found))
        raise refused(Code.XAER_INVAL, f"there are several subscriptions with this name: {topics}")
    (queue,) = found
    subscription = queue.subscription

    if subscription is None:
        raise ValueError(f"{queue.name} is no subscription")
    check_subscriber(connection, subscription.topic)
    if queue.attached:
        message = f"the subscription {queue.name!r} has {queue.attached} consumers"
        raise refused(Code.XAER_PROTO, message, condition=Condition.RESOURCE_LOCKED)
    capabilities = [TOPIC_CAPABILITY]
    if subscription.shared:
        capabilities += [SHARED] if queue.name.endswith(SUBSCRIPTION + names[0]) else [SHARED, GLOBAL]
    answer = Source(subscription.topic, durable=2, expiry_policy=NEVER, capabilities=tuple(capabilities))
    return SubscriptionLink(connection, session, endpoint, queue, default=None, closing_deletes=True), answer


def answer_when_stored(connection: LinkConnection, link: SubscriptionLink, attach: Callable[[], None]) -> None:
    """Answers the attach of a link: at once if its subscription is stored, or need not be; else when it is."""
    resource, queue = connection.container.resource, link.queue
    if queue.subscription is None or not queue.subscription.durable:
        attach()
        return

    def stored(error: NotStored | None) -> None:
        if not link.is_attached:
            return
        if error is None:
            attach()
            link.flow_event()
            connection.container.touch(connection)
            return
        link.detach(not_stored(error, Code.XAER_RMERR))
        if not queue.attached and not resource.is_stored(queue):
            resource.topics.unsubscribe(queue)

    if not resource.when_stored(queue, stored):
        attach()


def check_subscriber(connection: LinkConnection, topic: str) -> None:
    """RefusedError where the peer may not receive from these topics: of a pattern with #, also from the one that fits
    it without any word in its place."""
    check_permission(connection, topic, Action.CONSUME)
    if is_pattern(topic) and ".#" in topic:
        check_permission(connection, topic.replace(".#", ""), Action.CONSUME)


def _escaped(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")
