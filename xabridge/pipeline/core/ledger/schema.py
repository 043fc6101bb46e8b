"""The tables of a pipeline, beside those of its decision log (`tm.log.sql.tables`) and in the same database.

    xabridge_pipeline            a row for each pipeline: its name is the node of its log
        incarnation, driver   who has it: the log's incarnation, and the driver that took it (`core.process_ids`)
        taken_at              when that was
        epoch                 the highest number of an epoch that was ever given
        forgotten             the highest number of an epoch whose row was removed
        gtrid                 the global transaction that was planned last
        again                 the incarnation in which it was planned to be read again; 0: it was not
    xabridge_pipeline_driver     a row for each driver that has ever taken it. A driver that has a row and does not
        have the pipeline now was fenced off, and does not come back without a new start of its query
        pipeline, driver      primary key
        incarnation           the last one that it had
    xabridge_pipeline_epoch      a row for each epoch that was planned
        pipeline, epoch       primary key
        previous              the epoch that the same source of the same checkpoint read before; 0 for none
        gtrid, tries          its present global transaction, and how many it has had; the epochs that the sources of
                              one query read in one micro-batch have the same one
        source                the resource that it reads, or the first of them; empty for a batch that reads nothing
        shards                what it reads, as JSON (`core.shards.PlannedRead`): the resources, the queues of each
                              task, and the resources that were skipped, with the reason; empty for a batch that reads
                              nothing
        query, place          the query that reads it, and which of its sources; empty and 0 for a job without streaming
        sunk                  whether a sink of ours was planned for it
        logged                whether Spark is known to have logged it
        finished              whose branches are finished: words `src:NAME` and `snk:NAME`
        planned_at            when it was planned last
        decided_at, logged_at    for people: when it was decided, and when Spark was known to have logged it. NULL
                              before that, and where it is not known
        waiting, oldest_at    for people: how many messages waited when it was planned, and when the oldest of them was
                              made; NULL where that is not known
    xabridge_pipeline_batch      a row for each query (checkpoint): its last micro-batch
        pipeline, query       primary key
        batch, gtrid          the batch is decided if and only if the log says so of this gtrid
        offsets               a digest of what the checkpoint says that it reads; empty where that is not known
    xabridge_pipeline_query      a row for each pipeline that a streaming query has: no other query works under its name
        pipeline              primary key
        query, run            the query's id, which stands in its checkpoint, and the id of its latest start
        incarnation           the one that this start has; a row of an older one is of a start that is over
        bound_at              when that was
    xabridge_pipeline_source     a row for each source of that query
        pipeline, place       primary key: the source's number in the query, from 0
        source                what it reads: resources and their queues
        process               the process that plans it (`core.process_ids`); empty until it asks for the first time
    xabridge_pipeline_isolation  a row for a pipeline whose last tries failed (`core.protocol.isolation`)
        pipeline              primary key
        gtrid                 the try that was planned, or that failed, last
        suspects, aside       how it was planned
        place                 which of the query's sources is suspected, or was last; -1: none was
        shard                 which of its shards, as JSON: the resource and its queues; empty: not known, or none
        failed                how many messages it had when it failed; -1: it did not, -2: no message is to blame
    xabridge_pipeline_result     a row for each of the last batches that were decided, for people: what it did, and how
        long that took (`core.ledger.rows.ResultRow`). Nothing depends on it: a driver that dies after the decision
        leaves none
    xabridge_pipeline_unfenced   a row for each try and each broker at which it may still take messages: it was planned
        to read there, and is not known to be fenced there
        pipeline, resource, gtrid   primary key

Their version is that of the log's tables, in xabridge_schema.

Each change locks the log's row of the node and compares the incarnation: in its one statement, or first in a short
transaction.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

METADATA: Final = MetaData()
PIPELINE: Final = Table(
    "xabridge_pipeline",
    METADATA,
    Column("pipeline", String(32), primary_key=True),
    Column("incarnation", BigInteger, nullable=False),
    Column("driver", String(255), nullable=False),
    Column("taken_at", Double, nullable=False),
    Column("epoch", BigInteger, nullable=False, default=0),
    Column("forgotten", BigInteger, nullable=False, default=0),
    Column("gtrid", LargeBinary(64)),
    Column("again", BigInteger, nullable=False, default=0),
)
DRIVER: Final = Table(
    "xabridge_pipeline_driver",
    METADATA,
    Column("pipeline", String(32), primary_key=True),
    Column("driver", String(255), primary_key=True),
    Column("incarnation", BigInteger, nullable=False),
)
EPOCH: Final = Table(
    "xabridge_pipeline_epoch",
    METADATA,
    Column("pipeline", String(32), primary_key=True),
    Column("epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("previous", BigInteger, nullable=False),
    Column("gtrid", LargeBinary(64), nullable=False),
    Column("tries", Integer, nullable=False),
    Column("source", String(48), nullable=False),
    Column("sunk", Boolean, nullable=False, default=False),
    Column("logged", Boolean, nullable=False, default=False),
    Column("finished", Text, nullable=False, default=""),
    Column("planned_at", Double, nullable=False),
    Column("query", String(255), nullable=False),
    Column("place", Integer, nullable=False),
    Column("decided_at", Double),
    Column("logged_at", Double),
    Column("waiting", BigInteger),
    Column("oldest_at", Double),
    Column("shards", Text, nullable=False),
)
BATCH: Final = Table(
    "xabridge_pipeline_batch",
    METADATA,
    Column("pipeline", String(32), primary_key=True),
    Column("query", String(255), primary_key=True),
    Column("batch", BigInteger, nullable=False),
    Column("gtrid", LargeBinary(64), nullable=False),
    Column("offsets", String(64), nullable=False),
)
ISOLATION: Final = Table(
    "xabridge_pipeline_isolation",
    METADATA,
    Column("pipeline", String(32), primary_key=True),
    Column("gtrid", LargeBinary(64), nullable=False),
    Column("suspects", BigInteger, nullable=False),
    Column("aside", BigInteger, nullable=False),
    Column("failed", BigInteger, nullable=False),
    Column("place", Integer, nullable=False),
    Column("shard", Text, nullable=False),
)
UNFENCED: Final = Table(
    "xabridge_pipeline_unfenced",
    METADATA,
    Column("pipeline", String(32), primary_key=True),
    Column("resource", String(48), primary_key=True),
    Column("gtrid", LargeBinary(64), primary_key=True),
)
QUERY: Final = Table(
    "xabridge_pipeline_query",
    METADATA,
    Column("pipeline", String(32), primary_key=True),
    Column("query", String(255), nullable=False),
    Column("run", String(255), nullable=False),
    Column("incarnation", BigInteger, nullable=False),
    Column("bound_at", Double, nullable=False),
)
SOURCE: Final = Table(
    "xabridge_pipeline_source",
    METADATA,
    Column("pipeline", String(32), primary_key=True),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("source", Text, nullable=False),
    Column("process", String(255), nullable=False),
)
RESULT: Final = Table(
    "xabridge_pipeline_result",
    METADATA,
    Column("pipeline", String(32), primary_key=True),
    Column("gtrid", LargeBinary(64), primary_key=True),
    Column("epoch", BigInteger, nullable=False),
    Column("query", String(255), nullable=False),
    Column("batch", BigInteger),
    Column("decided_at", Double, nullable=False),
    Column("taken", BigInteger),
    Column("rows", BigInteger, nullable=False),
    Column("messages", BigInteger, nullable=False),
    Column("octets", BigInteger, nullable=False),
    Column("branches", BigInteger, nullable=False),
    Column("swept", BigInteger, nullable=False),
    Column("unfinished", BigInteger, nullable=False),
    Column("prepare_s", Double, nullable=False),
    Column("decide_s", Double, nullable=False),
    Column("finish_s", Double, nullable=False),
)
