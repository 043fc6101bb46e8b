"""These tests run backfills beside a live query on real Spark. One runs its backfill again when it is done, and in a
long run kills its driver after the decision, or before and after it: what was written is remembered in PostgreSQL, or
in MariaDB beside the PostgreSQL of the rows; without Spark every point is in `tests.xabridge.pipeline.core.test_once`.
One checks that the order of each key is kept.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

if TYPE_CHECKING:
    from tests.xabridge.pipeline.environment import Driver, SparkEnvironment
    from xabridge.testing.mariadb import MariaDB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("place", ["shop", pytest.param("maria", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "points",
    [(), *(pytest.param(points, marks=pytest.mark.long) for points in (("decided",), ("undecided", "decided")))],
    ids=" and ".join,
)
def test_a_backfill_writes_what_the_live_query_has_not_written(
    spark: Driver, env: SparkEnvironment, mariadb: MariaDB, place: str, points: tuple[str, ...]
) -> None:
    env.send([*range(40, 60), *range(50, 60)])  # some were sent twice
    url = mariadb.create_database("mariadb")
    maria = {"resource.maria": url} if place == "maria" else {}
    sink = env.sink(table="shop:rows", address="out", once="message_id", once_table=f"{place}:seen", **maria)
    live = {"query": "identified", "source": env.source(), "sink": sink, "checkpoint": env.checkpoint}
    assert spark.call("stream", **live)["errors"] == []
    assert env.rows("SELECT count(*) FROM rows") == [(20,)]

    env.schedule(*((point, "kill driver") for point in points))
    path, own = str(env.folder / "archive"), {**sink, "pipeline": "backfill"}
    killed = len(points)
    for _ in range(2):  # the second one finds nothing that is left to write
        (refused,) = env.run("backfilled", killed=killed, last=spark, sink=own, numbers=80, path=path)
        assert "pipeline 'test' belongs to query" in refused
        killed = 0
    assert env.fired() == len(points)

    env.send(range(70, 90))  # the live query goes on
    assert spark.call("stream", **live)["errors"] == []
    env.check_copies(Counter(range(90)))
    if place == "shop":
        assert env.rows("SELECT count(*) FROM seen") == [(90,)]
    else:
        assert mariadb.ask(f"SELECT count(*) FROM {make_url(url).database}.seen") == [(90,)]  # noqa: S608 — our own
        assert mariadb.ask("XA RECOVER") == []


def test_rows_of_a_key_keep_their_order(spark: Driver, env: SparkEnvironment) -> None:
    """The last state of a key is the newest one, and its messages are in order. Rows of other keys with the same value
    of `once` don't keep their tasks waiting for each other."""
    env.send([*range(400), *range(300, 350)])  # some were sent twice
    sink = env.sink(
        table="shop:counts",
        columns="product, n",
        key="product",
        address="out",
        shards="3",
        shard_key="product",
        once="message_id",
        once_table="shop:seen",
    )
    source = env.source(order="queue", maxRowsPerBatch="1000")
    live = {"query": "newest", "source": source, "sink": sink, "checkpoint": env.checkpoint}
    assert spark.call("stream", **live)["errors"] == []
    assert env.rows("SELECT product, n FROM counts ORDER BY product") == [
        (f"p{number % 7}", number) for number in sorted(range(393, 400), key=lambda number: number % 7)
    ]
    spark.call("newest_filled", sink={**sink, "pipeline": "backfill"}, numbers=700)
    assert env.rows("SELECT product, n FROM counts ORDER BY product") == [
        (f"p{number % 7}", number) for number in range(693, 700)
    ]
    assert env.rows("SELECT count(*) FROM seen") == [(700,)]
    shards = [[int(body) for body in env.received(f"out#{shard}")] for shard in range(3)]
    for product in range(7):
        (found,) = filter(None, ([number for number in shard if number % 7 == product] for shard in shards))
        assert found == list(range(product, 700, 7))
    env.settle()
    assert env.left() == []
