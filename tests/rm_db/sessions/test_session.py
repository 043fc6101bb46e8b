"""These tests cover what the application gets from a PostgreSQL branch: SQLAlchemy, its ORM, psycopg."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rm_db.sessions.executemany import GATHERED
from xa import TMFAIL, TMJOIN, TMONEPHASE, TMRESUME, TMSUCCESS, TMSUSPEND, BranchRolledBack, Code, XaMisuse, Xid
from xabridge.testing.contract.client import RMID, Client, case, elsewhere, new_xid, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rm_db.sessions.postgres import PostgresBranchConnection
    from tests.rm_db.harness import PostgresHarness


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
def test_all_ways_lead_to_one_transaction(client: Client) -> None:
    xid, shop = begin(client)
    assert isinstance(shop, sa.Connection)
    assert shop.in_transaction()
    assert not shop.closed
    assert sa.inspect(shop).has_table("item")
    made = shop.execute(sa.insert(ITEMS).values(name="a core").returning(ITEMS.c.id)).scalar_one()
    assert shop.execute(sa.select(ITEMS.c.name).where(ITEMS.c.id == made)).scalar_one() == "a core"
    shop.psycopg.execute("INSERT INTO item (name) VALUES (%s)", ["b psycopg"])
    shop.orm.add(Item(name="c orm"))
    shop.orm.flush()
    every = ["a core", "b psycopg", "c orm"]
    assert shop.psycopg.execute("SELECT count(*) FROM item").fetchone() == (3,)
    assert [item.name for item in shop.orm.scalars(sa.select(Item).order_by(Item.name))] == every
    assert shop.psycopg is shop.psycopg
    assert shop.orm is shop.orm
    assert names(client) == []
    commit(client, xid)
    assert names(client) == every


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
def test_savepoints(client: Client) -> None:
    xid, shop = begin(client)
    with shop.begin_nested():
        shop.execute(sa.insert(ITEMS).values(name="kept core"))
    with shop.begin_nested() as savepoint:
        shop.execute(sa.insert(ITEMS).values(name="lost core"))
        savepoint.rollback()
    with shop.orm.begin_nested():
        shop.orm.add(Item(name="kept orm"))
    with pytest.raises(sa.exc.DataError), shop.orm.begin_nested():
        shop.orm.add(Item(name="far too long a name"))
    with shop.psycopg.transaction():
        shop.psycopg.execute("INSERT INTO item (name) VALUES ('kept psyco')")
    with shop.psycopg.transaction(force_rollback=True):
        shop.psycopg.execute("INSERT INTO item (name) VALUES ('lost')")
    shop.exec_driver_sql("SAVEPOINT mine")
    shop.execute(sa.insert(ITEMS).values(name="lost text"))
    shop.exec_driver_sql("ROLLBACK TO SAVEPOINT mine")
    commit(client, xid)
    assert names(client) == ["kept core", "kept orm", "kept psyco"]


# --- what is the manager's ------------------------------------------------------------------------------------
FORBIDDEN: dict[str, Callable[[Any], object]] = {
    "core commit": lambda shop: shop.commit(),
    "core rollback": lambda shop: shop.rollback(),
    "core close": lambda shop: shop.close(),
    "core begin": lambda shop: shop.begin(),
    "core begin_twophase": lambda shop: shop.begin_twophase(),
    "core detach": lambda shop: shop.detach(),
    "core autocommit": lambda shop: shop.execution_options(isolation_level="AUTOCOMMIT"),
    "core commit of the root transaction": lambda shop: shop.get_transaction().commit(),
    "core text": lambda shop: shop.execute(sa.text("COMMIT")),
    "core driver text": lambda shop: shop.exec_driver_sql("rollback"),
    "core raw commit": lambda shop: shop.connection.commit(),
    "core raw driver commit": lambda shop: shop.connection.dbapi_connection.commit(),
    "orm commit": lambda shop: shop.orm.commit(),
    "orm rollback": lambda shop: shop.orm.rollback(),
    "orm close": lambda shop: shop.orm.close(),
    "orm begin": lambda shop: shop.orm.begin(),
    "psycopg commit": lambda shop: shop.psycopg.commit(),
    "psycopg rollback": lambda shop: shop.psycopg.rollback(),
    "psycopg close": lambda shop: shop.psycopg.close(),
    "psycopg autocommit": lambda shop: setattr(shop.psycopg, "autocommit", True),
    "psycopg set_autocommit": lambda shop: shop.psycopg.set_autocommit(True),
    "psycopg with": lambda shop: shop.psycopg.__enter__(),
    "psycopg text": lambda shop: shop.psycopg.execute("COMMIT"),
    "psycopg bytes": lambda shop: shop.psycopg.execute(b"COMMIT"),
    "psycopg composed": lambda shop: shop.psycopg.execute(
        psycopg.sql.SQL("SELECT 1; {}").format(psycopg.sql.SQL("END"))
    ),
    "psycopg several": lambda shop: shop.psycopg.execute("SELECT 1; COMMIT; SELECT 2"),
    "psycopg prepare": lambda shop: shop.psycopg.execute("PREPARE TRANSACTION 'mine'"),
    "psycopg executemany": lambda shop: shop.psycopg.cursor().executemany("COMMIT", [()]),
    "psycopg tpc": lambda shop: shop.psycopg.tpc_begin("mine"),
    "psycopg tpc prepare": lambda shop: shop.psycopg.tpc_prepare(),
    "psycopg tpc commit": lambda shop: shop.psycopg.tpc_commit(),
    "psycopg tpc rollback": lambda shop: shop.psycopg.tpc_rollback(),
}


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


def test_a_row_that_the_server_refuses_in_executemany(client: Client) -> None:
    for at in ROWS:
        with case(at):
            xid, shop = begin(client)
            rows = [("much too long" if n == at else "x",) for n in range(3 * GATHERED)]
            with shop.psycopg.cursor() as cursor, pytest.raises(psycopg.errors.StringDataRightTruncation):
                cursor.executemany("INSERT INTO item (name) VALUES (%s)", rows)
            with pytest.raises(BranchRolledBack):
                client.rm.end(xid, RMID, TMSUCCESS)
            client.rollback(xid)
            assert names(client) == []


def test_a_row_that_can_t_be_sent_in_executemany(client: Client) -> None:
    """Those before it have arrived, as they do with psycopg by itself; the savepoint takes them back."""
    xid, shop = begin(client)
    with shop.psycopg.cursor() as cursor:
        for at in ROWS:
            rows = [(object() if n == at else "x",) for n in range(3 * GATHERED)]
            with case(at), pytest.raises(psycopg.ProgrammingError), shop.psycopg.transaction():
                cursor.executemany("INSERT INTO item (name) VALUES (%s)", rows)
            cursor.executemany("INSERT INTO item (name) VALUES (%s)", [(f"{at} a",), (f"{at} b",)])
    commit(client, xid)
    assert names(client) == sorted(f"{at} {name}" for at in ROWS for name in "ab")


def test_the_end_of_the_transaction_is_the_managers(client: Client) -> None:
    """Refused with its name; and the branch says no, because the error may be hidden."""
    for way, attempt in FORBIDDEN.items():
        with case(way):
            xid, shop = begin(client)
            shop.psycopg.execute("INSERT INTO item (name) VALUES ('before')")
            with pytest.raises(XaMisuse) as raised:
                attempt(shop)
            assert raised.value.code is Code.XAER_PROTO
            assert "transaction manager" in raised.value.message
            assert names(client) == []
            shop.execute(sa.insert(ITEMS).values(name="after"))
            with refused(Code.XA_RBPROTO) as told:
                client.end(xid)
            assert "was refused, which is the transaction manager's" in told.value.message
            client.rollback(xid)
            assert names(client) == []


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
def test_a_session_that_is_over_is_refused(client: Client) -> None:
    """... even while the same connection already serves somebody else."""
    xid, old = begin(client)
    views = old.psycopg, old.orm, old.psycopg.cursor()
    old.execute(sa.insert(ITEMS).values(name="old"))
    client.end(xid)
    other, new = begin(client)
    uses: list[Callable[[], object]] = [
        lambda: old.execute(sa.insert(ITEMS).values(name="stray")),
        old.begin_nested,
        old.commit,
        lambda: views[0].execute("INSERT INTO item (name) VALUES ('stray')"),
        views[0].commit,
        lambda: views[1].execute(sa.insert(ITEMS).values(name="stray")),
        lambda: views[2].execute("INSERT INTO item (name) VALUES ('stray')"),
    ]
    for use in uses:
        with pytest.raises(XaMisuse, match="over"):
            use()
    assert old.closed
    assert views[0].closed
    new.execute(sa.insert(ITEMS).values(name="new"))
    commit_other = client.end(other)
    assert commit_other is Code.XA_OK
    client.prepare(xid)
    client.commit(xid)
    client.commit(other, TMONEPHASE)
    assert names(client) == ["new", "old"]


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


ENDINGS: dict[str, Callable[[Client, Xid], object]] = {
    "prepared": lambda client, xid: (client.end(xid), client.prepare(xid), client.rollback(xid)),
    "one phase": lambda client, xid: (client.end(xid), client.commit(xid, TMONEPHASE)),
    "rolled back": lambda client, xid: (client.end(xid), client.rollback(xid)),
    "failed": lambda client, xid: (client.end(xid, TMFAIL), client.rollback(xid)),
}
STATE: dict[str, tuple[str, str, Any]] = {
    "settings": ("SET work_mem = '7MB'", "SHOW work_mem", "4MB"),
    "search path": ("SET search_path = pg_catalog", "SHOW search_path", '"$user", public'),
    "statement timeout": ("SET statement_timeout = '1h'", "SHOW statement_timeout", "0"),
    "role": ("SET ROLE pg_monitor", "SELECT current_user", "postgres"),
    "session user": ("SET SESSION AUTHORIZATION pg_monitor", "SELECT session_user", "postgres"),
    "isolation": (
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SHOW transaction_isolation",
        "read committed",
    ),
    "advisory locks": (
        "SELECT pg_advisory_lock(4711)",
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711",
        0,
    ),
    "prepared statements of SQL": ("PREPARE mine AS SELECT 1", "SELECT count(*) FROM pg_prepared_statements", 0),
}


ONE_PHASE_ONLY: dict[str, tuple[str, str, Any]] = {
    "temporary tables": ("CREATE TEMPORARY TABLE scratch (a int)", "SELECT to_regclass('scratch') IS NULL", True),
    "held cursors": ("DECLARE held CURSOR WITH HOLD FOR SELECT 1", "SELECT count(*) FROM pg_cursors", 0),
    "channels": ("LISTEN somebody", "SELECT count(*) FROM pg_listening_channels()", 0),
}
"""What can't be prepared."""


def test_session_state_does_not_leak(client: Client) -> None:
    for (ended, ending), (what, (leave, look, clean)) in itertools.chain(
        itertools.product(ENDINGS.items(), STATE.items()),
        itertools.product([("one phase", ENDINGS["one phase"])], ONE_PHASE_ONLY.items()),
    ):
        with case(ended, what):
            xid, shop = begin(client)
            before = pid(shop)
            shop.psycopg.execute("INSERT INTO item (name) VALUES ('x')")
            shop.psycopg.execute(leave.encode())
            ending(client, xid)
            xid, shop = begin(client)
            assert pid(shop) == before or what not in ONE_PHASE_ONLY
            assert shop.psycopg.execute(look.encode(), prepare=False).fetchone() == (clean,)
            end(client, xid)


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
