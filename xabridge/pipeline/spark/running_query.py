"""A query that Spark runs: its sources and its sink with their options, its checkpoint, its id."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any, Final

from xabridge.pipeline.core import PipelineError, Query
from xabridge.pipeline.core.driver.query_binding import bind
from xabridge.pipeline.core.process_ids import process_id
from xabridge.pipeline.options import sink_options, source_options
from xabridge.pipeline.spark.query_options import QueryOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from xabridge.pipeline.core import Settings

logger: Final = logging.getLogger("xabridge.pipeline")

SOURCE: Final = "amqp"
SINK: Final = "xa"
_TABLE: Final = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"
_STREAM: Final = "StreamingRelationV2"
_STREAM_V1: Final = "StreamingRelation"
_REFERENCES: Final = frozenset({"CTERelationRef", "UnionLoopRef"})
"""Leaves that stand for another part of the plan, as WITH makes them; its own leaves are there too."""
_EXECUTION: Final = "MicroBatchExecution"


def driver_of(spark: SparkSession) -> str:
    """The name of the driver of this session: its Java process. PipelineError: it is a session of Spark Connect, whose
    driver is somewhere else."""
    return process_id(int(jvm_of(spark).java.lang.ProcessHandle.current().pid()))


def jvm_of(spark: SparkSession) -> Any:
    """The JVM of the driver. PipelineError: it is somewhere else."""
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise PipelineError(
            "this is a session of Spark Connect, and the pipeline can't ask its remote driver about a query: run the "
            "pipeline in a driver of its own"
        )
    return jvm


def use_session(spark: SparkSession) -> None:
    """Gives the session to this thread, if the thread has none. A thread that Python starts has none, and there `write`
    finds no format of Python. PipelineError: it is a session of Spark Connect."""
    sessions = jvm_of(spark).org.apache.spark.sql.classic.SparkSession
    if sessions.getActiveSession().isEmpty():
        sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001 — no other way


def execution_of(spark: SparkSession, query: str) -> Any:
    """Spark's StreamExecution of a query, whichever session of the driver started it. None: the query does not run."""
    identity = jvm_of(spark).java.util.UUID.fromString(query)
    return spark._jsparkSession.sharedState().activeStreamingQueries().get(identity)  # noqa: SLF001 — no other way


def options_of(spark: SparkSession, execution: Any) -> QueryOptions:
    """The options of the query's sources and sink of our formats. PipelineError: they can't be used."""
    leaves = execution.analyzedPlan().collectLeaves()
    streams: list[Any] = []
    foreign: list[str] = []
    for leaf in (leaves.apply(number) for number in range(leaves.size())):
        is_stream = leaf.getClass().getSimpleName() == _STREAM
        is_named_elsewhere = leaf.getClass().getSimpleName() in _REFERENCES
        if leaf.isStreaming() and not is_named_elsewhere and not (is_stream and leaf.sourceName() == SOURCE):
            foreign.append(_stream_name(leaf))
        elif is_stream and leaf not in streams:  # a DataFrame that is used twice
            streams.append(leaf)
        if not is_stream and _is_ours(leaf, SOURCE):
            raise PipelineError(
                "the query reads the format amqp by spark.read as well, which would be decided apart from the query. "
                "Read it by spark.readStream"
            )

    writes = _name_of(execution.sink()) == SINK
    kind = execution.getClass().getSimpleName()
    if (streams or writes) and kind != _EXECUTION:
        raise PipelineError(
            f"a pipeline needs ordinary micro-batches, but this query is a {kind}: start it without a continuous "
            "trigger and without asyncProgressTrackingEnabled"
        )
    sink = sink_options(dict(_java_map(spark, _field(execution, "extraOptions")))) if writes else None
    sources = tuple(source_options(dict(leaf.extraOptions().asCaseSensitiveMap())) for leaf in streams)
    return QueryOptions(sources, sink, tuple(dict.fromkeys(foreign)))


def offsets_of(spark: SparkSession, execution: Any, batch: int) -> str:
    """A digest of the offsets that the checkpoint has of a micro-batch. Spark writes them once, and never changes
    them."""
    path = jvm_of(spark).org.apache.hadoop.fs.Path(execution.resolvedCheckpointRoot(), f"offsets/{batch}")
    stream = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).open(path)  # noqa: SLF001
    try:
        return hashlib.sha256(bytes(jvm_of(spark).org.apache.commons.io.IOUtils.toByteArray(stream))).hexdigest()
    finally:
        stream.close()


def bind_query(spark: SparkSession, execution: Any, settings: Settings, parts: QueryOptions) -> None:
    """Binds the pipeline to the query. PipelineError: it can't have it."""
    planned = execution.offsetLog().getLatestBatchId()
    query = Query(
        str(execution.id()),
        str(execution.runId()),
        int(planned.get()) if planned.isDefined() else -1,
        settings.adopt,
        parts.foreign,
    )

    def runs(other: str, run: str) -> bool:
        found = execution_of(spark, other)
        return found is not None and str(found.runId()) == run

    bind(settings, driver_of(spark), query, [one.source for one in parts.sources], runs=runs)


def refuse(spark: SparkSession, execution: Any, why: str) -> None:
    """Fails the query with this message, before its first micro-batch."""
    execution.errorNotifier().markError(jvm_of(spark).java.lang.IllegalStateException(why))


def _is_ours(leaf: Any, name: str) -> bool:
    """Whether a leaf of a plan reads a table of a Python data source with this name."""
    return leaf.getClass().getSimpleName().startswith("DataSourceV2") and _name_of(leaf.table()) == name


def _stream_name(leaf: Any) -> str:
    """What people call a stream of somebody else's: Spark's name of its format, like `kafka`, where it has one."""
    kind = str(leaf.getClass().getSimpleName())
    return str(leaf.sourceName()) if kind in {_STREAM, _STREAM_V1} else kind


def _name_of(table: Any) -> str | None:
    """The name of a Python data source; other tables may have none."""
    return str(table.name()) if table.getClass().getName() == _TABLE else None


def _field(owner: Any, name: str) -> Any:
    """A private field of a Java object: Spark tells a sink's options nowhere else."""
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)


def _java_map(spark: SparkSession, scala: Any) -> Any:
    return jvm_of(spark).scala.jdk.javaapi.CollectionConverters.asJava(scala)
