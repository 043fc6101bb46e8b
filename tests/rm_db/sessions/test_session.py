"""These tests cover what is peculiar to sessions of PostgreSQL: its cursors, many rows at once, and psycopg itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rm_db.sessions.executemany import GATHERED
from rm_db.sessions.postgres import PostgresBranchConnection
from tests.rm_db.harness import PostgresHarness
from xa import TMFAIL, TMJOIN, TMRESUME, TMSUCCESS, TMSUSPEND, BranchRolledBack, Code, XaMisuse, Xid
from xabridge.testing.contract.client import RMID, Client, case, elsewhere, new_xid, refused


class Base(DeclarativeBase):
    """The mapped classes of these tests."""


class Item(Base):
    """A row."""

    __tablename__ = "item"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(10))


ITEMS = Base.metadata.tables["item"]


@pytest.fixture(autouse=True)
def tables(harness: PostgresHarness) -> Iterator[None]:
    """One table."""
    harness.admin("CREATE TABLE item (id serial PRIMARY KEY, name varchar(10) NOT NULL)")
    yield
    harness.admin("DROP TABLE item")


def begin(client: Client) -> tuple[Xid, PostgresBranchConnection]:
    """A branch at work, and its session."""
    xid = new_xid()
    client.start(xid)
    session: PostgresBranchConnection = client.rm.session(RMID)
    return xid, session


def end(client: Client, xid: Xid) -> None:
    """Without any outcome."""
    client.end(xid)
    client.rollback(xid)


def commit(client: Client, xid: Xid) -> None:
    """Two-phase."""
    client.end(xid)
    assert client.prepare(xid) is Code.XA_OK
    assert client.commit(xid) is Code.XA_OK


def names(client: Client) -> list[str]:
    """What is committed."""
    return [name for (name,) in client.harness.admin("SELECT name FROM item ORDER BY name")]  # type: ignore[attr-defined]


# --- ways to work ---------------------------------------------------------------------------------------------
def test_the_same_session_for_one_association(client: Client) -> None:
    xid, shop = begin(client)
    assert client.rm.session(RMID) is shop
    client.end(xid, TMSUSPEND)
    with pytest.raises(XaMisuse):
        shop.execute(sa.text("SELECT 1"))
    client.start(xid, TMRESUME)
    assert client.rm.session(RMID) is not shop
    end(client, xid)


def test_end_with_failure_does_not_flush(client: Client) -> None:
    xid, shop = begin(client)
    shop.orm.add(Item(name="far too long a name"))
    assert client.end(xid, TMFAIL) is Code.XA_OK
    client.rollback(xid)


def test_a_flush_that_failed_before_says_no(client: Client) -> None:
    """Even where the error never reached the server: SQLAlchemy gave the transaction up."""
    xid, shop = begin(client)
    shop.execute(sa.insert(ITEMS).values(name="first"))
    shop.orm.add(Item(name=object()))
    with pytest.raises(sa.exc.StatementError):
        shop.orm.flush()
    with refused(Code.XA_RBPROTO):
        client.end(xid)
    client.retrying("rollback", xid)
    assert names(client) == []


def test_server_side_cursors_and_streams(client: Client) -> None:
    xid, shop = begin(client)
    numbers = shop.execution_options(stream_results=True).execute(sa.text("SELECT generate_series(1, 5000)"))
    assert sum(numbers.scalars()) == 12_502_500
    with shop.psycopg.cursor("named") as cursor:
        cursor.execute("SELECT generate_series(1, 10)")
        assert len(cursor.fetchall()) == 10
    assert len(list(shop.psycopg.cursor().stream("SELECT generate_series(1, 10)"))) == 10
    with shop.psycopg.pipeline():
        shop.psycopg.execute("INSERT INTO item (name) VALUES ('piped')")
    commit(client, xid)
    assert names(client) == ["piped"]


def test_the_isolation_level_of_one_transaction(client: Client) -> None:
    xid, shop = begin(client)
    shop.execution_options(isolation_level="SERIALIZABLE")
    assert shop.scalar(sa.text("SHOW transaction_isolation")) == "serializable"
    end(client, xid)
    xid, shop = begin(client)
    assert shop.scalar(sa.text("SHOW transaction_isolation")) == "read committed"
    end(client, xid)
    xid, shop = begin(client)
    shop.psycopg.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    shop.psycopg.read_only = True
    assert shop.scalar(sa.text("SHOW transaction_isolation")) == "repeatable read"

    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        shop.psycopg.execute("INSERT INTO item (name) VALUES ('x')")
    with refused(Code.XA_RBOTHER):
        client.end(xid)
    client.retrying("rollback", xid)


# --- savepoints -----------------------------------------------------------------------------------------------
def test_savepoints_of_psycopg_and_by_words(client: Client) -> None:
    xid, shop = begin(client)
    with shop.psycopg.transaction():
        shop.psycopg.execute("INSERT INTO item (name) VALUES ('kept psyco')")
    with shop.psycopg.transaction(force_rollback=True):
        shop.psycopg.execute("INSERT INTO item (name) VALUES ('lost')")
    shop.exec_driver_sql("SAVEPOINT mine")
    shop.execute(sa.insert(ITEMS).values(name="lost text"))
    shop.exec_driver_sql("ROLLBACK TO SAVEPOINT mine")
    commit(client, xid)
    assert names(client) == ["kept psyco"]


# --- many rows at once -----------------------------------------------------------------------------------------
def test_every_row_of_executemany_arrives_in_its_order(client: Client) -> None:
    for count in (1, 0, GATHERED - 1, GATHERED, GATHERED + 1, 3 * GATHERED + 5):
        with case(count):
            xid, shop = begin(client)
            shop.psycopg.execute("DELETE FROM item")
            with shop.psycopg.cursor() as cursor:
                cursor.executemany("INSERT INTO item (name) VALUES (%s)", [(f"{n:04}",) for n in range(count)])
                assert cursor.rowcount == count
                assert cursor.execute("SELECT count(*) FROM item").fetchone() == (count,)
            commit(client, xid)
            assert names(client) == [f"{n:04}" for n in range(count)]


def test_executemany_in_a_pipeline_and_with_results(client: Client) -> None:
    xid, shop = begin(client)
    with shop.psycopg.pipeline(), shop.psycopg.cursor() as cursor:
        shop.psycopg.execute("INSERT INTO item (name) VALUES ('first')")
        cursor.executemany("INSERT INTO item (name) VALUES (%s)", [(f"n{n}",) for n in range(GATHERED + 2)])
        shop.psycopg.execute("INSERT INTO item (name) VALUES ('last')")
    with shop.psycopg.cursor() as cursor:
        rows = [(f"r{n}",) for n in range(2 * GATHERED)]
        cursor.executemany("INSERT INTO item (name) VALUES (%s) RETURNING name", rows, returning=True)
        told = [cursor.fetchone()]
        while cursor.nextset():
            told.append(cursor.fetchone())
    assert told == rows
    commit(client, xid)
    assert len(names(client)) == GATHERED + 4 + 2 * GATHERED


ROWS = (0, 3, GATHERED, 2 * GATHERED + 1)


def test_a_row_that_fails_in_executemany(client: Client) -> None:
    """Where it can't be sent, those before it have arrived, as they do with psycopg by itself; a savepoint takes them
    back. Where the server refuses it, the branch says no."""
    insert = "INSERT INTO item (name) VALUES (%s)"
    for at in ROWS:
        with case(at):
            xid, shop = begin(client)
            with shop.psycopg.cursor() as cursor:
                with pytest.raises(psycopg.ProgrammingError), shop.psycopg.transaction():
                    cursor.executemany(insert, [(object() if n == at else "x",) for n in range(3 * GATHERED)])
                cursor.executemany(insert, [("a",), ("b",)])
                assert cursor.execute("SELECT count(*) FROM item").fetchone() == (2,)
                with pytest.raises(psycopg.errors.StringDataRightTruncation):
                    cursor.executemany(insert, [("far too long" if n == at else "x",) for n in range(3 * GATHERED)])
            with pytest.raises(BranchRolledBack):
                client.rm.end(xid, RMID, TMSUCCESS)
            client.rollback(xid)
            assert names(client) == []


# --- what is the manager's ------------------------------------------------------------------------------------
def test_the_engine_of_a_session_connects_nobody_else(client: Client) -> None:
    """Nothing is lost by that: the branch goes on."""
    xid, shop = begin(client)
    with refused(Code.XAER_PROTO):
        shop.engine.connect()
    shop.execute(sa.insert(ITEMS).values(name="kept"))
    commit(client, xid)
    assert names(client) == ["kept"]


RAW: list[Callable[[PostgresBranchConnection], object]] = [
    lambda shop: psycopg.ClientCursor(shop.psycopg).execute("COMMIT"),
    lambda shop: shop.psycopg.pgconn.exec_(b"commit"),
    lambda shop: shop.psycopg.pgconn.exec_params(b"rollback", None),
    lambda shop: shop.connection.dbapi_connection.pgconn.exec_(b"commit"),  # type: ignore[union-attr]  # it is there
]


def test_a_raw_end_that_no_guard_sees_is_not_voted_for(client: Client) -> None:
    """psycopg's client-side cursors and libpq itself are not ours: the transaction's end is noticed afterwards."""
    for way, end in enumerate(RAW):
        with case(way):
            xid, shop = begin(client)
            shop.psycopg.execute("SELECT 1")
            end(shop)
            with refused(Code.XA_RBPROTO) as raised:
                client.end(xid)
            assert "may be committed already" in raised.value.message
            client.retrying("rollback", xid)

            xid, shop = begin(client)
            shop.psycopg.execute("SELECT 1")
            end(shop)
            with pytest.raises(XaMisuse, match="ended the transaction"):
                shop.psycopg.execute("SELECT 1")
            with refused(Code.XA_RBPROTO):
                client.end(xid)
            client.retrying("rollback", xid)


# --- after the association ------------------------------------------------------------------------------------
def test_a_joined_session_is_another(client: Client) -> None:
    xid, mine = begin(client)
    mine.execute(sa.insert(ITEMS).values(name="mine"))
    client.end(xid)
    with elsewhere():
        client.start(xid, TMJOIN)
        theirs: PostgresBranchConnection = client.rm.session(RMID)
        with pytest.raises(XaMisuse):
            mine.execute(sa.text("SELECT 1"))
        assert theirs.scalar(sa.text("SELECT count(*) FROM item")) == 1
        end(client, xid)


def test_rows_that_were_read_outlive_the_session(client: Client) -> None:
    xid, shop = begin(client)
    result = shop.execute(sa.text("SELECT generate_series(1, 3) AS n"))
    end(client, xid)
    assert [row.n for row in result] == [1, 2, 3]


# --- nothing leaks into the next transaction --------------------------------------------------------------------
def pid(shop: PostgresBranchConnection) -> int:
    """The server process that works for a session."""
    return shop.psycopg.pgconn.backend_pid


def test_settings_on_python_objects_do_not_leak(client: Client) -> None:
    xid, shop = begin(client)
    shop.psycopg.row_factory = dict_row
    shop.psycopg.prepare_threshold = 77
    shop.execution_options(schema_translate_map={None: "elsewhere"})
    shop.psycopg.adapters.register_loader("int4", psycopg.types.string.TextLoader)
    assert shop.psycopg.execute("SELECT 1 AS n").fetchone() == {"n": "1"}
    end(client, xid)
    xid, shop = begin(client)
    assert shop.psycopg.execute("SELECT 1 AS n").fetchone() == (1,)
    assert shop.scalar(sa.select(sa.func.count()).select_from(ITEMS)) == 0
    end(client, xid)


def test_statements_stay_prepared_in_the_server(client: Client) -> None:
    """What the session has learnt is worth keeping: a statement that is repeated is not parsed again."""
    for _ in range(8):
        xid, shop = begin(client)
        shop.psycopg.execute("INSERT INTO item (name) VALUES (%s)", ["again"])
        prepared = shop.psycopg.execute("SELECT count(*) FROM pg_prepared_statements", prepare=False).fetchone()
        commit(client, xid)
    assert prepared == (1,)
    assert len(names(client)) == 8


def test_a_thread_gets_its_own_connection_back(client: Client) -> None:
    """Each of several threads works on the same connection all the time, as long as there are enough."""
    barrier = threading.Barrier(4)
    seen: list[set[int]] = []

    def work() -> None:
        pids = set()
        for _ in range(5):
            barrier.wait(60)
            xid, shop = begin(client)
            shop.psycopg.execute("INSERT INTO item (name) VALUES ('x')")
            pids.add(pid(shop))
            barrier.wait(60)
            commit(client, xid)
        seen.append(pids)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(pids) for pids in seen] == [1] * 4
    assert len(set.union(*seen)) == 4
