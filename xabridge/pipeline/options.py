"""The options of the Spark formats `amqp` and `xa`: their names, what they mean, and how their text is read.

Spark hands over every option of a query as text, with names that ignore case. What is unknown is refused, with the
name that was probably meant, and so is what contradicts itself: when the query starts.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal

from xa import check_node
from xabridge.pipeline.core import AddressTarget, PipelineError, Settings, Shard, Source, TableTarget
from xabridge.pipeline.core.user_functions import function_named
from xabridge.pipeline.core.values import OUTAGE_S, ROWS_PER_BATCH
from xabridge.pipeline.json_schema import ddl_of
from xabridge.pipeline.settings import settings_from

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Body = Literal["binary", "text"]

PARTITIONS: Final = 2
MAX_PARTITIONS: Final = 1000
MAX_SHARDS: Final = 1000
LOCK_TIMEOUT_S: Final = 10.0
BROKERS: Final = ("amqp", "amqps")
"""What is read."""
TARGETS: Final = (*BROKERS, "openwire", "openwire+ssl", "amqp010", "amqp010s")
"""What messages are sent to."""
DATABASES: Final = ("postgresql",)
_RESOURCE: Final = "resource."
_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
_NAME: Final = re.compile(r'[A-Za-z_][\w$]*|"(?:[^"]|"")+"')

SHARED: Final[Mapping[str, str]] = {
    "pipeline": "the pipeline's name, which must not change; no other pipeline of this log may have it",
    "log": "URL of the database that keeps its decisions (default: the configuration's)",
    "config": "the configuration file (default: ./xabridge.toml if it exists)",
    "adopt": "the id of the query whose pipeline this one takes over with a new checkpoint",
    "resource.NAME": "open string of the resource NAME, instead of the configuration's",
    "outage_timeout": f"seconds that a broker or a database may be away before a batch fails (default {OUTAGE_S:g})",
}
SOURCE: Final[Mapping[str, str]] = {
    **SHARED,
    "resource": "the broker: a resource's name (default: the only one there is); several with commas between them",
    "queue": "the queue to read, or a pattern with *; several with commas between them; broker:orders is at one broker",
    "partitions": f"tasks that read in parallel (default {PARTITIONS})",
    "order": "queue: one task reads each queue, so that its messages stay in order (default none)",
    "on_missing": "wait (default) or skip: what is done where one of several brokers is away",
    "maxRowsPerBatch": f"most messages of one micro-batch (default {ROWS_PER_BATCH})",
    "max_octets": "most octets of messages of one micro-batch (default: no limit)",
    "min_messages": "a micro-batch waits until there are so many messages; needs max_delay",
    "max_delay": "seconds that messages wait for min_messages at most",
    "body": "binary (default) or text: what the column body is",
    "body_schema": "the columns of JSON bodies, as DDL or JSON Schema: the column body is a struct of them",
    "bad_records": "module:function, called with each message (column -> value): returns why it is bad, or None",
}
SINK: Final[Mapping[str, str]] = {
    **SHARED,
    "table": "where rows go: shop:public.revenue, or public.revenue if there is one database",
    "columns": "the columns that go into the table (default: all; with an address, all but those of messages)",
    "key": "columns of a unique constraint: rows are upserted",
    "update": "SET clause for rows that exist (default: every other column is replaced)",
    "lockTimeout": f"seconds to wait for a row that another transaction has locked (default {LOCK_TIMEOUT_S:g})",
    "address": "where messages go: broker:alerts, or alerts if there is one broker; with shards several, with commas",
    "shards": "messages go to so many queues, alerts#0 and so on, by shard_key",
    "shard_key": "the column whose value says to which of the shards a message goes",
}
OF_SPARK: Final = frozenset({"checkpointlocation", "path", "queryname", "outputmode"})
"""Options that Spark reads itself and passes on."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of the format `amqp`."""

    settings: Settings
    source: Source
    body: Body
    body_schema: str = ""
    """The columns of JSON bodies as DDL; empty: bodies are `body`."""


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of the format `xa`: a table, an address or both. `columns` is empty for the default."""

    settings: Settings
    table: TableTarget | None
    address: AddressTarget | None
    columns: tuple[str, ...]


def source_options(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SourceOptions:
    """The options of a source; PipelineError for what can't be used."""
    given = _Given("amqp", SOURCE, options)
    settings = given.settings(environment)
    shards = _shards(given, settings)
    body = given.text("body") or "binary"
    body_schema = _body_schema(given)
    if body not in ("binary", "text"):
        raise given.wrong("body", f"{body!r} is neither binary nor text")
    rows = given.number("maxRowsPerBatch", ROWS_PER_BATCH)
    least, delay_s = _minimum(given, rows)
    by_queue = given.one_of("order", ("none", "queue")) == "queue"
    if by_queue and given.text("partitions") is not None:
        raise given.wrong("partitions", "contradicts order, by which each queue is read by one task: omit one of them")
    skips = given.one_of("on_missing", ("wait", "skip")) == "skip"
    if skips and len(shards) == 1:
        raise given.wrong("on_missing", "skip needs several brokers, and there is nothing to read but at one")
    source = Source(
        shards,
        given.number("partitions", PARTITIONS, MAX_PARTITIONS),
        rows,
        body == "text",
        _function(given, "bad_records"),
        octets=given.number("max_octets", 0),
        least=least,
        delay_s=delay_s,
        by_queue=by_queue,
        skips=skips,
    )
    return SourceOptions(settings, source, "text" if body == "text" else "binary", body_schema)


def _shards(given: _Given, settings: Settings) -> tuple[Shard, ...]:
    """The queues of each broker, in the order in which they are named."""
    queues = given.names("queue")
    if not queues:
        raise given.wrong("queue", "missing; name the queue to read")
    if len(set(queues)) < len(queues):
        raise given.wrong("queue", f"{', '.join(queues)}: a queue is named twice")
    named = given.names("resource")
    everywhere = [_chosen(given, settings, "resource", name, BROKERS) for name in named]
    if named and all(":" in queue for queue in queues):
        raise given.wrong("resource", "no queue is read there, because each of them names its broker: omit it")
    found: dict[str, dict[str, None]] = {}
    for queue in queues:
        resource, colon, what = queue.partition(":")
        if colon:
            if not resource:
                raise given.wrong("queue", f"{queue!r} has no broker before the :")
            brokers = [_placed(given, settings, "queue", queue, BROKERS)[0]]
        else:
            brokers, what = everywhere or [_chosen(given, settings, "resource", "", BROKERS)], queue
        for broker in brokers:
            if what in found.setdefault(broker, {}):
                raise given.wrong("queue", f"{what!r} of {broker} is named twice")
            found[broker][what] = None
    return tuple(Shard(broker, tuple(names)) for broker, names in found.items())


def _body_schema(given: _Given) -> str:
    text = given.text("body_schema")
    if text is None:
        return ""
    if given.text("body") is not None:
        raise given.wrong("body", "contradicts body_schema, by which bodies are read as JSON: omit one of them")
    try:
        return ddl_of(text)
    except ValueError as error:
        raise given.wrong("body_schema", str(error)) from error


def _minimum(given: _Given, rows: int) -> tuple[int, float]:
    """How many messages a batch waits for, and how long at most."""
    least, delay_s = given.number("min_messages", 0), given.seconds("max_delay", 0.0)
    if least and not delay_s:
        raise given.wrong("min_messages", "needs the option max_delay, or the last messages would wait without end")
    if delay_s and not least:
        raise given.wrong("max_delay", "needs the option min_messages, which it limits")
    if least > rows:
        raise given.wrong("min_messages", f"{least} is more than a batch may have (maxRowsPerBatch is {rows})")
    return least, delay_s


def _function(given: _Given, option: str) -> str:
    """The name of a function that can be imported here."""
    name = given.text(option) or ""
    try:
        function_named(name)
    except PipelineError as error:
        raise given.wrong(option, str(error)) from error
    return name


def sink_options(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SinkOptions:
    """The options of a sink; PipelineError for what can't be used."""
    given = _Given("xa", SINK, options)
    settings = given.settings(environment)
    table, address = given.text("table"), given.text("address")
    if table is None and address is None:
        raise given.wrong("table", "missing, and so is address; name a table, an address or both")
    if address is None:
        for name in ("shards", "shard_key"):
            if given.text(name) is not None:
                raise given.wrong(name, "needs an address, and there is none: set the option address")
    if table is None:
        for name in ("key", "update", "columns", "lockTimeout"):
            if given.text(name) is not None:
                raise given.wrong(name, "needs a table, and there is none: set the option table")
    key, update = given.names("key"), given.text("update") or ""
    if update and not key:
        raise given.wrong("update", "changes rows that exist; set the option key too, which finds them")
    return SinkOptions(
        settings,
        None if table is None else _table(given, settings, table, key, update),
        None if address is None else _address(given, settings, address),
        given.names("columns"),
    )


def shared_settings(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a pipeline, without a source or a sink; PipelineError for what can't be used."""
    return _Given("xa", SHARED, options).settings(environment)


def _address(given: _Given, settings: Settings, text: str) -> AddressTarget:
    shards, key = given.number("shards", 0, MAX_SHARDS), given.text("shard_key") or ""
    if shards and not key:
        raise given.wrong("shards", "needs the option shard_key, which names the column with the key")
    if key and not shards:
        raise given.wrong("shard_key", "needs the option shards, which says how many there are")
    if not shards:
        return AddressTarget(*_placed(given, settings, "address", text, TARGETS))
    first, *others = (_placed(given, settings, "address", name, TARGETS) for name in given.names("address"))
    if len({first, *others}) <= len(others):
        raise given.wrong("address", f"{text}: an address is named twice")
    if len(others) >= shards:
        raise given.wrong("shards", f"{shards} are fewer than the addresses, and some would get no message")
    return AddressTarget(*first, key, shards, tuple(others))


def _table(given: _Given, settings: Settings, text: str, key: tuple[str, ...], update: str) -> TableTarget:
    resource, table = _placed(given, settings, "table", text, DATABASES)
    parts = _NAME.findall(table)
    if ".".join(parts) != table or not 1 <= len(parts) <= 2:
        raise given.wrong("table", f'{table!r} is not a table name; write revenue, public.revenue or "Sales"."Revenue"')
    return TableTarget(resource, table, key, update, given.seconds("lockTimeout", LOCK_TIMEOUT_S))


def _placed(given: _Given, settings: Settings, option: str, text: str, schemes: Sequence[str]) -> tuple[str, str]:
    """resource:what, or only what."""
    resource, colon, what = text.partition(":")
    if not colon:
        resource, what = "", text
    if not what:
        raise given.wrong(option, f"{text!r} has no name after the resource")
    return _chosen(given, settings, option, resource, schemes), what


def _chosen(given: _Given, settings: Settings, option: str, name: str, schemes: Sequence[str]) -> str:
    """The resource `name`, or the only one with one of `schemes`."""
    fitting = [one for one, url in settings.resources if url.partition("://")[0] in schemes]
    if not name:
        if len(fitting) == 1:
            return fitting[0]
        how_many = f"there are several ({', '.join(fitting)}); name one" if fitting else "there is none"
        raise given.wrong(option, f"no resource is named, and of {' or '.join(schemes)} {how_many}: {_HOW}")
    for one, _ in settings.resources:
        if one.lower() == name.lower():  # Spark gives the names of options in lower case
            if one not in fitting:
                raise given.wrong(option, f"the resource {one!r} has to be {' or '.join(f'{s}://…' for s in schemes)}")
            return one
    known = ", ".join(one for one, _ in settings.resources) or "none"
    raise given.wrong(option, f"there is no resource {name!r} (known: {known}); {_HOW}")


_HOW: Final = 'write name = "url" below [resources] in xabridge.toml, or set the option resource.<name> to the url'


class _Given:
    """The options of one format, with lower-case names."""

    def __init__(self, format_: str, known: Mapping[str, str], options: Mapping[str, str]) -> None:
        self._format = format_
        self._options = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known if name != "resource.NAME"}
        for name in self._options:
            if name in names or name in OF_SPARK or (name.startswith(_RESOURCE) and name != _RESOURCE):
                continue
            close = get_close_matches(name, names, 1)
            meant = f" (did you mean {names[close[0]]}?)" if close else ""
            raise self.wrong(name, f"unknown{meant}; there are {', '.join(known)}")

    def wrong(self, option: str, what: str) -> PipelineError:
        return PipelineError(f"format {self._format}, option {option}: {what}")

    def settings(self, environment: Mapping[str, str]) -> Settings:
        pipeline = self.text("pipeline")
        if pipeline is None:
            raise self.wrong(
                "pipeline", "missing; give this pipeline a name that stays the same, for the source and the sink"
            )
        try:
            check_node(pipeline)
        except ValueError as error:
            raise self.wrong("pipeline", str(error)) from error
        resources = {
            name.removeprefix(_RESOURCE): url for name, url in self._options.items() if name.startswith(_RESOURCE)
        }
        settings = settings_from(pipeline, self.text("log"), resources, self.text("config"), environment)
        return replace(settings, adopt=self.text("adopt") or "", outage_s=self.seconds("outage_timeout", OUTAGE_S))

    def text(self, option: str) -> str | None:
        value = self._options.get(option.lower())
        if value is None:
            return None
        if not value.strip():
            raise self.wrong(option, "is empty; omit it")
        return value.strip()

    def names(self, option: str) -> tuple[str, ...]:
        text = self.text(option)
        if text is None:
            return ()
        names = tuple(name.strip() for name in text.split(","))
        if not all(names):
            raise self.wrong(option, f"{text!r}: a name is missing beside a comma")
        return names

    def number(self, option: str, default: int, most: int | None = None) -> int:
        text = self.text(option)
        if text is None:
            return default
        if not text.isdecimal() or not 1 <= int(text) <= (most or int(text)):
            raise self.wrong(option, f"{text!r} is not a number {f'from 1 to {most}' if most else 'above 0'}")
        return int(text)

    def one_of(self, option: str, words: Sequence[str]) -> str:
        """One of the words; the first one is the default."""
        text = self.text(option) or words[0]
        if text not in words:
            raise self.wrong(option, f"{text!r} is neither {' nor '.join(words)}")
        return text

    def seconds(self, option: str, default: float) -> float:
        text = self.text(option)
        if text is None:
            return default
        if not _SECONDS.fullmatch(text) or float(text) <= 0:
            raise self.wrong(option, f"{text!r} is not a number of seconds above 0")
        return float(text)
