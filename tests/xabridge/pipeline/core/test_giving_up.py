"""A pipeline's name is freed by the statements of the docs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.xabridge.pipeline.core.environment import CoreEnvironment
from tm.log.sql.tables import METADATA as LOG_TABLES
from xabridge.pipeline.core import Offset, PipelineError
from xabridge.pipeline.core.ledger.schema import METADATA


def _given_up(env: CoreEnvironment, name: str) -> None:
    """What docs/pipeline.md tells to run in the database of the log."""
    page = (Path(__file__).parents[4] / "docs" / "pipeline.md").read_text(encoding="utf-8")
    statements = page.partition("### Giving a pipeline up")[2].partition("```text\n")[2].partition("```")[0]
    told = [statement.strip() for statement in statements.replace("NAME", name).split(";")]
    env.change_log(*[statement for statement in told if statement not in {"", "BEGIN", "COMMIT"}])


def _rows_of(env: CoreEnvironment, name: str) -> dict[str, int]:
    """How many rows each table of the log has of a pipeline."""
    tables = [*METADATA.sorted_tables, *LOG_TABLES.sorted_tables]
    columns = [(table.name, column) for table in tables for column in ("pipeline", "node") if column in table.c]
    query = "SELECT count(*) FROM {} WHERE {} = '{}'"
    return {table: env.ask_log(query.format(table, column, name))[0][0] for table, column in dict(columns).items()}


def test_a_name_is_freed_when_nothing_is_unfinished(env: CoreEnvironment) -> None:
    """As the docs say, and nothing of another pipeline is touched."""
    env.put(["1", "2", "3"])
    reader = env.reader(rows=2)
    end, _ = env.batch(reader, Offset(), 0)
    before = _rows_of(env, "orders")
    _given_up(env, "orders")
    assert _rows_of(env, "orders") == before, "the batch is decided, and not finished"
    reader.logged(end)
    _given_up(env, "others")
    _given_up(env, "order")
    assert sum(_rows_of(env, "orders").values()) > 5
    _given_up(env, "orders")
    assert set(_rows_of(env, "orders").values()) == {0}

    with pytest.raises(PipelineError):
        reader.latest(end)
    with pytest.raises(PipelineError, match="belongs to another decision log"):
        env.reader("driver-2").plan(end, Offset(end.epoch + 1))
    fresh = env.reader("driver-3")
    env.batch(fresh, Offset(), 0, driver="driver-3")
    assert sorted(env.table()) == ["1", "2", "3"]
