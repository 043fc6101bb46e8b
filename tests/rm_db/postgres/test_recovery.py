"""These tests check which prepared transactions of a PostgreSQL server are found, whose they are, and who may complete
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql

from rm_db import PostgresResource
from rm_db.postgres.diagnosis import diagnose_postgres
from rm_db.postgres.gid import encode_gid
from tests.postgres import Postgres
from tests.rm_db.harness import PostgresHarness
from xa import FORMAT_ID, TMENDRSCAN, TMSTARTRSCAN, Code, Gtrid, Xid
from xabridge.testing.contract.client import RMID, Client, case, new_key, new_xid, refused

WHOLE = TMSTARTRSCAN | TMENDRSCAN


class Strangers:
    """Transactions that others prepare, in any database, under any role and any gid."""

    def __init__(self, harness: PostgresHarness) -> None:
        self._harness = harness
        self._prepared: list[tuple[str, bytes]] = []

    def prepare(self, gid: bytes, *, url: str | None = None, role: str | None = None) -> None:
        """One more, with a row of work in it."""
        url = url or self._harness.url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS strange (a int)")
            connection.execute("GRANT ALL ON strange TO PUBLIC")
            if role is not None:
                connection.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(role)))
            connection.execute("BEGIN")
            connection.execute("INSERT INTO strange VALUES (1)")
            connection.execute(b"PREPARE TRANSACTION " + quoted(gid))
        self._prepared.append((url, gid))

    def left(self) -> set[bytes]:
        """The gids on the server."""
        return {gid.encode() for (gid,) in self._harness.admin("SELECT gid FROM pg_prepared_xacts")}

    def roll_back(self) -> None:
        """All of them, by their own databases' superuser."""
        for url, gid in self._prepared:
            if gid in self.left():
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute(b"ROLLBACK PREPARED " + quoted(gid))


def quoted(gid: bytes) -> bytes:
    """The literal for it in SQL."""
    return b"'" + gid.replace(b"'", b"''") + b"'"


@pytest.fixture
def strangers(harness: PostgresHarness) -> Iterator[Strangers]:
    """Rolled back at the end of the test."""
    strangers = Strangers(harness)
    yield strangers
    strangers.roll_back()


@pytest.fixture
def roles(harness: PostgresHarness) -> Iterator[None]:
    """worker logs in; member may become owner; owner and loner own things."""
    names = ("worker", "owner_role", "loner")
    for name in names:
        harness.admin(f"CREATE ROLE {name} LOGIN")
    harness.admin("GRANT owner_role TO worker")
    harness.admin("GRANT ALL ON work TO PUBLIC")
    harness.admin("GRANT ALL ON SCHEMA public TO PUBLIC")
    yield
    for name in names:
        harness.admin(f"DROP OWNED BY {name}")
        harness.admin(f"DROP ROLE {name}")


def as_worker(harness: PostgresHarness) -> Client:
    """A client that logs in as worker, who is no superuser."""
    harness.open_string = harness.open_string.replace("postgres@", "worker@")
    return Client(harness)


# --- whose ------------------------------------------------------------------------------------------------------
def test_branches_of_other_nodes_and_of_pgjdbc_are_listed_as_what_they_are(
    client: Client, strangers: Strangers
) -> None:
    """A manager tells them from its own by the gtrid; none of them is touched by listing. They can be completed."""
    jdbc = Xid(131077, b"1-a00fc75:", b"-1")
    node = Xid(FORMAT_ID, Gtrid("orders-2", b"12345678", 3, 114).encode(), b"shop")
    mine = client.prepared(new_key())
    for xid in (jdbc, node):
        strangers.prepare(encode_gid(xid))
    assert client.in_doubt() == {jdbc, node, mine}
    client.rollback(mine)
    assert strangers.left() == {encode_gid(jdbc), encode_gid(node)}
    assert client.commit(jdbc) is Code.XA_OK
    assert strangers.left() == {encode_gid(node)}


def test_gids_that_are_no_xids_are_listed_on_request_only(client: Client, strangers: Strangers) -> None:
    gids = {b"my transaction", b"1_YQ_", b"-5_YQ==_YQ==", b"\xc3\xa9t\xc3\xa9", b"it's", b"back\\slash", b"x" * 199}
    mine = client.prepared(new_key())
    for gid in gids:
        strangers.prepare(gid)
    assert client.in_doubt() == {mine}
    assert [listed.xid for listed in listing(client)] == [mine]
    everybodys = {listed.gid: listed.xid for listed in listing(client, everybodys=True)}
    assert everybodys == {encode_gid(mine): mine, **dict.fromkeys(gids)}
    client.rollback(mine)
    assert strangers.left() == gids


def test_other_databases(client: Client, strangers: Strangers, postgres: Postgres) -> None:
    """pg_prepared_xacts shows the whole server's; another database's are not ours to complete."""
    xid = new_xid()
    strangers.prepare(encode_gid(xid), url=postgres.create_database())
    assert xid not in client.in_doubt()
    assert listing(client) == []
    (listed,) = listing(client, everybodys=True)
    assert (listed.xid, listed.mine) == (xid, False)
    with refused(Code.XAER_INVAL) as raised:  # neither done, nor to be tried again for ever
        client.commit(xid)
    assert "0A000" in raised.value.message
    assert "is prepared in the database" in raised.value.message
    assert "give the resource a URL of" in raised.value.message
    with refused(Code.XA_RETRY):
        client.rollback(xid)
    assert strangers.left() == {encode_gid(xid)}


def test_gids_of_another_encoding_disturb_nobody(client: Client, harness: PostgresHarness) -> None:
    """A gid of a LATIN1 database is octets that are no UTF-8."""
    harness.admin("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    url = harness.url.rpartition("/")[0] + "/latin"
    with psycopg.connect(url, autocommit=True, client_encoding="LATIN1") as connection:
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE t (a int)")
        connection.pgconn.exec_(b"PREPARE TRANSACTION '\xe9t\xe9'")
    try:
        mine = client.prepared(new_key())
        assert client.in_doubt() == {mine}
        assert {listed.gid for listed in listing(client, everybodys=True)} == {encode_gid(mine), b"\xe9t\xe9"}
        client.rollback(mine)
    finally:
        with psycopg.connect(url, autocommit=True, client_encoding="LATIN1") as connection:
            connection.pgconn.exec_(b"ROLLBACK PREPARED '\xe9t\xe9'")
        harness.admin("DROP DATABASE latin")


# --- roles ------------------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("roles")
def test_a_role_lists_what_it_may_complete(harness: PostgresHarness, strangers: Strangers) -> None:
    gids = {role: new_xid() for role in ("worker", "owner_role", "loner")}
    for role, xid in gids.items():
        strangers.prepare(encode_gid(xid), role=role)
    client = as_worker(harness)
    assert client.in_doubt() == {gids["worker"], gids["owner_role"]}
    assert client.commit(gids["worker"]) is Code.XA_OK
    assert client.commit(gids["owner_role"]) is Code.XA_OK  # by becoming it: PostgreSQL wants the very role

    with refused(Code.XA_RETRY) as raised:
        client.commit(gids["loner"])
    assert "42501" in raised.value.message
    with refused(Code.XA_RETRY):
        client.rollback(gids["loner"])
    assert strangers.left() == {encode_gid(gids["loner"])}
    (listed,) = listing(client, everybodys=True)
    assert (listed.owner, listed.mine) == ("loner", False)
    client.rm.close("", RMID)


@pytest.mark.usefixtures("roles")
def test_work_that_was_done_in_another_role(harness: PostgresHarness) -> None:
    """A session that sets its role prepares as that role, and is completed all the same, by commit and by rollback."""
    client = as_worker(harness)
    for verb in ("commit", "rollback"):
        xid, key = new_xid(), new_key()
        client.start(xid)
        client.rm.session(RMID).psycopg.execute("SET ROLE owner_role")
        client.write(key)
        client.end(xid)
        client.prepare(xid)
        assert client.in_doubt() == {xid}
        assert client.retrying(verb, xid) is Code.XA_OK
        assert (key in harness.committed()) == (verb == "commit")

    xid = client.begun(new_key())
    assert client.rm.session(RMID).psycopg.execute("SELECT current_user").fetchone() == ("worker",)
    client.end(xid)
    client.rollback(xid)
    client.rm.close("", RMID)
    assert harness.leaks() == []


@pytest.fixture
def follower(harness: PostgresHarness) -> Iterator[str]:
    """The user shop, which owns its branches, and shop_2, which acts as shop from its first statement on."""
    harness.admin("CREATE ROLE shop LOGIN")
    harness.admin("GRANT ALL ON work TO shop")
    yield "shop_2"
    for name in ("shop_2", "shop"):
        harness.admin(f"DROP OWNED BY {name}")
        harness.admin(f"DROP ROLE {name}")


def test_a_user_is_followed_by_another_one_with_branches_in_doubt(harness: PostgresHarness, follower: str) -> None:
    """The steps of docs/operations.md, "Rotate the password of a database"."""
    whole = harness.open_string
    harness.open_string = whole.replace("postgres@", "shop@")
    first = Client(harness)
    keys = [new_key() for _ in range(3)]
    early = [first.prepared(key) for key in keys[:2]]

    harness.admin(f"CREATE ROLE {follower} LOGIN IN ROLE shop")
    harness.admin(f"ALTER ROLE {follower} SET role = 'shop'")
    harness.open_string = whole.replace("postgres@", f"{follower}@")
    second = Client(harness)
    seen = diagnose_postgres(harness.open_string, two_phase=True).checks[0].found
    assert seen.endswith(f", as {follower}, acting as shop")
    assert second.in_doubt() == set(early)
    late = second.prepared(keys[2])
    assert first.in_doubt() == {*early, late}
    assert first.commit(late) is second.commit(early[0]) is Code.XA_OK

    first.rm.close("", RMID)
    harness.admin("ALTER ROLE shop NOLOGIN")
    assert second.commit(early[1]) is Code.XA_OK
    assert set(keys) <= harness.committed()
    harness.open_string = whole.replace("postgres@", "shop@")
    with refused(Code.XAER_RMERR):
        Client(harness)
    second.rm.close("", RMID)


# --- by hand ----------------------------------------------------------------------------------------------------
def test_what_an_operator_completed_by_hand_is_unknown(client: Client, harness: PostgresHarness) -> None:
    """PostgreSQL remembers nothing of it: XAER_NOTA, of which the manager knows what to think."""
    for by_hand in ("COMMIT", "ROLLBACK"):
        xid = client.prepared(key := new_key())
        harness.admin(f"{by_hand} PREPARED '{xid}'")
        assert xid not in client.in_doubt()
        for verb in (client.commit, client.rollback, client.forget):
            with case(by_hand, verb), refused(Code.XAER_NOTA):
                verb(xid)
        assert (key in harness.committed()) == (by_hand == "COMMIT")


def test_a_branch_says_what_it_holds(client: Client) -> None:
    xid = client.prepared(new_key())
    (listed,) = listing(client)
    assert (listed.xid, listed.mine, listed.owner) == (xid, True, "postgres")
    assert "RowExclusiveLock on work" in listed.holds
    assert listed.prepared_at.tzinfo is not None
    client.rollback(xid)


def listing(client: Client, *, everybodys: bool = False) -> Any:
    """What an operator is shown."""
    rm = client.rm
    assert isinstance(rm, PostgresResource)
    return rm.prepared_transactions(RMID, everybodys=everybodys)
