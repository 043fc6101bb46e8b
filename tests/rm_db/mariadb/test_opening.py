"""These tests cover what a MariaResource finds when it is opened, and what `xabridge doctor` says of it."""

from __future__ import annotations

import logging
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql
import pytest

from rm_db import MariaResource
from rm_db.address import Address
from rm_db.decider.engine import make_engine, parse_url
from rm_db.mariadb import diagnosis
from rm_db.mariadb.server_facts import MIN_MARIADB, MIN_MYSQL, ServerFacts
from rm_db.mariadb.xid import decode_xids, encode_xid, lock_name
from tests.memory_disk import new_folder
from tests.programs import output_of
from tests.rm_db.harness import MariaHarness
from xa import (
    NULL_XID,
    TMASYNC,
    TMENDRSCAN,
    TMNOFLAGS,
    TMSTARTRSCAN,
    TMSUCCESS,
    BranchRolledBack,
    Code,
    Handle,
    ResourceError,
    ResourceUnavailable,
    XaError,
    Xid,
)
from xa.diagnosis import Health
from xabridge.testing.contract.client import RMID, Client, elsewhere, new_key, new_xid, refused
from xabridge.testing.mariadb import MariaDB

PAGE = (Path(__file__).parents[3] / "docs" / "mariadb.md").read_text(encoding="utf-8")


def failure(url: str) -> XaError:
    """Why it can't be opened."""
    rm = MariaResource()
    with pytest.raises(XaError) as raised:
        rm.open(url, RMID)
    with refused(Code.XAER_PROTO):
        rm.recover(RMID)
    return raised.value


# --- servers --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("version", "name", "usable"),
    [
        ("10.11.19-MariaDB-0+deb12u1", "MariaDB 10.11.19", True),
        ("5.5.5-10.6.21-MariaDB-log", "MariaDB 10.6.21", True),
        ("11.4.2-MariaDB-ubu2404", "MariaDB 11.4.2", True),
        ("10.5.2-MariaDB", "MariaDB 10.5.2", True),
        ("10.5.1-MariaDB", "MariaDB 10.5.1", False),
        ("10.4.34-MariaDB-log", "MariaDB 10.4.34", False),
        ("5.5.68-MariaDB", "MariaDB 5.5.68", False),
        ("8.0.30", "MySQL 8.0.30", True),
        ("8.4.3-commercial", "MySQL 8.4.3", True),
        ("9.1.0", "MySQL 9.1.0", True),
        ("8.0.29", "MySQL 8.0.29", False),
        ("5.7.44-log", "MySQL 5.7.44", False),
        ("strange", "MySQL strange", False),
    ],
)
def test_versions(version: str, name: str, usable: bool) -> None:
    facts = ServerFacts.of({"version": version})
    assert facts.name == name
    assert facts.is_mariadb is name.startswith("MariaDB")
    if usable:
        facts.check()
    else:
        with pytest.raises(ResourceError, match=re.escape(name)) as raised:
            facts.check()
        assert 'mode = "decider"' in raised.value.message


def test_servers_that_can_not_be_used() -> None:
    for variable, told in {"wsrep_on": "Galera", "read_only": "the primary", "innodb_read_only": "the primary"}.items():
        with pytest.raises(ResourceError, match=told):
            ServerFacts.of({"version": "10.11.19-MariaDB", variable: "ON"}).check()


def test_who_keeps_a_prepared_branch() -> None:
    assert not ServerFacts.of({"version": "10.11.19-MariaDB"}).detaches
    assert ServerFacts.of({"version": "8.4.3", "xa_detach_on_prepare": "ON"}).detaches
    assert not ServerFacts.of({"version": "8.4.3", "xa_detach_on_prepare": "OFF"}).detaches


def test_the_page_has_the_versions() -> None:
    assert f"MariaDB before {'.'.join(map(str, MIN_MARIADB))} | refused" in PAGE
    assert f"MySQL before {'.'.join(map(str, MIN_MYSQL))} | refused" in PAGE


# --- open strings ---------------------------------------------------------------------------------------------------
NO_OPEN_STRINGS = [
    "postgresql://h/d",
    "mariadb:h/d",
    "mysql+mysqldb://h/d",
    "mariadb://h:port/d",
    "mariadb://h/d?xa_pool_size=0",
    "mariadb://h/d?xa_nonsense=1",
    "mariadb://h/d?init_command=SET+x",
    "mariadb://h/d?sql_mode=ANSI",
    "mariadb://h/d?xa_pooler=transaction",
    "mariadb://h/d?nonsense=1",
]


def test_open_strings(mariadb: MariaDB) -> None:
    url = mariadb.create_database("mariadb")
    for scheme in ("mariadb", "mysql", "mariadb+pymysql", "mysql+pymysql"):
        rm = MariaResource()
        rm.open(url.replace("mariadb", scheme, 1), RMID)
        rm.close("", RMID)
    for wrong in NO_OPEN_STRINGS:
        assert failure(wrong).code is Code.XAER_INVAL, wrong


def test_nobody_is_there() -> None:
    error = failure("mariadb://me:secret%20word@127.0.0.1:1/d")
    assert isinstance(error, ResourceUnavailable)
    assert "secret" not in str(error)


def test_what_the_server_refuses(mariadb: MariaDB) -> None:
    right = mariadb.create_database("mariadb")
    for url in (right.replace("/test_", "/nowhere_"), right.replace(":s3cret@", ":wrong@")):
        error = failure(url)
        assert isinstance(error, ResourceError)
        assert "wrong" not in error.message
        (check,) = MariaResource().diagnose(url).checks
        assert (check.health, check.subject) == (Health.FAIL, "credentials")
    assert "no database, as" in MariaResource().diagnose(right.rpartition("/")[0]).checks[0].found


def test_passwords_of_all_kinds(mariadb: MariaDB) -> None:
    right = mariadb.create_database("mariadb")
    user = right.partition("//")[2].partition(":")[0]
    for password in ("p@ss/w%rd: x#?&", "épass", "жpass", "日本"):
        mariadb.admin(f"ALTER USER {user}@'%' IDENTIFIED BY '{password}'")
        url = right.replace(":s3cret@", f":{quote(password, safe='')}@")
        rm = MariaResource()
        rm.open(url, RMID)
        rm.close("", RMID)
        assert rm.diagnose(url).checks[0].health is Health.OK
        engine = make_engine(parse_url(Address.parse(url.replace("mariadb:", "mariadb+pymysql:"))), 1, 1.0)
        engine.connect().close()
        engine.dispose()


def test_a_server_that_allows_fewer_connections_than_the_pool(mariadb: MariaDB) -> None:
    """Prepared branches give theirs up; the rest shares what there is."""
    url = mariadb.create_database("mariadb")
    user = url.partition("//")[2].partition(":")[0]
    mariadb.admin(f"ALTER USER {user}@'%' WITH MAX_USER_CONNECTIONS 2")
    mariadb.admin(f"CREATE TABLE {user}.work (k int) ENGINE = InnoDB")
    rm = MariaResource()
    rm.open(url, RMID)
    xids = []
    for number in range(10):
        xid = new_xid()
        rm.start(xid, RMID)
        rm.session(RMID).pymysql.cursor().execute("INSERT INTO work VALUES (%s)", [number])
        rm.end(xid, RMID, TMSUCCESS)
        assert rm.prepare(xid, RMID) is Code.XA_OK
        xids.append(xid)

    for xid in xids:
        assert rm.commit(xid, RMID) is Code.XA_OK
    rm.close("", RMID)
    assert len(mariadb.ask(f"SELECT k FROM {user}.work")) == 10  # noqa: S608 — a name of ours


# --- the doctor -----------------------------------------------------------------------------------------------------
def test_the_doctor_finds_nothing(client: Client, harness: MariaHarness) -> None:
    xid = client.prepared(new_key())
    found = client.rm.diagnose(harness.open_string)  # type: ignore[attr-defined]
    assert [check.health for check in found.checks] == [Health.OK, Health.OK]
    assert "MariaDB 10" in found.checks[0].found
    assert "1 branch is prepared" in found.checks[1].found
    assert abs(found.clock_ahead_s) < 60
    client.rollback(xid)
    (kept,) = (check.found for check in found.checks if check.subject == "XA RECOVER")
    assert "stays prepared when that ends, also by a kill" in kept or "belongs to no session" in kept


# --- xids -----------------------------------------------------------------------------------------------------------
def test_xids_there_and_back() -> None:
    assert encode_xid(Xid(7, b"\x00'", b"\xff")) == b"X'0027',X'ff',7"
    assert encode_xid(Xid(7, b"g")) == b"X'67',X'',7"
    with refused(Code.XAER_INVAL):
        encode_xid(NULL_XID)


@pytest.mark.parametrize(
    ("row", "xid"),
    [
        ((7, 2, 1, b"\x00'\xff"), Xid(7, b"\x00'", b"\xff")),
        ((7, 2, 1, bytearray(b"\x00'\xff")), Xid(7, b"\x00'", b"\xff")),
        ((7, 2, 1, "0x0027ff"), Xid(7, b"\x00'", b"\xff")),  # MySQL, CONVERT XID
        ((-1, 1, 0, b"g"), None),
        ((2**32, 1, 0, b"g"), None),
        ((1, 0, 1, b"g"), None),
        ((1, 65, 0, b"g" * 65), None),
        ((1, 3, 0, b"g"), None),
        ((1, 1, 0, "no digits"), None),
    ],
)
def test_rows_of_xa_recover(row: tuple[Any, ...], xid: Xid | None) -> None:
    assert list(decode_xids([row])) == ([] if xid is None else [xid])


def test_names_of_locks() -> None:
    names = {
        lock_name(xid) for xid in (Xid(1, b"a", b"bc"), Xid(1, b"ab", b"c"), Xid(2, b"a", b"bc"), Xid(1, b"g" * 64))
    }
    assert len(names) == 4
    assert all(len(name) <= 64 for name in names)


# --- without the driver ---------------------------------------------------------------------------------------------
def test_without_pymysql_the_extra_is_named() -> None:
    """In a process that can't import it; PostgreSQL does not need it."""
    code = (
        "import sys; sys.modules['pymysql'] = None\n"
        "import importlib.util as util; found = util.find_spec\n"
        "util.find_spec = lambda name, package=None: None if name == 'pymysql' else found(name, package)\n"
        "from tm import ConfigurationError, ResourceConfig\n"
        "from tm.resources import find_factory\n"
        "find_factory('shop', ResourceConfig('postgresql://h/d'))\n"
        "try:\n    find_factory('shop', ResourceConfig('mariadb://h/d'))\n"
        "except ConfigurationError as error:\n    print(error)\n"
    )
    assert "xabridge[mariadb]" in output_of(code)


# --- another server ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def peculiar() -> Iterator[MariaDB]:
    """A MariaDB with TLS, in which sessions don't commit by themselves, and a lock that is not free rolls back. Its
    binary log is not forced, nor is its own log."""
    folder = new_folder("mariadb")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/certificate.pem"]
    subprocess.run([*made, "-addext", "subjectAltName=IP:127.0.0.1", *files], check=True, capture_output=True)
    settings = {
        "ssl-key": f"{folder}/key.pem", "ssl-cert": f"{folder}/certificate.pem", "require-secure-transport": "ON",
        "autocommit": "0", "innodb-rollback-on-timeout": "ON",
        "innodb-flush-log-at-trx-commit": "2", "log-bin": "log", "server-id": "1", "sync-binlog": "0",
    }  # fmt: skip
    server = MariaDB(settings, folder=folder / "server")
    server.start()
    yield server
    server.remove()


@pytest.fixture
def peculiar_url(peculiar: MariaDB) -> str:
    """A database there with a table; in its user's own name."""
    url = peculiar.create_database("mariadb")
    user = url.partition("//")[2].partition(":")[0]
    peculiar.admin(f"CREATE TABLE {user}.work (k int PRIMARY KEY, n int, text longtext) ENGINE = InnoDB")
    return f"{url}?ssl_ca={peculiar._folder.parent}/certificate.pem&xa_pool_size=2"


def test_over_tls(peculiar_url: str) -> None:
    """Replies come in TLS records: none is overlooked, and no thread waits for one that is there already."""
    rm = MariaResource()
    rm.open(peculiar_url, RMID)
    for number in range(6):
        xid = new_xid()
        rm.start(xid, RMID)
        session = rm.session(RMID)
        session.pymysql.cursor().execute("INSERT INTO work (k, text) VALUES (%s, %s)", [number, "x" * 200_000])
        assert session.exec_driver_sql("SELECT max(length(text)) FROM work").scalar() == 200_000
        assert len(session.exec_driver_sql("SELECT text FROM work").scalars().all()) == number + 1
        rm.end(xid, RMID, TMSUCCESS)
        assert rm.prepare(xid, RMID) is Code.XA_OK
        if number % 2:
            assert rm.commit(xid, RMID) is Code.XA_OK
        else:
            handle = rm.commit(xid, RMID, TMASYNC)
            assert isinstance(handle, Handle)
            assert rm.complete(handle, RMID, TMNOFLAGS).code is Code.XA_OK

    assert rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN, 100) == []
    rm.start(xid := new_xid(), RMID)
    assert rm.session(RMID).exec_driver_sql("SELECT count(*) FROM work").scalar() == 6
    rm.end(xid, RMID, TMSUCCESS)
    rm.rollback(xid, RMID)
    rm.close("", RMID)


def test_a_lock_wait_timeout_that_rolls_back(peculiar: MariaDB, peculiar_url: str) -> None:
    user = peculiar_url.partition("//")[2].partition(":")[0]
    peculiar.admin(f"INSERT INTO {user}.work (k, n) VALUES (1, 1), (2, 2)", "COMMIT")  # noqa: S608 — a name of ours
    rm = MariaResource()
    rm.open(peculiar_url, RMID)
    first, second = new_xid(), new_xid()
    with elsewhere():
        rm.start(first, RMID)
        rm.session(RMID).pymysql.query("UPDATE work SET n = 5 WHERE k = 1")
        rm.end(first, RMID, TMSUCCESS)

    rm.start(second, RMID)
    connection = rm.session(RMID).pymysql
    connection.query("UPDATE work SET n = 6 WHERE k = 2")
    connection.query("SET SESSION innodb_lock_wait_timeout = 1")
    with pytest.raises(pymysql.OperationalError, match="1205"):
        connection.query("UPDATE work SET n = 6 WHERE k = 1")
    rm.end(second, RMID, TMSUCCESS)
    with pytest.raises(BranchRolledBack) as told:
        rm.prepare(second, RMID)
    assert told.value.code is Code.XA_RBTRANSIENT
    rm.rollback(first, RMID)
    assert peculiar.ask(f"SELECT k, n FROM {user}.work ORDER BY k") == [(1, 1), (2, 2)]  # noqa: S608 — likewise
    rm.close("", RMID)


def test_settings_that_are_not_durable_are_told(
    peculiar: MariaDB, peculiar_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    rm = MariaResource()
    with caplog.at_level(logging.WARNING, "xabridge.rm_db"):
        rm.open(peculiar_url, RMID)
    rm.close("", RMID)
    assert "innodb_flush_log_at_trx_commit is 2" in caplog.text
    assert "sync_binlog is 0" in caplog.text
    found = {check.subject: check for check in rm.diagnose(peculiar_url).checks}
    assert found["durability"].health is Health.FAIL
    peculiar.admin("SET GLOBAL read_only = 1")
    try:
        assert "name the primary" in failure(peculiar_url).message
        assert {check.subject: check.health for check in rm.diagnose(peculiar_url).checks}["writable"] is Health.FAIL
    finally:
        peculiar.admin("SET GLOBAL read_only = 0")


def test_a_server_of_another_kind_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL and brokers wait for their client's first word, as this one does."""
    monkeypatch.setattr(diagnosis, "GREETING_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"mariadb://ada:secret@127.0.0.1:{server.getsockname()[1]}/shop"
        (check,) = MariaResource().diagnose(url).checks
    assert (check.health, check.subject) == (Health.FAIL, "reachable")
    assert "says nothing in 0.2 s, and MariaDB and MySQL speak first" in check.found
