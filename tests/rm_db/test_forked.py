"""A forked process leaves the sessions of its parent alone: those at work, those that a prepared branch of MariaDB is
bound to, and those in the middle of a reply.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import create_engine, text

from rm_db.sessions.statement_lock import StatementLock
from tests.rm_db.harness import MariaHarness, PostgresHarness
from xa import XaMisuse
from xabridge.testing.contract.client import new_xid

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres import Postgres

NUMBERS: Final = {
    "postgres": "SELECT n, repeat('x', 1000) FROM generate_series(1, 20000) n",
    "mariadb": "SELECT seq, repeat('x', 1000) FROM seq_1_to_20000",
}
FORKS: Final = """
import gc, os, sys
from rm_db import MariaResource, PostgresResource
from xa import TMSUCCESS, Code, XaMisuse, Xid

def begin(rm, name):
    xid = Xid(7, name, b"b")
    rm.start(xid, 1)
    rm.session(1).exec_driver_sql("INSERT INTO work VALUES ('%s')" % name.decode())
    return xid

def finish(rm, xid):
    rm.end(xid, 1, TMSUCCESS)
    assert rm.prepare(xid, 1) is Code.XA_OK
    assert rm.commit(xid, 1) is Code.XA_OK

kind, url, numbers = sys.argv[1:]
rm = {"mariadb": MariaResource, "postgres": PostgresResource}[kind]()
rm.open(url, 1)
finish(rm, begin(rm, b"parent before"))
prepared = begin(rm, b"prepared across")
rm.end(prepared, 1, TMSUCCESS)
assert rm.prepare(prepared, 1) is Code.XA_OK
across = begin(rm, b"parent across")
rows = rm.session(1).execution_options(stream_results=True).exec_driver_sql(numbers)
assert rows.fetchone()[0] == 1
child = os.fork()
if child == 0:
    try:
        begin(rm, b"refused")
    except XaMisuse as error:
        assert "not open in this process" in error.message
        rows = None
        rm.open(url, 1)
        gc.collect()
        finish(rm, begin(rm, b"child"))
        rm.close("", 1)
        del rm
        gc.collect()
        sys.exit(0)  # as a program does that ends
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert len(rows.fetchall()) == 19999
finish(rm, across)
assert rm.commit(prepared, 1) is Code.XA_OK
finish(rm, begin(rm, b"parent after"))
rm.close("", 1)
"""


@pytest.mark.parametrize("kind", NUMBERS)
def test_the_parent_goes_on(request: pytest.FixtureRequest, kind: str) -> None:
    server: Any = request.getfixturevalue(kind)
    if kind == "postgres":
        harness: PostgresHarness | MariaHarness = PostgresHarness(server, server.create_database())
    else:
        harness = MariaHarness(server, server.create_database("mariadb"))

    done = subprocess.run(
        [sys.executable, "-c", FORKS, kind, harness.open_string, NUMBERS[kind]],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert set(harness.committed()) == {"parent before", "prepared across", "parent across", "child", "parent after"}
    assert harness.leaks() == []
    harness.close()


INHERITED: Final = """
import json, os, sys
from sqlalchemy import text
from tm import ResourceConfig, TransactionManager

kind, url, folder = sys.argv[1:]
log, shop = (None, ResourceConfig(url, "decider")) if kind == "sqlite" else (f"file://{folder}/log", url)
tm = TransactionManager("api-1", log, {"shop": shop})
tx = tm.begin()
shop = tx["shop"]
for number in range(3):
    shop.execute(text(f"INSERT INTO work VALUES ('{number}')"))
raw = shop.connection.dbapi_connection
cursor = raw.cursor()
cursor.execute("SELECT * FROM work")
nested = shop.begin_nested()
rows = shop.execute(text("SELECT * FROM work").execution_options(stream_results=True))
one = text("SELECT 1")

uses = {
    "execute": lambda: shop.execute(one), "scalar": lambda: shop.scalar(one), "scalars": lambda: shop.scalars(one),
    "text": lambda: shop.exec_driver_sql("SELECT 1"), "commit": shop.commit, "rollback": shop.rollback,
    "close": shop.close, "begin": shop.begin, "nested": shop.begin_nested,
    "autocommit": lambda: shop.execution_options(isolation_level="AUTOCOMMIT"),
    "orm": lambda: shop.orm.execute(one), "orm commit": shop.orm.commit, "orm rollback": shop.orm.rollback,
    "driver": lambda: raw.cursor().execute("SELECT 1"), "driver commit": raw.commit,
    "cursor": lambda: cursor.execute("SELECT 1"), "enlist": lambda: tx.enlist("shop"), "tx commit": tx.commit,
    "tx rollback": tx.rollback, "resume": lambda: tm.resume(tx), "suspend": tm.suspend, "begin tx": tm.begin,
}
if kind == "postgres":
    psycopg_connection = shop.psycopg
    uses |= {"psycopg cancel": psycopg_connection.cancel, "psycopg cancel_safe": psycopg_connection.cancel_safe}
if kind == "sqlite":
    uses |= {"driver attribute": lambda: raw.total_changes}
    uses |= {"one": lambda: cursor.fetchone(), "next": lambda: next(iter(cursor)), "many": lambda: cursor.fetchmany(2)}
else:
    uses |= {"stream": lambda: rows.fetchall()}
uses["savepoint"] = nested.commit
reads, writes = os.pipe()
if os.fork() == 0:
    said = {}
    for what, use in uses.items():
        try:
            said[what] = f"done: {use()!r}"
        except Exception as error:
            said[what] = f"{type(error).__name__}: {error}"
    os.write(writes, json.dumps(said).encode())
    os._exit(0)
os.wait()
assert len(rows.fetchall()) == 3
nested.commit()
tx.commit()
tm.close()
print(os.read(reads, 1 << 16).decode())
"""


@pytest.mark.parametrize("kind", ["sqlite", *NUMBERS])
def test_whatever_a_child_does_with_what_it_inherited_it_hears_that_it_is_a_fork(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """And that nothing is known of the transaction, with which its parent goes on."""
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path / 'shop.db'}"
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE work (name varchar(20))"))
        engine.dispose()
    else:
        server: Any = request.getfixturevalue(kind)
        database = server.create_database(*(["mariadb"] if kind == "mariadb" else []))
        harness: PostgresHarness | MariaHarness = (PostgresHarness if kind == "postgres" else MariaHarness)(
            server, database
        )
        request.addfinalizer(harness.close)
        url = harness.open_string

    done = subprocess.run(
        [sys.executable, "-c", INHERITED, kind, url, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert {what: words for what, words in said.items() if "this process is a fork of the one" not in words} == {}
    unknown = {what for what, words in said.items() if "not known here" in words}
    assert said.keys() - unknown == {"begin tx"}, "a new transaction is nothing of the parent's"


PAST_US: Final = """
import os, sys
from sqlalchemy import text
from tm import TransactionManager

url, folder = sys.argv[1:]
tm = TransactionManager("api-1", f"file://{folder}/log", {"shop": url})
tx = tm.begin()
shop = tx["shop"]
shop.execute(text("INSERT INTO work VALUES ('parent')"))
pgconn = shop.psycopg.pgconn
child = os.fork()
if child == 0:
    result = pgconn.exec_(b"INSERT INTO work VALUES ('child')")
    pgconn.finish()
    os._exit(0 if not result.command_status else 1)
assert os.waitpid(child, 0)[1] == 0
shop.execute(text("INSERT INTO work VALUES ('parent again')"))
tx.commit()
tm.close()
"""


def test_who_goes_past_us_to_libpq_in_a_child_does_not_reach_the_parents_server(
    postgres: Postgres, tmp_path: Path
) -> None:
    harness = PostgresHarness(postgres, postgres.create_database())
    arguments = [harness.open_string, str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", PAST_US, *arguments], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert set(harness.committed()) == {"parent", "parent again"}
    harness.close()


def test_a_fork_does_not_wait_for_a_thread_that_it_does_not_have() -> None:
    lock = StatementLock(new_xid())
    holds, ends = threading.Event(), threading.Event()

    def work() -> None:
        with lock:
            holds.set()
            ends.wait(20)

    thread = threading.Thread(target=work)
    thread.start()
    holds.wait(20)
    child = os.fork()
    if not child:
        signal.alarm(10)
        try:
            with lock:
                os._exit(1)
        except XaMisuse as error:
            os._exit(0 if "fork" in error.message else 2)
    ends.set()
    thread.join(20)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
