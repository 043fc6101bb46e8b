"""What the management node tells: the broker, its queues, branches and connections.

A request has an application property `operation`: `status`, `queues`, `branches` or `connections`; the last
three answer in pages, `count` entries (at most 1000) behind the one that `after` names. The response is a
map, or a list of maps; a page costs what it tells, however many branches are prepared.
"""

from __future__ import annotations

from heapq import merge, nsmallest
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, TypeVar

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.values import Timestamp, Ulong
from xa import NULL_XID, Xid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dtx.amqp.messages import Request
    from dtx.amqp.values import Map, Value
    from dtx.broker.container import Container
    from dtx.broker.queues.queue import Queue
    from dtx.broker.transactions.branches import Branch

T = TypeVar("T")

MAX_PAGE: Final = 1000
MAX_LOCKS: Final = 100
"""Branches that are named as holding messages of one queue."""


def answer(container: Container, request: Request) -> Value:
    """The response's value; WireError for what is no such request."""
    told = request.application_properties
    operation = told.get("operation")
    found = _OPERATIONS.get(operation) if isinstance(operation, str) else None
    if found is None:
        names = ", ".join(sorted(_OPERATIONS))
        raise WireError(Condition.NOT_IMPLEMENTED, f"operation is one of {names}")
    after, count = told.get("after", ""), told.get("count", MAX_PAGE)
    if not isinstance(after, str) or isinstance(count, bool) or not isinstance(count, int):
        raise WireError(Condition.INVALID_FIELD, "after is a string, count a number")
    if not 1 <= count <= MAX_PAGE:
        raise WireError(Condition.INVALID_FIELD, f"count is between 1 and {MAX_PAGE}")
    return found(container, after, int(count))


def _status(container: Container, _after: str, _count: int) -> Map:
    resource = container.resource
    return {
        "container": container.settings.container,
        "queues": Ulong(len(resource.queues)),
        "branches": Ulong(len(container.registry)),
        "in-doubt": Ulong(container.registry.in_doubt_count),
        "fences": Ulong(len(container.fences)),
        "connections": Ulong(len(container.connections)),
        "waiting-octets": Ulong(resource.store.waiting_octets),
    }


def _queues(container: Container, after: str, count: int) -> list[Value]:
    working: dict[str, list[Branch]] = {}
    for branch in container.registry.unprepared():
        for queue in branch.work.holdings():
            working.setdefault(queue, []).append(branch)
    names = nsmallest(count, (name for name in container.resource.queues if name > after))
    return [_queue(container, container.resource.queues[name], working.get(name, [])) for name in names]


def _queue(container: Container, queue: Queue, working: list[Branch]) -> Map:
    index = container.registry.prepared_by_queue
    prepared = index.of(queue.name)
    locked_by: Map = {}
    for branch in islice(chain(working, prepared), MAX_LOCKS):
        retired, posted = index.holdings(branch)[queue.name]
        locked_by[str(branch.xid)] = Ulong(retired + posted)
    return {
        "name": queue.name,
        "depth": Ulong(queue.depth),
        "held": Ulong(queue.held),
        "pending": Ulong(queue.pending),
        "consumers": Ulong(queue.consumers),
        "lasting": queue.lasting,
        "branches": Ulong(len(working) + len(prepared)),
        "locked-by": locked_by,
    }


def _branches(container: Container, after: str, count: int) -> list[Value]:
    try:
        behind = Xid.parse(after) if after else NULL_XID
    except ValueError as error:
        raise WireError(Condition.INVALID_FIELD, f"after is not an xid: {error}") from None
    working = sorted((branch for branch in container.registry.unprepared() if branch.xid > behind), key=_xid_of)
    in_doubt = container.registry.in_doubt(behind, b"")
    return _page(merge(working, in_doubt, key=_xid_of), count, lambda branch: _branch(container, branch))


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


def _connections(container: Container, after: str, count: int) -> list[Value]:
    behind = int(after, 16) if after and set(after) <= set("0123456789abcdef") else -1
    numbers = sorted(number for number in container.connections if number > behind)
    return _page(
        numbers,
        count,
        lambda number: {
            "number": f"{number:x}",
            "peer": container.connections[number].peer,
            "user": str(container.connections[number].identity),
            "container": container.connections[number].peer_container,
            "sessions": Ulong(len(container.connections[number].sessions)),
            "links": Ulong(len(container.connections[number].links)),
            "transactions": Ulong(len(container.connections[number].txns.live)),
        },
    )


def _page(items: Iterable[T], count: int, shown: Callable[[T], Map]) -> list[Value]:
    return [shown(item) for item in islice(items, count)]


_OPERATIONS: Final[dict[str, Callable[[Container, str, int], Value]]] = {
    "status": _status,
    "queues": _queues,
    "branches": _branches,
    "connections": _connections,
}
