"""These tests put the databases' drivers before servers whose messages are well formed and wrong: out of turn, of
another kind, with other rows. What can't be the reply to a request counts as a lost connection, and is no outcome."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

import psycopg
import pytest

from tests.false_server import FalseServer
from tests.false_server import postgres_message as said
from tests.lying_server import Protocol, RewritingServer
from tests.postgres import Postgres
from tests.rm_db.harness import MariaDeciderHarness, MariaHarness, PostgresDeciderHarness, PostgresHarness
from xa import ROLLBACK_CODES, TMENDRSCAN, TMONEPHASE, TMSTARTRSCAN, Code, XaError
from xa.sql.psycopg_connection import BoundedConnection
from xabridge.testing.contract.client import RMID, Client, new_key, new_xid
from xabridge.testing.mariadb import MariaDB

pytestmark = pytest.mark.slow

BOUND_S = 20.0
SETTINGS = {
    Protocol.MARIADB: "connect_timeout=2&xa_reply_s=2",
    Protocol.POSTGRES: "connect_timeout=2&xa_reply_s=2&sslmode=disable&gssencmode=disable",
}
LOST = frozenset({Code.XAER_RMFAIL, Code.XA_RETRY})
RECORD = b"the decision"
Rewrite: TypeAlias = "Callable[[bytes, bytes], list[bytes]]"
"""What a request and a message of the server become."""


READY = said(b"Z", b"I")
COPY_IN = said(b"G", bytes(3))


def instead(asked: bytes, kind: bytes, *messages: bytes) -> Rewrite:
    """Where the client has asked this, these messages instead of those of this kind."""

    def rewrite(request: bytes, message: bytes) -> list[bytes]:
        return list(messages) if asked in request and message[:1] == kind else [message]

    return rewrite


def before(asked: bytes, *messages: bytes) -> Rewrite:
    """Where the client has asked this, these messages before each of the server's."""

    def rewrite(request: bytes, message: bytes) -> list[bytes]:
        return [*messages, message] if asked in request else [message]

    return rewrite


@contextmanager
def behind(harness: Any, protocol: Protocol, rewrite: Rewrite) -> Iterator[Any]:
    """A client of a harness's resource behind a rewriting server, and that server."""
    front = harness.open_string.partition("?")[0]
    there = front.partition("://")[2].rpartition("@")[2].partition("/")[0]
    host, _, port = there.partition(":")
    with RewritingServer(protocol, (host, int(port)), rewrite) as server:
        harness.open_string = f"{front.replace(there, f'127.0.0.1:{server.port}')}?{SETTINGS[protocol]}"
        client = Client(harness)
        try:
            yield client, server
        finally:
            with suppress(XaError):
                client.rm.close("", RMID)
            harness.close()


def code_of(call: Callable[[], Any]) -> Code:
    """What a verb says, within its time."""
    begun = time.monotonic()
    try:
        answer = call()
        code = answer if isinstance(answer, Code) else Code.XA_OK
    except XaError as error:
        code = error.code
    assert time.monotonic() - begun < BOUND_S
    return code


def ended_well(client: Any, verb: str, xid: Any) -> None:
    """With a true server the branch comes to this end."""
    client.reopen()
    until = time.monotonic() + BOUND_S
    while (code := client.retrying(verb, xid)) in LOST and time.monotonic() < until:
        pass
    assert code in {Code.XA_OK, Code.XAER_NOTA} | ROLLBACK_CODES, code


# --- PostgreSQL -------------------------------------------------------------------------------------------------------
UNLIKE = {
    "COPY": lambda asked: instead(asked, b"C", COPY_IN),
    "nothing": lambda asked: before(asked, READY),
    "another command": lambda asked: instead(asked, b"C", said(b"C", b"SELECT 1\0")),
}


def check_no_outcome(harness: PostgresHarness | MariaHarness, protocol: Protocol, rewrite: Rewrite, verb: str) -> None:
    """A verb hears what is no reply to it, and the branch ends well when the server is honest again."""
    with behind(harness, protocol, rewrite) as (client, server):
        key = new_key()
        xid = client.ended(key)
        if verb != "prepare":
            assert client.prepare(xid) is Code.XA_OK
        server.armed = True
        assert code_of(partial(getattr(client, verb), xid)) in LOST
        server.be_honest()
        ended_well(client, "commit" if verb == "commit" else "rollback", xid)
        assert (key in harness.committed()) is (verb == "commit")


@pytest.mark.parametrize("how", UNLIKE)
@pytest.mark.parametrize("verb", ["prepare", "commit", "rollback"])
def test_a_reply_that_is_none_to_a_verb_of_postgres_is_no_outcome(postgres: Postgres, verb: str, how: str) -> None:
    harness = PostgresHarness(postgres, postgres.create_database())
    asked = {"prepare": b"PREPARE TRANSACTION", "commit": b"COMMIT PREPARED", "rollback": b"ROLLBACK PREPARED"}[verb]
    check_no_outcome(harness, Protocol.POSTGRES, UNLIKE[how](asked), verb)


@pytest.mark.parametrize("how", UNLIKE)
@pytest.mark.parametrize("decides", [False, True])
def test_a_reply_that_is_none_to_commit_leaves_the_outcome_unknown(postgres: Postgres, how: str, decides: bool) -> None:
    harness = (PostgresDeciderHarness if decides else PostgresHarness)(postgres, postgres.create_database())
    with behind(harness, Protocol.POSTGRES, UNLIKE[how](b";COMMIT")) as (client, server):
        key = new_key()
        xid = client.ended(key)
        server.armed = True
        if not decides:
            assert code_of(lambda: client.commit(xid, TMONEPHASE)) is Code.XAER_RMFAIL
            return
        assert code_of(lambda: client.rm.decide(xid, RMID, RECORD)) is Code.XAER_RMFAIL
        server.be_honest()
        client.reopen()
        assert (client.rm.settle(xid.gtrid, RMID) == RECORD) is (key in harness.committed())


@pytest.mark.parametrize(
    "rows",
    [
        instead(b"pg_prepared_xacts", b"D"),
        instead(b"pg_prepared_xacts", b"D", said(b"D", b"\x00\x01\xff\xff\xff\xff")),
        instead(b"pg_prepared_xacts", b"D", said(b"D", b"\x00\x01\x00\x00\x00\x02\xff\xfe")),
        instead(b"pg_prepared_xacts", b"T", COPY_IN),
        before(b"pg_prepared_xacts", READY),
        before(b"pg_prepared_xacts", said(b"C", b"SELECT 0\0"), READY),
    ],
    ids=["none", "null", "no text", "COPY", "nothing", "another reply"],
)
def test_wrong_rows_of_postgres_raise_nothing_but_codes(
    postgres: Postgres, rows: Callable[[bytes, bytes], list[bytes]]
) -> None:
    harness = PostgresHarness(postgres, postgres.create_database())
    with behind(harness, Protocol.POSTGRES, rows) as (client, server):
        xid = client.prepared(new_key())
        server.armed = True
        for scan in (client.in_doubt, lambda: client.rm.in_doubt(RMID, TMSTARTRSCAN | TMENDRSCAN)):
            assert code_of(scan) in LOST | {Code.XA_OK, Code.XAER_RMERR}
            opened = [code_of(client.open) for _ in range(3)]  # it may be told what was left of another reply
            assert set(opened) <= LOST | {Code.XA_OK}
            client.reopen()
        server.be_honest()
        ended_well(client, "rollback", xid)


def test_a_server_that_does_not_say_its_version_fails_the_first_statement(postgres: Postgres) -> None:
    harness = PostgresHarness(postgres, postgres.create_database())
    with behind(harness, Protocol.POSTGRES, instead(b"pg_catalog.version", b"D")) as (client, server):
        server.armed = True
        xid = new_xid()
        client.start(xid)
        with pytest.raises(XaError, match="can't be understood") as raised:
            client.write(new_key())
        assert raised.value.code is Code.XAER_RMFAIL
        server.armed = False
        assert client.end(xid) is Code.XA_OK
        assert client.rollback(xid) is Code.XA_OK


def test_the_reply_to_another_statement_is_no_commit(postgres: Postgres) -> None:
    url = postgres.create_database()
    with psycopg.connect(url) as admin:
        host, port = admin.info.host, admin.info.port

    def rewrite(request: bytes, message: bytes) -> list[bytes]:
        return [message if message[:1] == b"C" else said(b"Z", b"T")] if b"COMMIT" in request else [message]

    with RewritingServer(Protocol.POSTGRES, (host, port), rewrite) as server:
        here = url.replace(f"{host}:{port}", f"127.0.0.1:{server.port}")
        with BoundedConnection.connect(f"{here}?sslmode=disable&gssencmode=disable", reply_s=1) as connection:
            connection.execute("SELECT 1")
            server.armed = True
            with pytest.raises(psycopg.OperationalError, match="none to COMMIT"):
                connection.commit()


def test_a_server_that_orders_much_computing_is_given_up_in_time() -> None:
    with FalseServer(many_iterations) as server:
        url = f"postgresql://u:secret@127.0.0.1:{server.port}/d?connect_timeout=2&sslmode=disable&gssencmode=disable"
        for most_s, why in ((6.0, "timeout"), (2.0, "iterations of SCRAM")):
            begun = time.monotonic()
            with pytest.raises(psycopg.OperationalError, match=why):
                BoundedConnection.connect(url)
            assert time.monotonic() - begun < most_s


def many_iterations(server: FalseServer, client: socket.socket) -> None:
    """Asks for so many iterations of SCRAM, and then for nothing."""
    client.recv(4096)
    client.sendall(said(b"R", (10).to_bytes(4) + b"SCRAM-SHA-256\0\0"))
    nonce = client.recv(4096).partition(b"r=")[2]
    first = b"r=" + nonce + b"more,s=QUFBQUFBQUFBQUFB,i=%d" % 20_000_000
    client.sendall(said(b"R", (11).to_bytes(4) + first))
    server.closed.wait(BOUND_S)


# --- MariaDB ----------------------------------------------------------------------------------------------------------
OK = b"\x07\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00"
UNKNOWN_XID = b"\x0d\x00\x00\x01\xff\x75\x05#XAE04gone"
ROWS = (
    b"\x01\x00\x00\x01\x01"
    b"\x17\x00\x00\x02\x03def\x00\x00\x00\x01a\x00\x0c\x21\x00\x04\x00\x00\x00\xfd\x00\x00\x00\x00\x00"
    b"\x05\x00\x00\x03\xfe\x00\x00\x02\x00\x05\x00\x00\x04\xfe\x00\x00\x02\x00"
)


@pytest.mark.parametrize("verb", ["prepare", "commit", "rollback"])
def test_rows_are_no_reply_to_a_verb_of_mariadb(mariadb: MariaDB, verb: str) -> None:
    harness = MariaHarness(mariadb, mariadb.create_database("mariadb"))
    rewrite = instead(b"XA " + verb.upper().encode(), b"\x07", ROWS)
    check_no_outcome(harness, Protocol.MARIADB, rewrite, verb)


def test_a_success_is_no_list_of_branches(mariadb: MariaDB) -> None:
    """Taken for an empty list it would say that the branch has ended."""
    harness = MariaHarness(mariadb, mariadb.create_database("mariadb"))

    def rewrite(request: bytes, message: bytes) -> list[bytes]:
        if b"XA RECOVER" in request:
            return [OK] if message[3:4] == b"\x01" else []
        return [UNKNOWN_XID] if b"XA COMMIT" in request else [message]

    with behind(harness, Protocol.MARIADB, rewrite) as (client, server):
        key = new_key()
        xid = client.prepared(key)
        client.reopen()
        server.armed = True
        assert code_of(lambda: client.commit(xid)) in LOST
        server.be_honest()
        ended_well(client, "commit", xid)
        assert key in harness.committed()


def test_replies_that_come_too_early_decide_nothing(mariadb: MariaDB) -> None:
    """More replies than requests, and the COMMIT never arrives: nothing says that it was carried out."""
    harness = MariaDeciderHarness(mariadb, mariadb.create_database("mysql+pymysql"))

    def rewrite(request: bytes, message: bytes) -> list[bytes]:
        return [message, OK, OK, OK] if b"RELEASE SAVEPOINT" in request else [message]

    with behind(harness, Protocol.MARIADB, rewrite) as (client, server):
        key = new_key()
        xid = client.ended(key)
        server.armed, server.withheld = True, b"COMMIT"
        assert code_of(lambda: client.rm.decide(xid, RMID, RECORD)) in ROLLBACK_CODES | {Code.XAER_RMFAIL}
        server.be_honest()
        client.reopen()
        assert client.rm.settle(xid.gtrid, RMID) is None
        assert key not in harness.committed()
