"""The check of a query that writes the format `xa`, when `start()` is called.

Spark does not call a Python data source in `start()`. It looks at the sink only when it plans the first micro-batch, in
another process, and it refuses the output mode `update` there. So `DataStreamWriter.start` is replaced in this process,
and calls this check first:

 - `start()` itself refuses what can't work: options, columns, types, keys, too few prepared transactions, settings of
   the application.
 - In output mode `update`, and with the option `once`, each micro-batch is written by an epoch, as with `foreachBatch`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.readwriter import DataStreamWriter

from xabridge.pipeline.core import PipelineError
from xabridge.pipeline.core.driver.sink_coordinator import SinkCoordinator
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.options import OF_SPARK, SHARED, sink_options, source_options
from xabridge.pipeline.spark.cluster_settings import SPECULATION, check_settings, is_on
from xabridge.pipeline.spark.once_shuffle import check_shuffle, tasks_of_once
from xabridge.pipeline.spark.running_query import use_session
from xabridge.pipeline.spark.task_writer import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from xabridge.pipeline.core import Source
    from xabridge.pipeline.options import SinkOptions
    from xabridge.pipeline.spark.epoch import Epoch
    from xabridge.pipeline.spark.task_writer import SinkLayout

    Start = Callable[..., StreamingQuery]

FORMAT: Final = "xa"
SOURCE: Final = "amqp"
_STREAM: Final = "StreamingRelationV2"
UPDATE: Final = "Update"
COMPLETE: Final = "Complete"
ONCE: Final = "once"
_MARK: Final = "_xabridge"
_SHUFFLING: Final = (
    "Aggregate",
    "Join",
    "Deduplicate",
    "Distinct",
    "Repartition",
    "Sort",
    "InPandas",
    "WithState",
)
"""Parts of the names of plans whose rows come from a shuffle."""


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """The settings that the user has given to a DataStreamWriter. The names of options are in lower case."""

    format: str
    mode: str
    options: Mapping[str, str] = field(repr=False)


def intercept(epoch: Callable[..., Epoch]) -> None:
    """Replaces `start()` in this process, so that it checks first. `epoch` makes the epoch of a micro-batch."""
    original: Start = DataStreamWriter.start
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def start(self: DataStreamWriter, path: str | None = None, *args: Any, **options: Any) -> StreamingQuery:
        _apply(self, *args, **options)
        asked = _asked(self)
        if asked.format == FORMAT:
            use_session(self._spark)
            check(self._df, asked)
            if asked.mode == UPDATE or ONCE in asked.options:
                _by_epochs(self, asked, epoch)
        return original(self, path)

    setattr(start, _MARK, True)
    DataStreamWriter.start = start  # type: ignore[method-assign]


def _apply(
    writer: DataStreamWriter,
    format: str | None = None,  # noqa: A002 — Spark's name
    outputMode: str | None = None,  # noqa: N803 — Spark's name
    partitionBy: Any = None,  # noqa: N803 — Spark's name
    queryName: str | None = None,  # noqa: N803 — Spark's name
    **options: Any,
) -> None:
    """The arguments of start(), as the writer's methods take them."""
    writer.options(**options)
    for method, value in (
        (writer.outputMode, outputMode),
        (writer.partitionBy, partitionBy),
        (writer.format, format),
        (writer.queryName, queryName),
    ):
        if value is not None:
            method(value)


def _asked(writer: DataStreamWriter) -> WriteRequest:
    java = writer._jwrite  # noqa: SLF001 — Spark tells it nowhere else
    converters = writer._spark._jvm.scala.jdk.javaapi.CollectionConverters  # type: ignore[union-attr]  # noqa: SLF001
    options = dict(converters.asJava(_field(java, "extraOptions")))
    return WriteRequest(str(_field(java, "source")), str(_field(java, "outputMode")), options)


def _field(owner: Any, name: str) -> Any:
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)


def check(rows: DataFrame, asked: WriteRequest) -> None:
    """PipelineError: the rows can't be written as requested."""
    options = sink_options(asked.options)
    fitting = layout(options, {field.name: field.dataType.simpleString() for field in rows.schema.fields})
    check_mode(options, asked.mode)
    check_shuffle(rows, options)
    settings = dict(rows.sparkSession.sparkContext.getConf().getAll())
    check_settings(settings, once=options.once is not None)
    tasks = tasks_of(rows) if options.once is None else tasks_of_once(rows)
    _check_prepares(options, fitting, tasks, attempts=3 if is_on(settings, SPECULATION) else 2)


def check_mode(options: SinkOptions, mode: str) -> None:
    """PipelineError: the output mode repeats rows that the table has already, and no key tells which ones."""
    if mode not in {UPDATE, COMPLETE}:
        return
    if options.once is not None:
        raise PipelineError(
            f"output mode {mode.lower()} writes a row again when it has changed, and the option once leaves it out: "
            "use one of them"
        )
    which = "every row again with each micro-batch" if mode == COMPLETE else "a row again whenever it has changed"
    for target in (one.target for one in options.tables.targets if not one.target.key):
        raise PipelineError(
            f"table {target.resource}:{target.table}: output mode {mode.lower()} gives {which}; name the "
            "columns that identify a row by the option key, or use another mode"
        )


def _check_prepares(options: SinkOptions, fitting: SinkLayout, tasks: int, *, attempts: int) -> None:
    used = {one.target.resource for one in fitting.tables.targets if not one.target.key}
    if fitting.once is not None:
        used.add(fitting.once.values.resource)
    urls = tuple((name, url) for name, url in options.settings.resources if name in used)
    resources = Resources()
    try:
        SinkCoordinator.checked(resources.of(urls), tasks, attempts=attempts)
    finally:
        resources.close()


def tasks_of(rows: DataFrame) -> int:
    """How many tasks write a micro-batch, as far as the plan shows."""
    plan = rows._jdf.queryExecution().analyzed()  # noqa: SLF001 — Spark tells it nowhere else
    if any(name in plan.toString() for name in _SHUFFLING):
        return int(rows.sparkSession.conf.get("spark.sql.shuffle.partitions") or 0)
    leaves = plan.collectLeaves()
    every = [leaves.apply(number) for number in range(leaves.size())]
    streams = [leaf for leaf in every if leaf.getClass().getSimpleName() == _STREAM and leaf.sourceName() == SOURCE]
    sources = [source_options(dict(leaf.extraOptions().asCaseSensitiveMap())).source for leaf in streams]
    return sum(map(tasks_of_source, sources))


def tasks_of_source(source: Source) -> int:
    """How many tasks read it at most, as far as its options show: how many queues match a pattern is not known."""
    if source.by_queue:
        return sum(len(shard.queues) for shard in source.shards)
    return max(source.partitions, len(source.shards))


def _by_epochs(writer: DataStreamWriter, asked: WriteRequest, epoch: Callable[..., Epoch]) -> None:
    known = {name.lower() for name in SHARED}
    shared = {
        name: value for name, value in asked.options.items() if name.lower() in known or name.startswith("resource.")
    }
    own = {name: value for name, value in asked.options.items() if name not in shared and name not in OF_SPARK}

    def write(rows: DataFrame, number: int) -> None:
        with epoch(rows.sparkSession, number, shared) as one:
            one.write(rows, **own)

    writer.foreachBatch(write)
