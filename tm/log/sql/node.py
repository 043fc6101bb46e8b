"""A node id in a SqlLog: which process holds it, and until when.

A process that takes a node raises the node's epoch. Every change that only the holder may make compares the epoch in
the same statement, and locks the node's row until it is done. So once a node was taken, no change of the former holder
has an effect any more, however late it comes. The lease only keeps other processes from taking a node whose holder is
at work: correctness does not depend on any clock.

Taking a node that another one has:

1. While the lease runs: wait for its end, at most as long as one's own lease would be.
2. If it is renewed meanwhile, its holder is at work: LogLocked.
3. Once it has run out: take it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import select, update

from tm.log.contract import LogLocked
from tm.log.sql.database import octets, values_of
from tm.log.sql.tables import NODE
from xa.lease import holder_name
from xa.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.log.sql.database import Database

LOG_ID_SIZE: Final = 8
LONGEST_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as it stands in the table. `lasts_s`: how much longer its lease runs."""

    log_id: bytes
    epoch: int
    holder: str
    lease_until: float
    worked_at: float
    lasts_s: float


def read_node(database: Database, node: str) -> NodeRow | None:
    """The row of `node`, if there is one."""
    statement = select(
        NODE.c.log_id,
        NODE.c.epoch,
        NODE.c.holder,
        NODE.c.lease_until,
        NODE.c.worked_at,
        (NODE.c.lease_until - database.now()),
    ).where(NODE.c.node == node)
    with database.engine.connect() as connection:
        row = connection.execute(statement).one_or_none()
    with values_of(database):
        return None if row is None else NodeRow(_log_id(row[0]), *row[1:4], float(row[4]), row[5])


def _log_id(value: object) -> bytes:
    log_id = octets(value)
    if len(log_id) != LOG_ID_SIZE:
        raise ValueError(f"the log's identity has {len(log_id)} octets")
    return log_id


def take_node(
    database: Database,
    node: str,
    lease_s: float,
    *,
    take_over: bool,
    sleep: Callable[[float], None],
    entropy: Callable[[int], bytes],
) -> NodeRow:
    """Takes `node` as the module's docstring says; with `take_over` without regard to a lease."""
    first = database.insert(NODE).values(
        node=node, log_id=entropy(LOG_ID_SIZE), epoch=0, holder="", lease_until=0.0, worked_at=0.0
    )
    with database.engine.connect() as connection:
        connection.execute(first.on_conflict_do_nothing())
    waited_s = 0.0
    seen: NodeRow | None = None
    while True:
        taken = _take(database, node, lease_s, take_over=take_over)
        row = read_node(database, node)
        if row is not None and taken == row.epoch:
            return row
        if row is None or waited_s >= lease_s or (seen is not None and seen.lease_until != row.lease_until):
            raise _locked(database, node, row)

        seen = row
        pause_s = min(max(row.lasts_s, 0.0), LONGEST_PAUSE_S)
        sleep(pause_s)
        waited_s += pause_s


def join_node(database: Database, node: str, epoch: int) -> NodeRow:
    """`node`, if it is still in the epoch that another process took it in; otherwise LogLocked."""
    row = read_node(database, node)
    if row is None or row.epoch != epoch:
        raise _locked(database, node, row)
    return row


def renew_lease(database: Database, node: str, epoch: int, lease_s: float) -> bool:
    """Lengthens the lease to `lease_s` from now, 0 to end it; False when another one took the node."""
    statement = (
        update(NODE)
        .where(NODE.c.node == node, NODE.c.epoch == epoch)
        .values(
            lease_until=database.now() + lease_s,
            worked_at=database.now(),
            holder=holder_name() if lease_s else "nobody",
        )
    )
    with database.engine.connect() as connection:
        return connection.execute(statement).rowcount == 1


def _take(database: Database, node: str, lease_s: float, *, take_over: bool) -> int | None:
    statement = update(NODE).where(NODE.c.node == node)
    if not take_over:
        statement = statement.where(NODE.c.lease_until <= database.now())
    taking = statement.values(
        epoch=NODE.c.epoch + 1,
        holder=holder_name(),
        lease_until=database.now() + lease_s,
        worked_at=database.now(),
    ).returning(NODE.c.epoch)
    with database.engine.connect() as connection:
        return connection.execute(taking).scalar_one_or_none()


def _locked(database: Database, node: str, row: NodeRow | None) -> LogLocked:
    if row is None:
        return LogLocked(f"{database}: node {node!r} was removed from the decision log", "")
    try:
        until = datetime.fromtimestamp(row.lease_until, UTC).isoformat(sep=" ", timespec="seconds")
    except (TypeError, ValueError, OverflowError, OSError):
        until = printable(str(row.lease_until), 40)
    return LogLocked(
        f"{database}: node {node!r} is held by {printable(str(row.holder))} "
        f"(incarnation {row.epoch}, lease until {until})"
    )
