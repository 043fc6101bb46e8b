"""These tests compile what a deciding database is asked for Oracle and SQL Server, which are not here, so that nothing
of it is run: their dialects have a form for each statement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from rm_db.decider import transaction
from rm_db.decider.decision_table import DecisionTable, _insert_if_missing
from rm_db.statements import ENDS, classify
from tests.sql_recording import Recording
from tm import ResourceConfig, RolledBack, TransactionManager
from xa import Owner

GTRID = b"\x01\x02"


@pytest.fixture(params=["oracle", "mssql"])
def engine(request: pytest.FixtureRequest) -> Recording:
    return Recording(request.param)


def only(engine: Recording, oracle: str, mssql: str) -> str:
    """What this dialect says."""
    return oracle if engine.dialect.name == "oracle" else mssql


def test_the_tables(engine: Recording) -> None:
    made: Any = engine
    tables = DecisionTable(made)._metadata.sorted_tables
    ddl = {table.name: str(CreateTable(table).compile(dialect=engine.dialect)) for table in tables}
    assert ddl.keys() == {"xabridge_decider", "xabridge_decision", "xabridge_owner"}
    assert re.search(only(engine, r"gtrid VARCHAR2\(128 CHAR\)", r"gtrid VARCHAR\(128\)"), ddl["xabridge_decision"])
    assert re.search(only(engine, r"record BLOB", r"record VARBINARY\(max\)"), ddl["xabridge_decision"])
    assert re.search(only(engine, r"until DOUBLE PRECISION", r"until DOUBLE PRECISION"), ddl["xabridge_owner"])


def test_a_decision_a_tombstone_and_a_page(engine: Recording) -> None:
    made: Any = engine
    table = DecisionTable(made)
    text = str(table.insertion(GTRID, b"record").compile(dialect=engine.dialect))
    assert text.startswith("INSERT INTO xabridge_decision (gtrid, state, record) VALUES")
    assert table.insert_into() == "INSERT INTO xabridge_decision (gtrid, state, record)"
    assert "ON CONFLICT" not in str(
        _insert_if_missing(engine.dialect.name, table.decisions).compile(dialect=engine.dialect)
    )

    engine.answers = [[], [1]]
    assert table.settle(GTRID) is None
    engine.answers = []
    table.page(b"\x01", 10)
    *_, page = engine.statements
    assert only(engine, "ROWS ONLY", "TOP") in page
    table.end([GTRID])
    table.flush()
    assert engine.statements[-1].startswith("DELETE FROM xabridge_decision WHERE xabridge_decision.gtrid IN")
    if engine.dialect.name == "mssql":
        assert "SET LOCK_TIMEOUT 5000" in engine.statements


def test_leases_by_the_databases_clock(engine: Recording) -> None:
    made: Any = engine
    table = DecisionTable(made)
    engine.answers = [[1_700_000_000.5]]
    table.hold(Owner("node-1", b"\x01" * 8, "host:1"), 30.0)
    clock, update, *_ = (text for text in engine.statements if not text.startswith("SET "))
    assert clock == only(
        engine,
        "SELECT ((CAST(SYS_EXTRACT_UTC(SYSTIMESTAMP) AS DATE) - DATE '1970-01-01') * 86400) FROM DUAL",
        "SELECT (DATEDIFF_BIG(MICROSECOND, '19700101', SYSUTCDATETIME()) / 1000000.0)",
    )
    assert update.startswith("UPDATE xabridge_owner SET until=")


def test_savepoints_of_sql_server_are_the_applications() -> None:
    assert not classify("ROLLBACK TRANSACTION sa_savepoint_1") & ENDS
    assert classify("ROLLBACK TRANSACTION") & ENDS
    assert classify("ROLLBACK TRANSACTION mine") & ENDS
    assert classify("ROLLBACK TRANSACTION\nINSERT INTO t VALUES (1)") & ENDS


def test_where_no_savepoint_tells_the_end_a_failed_statement_rolls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite stands for a database that may have ended the transaction at an error."""
    monkeypatch.setattr(transaction, "_WITH_SAVEPOINTS", frozenset())
    url = f"sqlite:///{tmp_path}/shop.db"
    with TransactionManager("node-1", resources={"shop": ResourceConfig(url, "decider")}, background=False) as tm:
        with tm.begin() as tx:
            tx["shop"].execute(sa.text("CREATE TABLE t (n integer PRIMARY KEY)"))
        with pytest.raises(RolledBack, match="does not tell whether it has ended the transaction"), tm.begin() as tx:
            tx["shop"].execute(sa.text("INSERT INTO t VALUES (1)"))
            with pytest.raises(sa.exc.IntegrityError):
                tx["shop"].execute(sa.text("INSERT INTO t VALUES (1)"))
            tx["shop"].execute(sa.text("INSERT INTO t VALUES (2)"))
        with tm.begin() as tx:
            assert tx["shop"].execute(sa.text("SELECT count(*) FROM t")).scalar() == 0
