"""What `Connection.next_event` tells: what the peer did, or what ended because of what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtx.amqp.delivery import IncomingDelivery, OutgoingDelivery
    from dtx.amqp.link import Link, ReceiverLink, SenderLink
    from dtx.amqp.performatives import Error, Open
    from dtx.amqp.session import Session
    from dtx.amqp.values import Map


@dataclass(slots=True)
class ConnectionOpened:
    """The peer opened the connection. Answer with `Connection.open`, unless we opened it first."""

    remote: Open


@dataclass(slots=True)
class ConnectionClosed:
    """The connection is closed: by the peer, or because of what it did. Then our close is sent already, unless the
    caller answers errors. The same holds for the other events that have `by_peer`."""

    error: Error | None
    by_peer: bool


@dataclass(slots=True)
class SessionBegun:
    """The peer began a session, or answered our begin. Answer the former with `Session.begin`."""

    session: Session


@dataclass(slots=True)
class SessionEnded:
    """A session ended: by the peer (answer with `Session.end`), or because of what it did."""

    session: Session
    error: Error | None
    by_peer: bool


@dataclass(slots=True)
class LinkAttached:
    """The peer attached a link, or answered our attach. Answer the former with `attach` or `refuse` of the link."""

    link: Link


@dataclass(slots=True)
class LinkDetached:
    """A link was detached: by the peer (answer with `Link.detach`), or because of what it did. `closed` says whether
    for good."""

    link: Link
    error: Error | None
    closed: bool
    by_peer: bool


@dataclass(slots=True)
class LinkFlow:
    """The peer sent the state of a link: credit and drain of one on which we send, or what the sender has left."""

    link: SenderLink | ReceiverLink
    properties: Map | None


@dataclass(slots=True)
class Transferred:
    """A part of a delivery came, or with `delivery.complete` its end, or with `delivery.aborted` its abortion.
    `state` is what this transfer says of the delivery's state, encoded."""

    delivery: IncomingDelivery
    octets: bytes
    state: bytes | None


@dataclass(slots=True)
class Disposed:
    """The peer sent the state of deliveries, which are not settled here. `state` is encoded; `settled` says whether the
    peer has settled them; `unknown` says whether it named others as well, which are settled or gone with their link."""

    deliveries: list[IncomingDelivery | OutgoingDelivery]
    state: bytes | None
    settled: bool
    unknown: bool


@dataclass(slots=True)
class WorkDropped:
    """A transfer or a disposition with this state, encoded, was not looked at: it was wrong, or it came on a link or a
    session that had failed or that we had ended. If the state names a transaction, that lacks this work."""

    state: bytes


Event = (
    ConnectionOpened
    | ConnectionClosed
    | SessionBegun
    | SessionEnded
    | LinkAttached
    | LinkDetached
    | LinkFlow
    | Transferred
    | Disposed
    | WorkDropped
)
