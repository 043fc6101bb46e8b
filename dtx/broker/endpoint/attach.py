"""Attaching: which link of ours answers a peer's, and what refuses it.

The terminus decides: the coordinator, an address of the resource's own, a dynamic node, a branch to read, or a queue.
What the answer echoes of the peer's terminus is honoured. Everything else is left out of the answer, or refused by its
name where the peer could not work without it (resumed deliveries, nodes and termini that outlive their links).

Topics and subscriptions are in `subscribing`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.link import ReceiverLink, SenderLink
from dtx.amqp.messages import read_destination
from dtx.amqp.performatives import Coordinator, Source, Target
from dtx.amqp.values import Array, Described, Symbol, Ulong
from dtx.broker.access.permissions import Action
from dtx.broker.endpoint.browsers import BranchBrowser, DepthLink, QueueBrowser
from dtx.broker.endpoint.control_link import ALL_CAPABILITIES, PLAIN_CAPABILITIES, ControlLink
from dtx.broker.endpoint.incoming_link import IncomingLink
from dtx.broker.endpoint.link import SendingLink, check_permission, error_of, refusal_of
from dtx.broker.endpoint.outgoing_link import OutgoingLink
from dtx.broker.endpoint.request_links import CommandLink, ManagementLink
from dtx.broker.endpoint.selecting_link import SelectingLink
from dtx.broker.endpoint.subscribing import (
    GLOBAL,
    NEVER,
    SHARED,
    TOPIC_CAPABILITY,
    SubscriptionLink,
    answer_when_stored,
    check_subscriber,
    subscribe,
    subscription_at,
    subscription_of_link,
)
from dtx.broker.queues.outcomes import OUTCOMES, read_state
from dtx.broker.queues.selector import SelectorError, selector_of
from dtx.broker.queues.topics import Topic
from dtx.broker.transactions.demarcation import unauthorized
from dtx.protocol.addresses import COORDINATION, DEPTH, DYNAMIC, MANAGEMENT, RESERVED, parse_branch_address
from dtx.protocol.capabilities import DELAYED_DELIVERY, DISTRIBUTED
from dtx.protocol.conditions import Refusal, RefusedError, refused
from xa import Code
from xa.state_tables import BranchState
from xa.topics import TOPIC

if TYPE_CHECKING:
    from dtx.amqp.link import Link as LinkEndpoint
    from dtx.amqp.performatives import Attach
    from dtx.amqp.values import Map, Value
    from dtx.broker.endpoint.link import Link, LinkConnection, Session
    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.queues.queue import Queue
    from dtx.broker.queues.selector import Selector

SERVICES: Final[dict[str, type[CommandLink | ManagementLink]]] = {
    COORDINATION: CommandLink,
    MANAGEMENT: ManagementLink,
}
OFFERED: Final = (DELAYED_DELIVERY,)
"""What links offer on which messages come."""
MOVE: Final = "move"
COPY: Final = "copy"
QUEUE: Final = "queue"
"""The capability of a terminus that is a queue, which all of ours are."""
TEMPORARY_QUEUE: Final = "temporary-queue"
_OF_SUBSCRIPTIONS: Final = frozenset({SHARED, GLOBAL})
UNSUPPORTED: Final = {"temporary-topic": "temporary topics are not supported"}
ON_LINK_DETACH: Final = "link-detach"
ON_SESSION_END: Final = "session-end"
EXPIRIES: Final = frozenset({ON_LINK_DETACH, ON_SESSION_END, "connection-close", "never"})
"""The expiry policies of a terminus: when what is kept of it goes."""
HONOURED_EXPIRIES: Final = frozenset({ON_LINK_DETACH, ON_SESSION_END})
LIFETIME: Final = Symbol("lifetime-policy")
DIST_MODES: Final = Symbol("supported-dist-modes")
DELETE_ON_CLOSE: Final = "delete-on-close"
_LIFETIMES: Final[dict[Value, str]] = {
    descriptor: name
    for code, name in enumerate(
        (DELETE_ON_CLOSE, "delete-on-no-links", "delete-on-no-messages", "delete-on-no-links-or-messages"), start=0x2B
    )
    for descriptor in (Ulong(code), Symbol(f"amqp:{name}:list"))
}
_DELETED_ON_CLOSE: Final[Map] = {LIFETIME: Described(Ulong(0x2B), [])}
"""How long a dynamic node lives: until its link is closed."""
NO_ADDRESS: Final = "a {} needs an address"
MAX_SHOWN: Final = 64


def attach(connection: LinkConnection, session: Session, endpoint: LinkEndpoint) -> Link | None:
    """Answers a peer's attach; the link, or None where it was refused."""
    remote = endpoint.remote
    if remote is None:
        raise ValueError("the peer has not attached the link")
    try:
        if len(session.links) >= connection.container.limits.links:
            message = f"a session may have {connection.container.limits.links} links"
            raise refused(Code.XAER_RMERR, message, condition=Condition.RESOURCE_LIMIT)
        _check(remote)
        if isinstance(endpoint, ReceiverLink):
            return _receiver(connection, session, endpoint, remote)
        if isinstance(endpoint, SenderLink):
            return _sender(connection, session, endpoint, remote)
    except RefusedError as error:
        endpoint.refuse(error_of(error.refusal))
    return None


def _check(remote: Attach) -> None:
    """Refuses what makes no sense, and by its name what the peer wants and can't do without."""
    if not remote.receiver and remote.initial_delivery_count is None:
        raise _invalid("a sender's attach has an initial-delivery-count")
    if remote.unsettled or remote.incomplete_unsettled:
        raise _not_implemented("resuming deliveries is not supported")
    for terminus in (remote.source, remote.target):
        if terminus is None or isinstance(terminus, Coordinator):
            continue
        for capability, message in UNSUPPORTED.items():
            if capability in terminus.capabilities:
                raise _not_implemented(message)
    ours = remote.source if remote.receiver else remote.target
    if ours is not None and not isinstance(ours, Coordinator):
        _check_lifetimes(ours)


def _check_lifetimes(terminus: Source | Target) -> None:
    """Refuses a terminus or a node that is to outlive what it can."""
    expiry = terminus.expiry_policy
    if expiry not in EXPIRIES:
        raise _invalid(f"{expiry[:MAX_SHOWN]!r} is no expiry policy")
    if expiry not in HONOURED_EXPIRIES and not (expiry == NEVER and isinstance(terminus, Source)):
        raise _not_implemented(f"the expiry policy {expiry} is not supported: nothing outlives its session here")

    properties = terminus.dynamic_node_properties
    if not properties:
        return
    if not terminus.dynamic:
        raise _invalid("dynamic-node-properties are for a dynamic node")
    if any(type(key) is not Symbol for key in properties):
        raise _invalid("the keys of dynamic-node-properties are symbols")
    lifetime = properties.get(LIFETIME)
    if lifetime is not None:
        known = type(lifetime) is Described and type(lifetime.descriptor) in {Symbol, Ulong} and lifetime.value == []
        name = _LIFETIMES.get(lifetime.descriptor) if known and type(lifetime) is Described else None
        if name is None:
            raise _invalid("the lifetime-policy of a dynamic node is none of AMQP's")
        if name != DELETE_ON_CLOSE:
            raise _not_implemented(f"the lifetime policy {name} is not supported: a dynamic node goes with its link")
    modes = properties.get(DIST_MODES)
    named = modes if type(modes) is Array else (modes,)
    if modes is not None and not all(type(mode) is Symbol and mode in {MOVE, COPY} for mode in named):
        raise _invalid("supported-dist-modes are move and copy")


def _invalid(message: str) -> RefusedError:
    return refused(Code.XAER_INVAL, message)


def _not_implemented(message: str) -> RefusedError:
    return refused(Code.XAER_INVAL, message, condition=Condition.NOT_IMPLEMENTED)


def _honoured(capabilities: tuple[str, ...], *, dynamic: bool = False) -> tuple[str, ...]:
    return tuple(one for one in capabilities if one == QUEUE or (one == TEMPORARY_QUEUE and dynamic))


def _receiver(connection: LinkConnection, session: Session, endpoint: ReceiverLink, remote: Attach) -> Link:
    """A link on which the peer sends."""
    target, source = remote.target, remote.source
    echo = source and Source(source.address, outcomes=source.outcomes, capabilities=_honoured(source.capabilities))
    link: Link
    if isinstance(target, Coordinator):
        select = DISTRIBUTED in target.capabilities
        session.demarcation.attach(select=select)
        link = ControlLink(connection, session, endpoint)
        endpoint.attach(echo, Coordinator(ALL_CAPABILITIES if select else PLAIN_CAPABILITIES))
        return link
    if target is None:
        raise _not_implemented(NO_ADDRESS.format("target"))

    if not _OF_SUBSCRIPTIONS.isdisjoint(target.capabilities):
        raise _not_implemented("a target is no subscription, which are shared")

    limit = connection.container.limits.message_octets
    if target.dynamic:
        node = connection.nodes.make()
        link = IncomingLink(connection, session, endpoint, lambda _: node, node)
        answer = Target(
            node.name,
            expiry_policy="link-detach",
            dynamic=True,
            dynamic_node_properties=_DELETED_ON_CLOSE,
            capabilities=_honoured(target.capabilities, dynamic=True),
        )
        endpoint.attach(echo, answer, max_message_size=limit, offered=OFFERED)
        return link
    if target.address is None:
        link = IncomingLink(connection, session, endpoint, partial(_queue_in, connection), relays=True)
        link.lasts = target.expiry_policy != ON_LINK_DETACH
        endpoint.attach(echo, Target(expiry_policy=target.expiry_policy), max_message_size=limit, offered=OFFERED)
        return link

    answer = Target(target.address, expiry_policy=target.expiry_policy, capabilities=_honoured(target.capabilities))
    service = SERVICES.get(target.address)
    if service is not None:
        link = service(connection, session, endpoint)
        endpoint.attach(echo, answer)
        return link
    queue = _target(connection, target.address, is_topic=TOPIC_CAPABILITY in target.capabilities)
    if isinstance(queue, Topic):
        answer.capabilities = tuple(one for one in target.capabilities if one == TOPIC_CAPABILITY)
    link = IncomingLink(connection, session, endpoint, lambda _: queue)
    link.lasts = target.expiry_policy != ON_LINK_DETACH
    endpoint.attach(echo, answer, max_message_size=limit, offered=OFFERED)
    return link


def _sender(connection: LinkConnection, session: Session, endpoint: SenderLink, remote: Attach) -> Link:
    """A link on which the peer receives."""
    source, target = remote.source, remote.target
    if source is None:
        subscriber, answer = subscription_of_link(connection, session, endpoint)
        endpoint.attach(answer, None)
        return subscriber

    answer = Source(
        source.address,
        expiry_policy=ON_LINK_DETACH,  # nothing is kept of a link that is detached
        default_outcome=source.default_outcome,
        outcomes=tuple(one for one in source.outcomes if one in OUTCOMES),
        capabilities=_honoured(source.capabilities, dynamic=source.dynamic),
    )
    echo = None
    if isinstance(target, Target):
        echo = Target(target.address, capabilities=_honoured(target.capabilities))
    link = _sending(connection, session, endpoint, source, answer)
    if isinstance(link, SendingLink):
        link.largest = remote.max_message_size
    if isinstance(link, SubscriptionLink):
        answer_when_stored(connection, link, partial(endpoint.attach, answer, echo))
        return link
    if isinstance(link, OutgoingLink) and not source.dynamic and source.expiry_policy != ON_LINK_DETACH:
        link.lasts = True
        answer.expiry_policy = ON_SESSION_END
    endpoint.attach(answer, echo)
    return link


def _sending(
    connection: LinkConnection, session: Session, endpoint: SenderLink, source: Source, answer: Source
) -> Link:
    """The link for a source; `answer` is the source in our answer."""
    default = _default_outcome(source)
    if source.dynamic:
        selector = _selector(source, answer)
        queue = connection.nodes.make()
        answer.dynamic, answer.address = True, queue.name
        answer.distribution_mode = MOVE
        answer.dynamic_node_properties = _DELETED_ON_CLOSE
        if selector is not None:
            return SelectingLink(connection, session, endpoint, queue, selector, default=default, dynamic=True)
        return OutgoingLink(connection, session, endpoint, queue, default=default, dynamic=True)
    address = source.address
    if not address:
        raise _not_implemented(NO_ADDRESS.format("source"))
    subscriber = _subscriber(connection, session, endpoint, source, answer)
    if subscriber is not None:
        return subscriber

    try:
        browsed = parse_branch_address(address)
    except ValueError as error:
        raise refused(Code.XAER_INVAL, str(error)) from None

    if browsed is not None:
        xid, work = browsed
        branch = connection.container.registry.find(xid)
        if not connection.container.permissions.may_coordinate(connection.identity, branch.owner):
            raise unauthorized(connection.identity, xid)
        if branch.state is not BranchState.S3:
            reason = f"only a prepared branch can be read, this one is {branch.state.value}"
            raise refused(Code.XAER_PROTO, reason, xid)
        answer.distribution_mode = COPY
        return BranchBrowser(connection, session, endpoint, branch, work)
    if address.startswith(DEPTH):
        counted = _queue(connection, address.removeprefix(DEPTH), Action.CONSUME)
        return DepthLink(connection, session, endpoint, counted)
    check_permission(connection, address, Action.CONSUME)  # reading a selector is work, and finding a queue makes it
    selector = _selector(source, answer)
    queue = _queue(connection, address, Action.CONSUME)
    if source.distribution_mode == COPY:
        answer.distribution_mode = COPY
        return QueueBrowser(connection, session, endpoint, queue, selector)
    answer.distribution_mode = MOVE
    if selector is not None:
        return SelectingLink(connection, session, endpoint, queue, selector, default=default)
    return OutgoingLink(connection, session, endpoint, queue, default=default)


def _subscriber(
    connection: LinkConnection, session: Session, endpoint: SenderLink, source: Source, answer: Source
) -> SubscriptionLink | None:
    """The link for a source that is a topic or a subscription, None for any other one."""
    address, default = source.address or "", _default_outcome(source)
    topic = _topic_of(connection, address, is_topic=TOPIC_CAPABILITY in source.capabilities)
    if topic is not None:
        check_subscriber(connection, topic)
        selector = _selector(source, answer)
        return subscribe(
            connection, session, endpoint, source, topic, selector=selector, default=default, answer=answer
        )
    if source.expiry_policy == NEVER or not _OF_SUBSCRIPTIONS.isdisjoint(source.capabilities):
        raise _not_implemented("shared and durable subscriptions are of topics, and this address is none")
    if source.distribution_mode == COPY or not connection.container.resource.is_subscription(address):
        return None
    check_permission(connection, address, Action.CONSUME)
    queue = subscription_at(connection, address, selector=_selector(source, answer))
    return SubscriptionLink(connection, session, endpoint, queue, default=default, closing_deletes=False)


def _selector(source: Source, answer: Source) -> Selector | None:
    """The selector among the filters of a source; what is honoured of them is echoed."""
    try:
        selector, honoured = selector_of(source.filters)
    except SelectorError as error:
        raise refused(Code.XAER_INVAL, f"the selector can't be read: {error}") from None
    answer.filters = honoured or None
    return selector


def _queue(connection: LinkConnection, address: str, action: Action) -> Queue:
    """The queue that an address names, made where that is allowed."""
    container = connection.container
    if address.startswith(DYNAMIC):
        node = container.resource.queues.get(address)
        if node is None:
            raise refused(Code.XAER_NOTA, f"there is no dynamic node {address!r}, or not any more")
        if action is not Action.PRODUCE and address not in connection.nodes.queues:
            message = "only the connection that made a dynamic node may receive from it"
            raise refused(Code.XAER_RMERR, message, condition=Condition.NOT_ALLOWED)
        return node
    if address.startswith(RESERVED):
        raise refused(Code.XAER_NOTA, f"there is no node {address!r}")

    if (
        action is Action.CONSUME
        and address not in container.resource.queues
        and container.resource.is_subscription(address)
    ):
        return subscription_at(connection, address, selector=None)
    check_permission(connection, address, action)
    if address not in container.resource.queues and not container.permissions.may(
        connection.identity, Action.CREATE, address
    ):
        raise refused(Code.XAER_NOTA, f"there is no queue {address!r}, and {connection.identity} may not make it")
    return container.resource.find(address)


def _queue_in(connection: LinkConnection, octets: bytes) -> Queue:
    """The queue that a message names in `to`."""
    address, is_topic = read_destination(octets)
    if not address:
        message = "a message on a link without an address says in `to` where it goes"
        raise refused(Code.XAER_INVAL, message, condition=Condition.PRECONDITION_FAILED)
    return _target(connection, address, is_topic=is_topic)


def _topic_of(connection: LinkConnection, address: str, *, is_topic: bool) -> str | None:
    """The address of the topic, or of the pattern of topics, that an address names; None: it is no topic. `is_topic`:
    the peer says that it is one."""
    resource = connection.container.resource
    topic = resource.topics.address(address)
    if topic is not None or not is_topic or not address:
        return topic
    queue = resource.queues.get(address)
    if queue is not None and (queue.depth or queue.subscription is not None):
        raise _invalid(f"{address!r} is a queue with messages, and no topic")
    return resource.topics.address(TOPIC + address)


def _target(connection: LinkConnection, address: str, *, is_topic: bool) -> Queue:
    """The queue or topic to which messages go."""
    topic = _topic_of(connection, address, is_topic=is_topic)
    if topic is None:
        return _queue(connection, address, Action.PRODUCE)
    resource = connection.container.resource
    check_permission(connection, topic, Action.PRODUCE)
    may_make = connection.container.permissions.may(connection.identity, Action.CREATE, topic)
    if resource.topics.get(topic) is None and not may_make:
        raise refused(Code.XAER_NOTA, f"there is no topic {topic!r}, and {connection.identity} may not make it")
    return resource.find_topic(topic)


def _default_outcome(source: Source) -> Outcome | None:
    """The default outcome that the peer gave a source."""
    if source.default_outcome is None:
        return None
    try:
        txn_id, outcome = read_state(source.default_outcome)
    except WireError as error:
        raise RefusedError(refusal_of(error)) from None
    if txn_id is not None or outcome is None:
        message = "a default outcome is accepted, rejected, released or modified"
        raise RefusedError(Refusal(Condition.NOT_IMPLEMENTED, message, Code.XAER_INVAL))
    return outcome
