"""The answers that only tell: the broker, its queues, branches, connections and links.

A page costs what it tells, however many branches are prepared and however many messages there are: nothing here looks
at more messages than the first one of a queue, or reads a payload.
"""

from __future__ import annotations

from heapq import merge, nsmallest
from importlib.metadata import version
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.values import Timestamp, Ulong
from dtx.broker.management.request import time_of
from xa import NULL_XID, Xid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtx.amqp.values import Map, Value
    from dtx.broker.container import Container, ServedConnection, ServedLink
    from dtx.broker.management.request import ManagementRequest
    from dtx.broker.queues.queue import Queue
    from dtx.broker.transactions.branches import Branch

VERSION: Final = version("xabridge")
"""Of this process, whatever is installed meanwhile."""
MAX_LOCKS: Final = 100
"""Branches that are named as holding messages of one queue."""


def status(request: ManagementRequest) -> Map:
    """The broker as a whole."""
    container = request.container
    resource = container.resource
    return {
        "container": container.settings.container,
        "version": VERSION,
        "now": Timestamp(resource.clock.wall_ms()),
        "since": Timestamp(container.since_ms),
        "queues": Ulong(len(resource.queues)),
        "branches": Ulong(len(container.registry)),
        "in-doubt": Ulong(container.registry.in_doubt_count),
        "fences": Ulong(len(container.fences)),
        "connections": Ulong(len(container.connections)),
        "waiting-octets": Ulong(resource.store.waiting_octets),
    }


def conditions(request: ManagementRequest) -> Map:
    """What is wrong over all queues and branches, as of the last look; `looked` is null before the first one."""
    watch = request.container.conditions
    return {
        "looked": time_of(watch.looked_ms),
        "conditions": [
            {
                "name": found.condition.name,
                "count": Ulong(found.count),
                "worst": [{"name": one.name, "value": one.value} for one in found.worst],
            }
            for found in watch.found
        ],
    }


def configuration(request: ManagementRequest) -> list[Value]:
    """A page of settings, by name."""
    after = request.after
    settings = (one for one in request.container.configuration if one[0] > after)
    return request.page(settings, lambda one: {"name": one[0], "value": one[1], "from": one[2]})


def queues(request: ManagementRequest) -> list[Value]:
    """A page of queues, by name; with `queue`, this one only."""
    container, after, wanted = request.container, request.after, request.text("queue", "")
    working: dict[str, list[Branch]] = {}
    for branch in container.registry.unprepared():
        for queue in branch.work.holdings():
            working.setdefault(queue, []).append(branch)
    known = container.resource.queues
    if wanted:
        names = [wanted] if wanted in known else []
    else:
        names = nsmallest(request.count, (name for name in known if name > after))
    return [_queue(container, container.resource.queues[name], working.get(name, [])) for name in names]


def _queue(container: Container, queue: Queue, working: list[Branch]) -> Map:
    resource = container.resource
    index = container.registry.prepared_by_queue
    prepared = index.of(queue.name)
    locked_by: Map = {}
    for branch in islice(chain(working, prepared), MAX_LOCKS):
        retired, posted = index.holdings(branch)[queue.name]
        locked_by[str(branch.xid)] = Ulong(retired + posted)

    oldest = queue.longest_waiting
    rate_in, rate_out = queue.counters.meter.rates(resource.clock.monotonic(), queue.counters.came, queue.counters.went)
    return {
        "name": queue.name,
        "depth": Ulong(queue.depth),
        "until": f"{queue.last_position:x}",
        "octets": Ulong(queue.counters.octets),
        "oldest": None if oldest is None else time_of(resource.ages.since_ms(oldest.number)),
        "held": Ulong(queue.counters.held),
        "delayed": Ulong(queue.counters.delayed),
        "pending": Ulong(queue.counters.pending),
        "prepared": Ulong(index.posted_to(queue.name)),
        "consumers": Ulong(queue.attached),
        "willing": Ulong(queue.consumers),
        "came": Ulong(queue.counters.came),
        "went": Ulong(queue.counters.went),
        "rate-in": rate_in,
        "rate-out": rate_out,
        "lasting": queue.lasting,
        "dead-letters": Ulong(queue.dead_letters.count),
        "for-dead-letters": queue.for_dead_letters,
        "unreadable": Ulong(len(queue.unreadable)),
        "paused": queue.paused or None,
        "max-depth": Ulong(queue.settings.max_depth),
        "max-octets": Ulong(queue.settings.max_octets),
        "when-full": str(queue.settings.when_full),
        "branches": Ulong(len(working) + len(prepared)),
        "open-branches": Ulong(len(working)),
        "locked-by": locked_by,
    }


def branches(request: ManagementRequest) -> list[Value]:
    """A page of branches, by xid."""
    container, after = request.container, request.after
    try:
        behind = Xid.parse(after) if after else NULL_XID
    except ValueError as error:
        raise WireError(Condition.INVALID_FIELD, f"after is not an xid: {error}") from None
    working = sorted((branch for branch in container.registry.unprepared() if branch.xid > behind), key=_xid_of)
    in_doubt = container.registry.in_doubt(behind, b"")
    return request.page(merge(working, in_doubt, key=_xid_of), lambda branch: _branch(container, branch))


def _xid_of(branch: Branch) -> Xid:
    return branch.xid


def _branch(container: Container, branch: Branch) -> Map:
    return {
        "xid": str(branch.xid),
        "state": branch.state.value,
        "owner": branch.owner,
        "since": Timestamp(branch.since_ms),
        "timeout": Ulong(branch.timeout_s),
        "associations": Ulong(len(branch.associations)),
        "holds": {
            queue: {"retired": Ulong(retired), "posted": Ulong(posted)}
            for queue, (retired, posted) in container.registry.prepared_by_queue.holdings(branch).items()
        },
    }


def connections(request: ManagementRequest) -> list[Value]:
    """A page of connections, by number."""
    container = request.container
    behind = _number(request.after)
    numbers = sorted(number for number in container.connections if number > behind)
    return request.page(numbers, lambda number: _connection(container, container.connections[number]))


def _number(text: str) -> int:
    """The number of a connection, as it is shown; -1 for none."""
    return int(text, 16) if text and set(text) <= set("0123456789abcdef") else -1


def _connection(container: Container, connection: ServedConnection) -> Map:
    received, sent = connection.received_messages, connection.sent_messages
    now = container.resource.clock.monotonic()
    rate_in, rate_out = connection.meter.rates(now, received, sent)

    return {
        "number": f"{connection.number:x}",
        "peer": connection.peer,
        "user": str(connection.identity),
        "old-password": container.has_other_password(connection.identity),
        "container": connection.peer_container,
        "product": connection.product,
        "since": Timestamp(connection.since_ms),
        "sessions": Ulong(len(connection.sessions)),
        "links": Ulong(len(connection.links)),
        "transactions": Ulong(len(connection.txns.live)),
        "received": Ulong(received),
        "sent": Ulong(sent),
        "rate-in": rate_in,
        "rate-out": rate_out,
    }


def links(request: ManagementRequest) -> list[Value]:
    """A page of links, by connection, session and name: those of `connection` and at `address`, where these are
    given."""
    container, address = request.container, request.text("address", "")
    wanted = request.text("connection", "")
    numbers = sorted(container.connections) if not wanted else [_number(wanted)]
    after = request.after

    def found() -> Iterator[Map]:
        for number in numbers:
            connection = container.connections.get(number)
            if connection is None or (after and number < _number(after.partition("/")[0])):
                continue
            for channel, session in enumerate(connection.sessions.values()):
                for link in session.links.values():
                    if not address or link.address == address:
                        yield _link(connection, channel, link)

    ordered = sorted(found(), key=_key_of)
    behind = _key(after) if after else None
    return request.page((one for one in ordered if behind is None or _key_of(one) > behind), lambda one: one)


def _link(connection: ServedConnection, session: int, link: ServedLink) -> Map:
    direction = "in" if link.endpoint.receives else "out"
    return {
        "id": f"{connection.number:x}/{session}/{direction}/{link.name}",
        "connection": f"{connection.number:x}",
        "session": Ulong(session),
        "name": link.name,
        "direction": direction,
        "kind": link.kind,
        "address": link.address,
        "credit": Ulong(link.credit),
        "unsettled": Ulong(link.unsettled),
        "messages": Ulong(link.messages),
    }


def _key_of(link: Map) -> tuple[int, int, str]:
    return _key(str(link["id"]))


def _key(shown: str) -> tuple[int, int, str]:
    number, _, rest = shown.partition("/")
    session, _, name = rest.partition("/")
    return _number(number), int(session) if session.isdecimal() else -1, name
