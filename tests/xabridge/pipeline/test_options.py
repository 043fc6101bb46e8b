"""These tests cover the options of the formats `amqp` and `xa`: which of them work, which belong together, and how
others are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cases import each
from xabridge.pipeline import PipelineError
from xabridge.pipeline.core import AddressTarget, LakeTarget, OnceSettings, Shard, Source, TableTarget
from xabridge.pipeline.core.secrets import expanded
from xabridge.pipeline.options import TableRows, sink_options, source_options
from xabridge.pipeline.routing import Routing
from xabridge.pipeline.spark.query_options import QueryOptions
from xabridge.pipeline.spark.registration import register

BASE = {
    "pipeline": "orders",
    "log": "postgresql://x/decisions",
    "resource.broker": "amqp://localhost/",
    "resource.shop": "postgresql://y/shop",
}
MORE = {"resource.b": "amqp://b/"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No xabridge.toml of this machine is read."""
    monkeypatch.chdir(tmp_path)


def refuses(options: Callable[..., Any], given: dict[str, str], message: str) -> None:
    """These options of a source, or of a sink, do not work."""
    with pytest.raises(PipelineError, match=message):
        options({**BASE, **given}, {})


@each(
    ("given", "source"),
    [
        ({"queue": "orders"}, Source((Shard("broker", ("orders",)),), 2, 100_000)),
        (  # Spark gives names in lower case, and values as text
            {"queue": "a, b", "partitions": "4", "maxrowsperbatch": "10", "body": "text", "resource": "Broker"},
            Source((Shard("broker", ("a", "b")),), 4, 10, text=True),
        ),
        (
            {"queue": "q", "max_octets": "1000", "min_messages": "50", "max_delay": "2.5"},
            Source((Shard("broker", ("q",)),), octets=1000, least=50, delay_s=2.5),
        ),
        (
            {**MORE, "resource": "broker, b", "queue": "orders#*"},
            Source((Shard("broker", ("orders#*",)), Shard("b", ("orders#*",)))),
        ),
        (
            {**MORE, "queue": "broker:orders#0,b:orders#1,broker:x:y", "order": "queue", "on_missing": "skip"},
            Source((Shard("broker", ("orders#0", "x:y")), Shard("b", ("orders#1",))), by_queue=True, skips=True),
        ),
        (
            {**MORE, "resource": "b", "queue": "orders,broker:more"},
            Source((Shard("b", ("orders",)), Shard("broker", ("more",)))),
        ),
    ],
)
def test_a_source_reads_queues(given: dict[str, str], source: Source) -> None:
    options = source_options({**BASE, **given})
    assert options.source == source
    assert options.body == given.get("body", "binary")
    assert options.settings.url("shop") == "postgresql://y/shop"


def test_bad_messages_are_rows_or_are_sent() -> None:
    given = {**BASE, "queue": "orders"}
    kept = source_options({**given, "bad_column": "_corrupt"})
    assert (kept.bad_column, kept.source.keep_bad, kept.source.bad_address) == ("_corrupt", True, "")
    assert source_options({**given, "bad_address": "bad"}).source.bad_address == "bad"
    for options, told in (
        ({"bad_column": "subject"}, "a name of letters, digits and _ that no other column has"),
        ({"bad_column": "a b"}, "a name of letters"),
        ({"bad_column": "bad", "bad_address": "bad"}, "contradicts bad_column"),
        ({"bad_address": "orders"}, "is a queue that this source reads"),
    ):
        refuses(source_options, {**given, **options}, told)


def test_a_delta_table_is_named_by_its_folder() -> None:
    lake = {**BASE, "resource.lake": "delta:///srv/lake"}
    assert sink_options({**lake, "table": "lake:sales/orders"}).tables.targets == (
        TableRows(LakeTarget("lake", "sales/orders")),
    )
    told = "option key: lake:orders is a Delta table, to which rows are appended"
    refuses(sink_options, {**lake, "table": "lake:orders", "key": "id"}, told)
    refuses(sink_options, {**lake, "table": "orders"}, r"there are several \(shop, lake\); name one")


def test_a_sink_writes_to_shards() -> None:
    given = {**BASE, **MORE, "address": "broker:orders, b:orders", "shards": "4", "shard_key": "customer"}
    (address,) = sink_options(given).addresses.targets
    assert address == AddressTarget("broker", "orders", "customer", 4, (("b", "orders"),))
    assert [address.shard(shard) for shard in range(4)] == [
        AddressTarget(resource, f"orders#{shard}") for shard, resource in enumerate(("broker", "b") * 2)
    ]
    (alone,) = sink_options({**BASE, "address": "orders", "shards": "2", "shard_key": "k"}).addresses.targets
    assert alone.shard(1) == AddressTarget("broker", "orders#1")


def test_a_sink_takes_a_table_an_address_or_both() -> None:
    both = sink_options({**BASE, "table": "shop:public.revenue", "address": "alerts"})
    assert both.tables == Routing((TableRows(TableTarget("shop", "public.revenue")),))
    assert both.addresses == Routing((AddressTarget("broker", "alerts"),))
    quoted = sink_options({**BASE, "table": '"Sales"."Re,ven.ue"'})
    assert quoted.tables.targets[0].target == TableTarget("shop", '"Sales"."Re,ven.ue"')
    upsert = {"table": "t", "key": "a,b", "update": "n = t.n + excluded.n", "columns": "a,b,n", "locktimeout": "2.5"}
    options = sink_options({**BASE, **upsert})
    target = TableTarget("shop", "t", ("a", "b"), "n = t.n + excluded.n", 2.5)
    assert options.tables == Routing((TableRows(target, ("a", "b", "n")),))


def test_a_sink_takes_several_tables_and_addresses() -> None:
    tables = {"table": 'shop:orders, public.Returns,"a,b"', "table_column": "kind", "table_default": "orders"}
    own = {"key.orders": "id", "update.shop:orders": "n = 1", "columns.public.returns": "x,y", "locktimeout": "3"}
    addresses = {"address": "broker:a,b", "address_column": "to"}
    options = sink_options({**BASE, **tables, **own, **addresses})
    assert options.tables.targets == (
        TableRows(TableTarget("shop", "orders", ("id",), "n = 1", 3.0)),
        TableRows(TableTarget("shop", "public.Returns", lock_timeout_s=3.0), ("x", "y")),
        TableRows(TableTarget("shop", '"a,b"', lock_timeout_s=3.0)),
    )
    assert (options.tables.column, options.tables.default) == ("kind", 0)
    assert dict(options.tables.places)["public.Returns"] == dict(options.tables.places)["shop:public.Returns"] == 1
    assert dict(options.addresses.places) == {"a": 0, "broker:a": 0, "b": 1, "broker:b": 1}
    everywhere = sink_options({**BASE, "table": "t,u", "table_column": "kind", "key": "id", "key.u": "nr"})
    assert [one.target.key for one in everywhere.tables.targets] == [("id",), ("nr",)]


def test_a_name_that_two_databases_have_needs_its_resource() -> None:
    two = {**BASE, "resource.old": "postgresql://z/old", "table": "shop:t, old:t", "table_column": "kind"}
    assert dict(sink_options(two).tables.places) == {"shop:t": 0, "old:t": 1}
    refuses(sink_options, {**two, "key.t": "id"}, r"there is no table t; there are old:t, shop:t")


def test_a_database_that_decides_prepares_nothing(tmp_path: Path) -> None:
    given = sink_options({**BASE, "decider": "Shop", "table": "orders"})
    assert given.settings.deciders == (("shop", "postgresql://y/shop"),)
    assert given.settings.resources == (("broker", "amqp://localhost/"),)
    assert given.tables.targets[0].target.resource == "shop"
    assert given.settings.table_url("shop") == "postgresql://y/shop"

    (tmp_path / "xabridge.toml").write_text("""
        node = "n"
        [resources]
        broker = "amqp://localhost/"
        shop = { url = "postgresql://x/shop", mode = "decider" }
        [pipeline]
        log = "postgresql://x/shop"
    """)
    read = source_options({"pipeline": "p", "queue": "q"})
    written = sink_options({"pipeline": "p", "table": "orders"})
    assert read.settings == written.settings
    assert written.settings.deciders == (("shop", "postgresql://x/shop"),)
    refuses(sink_options, {"decider": "shpo", "table": "orders"}, "option decider: there is no resource 'shpo'")


SEVERAL = {"table": "t, u", "table_column": "kind"}


@each(
    ("options", "message"),
    [
        ({"queue": "q", "maxRowPerBatch": "1"}, r"maxrowperbatch: unknown \(did you mean maxRowsPerBatch\?\)"),
        ({"queue": "q", "table": "t"}, "option table: unknown"),
        ({}, "option queue: missing"),
        ({"queue": "a,,b"}, "a name is missing beside a comma"),
        ({"queue": "a,a"}, "a queue is named twice"),
        ({"queue": " lead"}, "option queue: ' lead' has spaces at its ends: omit them, or put quo"),
        ({"queue": "trail "}, "option queue: 'trail ' has spaces at its ends: omit them, or put quo"),
        ({"queue": "q", "bad_address": " lead"}, r"option bad_address: .* has spaces at its ends"),
        ({"queue": "orders:a"}, "there is no resource 'orders'"),
        ({"queue": "broker:"}, "has no name after the resource"),
        ({"queue": ":a"}, "has no broker before the :"),
        ({"queue": "broker:a,a"}, "'a' of broker is named twice"),
        ({"queue": "broker:a", "resource": "broker"}, "option resource: no queue is read there"),
        ({"queue": "q", "order": "key"}, "'key' is neither none nor queue"),
        ({"queue": "q", "order": "queue", "partitions": "2"}, "option partitions: contradicts order"),
        ({"queue": "q", "on_missing": "skip"}, "skip needs several brokers"),
        ({"queue": "q", "partitions": "0"}, "'0' is not a number from 1 to 1000"),
        ({"queue": "q", "maxRowsPerBatch": "many"}, "'many' is not a number above 0"),
        ({"queue": "q", "max_octets": "0"}, "'0' is not a number above 0"),
        ({"queue": "q", "min_messages": "5"}, "needs the option max_delay"),
        ({"queue": "q", "max_delay": "5"}, "needs the option min_messages"),
        ({"queue": "q", "min_messages": "5", "max_delay": "1", "maxRowsPerBatch": "4"}, "5 is more than a batch may"),
        ({"queue": "q", "body": "text", "body_schema": "a int"}, "option body: contradicts body_schema"),
        ({"queue": "q", "body_schema": '{"type": "string"}'}, "option body_schema: the schema has to be of an object"),
        ({"queue": "q", "body": "json"}, "'json' is neither binary nor text"),
        ({"queue": "q", "resource": "shop"}, r"the resource 'shop' has to be amqp://… or amqps://…"),
        ({"queue": "q", "resource": "brker"}, r"there is no resource 'brker' \(known: broker, shop\)"),
        ({"queue": "q", "resource.other": "amqp://o/"}, r"there are several \(broker, other\); name one"),
        ({"queue": "q", "pipeline": "x" * 33}, "option pipeline: "),
        ({"queue": "q", "pipeline": " "}, "option pipeline: is empty"),
        ({"queue": "q", "log": "file:///var/log"}, "log: file:///var/log is not a database"),
        ({"queue": "q", "log": "postgresql://${NOT_SET}@x/y"}, "log: the environment variable NOT_SET is not set"),
        ({"queue": "q", "config": "nowhere.toml"}, "nowhere.toml: no such file"),
    ],
)
def test_what_a_source_refuses(options: dict[str, str], message: str) -> None:
    refuses(source_options, options, message)


@each(
    ("options", "message"),
    [
        ({}, "option table: missing, and so is address"),
        ({"address": "a", "key": "id"}, "option key: needs a table, and there is none"),
        ({"address": "a", "once": "id", "once_table": "shop:a b"}, "is not a table name"),
        ({"address": "a", "once": "id", "once_table": "broker:seen"}, "has to be postgresql://"),
        ({"address": "a", "once": "id"}, "needs the option once_table"),
        ({"address": "a", "once_table": "shop:seen"}, "set the option once too"),
        ({"address": "trail "}, r"option address: .* has spaces at its ends"),
        ({"table": "t", "update": "n = 1"}, "set the option key too, which finds them"),
        ({"table": "a.b.c"}, "'a.b.c' is not a table name"),
        ({"table": "t; drop table u"}, "is not a table name"),
        ({"table": "broker:t"}, "the resource 'broker' has to be postgresql://…"),
        ({"table": "shop:"}, "has no name after the resource"),
        ({"table": "t", "lockTimeout": "-1"}, "'-1' is not a number of seconds above 0"),
        ({"table": "t", "tabel": "u"}, r"tabel: unknown \(did you mean table\?\)"),
        ({"address": "a", "shards": "4"}, "needs the option shard_key"),
        ({"address": "a", "shard_key": "k"}, "needs the option shards"),
        ({"address": "a,a", "shards": "4", "shard_key": "k"}, "an address is named twice"),
        ({"address": "a,b", "shards": "1", "shard_key": "k"}, "fewer than the addresses"),
        ({"table": "t", "shards": "4"}, "option shards: needs an address"),
        ({"table": "t, u"}, "'t, u' is not a table name; .* For several tables set table_column too"),
        ({**SEVERAL, "table": "t,,u"}, "option table: 't,,u': a name is missing beside a comma"),
        ({**SEVERAL, "table": "t,u,"}, "a name is missing beside a comma"),
        ({**SEVERAL, "table": "t, shop:t"}, "t, shop:t: one is named twice"),
        ({**SEVERAL, "table_default": "v"}, "option table_default: 'v' is not one of t, u"),
        ({"table": "t", "table_default": "t"}, "table_default: needs the option table_column"),
        ({"table": "t", "key.t": "id"}, r"option key\.t: there is one table: write key"),
        ({**SEVERAL, "key.v": "id"}, r"option key\.v: there is no table v; there are shop:t, shop:u, t, u"),
        ({**SEVERAL, "key.": "id"}, r"option key\.: unknown"),
        ({**SEVERAL, "kye.t": "id"}, r"option kye\.t: unknown"),
        ({**SEVERAL, "key.t": "id", "key.shop:t": "nr"}, r"the same table is named by key\.t"),
        ({**SEVERAL, "update.t": "n = 1"}, r"option update\.t: changes rows that exist; set the option key too"),
        ({"address": "a", "key.t": "id"}, r"option key\.t: needs a table, and there is none"),
        ({"address": "a", "table_column": "kind"}, "option table_column: needs a table"),
        ({"table": "t", "address_column": "to"}, "option address_column: needs an address"),
    ],
)
def test_what_a_sink_refuses(options: dict[str, str], message: str) -> None:
    refuses(sink_options, options, message)


def test_without_a_log_it_is_said_where_to_name_one() -> None:
    with pytest.raises(PipelineError, match=r"no database for its decisions is configured\. Set the option log"):
        source_options({"pipeline": "orders", "resource.broker": "amqp://localhost/", "queue": "q"}, {})


def test_the_configuration_names_log_and_resources(tmp_path: Path) -> None:
    (tmp_path / "xabridge.toml").write_text("""
        node = "n"
        log = "file:///var/lib/xabridge"
        [resources]
        Broker = "amqp://localhost/"
        shop = "postgresql://me:${SHOP_PASSWORD}@y/shop"
        old = { url = "postgresql://z/old", mode = "decider" }
        [pipeline]
        log = "postgresql://x:${LOG_PASSWORD}@x/decisions"
    """)
    options = source_options({"pipeline": "p", "queue": "q", "resource": "broker"}, {"LOG_PASSWORD": "secret"})
    assert options.source.resources == ("Broker",)
    assert options.settings.log == "postgresql://x:secret@x/decisions"
    shop = options.settings.url("shop")
    assert shop == "postgresql://me:${SHOP_PASSWORD}@y/shop", "looked up where it is opened"
    assert expanded("shop", shop, {"SHOP_PASSWORD": "hush"}) == "postgresql://me:hush@y/shop"
    assert expanded("shop", shop, {"SHOP_PASSWORD": "h@s:h /%"}) == "postgresql://me:h%40s%3Ah%20%2F%25@y/shop"

    with pytest.raises(PipelineError, match=r"set it on the driver's host and on every executor's"):
        expanded("shop", shop, {})
    with pytest.raises(PipelineError, match="no resource 'old'"):
        options.settings.url("old")


def test_rows_that_are_written_once_have_a_column_and_a_table() -> None:
    given = {**BASE, "address": "alerts", "once": "message_id", "once_table": "shop:public.Alerts_once"}
    assert sink_options(given).once == OnceSettings("message_id", TableTarget("shop", "public.alerts_once"))
    assert sink_options({**BASE, "address": "alerts"}).once is None


ONCE = {**BASE, "once": "message_id", "once_table": "shop:seen"}
SHARDED = {"address": "out", "shards": "4", "shard_key": "customer"}


def test_rows_are_shuffled_by_what_orders_them() -> None:
    table = {"table": "shop:orders"}
    for given, columns in (
        ({"table": "shop:orders", "address": "out"}, ("message_id",)),
        ({**table, **SHARDED}, ("customer",)),
        ({**table, "key": "customer, id"}, ("customer", "id")),
        ({**table, **SHARDED, "key": "id, customer"}, ("customer",)),
        ({**table, **SHARDED, "shard_key": "id", "key": "id"}, ("id",)),
        ({"table": "a, b, c", "table_column": "t", "key.a": "id", "key.b": "line, id"}, ("id",)),
    ):
        assert sink_options({**ONCE, **given}).shuffle == columns

    assert sink_options({**BASE, **table, "key": "id"}).shuffle == ()
    for given, told in (
        ({**table, **SHARDED, "key": "id"}, r"no key of \(id\) and \(customer\) is part of all the others"),
        (
            {"table": "a, b", "table_column": "t", "key.a": "id, day", "key.b": "line, id"},
            r"\(id, day\) and \(line, id\)",
        ),
    ):
        refuses(sink_options, {**ONCE, **given}, told)


def test_names_in_quotes_have_commas_and_spaces() -> None:
    for text, queues in (
        ('" lead"', (" lead",)),
        ('a, "b, c" ,"trail "', ("a", "b, c", "trail ")),
        ('"say ""hi"", you"', ('say "hi", you',)),
        ("q'uote\"d, b", ("q'uote\"d", "b")),
        ('"open, b', ('"open', "b")),
        (" a,\n b ", ("a", "b")),
        ("broker: lead", (" lead",)),
        ('"broker:com,ma"', ("com,ma",)),
    ):
        assert source_options({**BASE, "queue": text}).source.shards == (Shard("broker", queues),)

    for text in ("a,", ",a", '"a", ', '""', '"a",,b'):
        refuses(source_options, {"queue": text}, r"missing beside a comma")
    bad = source_options({**BASE, "queue": "q", "bad_address": '"bad "'})
    assert bad.source.bad_address == "bad "
    for given, addresses in (
        ({"address": "com,ma"}, ["com,ma"]),
        ({"address": '"trail "'}, ["trail "]),
        ({"address": 'a, "b, c"', "address_column": "to", "address_default": '"b, c"'}, ["a", "b, c"]),
    ):
        assert [one.address for one in sink_options({**BASE, **given}).addresses.targets] == addresses


def test_an_address_that_is_too_long_is_refused() -> None:
    longest = "x" * 255
    assert source_options({**BASE, "queue": longest, "bad_address": f"{longest[1:]}y"})
    assert sink_options({**BASE, "address": longest})
    shards = {"shards": "11", "shard_key": "k"}
    assert sink_options({**BASE, "address": "x" * 252, **shards})
    for options, given, named in (
        (source_options, {"queue": f"{longest}x"}, r"queue: x+…x+ has 256 characters, and a broker takes 255 at most"),
        (source_options, {"queue": "q", "bad_address": f"{longest}x"}, r"bad_address: x+…x+ has 256 characters"),
        (sink_options, {"address": f"{longest}x"}, r"address: x+…x+ has 256 characters"),
        (sink_options, {"address": "x" * 253, **shards}, r"address: x+…x+#10 has 256 characters"),
    ):
        refuses(options, given, f"option {named}")
    sent = {**BASE, "resource.jms": "openwire://y/", "address": f"jms:{longest}x"}
    assert sink_options(sent)


# --- which sources and sinks belong together ------------------------------------------------------------------------
SEVERAL_BROKERS = {
    "pipeline": "orders",
    "log": "postgresql://x/decisions",
    "resource.a": "amqp://a/",
    "resource.b": "amqp://b/",
    "resource.shop": "postgresql://y/shop",
}


def parts(*sources: dict[str, str], sink: dict[str, str] | None = None) -> QueryOptions:
    return QueryOptions(
        tuple(source_options({**SEVERAL_BROKERS, "queue": "orders", "resource": "a", **source}) for source in sources),
        None if sink is None else sink_options({**SEVERAL_BROKERS, "table": "t", **sink}),
    )


def test_what_the_parts_of_a_query_know_is_known() -> None:
    found = parts({}, {"resource": "b"}, {"queue": "more, others", "adopt": "q1"}, sink={}).settings()
    assert (found.pipeline, found.log, found.adopt) == ("orders", "postgresql://x/decisions", "q1")
    assert [name for name, _ in found.resources] == ["a", "b", "shop"]
    other = {"resource.other": "postgresql://z/other", "table": "shop:t"}
    found = parts({"resource.more": "amqp://m/"}, sink=other).settings()
    assert [name for name, _ in found.resources] == ["a", "b", "shop", "more", "other"]
    found = parts({"decider": "shop"}, sink={"decider": "shop"}).settings()
    assert ([name for name, _ in found.resources], [name for name, _ in found.deciders]) == (["a", "b"], ["shop"])


@each(
    ("sources", "sink", "message"),
    [
        ([{}], {"pipeline": "other"}, "of a: orders belongs to pipeline 'orders', and the sink to pipeline 'other'"),
        ([{}, {"pipeline": "other", "resource": "b"}], None, "share one decision. Give them the same option pipeline"),
        (
            [{}],
            {"log": "postgresql://x/elsewhere"},
            "the source of a: orders and the sink have different decision logs",
        ),
        ([{}, {"queue": "others, orders"}], {}, "two sources of the query read queue 'orders' of a"),
        ([{}, {"resource": "b, a", "queue": "ord*"}], {}, "read a queue that matches 'ord\\*' and 'orders' of a"),
        ([{"resource": "a, c", "resource.c": "amqp://c/"}], {}, "reads from c, and the sink does not know"),
        ([{}, {"resource.a": "amqp://z/", "resource": "b"}], {}, "another open string for it than another part"),
        ([{"resource": "c", "resource.c": "amqp://c/"}], {}, "reads from c, and the sink does not know that resource"),
        ([{"resource": "c", "resource.c": "amqp://c/"}, {}], None, "and the source of a: orders does not know"),
        (
            [{"adopt": "q1"}, {"adopt": "q2", "resource": "b"}],
            {},
            "a query can adopt the pipeline of one query, not of q1 and q2",
        ),
        ([{}], {"decider": "shop"}, "resource shop decides for one part of the query, and another part would prepare"),
    ],
)
def test_what_does_not_belong_together(sources: Any, sink: dict[str, str] | None, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        parts(*sources, sink=sink).settings()


def test_a_session_whose_driver_is_elsewhere_is_refused() -> None:
    with pytest.raises(PipelineError, match="Spark Connect"):
        register(object())  # type: ignore[arg-type]
