"""The options of the Spark formats `amqp` and `xa`: their names, what they mean, and how their text is read.

Spark hands over every option of a query as text, with names that ignore case. What is unknown is refused, with the
name that was probably meant, and so is what contradicts itself: when the query starts.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, Literal

from xa import check_node
from xabridge.pipeline.core import (
    AddressTarget,
    LakeTarget,
    Messages,
    OnceSettings,
    PipelineError,
    Settings,
    Shard,
    Source,
    TableTarget,
)
from xabridge.pipeline.core.shards import matches
from xabridge.pipeline.core.task.databases import POSTGRES, SCHEMES, scheme_of
from xabridge.pipeline.core.user_functions import function_named
from xabridge.pipeline.core.values import OUTAGE_S, ROWS_PER_BATCH
from xabridge.pipeline.json_schema import ddl_of
from xabridge.pipeline.routing import Routing, places_of
from xabridge.pipeline.settings import settings_from

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

Body = Literal["binary", "text"]

PARTITIONS: Final = 2
MAX_PARTITIONS: Final = 1000
MAX_SHARDS: Final = 1000
LOCK_TIMEOUT_S: Final = 10.0
BROKERS: Final = ("amqp", "amqps")
"""What is read."""
TARGETS: Final = (*BROKERS, "openwire", "openwire+ssl", "amqp010", "amqp010s")
"""What messages are sent to."""
MAX_ADDRESS: Final = 255
"""Characters of a queue's name and of an address, at brokers of AMQP."""
LAKES: Final = ("delta",)
TABLES: Final = (*SCHEMES, *LAKES)
_SECONDS: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
_NAME: Final = re.compile(r'[A-Za-z_][\w$]*|"(?:[^"]|"")+"')
_LISTED: Final = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,]*?))\s*(,|\Z)', re.DOTALL)
"""A name of a list, in quotes or without them, and the comma after it."""
_QUOTED: Final = re.compile(r'"((?:[^"]|"")*)"', re.DOTALL)
_BETWEEN_COMMAS: Final = re.compile(r'(?:[^",]|"(?:[^"]|"")*"?)+')

SHARED: Final[Mapping[str, str]] = {
    "pipeline": "the pipeline's name, which must not change; no other pipeline of this log may have it",
    "log": "URL of the database that keeps its decisions (default: the configuration's)",
    "config": "the configuration file (default: ./xabridge.toml if it exists)",
    "adopt": "the id of the query whose pipeline this one takes over with a new checkpoint; all it reads is amqp",
    "resource.NAME": "open string of the resource NAME, instead of the configuration's",
    "decider": "the database of the log, as a resource's name: rows are written there together with the decision, "
    "without a prepared transaction (default: resources whose mode is decider)",
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
    "bad_column": "a column for bad messages, which has body and reason, instead of leaving them out",
    "bad_address": "the address of the same broker that bad messages are sent to, instead of leaving them out",
    "bad_records": "module:function, called with each message (column -> value): returns why it is bad, or None",
}
SINK: Final[Mapping[str, str]] = {
    **SHARED,
    "table": "where rows go: shop:public.revenue, or public.revenue if there is one database; lake:sales/orders; "
    "with table_column several, with commas between them",
    "table_column": "the column that says which of the tables a row goes into, by its name",
    "table_default": "the table for rows whose table_column is null or names none (default: such a row is an error)",
    "columns": "the columns that go into the table (default: all; with an address, all but those of messages)",
    "key": "columns of a unique constraint: rows are upserted",
    "update": "SET clause for rows that exist (default: every other column is replaced)",
    "columns.TABLE": "columns of one of several tables",
    "key.TABLE": "key of one of several tables",
    "update.TABLE": "update of one of several tables",
    "lockTimeout": f"seconds to wait for a row that another transaction has locked (default {LOCK_TIMEOUT_S:g})",
    "address": "where messages go: broker:alerts, or alerts if there is one broker; with address_column or "
    "shards several, with commas between them",
    "address_column": "the column that says which of the addresses a row's message is sent to, by its name",
    "address_default": "the address for rows whose address_column is null or names none (default: an error)",
    "once": "the column that identifies a row, like message_id: a row that was written before is left out",
    "once_table": "the table that remembers which rows were written: shop:orders_once, made where it is missing",
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
    bad_column: str = ""
    """The column that bad messages have; empty: they are no rows."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows for a table: its columns that they have, of which `arrays` are arrays there. In options these are empty for
    the default."""

    target: TableTarget | LakeTarget
    columns: tuple[str, ...] = ()
    arrays: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of the format `xa`: tables, addresses or both."""

    settings: Settings
    tables: Routing[TableRows]
    addresses: Routing[AddressTarget]
    once: OnceSettings | None = None
    shuffle: tuple[str, ...] = ()
    """With `once`: the columns by which rows are shuffled, so that those of one value are written by one task, in their
    order."""


def source_options(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SourceOptions:
    """The options of a source; PipelineError for what can't be used."""
    given = _GivenOptions("amqp", SOURCE, options)
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
        keep_bad=given.text("bad_column") is not None,
        bad_address=_bad_address(given, settings, shards),
        octets=given.number("max_octets", 0),
        least=least,
        delay_s=delay_s,
        by_queue=by_queue,
        skips=skips,
    )
    return SourceOptions(settings, source, "text" if body == "text" else "binary", body_schema, _bad_column(given))


def _shards(given: _GivenOptions, settings: Settings) -> tuple[Shard, ...]:
    """The queues of each broker, in the order in which they are named."""
    queues = given.names("queue")
    if len(queues) == 1:
        given.name("queue")  # refuses spaces at its ends
    if not queues:
        raise given.wrong("queue", "missing; name the queue to read")
    if len(set(queues)) < len(queues):
        raise given.wrong("queue", f"{', '.join(queues)}: a queue is named twice")
    named = given.names("resource")
    everywhere = [_chosen(given, settings, "resource", name, BROKERS) for name in named]
    if named and all(":" in queue for queue in queues):
        raise given.wrong(
            "resource",
            f"no queue is read there, because what is before the : of {queues[0]!r} is taken for its broker. Omit "
            f"resource, or write the broker before a name that has a colon itself: {named[0]}:{queues[0]}",
        )

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
            _check_length(given, settings, "queue", broker, what)
            if what in found.setdefault(broker, {}):
                raise given.wrong("queue", f"{what!r} of {broker} is named twice")
            found[broker][what] = None
    return tuple(Shard(broker, tuple(names)) for broker, names in found.items())


def _body_schema(given: _GivenOptions) -> str:
    text = given.text("body_schema")
    if text is None:
        return ""
    if given.text("body") is not None:
        raise given.wrong("body", "contradicts body_schema, by which bodies are read as JSON: omit one of them")
    try:
        return ddl_of(text)
    except ValueError as error:
        raise given.wrong("body_schema", str(error)) from error


_COLUMNS: Final = {one.name for one in fields(Messages)} - {"bad"} | {"creation_time"}


def _bad_column(given: _GivenOptions) -> str:
    name = given.text("bad_column") or ""
    if name and (not name.isidentifier() or not name.isascii() or name.lower() in _COLUMNS):
        raise given.wrong("bad_column", f"{name!r} has to be a name of letters, digits and _ that no other column has")
    return name


def _bad_address(given: _GivenOptions, settings: Settings, shards: Sequence[Shard]) -> str:
    address = given.name("bad_address") or ""
    for shard in shards:
        _check_length(given, settings, "bad_address", shard.resource, address)
    if address and given.text("bad_column") is not None:
        raise given.wrong("bad_address", "contradicts bad_column, which keeps bad messages as rows: omit one of them")
    if any(matches(queue, address) for shard in shards for queue in shard.queues):
        raise given.wrong("bad_address", f"{address!r} is a queue that this source reads")
    return address


def _minimum(given: _GivenOptions, rows: int) -> tuple[int, float]:
    """How many messages a batch waits for, and how long at most."""
    least, delay_s = given.number("min_messages", 0), given.seconds("max_delay", 0.0)
    if least and not delay_s:
        raise given.wrong("min_messages", "needs the option max_delay, or the last messages would wait without end")
    if delay_s and not least:
        raise given.wrong("max_delay", "needs the option min_messages, which it limits")
    if least > rows:
        raise given.wrong("min_messages", f"{least} is more than a batch may have (maxRowsPerBatch is {rows})")
    return least, delay_s


def _function(given: _GivenOptions, option: str) -> str:
    """The name of a function that can be imported here."""
    name = given.text(option) or ""
    try:
        function_named(name)
    except PipelineError as error:
        raise given.wrong(option, str(error)) from error
    return name


def sink_options(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> SinkOptions:
    """The options of a sink; PipelineError for what can't be used."""
    given = _GivenOptions("xa", SINK, options)
    settings = given.settings(environment)
    if given.text("table") is None:
        if given.text("address") is None:
            raise given.wrong("table", "missing, and so is address; name a table, an address or both")
        for name in given.present("table_column", "table_default", "key", "update", "columns", "lockTimeout"):
            raise given.wrong(name, "needs a table, and there is none: set the option table")
    if given.text("address") is None:
        for name in given.present("address_column", "address_default", "shards", "shard_key"):
            raise given.wrong(name, "needs an address, and there is none: set the option address")
    tables, addresses, once = _tables(given, settings), _addresses(given, settings), _once(given, settings)
    return SinkOptions(
        settings, tables, addresses, once, () if once is None else _shuffle(given, once, tables, addresses)
    )


def _shuffle(
    given: _GivenOptions, once: OnceSettings, tables: Routing[TableRows], addresses: Routing[AddressTarget]
) -> tuple[str, ...]:
    """The columns that put the rows of one shard key, and those of one key of a table, into one task. Without such keys
    no order is asked for, and it is the column `once`."""
    keys = [one.target.key for one in tables.targets if one.target.key]
    keys += [(one.key,) for one in addresses.targets if one.shards]
    if not keys:
        return (once.column,)
    for key in keys:
        if all(set(key) <= set(other) for other in keys):
            return key
    listed = " and ".join(dict.fromkeys(f"({', '.join(key)})" for key in keys))
    raise given.wrong(
        "once",
        f"rows are shuffled by what orders them, and no key of {listed} is part of all the others, so their order "
        "would be lost: let shard_key and every key have a column in common that is one of these keys alone, or "
        "omit once",
    )


def _once(given: _GivenOptions, settings: Settings) -> OnceSettings | None:
    column, text = given.text("once"), given.text("once_table")
    if column is None and text is None:
        return None
    if column is None:
        raise given.wrong("once_table", "remembers which rows were written; set the option once too, which names them")
    if text is None:
        raise given.wrong("once", "needs the option once_table, which remembers the rows that were written")
    resource, table = _placed(given, settings, "once_table", text, SCHEMES)
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", table):
        raise given.wrong("once_table", f"{table!r} is not a table name; write orders_once or public.orders_once")
    timeout_s = given.seconds("lockTimeout", LOCK_TIMEOUT_S)
    if scheme_of(settings.table_url(resource)) in POSTGRES:
        table = table.lower()  # as it reads names that are not quoted
    return OnceSettings(column, TableTarget(resource, table, lock_timeout_s=timeout_s))


def shared_settings(options: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings of a pipeline, without a source or a sink; PipelineError for what can't be used."""
    return _GivenOptions("xa", SHARED, options).settings(environment)


def _tables(given: _GivenOptions, settings: Settings) -> Routing[TableRows]:
    """The tables, and which rows go into each of them."""
    texts = given.tables()
    named = [_placed(given, settings, "table", text, TABLES) for text in texts]
    for resource, table in named:
        parts = _NAME.findall(table)
        if _is_lake(settings, resource) or (".".join(parts) == table and 1 <= len(parts) <= 2):
            continue
        what = f'{table!r} is not a table name; write revenue, public.revenue or "Sales"."Revenue"'
        several = "" if given.text("table_column") else ". For several tables set table_column too"
        raise given.wrong("table", what + (several if "," in table else ""))

    routing = _routed(given, "table", texts, named)
    given.check_tables({name.lower() for name, _ in routing.places})
    of_each = [tuple(name for name, at in routing.places if at == place) for place in range(len(named))]
    return routing.with_targets(
        [
            _lake_table(given, place, names) if _is_lake(settings, place[0]) else _table(given, place, names)
            for place, names in zip(named, of_each, strict=True)
        ]
    )


def _is_lake(settings: Settings, resource: str) -> bool:
    return scheme_of(settings.table_url(resource)) in LAKES


def _lake_table(given: _GivenOptions, place: tuple[str, str], names: Sequence[str]) -> TableRows:
    for option in (given.of_table("key", names), given.of_table("update", names), "lockTimeout"):
        if given.text(option) is not None:
            raise given.wrong(option, f"{':'.join(place)} is a Delta table, to which rows are appended: omit it")
    return TableRows(LakeTarget(*place), given.names(given.of_table("columns", names)))


def _table(given: _GivenOptions, place: tuple[str, str], names: Sequence[str]) -> TableRows:
    key, update = given.of_table("key", names), given.of_table("update", names)
    keys = given.names(key)
    if given.text(update) is not None and not keys:
        raise given.wrong(update, "changes rows that exist; set the option key too, which finds them")
    timeout_s = given.seconds("lockTimeout", LOCK_TIMEOUT_S)
    target = TableTarget(*place, keys, given.text(update) or "", timeout_s)
    return TableRows(target, given.names(given.of_table("columns", names)))


def _addresses(given: _GivenOptions, settings: Settings) -> Routing[AddressTarget]:
    """The addresses, and which messages are sent to each of them."""
    if list(given.present("shards", "shard_key")):
        return Routing((_sharded(given, settings),))
    name = given.name("address")
    texts = given.names("address") if given.text("address_column") else () if name is None else (name,)
    named = [_placed(given, settings, "address", text, TARGETS) for text in texts]
    for resource, address in named:
        _check_length(given, settings, "address", resource, address)
    return _routed(given, "address", texts, named).with_targets([AddressTarget(*one) for one in named])


def _routed(
    given: _GivenOptions, option: str, texts: Sequence[str], named: Sequence[tuple[str, str]]
) -> Routing[tuple[str, str]]:
    """The targets `named`, and the column that says which of them a row goes to. `texts` are their names as given."""
    column = given.text(f"{option}_column") or ""
    default = given.text(f"{option}_default") if option == "table" else given.name(f"{option}_default")
    if not column:
        if default is not None:
            raise given.wrong(f"{option}_default", f"needs the option {option}_column")
        return Routing(tuple(named))
    if len(set(named)) < len(named):
        raise given.wrong(option, f"{', '.join(texts)}: one is named twice")
    places = {**places_of(named), **{text: place for place, text in enumerate(texts)}}
    if default is not None and default not in places:
        raise given.wrong(f"{option}_default", f"{default!r} is not one of {', '.join(texts)}")
    return Routing(tuple(named), column, tuple(places.items()), None if default is None else places[default])


def _sharded(given: _GivenOptions, settings: Settings) -> AddressTarget:
    shards, key = given.number("shards", 0, MAX_SHARDS), given.text("shard_key") or ""
    if not key:
        raise given.wrong("shards", "needs the option shard_key, which names the column with the key")
    if not shards:
        raise given.wrong("shard_key", "needs the option shards, which says how many there are")

    for name in given.present("address_column", "address_default"):
        raise given.wrong(name, "contradicts shards, by which a message goes to one of the addresses: omit one of them")
    names = given.names("address")
    if len(names) == 1:
        given.name("address")  # refuses spaces at its ends
    first, *others = (_placed(given, settings, "address", name, TARGETS) for name in names)
    if len({first, *others}) <= len(others):
        raise given.wrong("address", f"{', '.join(names)}: an address is named twice")
    if len(others) >= shards:
        raise given.wrong("shards", f"{shards} are fewer than the addresses, and some would get no message")
    target = AddressTarget(*first, key, shards, tuple(others))
    for shard in map(target.shard, range(shards)):
        _check_length(given, settings, "address", shard.resource, shard.address)
    return target


def _check_length(given: _GivenOptions, settings: Settings, option: str, resource: str, address: str) -> None:
    if len(address) > MAX_ADDRESS and not scheme_of(settings.url(resource)).startswith("openwire"):
        shown = f"{address[:20]}…{address[-20:]}"
        raise given.wrong(option, f"{shown} has {len(address)} characters, and a broker takes {MAX_ADDRESS} at most")


def _placed(
    given: _GivenOptions, settings: Settings, option: str, text: str, schemes: Sequence[str]
) -> tuple[str, str]:
    """resource:what, or only what."""
    resource, colon, what = text.partition(":")
    if not colon:
        resource, what = "", text
    if not what:
        raise given.wrong(option, f"{text!r} has no name after the resource")
    return _chosen(given, settings, option, resource, schemes), what


def _chosen(given: _GivenOptions, settings: Settings, option: str, name: str, schemes: Sequence[str]) -> str:
    """The resource `name`, or the only one with one of `schemes`."""
    known = (*settings.resources, *settings.deciders) if schemes is TABLES else settings.resources
    fitting = [one for one, url in known if scheme_of(url) in schemes]
    shown = [scheme for scheme in schemes if "+" not in scheme]
    if not name:
        if len(fitting) == 1:
            return fitting[0]
        how_many = f"there are several ({', '.join(fitting)}); name one" if fitting else "there is none"
        raise given.wrong(option, f"no resource is named, and of {' or '.join(shown)} {how_many}: {_HOW}")
    for one, _ in known:
        if one.lower() == name.lower():  # Spark gives the names of options in lower case
            if one not in fitting:
                raise given.wrong(option, f"the resource {one!r} has to be {' or '.join(f'{s}://…' for s in shown)}")
            return one
    names = ", ".join(one for one, _ in known) or "none"
    raise given.wrong(option, f"there is no resource {name!r} (known: {names}); {_HOW}")


_HOW: Final = 'write name = "url" below [resources] in xabridge.toml, or set the option resource.<name> to the url'


def _listed(text: str) -> Iterator[str]:
    """The names of a list: what stands between commas, or in quotes, where a quote is written twice."""
    end, comma = 0, ","
    while comma:
        found = _LISTED.match(text, end)
        if found is None:
            return
        quoted, plain, comma = found.groups()
        yield plain if quoted is None else quoted.replace('""', '"')
        end = found.end()


class _GivenOptions:
    """The options of one format, with lower-case names."""

    def __init__(self, format_: str, known: Mapping[str, str], options: Mapping[str, str]) -> None:
        self._format = format_
        self._options = {name.lower(): value for name, value in options.items()}
        names = {name.lower(): name for name in known if "." not in name}
        self._prefixes = tuple(f"{name.partition('.')[0]}." for name in known if "." in name)
        for name in self._options:
            if name in names or name in OF_SPARK or (name.startswith(self._prefixes) and not name.endswith(".")):
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
        resources = {name.partition(".")[2]: url for name, url in self._options.items() if name.startswith("resource.")}
        settings = settings_from(pipeline, self.text("log"), resources, self.text("config"), environment)
        for name in self.names("decider"):
            settings = self._deciding(settings, name)
        return replace(settings, adopt=self.text("adopt") or "", outage_s=self.seconds("outage_timeout", OUTAGE_S))

    def _deciding(self, settings: Settings, name: str) -> Settings:
        """The settings in which this resource decides."""
        found = [one for one in (*settings.resources, *settings.deciders) if one[0].lower() == name.lower()]
        if not found:
            raise self.wrong("decider", f"there is no resource {name!r}; {_HOW}")
        others = tuple(one for one in settings.resources if one not in found)
        return replace(settings, resources=others, deciders=tuple({**dict(settings.deciders), **dict(found)}.items()))

    def text(self, option: str) -> str | None:
        value = self._options.get(option.lower())
        if value is None:
            return None
        if not value.strip():
            raise self.wrong(option, "is empty; omit it")
        return value.strip()

    def name(self, option: str) -> str | None:
        """A queue's name or an address, which may stand in quotes."""
        text = self.text(option)
        if text is None:
            return None
        quoted = _QUOTED.fullmatch(text)
        if quoted:
            return quoted[1].replace('""', '"')
        if text != self._options[option.lower()]:
            raise self.wrong(
                option, f"{self._options[option.lower()]!r} has spaces at its ends: omit them, or put quotes around it"
            )
        return text

    def present(self, *options: str) -> Iterator[str]:
        """Those of the options that are given, also for one of several tables."""
        for option in options:
            for name in self._options:
                if name == option.lower() or name.startswith(f"{option.lower()}."):
                    yield name

    def tables(self) -> tuple[str, ...]:
        """The names of tables: several where a column says which one a row goes to."""
        text = self.text("table")
        if text is None:
            return ()
        if self.text("table_column") is None:
            return (text,)
        names = tuple(name.strip() for name in _BETWEEN_COMMAS.findall(text))
        if not all(names) or len(names) != len(_BETWEEN_COMMAS.sub("", text)) + 1:
            raise self.wrong("table", f"{text!r}: a name is missing beside a comma")
        return names

    def of_table(self, option: str, names: Sequence[str]) -> str:
        """The option for the table with these names, which counts before the option for all tables."""
        found = sorted({f"{option}.{name}".lower() for name in names} & self._options.keys())
        if len(found) > 1:
            raise self.wrong(found[0], f"the same table is named by {found[1]}")
        return found[0] if found else option

    def check_tables(self, names: Collection[str]) -> None:
        """PipelineError: an option is for a table that there is not. `names` are those of several, in lower case."""
        for name in self._options:
            prefix, dot, table = name.partition(".")
            if not dot or prefix == "resource" or not name.startswith(self._prefixes):
                continue
            if not names:
                raise self.wrong(name, f"there is one table: write {prefix}, or name several with table_column")
            if table not in names:
                raise self.wrong(name, f"there is no table {table}; there are {', '.join(sorted(names))}")

    def names(self, option: str) -> tuple[str, ...]:
        text = self.text(option)
        if text is None:
            return ()
        names = tuple(_listed(text))
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
