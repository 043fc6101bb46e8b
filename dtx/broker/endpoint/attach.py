"""Attaching: which link of ours answers a peer's, and what refuses it.

The terminus decides: the coordinator, an address of the resource's own, a dynamic node, a branch to read,
or a queue. A refused attach is answered as AMQP has it: without a terminus, and then closed with the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.values import Described, Symbol, Ulong
from dtx.broker.access.permissions import Action
from dtx.broker.endpoint.browsers import BranchBrowser, DepthLink, QueueBrowser
from dtx.broker.endpoint.control_link import ControlLink
from dtx.broker.endpoint.engine import LIB, Pointer, set_condition, text
from dtx.broker.endpoint.incoming_link import IncomingLink
from dtx.broker.endpoint.link import refusal_of
from dtx.broker.endpoint.outgoing_link import OutgoingLink
from dtx.broker.endpoint.request_links import CommandLink, ManagementLink
from dtx.broker.queues.outcomes import outcome_from
from dtx.broker.transactions.demarcation import unauthorized
from dtx.protocol.addresses import COORDINATION, DEPTH, MANAGEMENT, RESERVED, parse_branch_address
from dtx.protocol.conditions import Refusal, RefusedError, refused
from xa import Code
from xa.tables import BranchState

if TYPE_CHECKING:
    from dtx.broker.endpoint.connection import BrokerConnection, Session
    from dtx.broker.endpoint.link import Link
    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.queues.queue import Queue

SERVICES: Final[dict[str, type[CommandLink | ManagementLink]]] = {
    COORDINATION: CommandLink,
    MANAGEMENT: ManagementLink,
}


def attach(connection: BrokerConnection, session: Session, pointer: Pointer) -> Link | None:
    """Answers a peer's attach; the link, or None where it was refused."""
    try:
        if connection.attaching is not None and connection.attaching.cut:
            raise refused(Code.XAER_INVAL, "the name of a link, and an address, must not hold the character NUL")
        if len(session.links) >= connection.container.limits.links:
            told = f"a session may have {connection.container.limits.links} links"
            raise refused(Code.XAER_RMERR, told, condition=Condition.RESOURCE_LIMIT)
        if LIB.pn_link_is_receiver(pointer):
            link = _receiver(connection, session, pointer)
        else:
            link = _sender(connection, session, pointer)
    except RefusedError as error:
        _refuse(pointer, error.refusal)
        return None
    LIB.pn_link_set_snd_settle_mode(pointer, LIB.pn_link_remote_snd_settle_mode(pointer))
    LIB.pn_link_set_rcv_settle_mode(pointer, LIB.pn_link_remote_rcv_settle_mode(pointer))
    LIB.pn_link_open(pointer)
    return link


def _refuse(pointer: Pointer, refusal: Refusal) -> None:
    LIB.pn_link_open(pointer)
    set_condition(LIB.pn_link_condition(pointer), refusal)
    LIB.pn_link_close(pointer)


def _receiver(connection: BrokerConnection, session: Session, pointer: Pointer) -> Link:
    """A link on which the peer sends."""
    remote = LIB.pn_link_remote_target(pointer)
    source = LIB.pn_link_source(pointer)
    LIB.pn_terminus_copy(source, LIB.pn_link_remote_source(pointer))
    if LIB.pn_terminus_get_type(remote) == LIB.PN_COORDINATOR:
        return ControlLink(connection, session, pointer)
    address = text(LIB.pn_terminus_get_address(remote))
    if not address or LIB.pn_terminus_is_dynamic(remote):
        raise refused(Code.XAER_INVAL, "a target needs an address", condition=Condition.NOT_IMPLEMENTED)
    LIB.pn_terminus_copy(LIB.pn_link_target(pointer), remote)
    service = SERVICES.get(address)
    if service is not None:
        return service(connection, session, pointer)
    queue = _queue(connection, address, Action.PRODUCE)
    LIB.pn_link_set_max_message_size(pointer, connection.container.limits.message_octets)
    return IncomingLink(connection, session, pointer, queue)


def _sender(connection: BrokerConnection, session: Session, pointer: Pointer) -> Link:
    """A link on which the peer receives."""
    remote = LIB.pn_link_remote_source(pointer)
    source = LIB.pn_link_source(pointer)
    LIB.pn_terminus_copy(LIB.pn_link_target(pointer), LIB.pn_link_remote_target(pointer))
    LIB.pn_terminus_copy(source, remote)
    if LIB.pn_terminus_is_dynamic(remote):
        default = _default_outcome(connection)
        queue = connection.make_reply_queue()
        LIB.pn_terminus_set_address(source, queue.name.encode("utf-8"))
        return OutgoingLink(connection, session, pointer, queue, default=default, dynamic=True)
    address = text(LIB.pn_terminus_get_address(remote))
    if not address:
        raise refused(Code.XAER_INVAL, "a source needs an address", condition=Condition.NOT_IMPLEMENTED)
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
            told = f"only a prepared branch can be read, this one is {branch.state.value}"
            raise refused(Code.XAER_PROTO, told, xid)
        return BranchBrowser(connection, session, pointer, branch, work)
    if address.startswith(DEPTH):
        counted = _queue(connection, address.removeprefix(DEPTH), Action.CONSUME)
        return DepthLink(connection, session, pointer, counted)
    queue = _queue(connection, address, Action.CONSUME)
    if LIB.pn_terminus_get_distribution_mode(remote) == LIB.PN_DIST_MODE_COPY:
        return QueueBrowser(connection, session, pointer, queue)
    return OutgoingLink(connection, session, pointer, queue, default=_default_outcome(connection))


def _queue(connection: BrokerConnection, address: str, action: Action) -> Queue:
    """The queue that an address names, made where that is allowed."""
    container = connection.container
    if address in connection.replies:
        return connection.replies[address]
    if address.startswith(RESERVED):
        raise refused(Code.XAER_NOTA, f"there is no node {address!r}")
    if not container.permissions.may(connection.identity, action, address):
        told = f"{connection.identity} may not {action.value} at {address!r}"
        raise refused(Code.XAER_RMERR, told, condition=Condition.UNAUTHORIZED)
    if address not in container.resource.queues and not container.permissions.may(
        connection.identity, Action.CREATE, address
    ):
        raise refused(Code.XAER_NOTA, f"there is no queue {address!r}, and {connection.identity} may not make it")
    return container.resource.find(address)


def _default_outcome(connection: BrokerConnection) -> Outcome | None:
    """The default outcome that the peer gave the source of the link that it attaches."""
    seen = connection.attaching
    if seen is None or seen.default_outcome is None:
        return None
    descriptor = seen.default_outcome.descriptor
    typed = Ulong(descriptor) if isinstance(descriptor, int) else Symbol(str(descriptor))
    try:
        return outcome_from(Described(typed, seen.default_outcome.value))
    except WireError as error:
        raise RefusedError(refusal_of(error)) from None
