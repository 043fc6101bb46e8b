"""These tests run one query on real Spark whose rows go into tables of PostgreSQL and of MariaDB, and to two addresses,
by columns that name them; and one whose rows go into a PostgreSQL that prepares nothing, with the decision. In a long
run their drivers are killed right after the decision; without Spark the points are in `tests.xabridge.pipeline.core`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import make_url

from tests.postgres import Postgres
from tests.xabridge.pipeline.environment import SparkEnvironment, difference

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.xabridge.pipeline.environment import Driver
    from xabridge.testing.mariadb import MariaDB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
N = 150
KILLS = [pytest.param(0, id="no kill"), pytest.param(1, id="killed", marks=pytest.mark.long)]


@pytest.mark.parametrize("killed", KILLS)
def test_tables_of_two_databases_and_two_addresses(
    env: SparkEnvironment, spark: Driver, mariadb: MariaDB, killed: int
) -> None:
    url = mariadb.create_database("mariadb")
    name = make_url(url).database
    mariadb.admin(f"CREATE TABLE {name}.copies (id bigint PRIMARY KEY, text varchar(20))")
    sink = env.sink(
        table="shop:rows, maria:copies",
        table_column="kind",
        table_default="rows",
        columns="id, text",
        address="out0, broker:out1",
        address_column="to",
        **{"resource.maria": url, "key.copies": "id"},
    )
    env.send(range(N))
    env.schedule(("decided", "kill driver"))
    arguments: dict[str, Any] = {"source": env.source(), "sink": sink, "checkpoint": env.checkpoint}
    env.run("stream", killed=killed, last=spark, query="routed", **arguments)
    assert env.fired() == killed
    env.settle()
    copies = Counter(number for (number,) in mariadb.ask(f"SELECT id FROM {name}.copies"))  # noqa: S608 — our own
    rows = Counter(number for (number,) in env.rows("SELECT id FROM rows"))
    problems = difference("MariaDB", copies, Counter(n for n in range(N) if n % 3 == 1))
    problems += difference("PostgreSQL", rows, Counter(n for n in range(N) if n % 3 != 1))
    for odd in (0, 1):
        sent = Counter(map(int, env.received(f"out{odd}")))
        problems += difference(f"out{odd}", sent, Counter(n for n in range(N) if n % 2 == odd))
    assert not problems + env.left()
    assert mariadb.ask("XA RECOVER") == []


@pytest.fixture
def managed(tmp_path: Path, java_home: Path) -> Iterator[SparkEnvironment]:
    """An environment whose PostgreSQL prepares no transactions."""
    assert java_home.exists()
    server = Postgres({"max_prepared_transactions": "0"})
    server.start()
    env = SparkEnvironment(tmp_path, server)
    yield env
    env.close()
    shutil.rmtree(tmp_path / "faults")
    server.remove()


@pytest.mark.long
@pytest.mark.parametrize("killed", KILLS)
def test_a_database_that_decides(managed: SparkEnvironment, spark: Driver, killed: int) -> None:
    env = managed
    env.send(range(N))
    env.schedule(("decided", "kill driver"))
    sink = env.sink(table="rows", address="out", decider="shop")
    arguments: dict[str, Any] = {"source": env.source(decider="shop"), "sink": sink, "checkpoint": env.checkpoint}
    env.run("stream", killed=killed, last=spark, query="copied", **arguments)
    assert env.fired() == killed
    env.check_copies(Counter(range(N)))
    assert env.rows("SELECT count(*) FROM xabridge_staged") == [(0,)]
