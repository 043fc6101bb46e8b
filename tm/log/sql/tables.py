"""The tables of a SqlLog.

    xabridge_schema      one row: the version
    xabridge_node        a row for each node id
        node             primary key
        log_id           8 octets, random: the log's identity, made with the row
        epoch            how often the node was taken: the incarnation of who has it now
        holder           who that is, for people
        worked_at        when its holder was last at work: it took the node, renewed the lease or closed the log
        lease_until      until when it is sure not to be taken by another (seconds since 1970, the database's clock)
    xabridge_gtrid       a row for each global transaction that was begun, decided or aborted, until it is purged
        gtrid            primary key
        node, epoch      whose it is, and under which epoch it got its state
        state            active, committed, aborted or done: `tm.log.sql.states`
        record           of a committed or done one, the DECISION record (`tm.log.records`)
        changed_at       when it got its state
    xabridge_heuristic   a row for each heuristic outcome that was noted and not dropped
        node, branch     primary key; `branch_key`
        record           the HEURISTIC record
        changed_at       when it was noted
    xabridge_incarnation a row for each incarnation that was noted (`tm.log.incarnations`)
        node, incarnation   primary key
        epoch            under which it was noted
        standing         open, whole or cut
        floor            the sequence below which its transactions are over everywhere
        ceiling          the sequence that none of its transactions reaches
    xabridge_place       a row for each node
        node             primary key
        place            by what the database was known from a copy when the node was taken; "" where it has nothing

The version is that of these tables, of the records in them, and of the tables of a pipeline beside them
(`xabridge.pipeline.core.ledger.schema`). Who opens a log looks at it first, and refuses another one.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Double, Index, Integer, LargeBinary, MetaData, String, Table

VERSION: Final = 3

METADATA: Final = MetaData()
SCHEMA: Final = Table("xabridge_schema", METADATA, Column("version", Integer, primary_key=True, autoincrement=False))
NODE: Final = Table(
    "xabridge_node",
    METADATA,
    Column("node", String(32), primary_key=True),
    Column("log_id", LargeBinary(8), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", String(255), nullable=False),
    Column("lease_until", Double, nullable=False),
    Column("worked_at", Double, nullable=False),
)
GTRIDS: Final = Table(
    "xabridge_gtrid",
    METADATA,
    Column("gtrid", LargeBinary(64), primary_key=True),
    Column("node", String(32), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("state", String(9), nullable=False),
    Column("record", LargeBinary),
    Column("changed_at", Double, nullable=False),
    Index("xabridge_gtrid_state", "node", "state", "changed_at"),
)
HEURISTICS: Final = Table(
    "xabridge_heuristic",
    METADATA,
    Column("node", String(32), primary_key=True),
    Column("branch", LargeBinary, primary_key=True),
    Column("record", LargeBinary, nullable=False),
    Column("changed_at", Double, nullable=False),
)
INCARNATIONS: Final = Table(
    "xabridge_incarnation",
    METADATA,
    Column("node", String(32), primary_key=True),
    Column("incarnation", LargeBinary(8), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("standing", String(5), nullable=False),
    Column("floor", BigInteger, nullable=False),
    Column("ceiling", BigInteger, nullable=False),
)
PLACE: Final = Table(
    "xabridge_place",
    METADATA,
    Column("node", String(32), primary_key=True),
    Column("place", String(64), nullable=False),
)
