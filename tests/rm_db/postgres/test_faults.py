"""These tests lose PostgreSQL, its connections or the network at every step of a transaction, and recover as a manager
would. In the end the row must be there if and only if the decision was to commit, and nothing may be left.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Final

import psycopg
import pytest

from rm_db.server.steps import is_ready
from tests.rm_db.harness import PostgresHarness
from xa import TMONEPHASE, BranchRolledBack, Code, ResourceUnavailable
from xabridge.testing.contract.client import RMID, Client, case, elsewhere, new_key, new_xid, refused

PATIENCE_S: Final = 60


# --- what can happen between two verbs ----------------------------------------------------------------------------
def backend_terminated(harness: PostgresHarness, client: Client) -> None:
    harness.disconnect(client.rm)


def server_crashes(harness: PostgresHarness, client: Client) -> None:  # noqa: ARG001 — one shape for all
    harness.go_down()
    harness.come_back()


def server_restarts(harness: PostgresHarness, client: Client) -> None:  # noqa: ARG001 — one shape for all
    harness._server.stop()
    harness.come_back()


def network_cut(harness: PostgresHarness, client: Client) -> None:  # noqa: ARG001 — one shape for all
    harness.proxy.cut()


DISASTERS = [backend_terminated, server_crashes, server_restarts, network_cut]


@pytest.mark.parametrize("disaster", DISASTERS)
def test_between_two_verbs(harness: PostgresHarness, client: Client, disaster: Any) -> None:
    """What was prepared is there, also for a process that knows nothing of it; work that was not is gone, and says so.
    Of idle connections that broke nobody hears: the pool looks before it gives one away."""
    barrier = threading.Barrier(4)

    def work() -> None:
        xid = client.begun(new_key())
        barrier.wait(PATIENCE_S)
        client.end(xid)
        client.commit(xid, TMONEPHASE)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    client.commit(client.prepared(committed := new_key()))
    prepared = client.prepared(decided := new_key())
    with elsewhere():
        ended = client.ended(lost_after_end := new_key())
    at_work = client.begun(lost_at_work := new_key())
    disaster(harness, client)
    for xid, verb in ((at_work, client.end), (ended, client.prepare)):
        with pytest.raises((ResourceUnavailable, BranchRolledBack)):
            verb(xid)
        client.reopen()
        assert client.retrying("rollback", xid) in {Code.XA_OK, Code.XAER_NOTA}
    heir = Client(harness)
    assert heir.in_doubt() == {prepared}
    assert heir.commit(prepared) is Code.XA_OK
    heir.rm.close("", RMID)
    assert {committed, decided} <= harness.committed()
    assert not {lost_after_end, lost_at_work} & harness.committed()
    for _ in range(6):
        assert client.commit(client.prepared(key := new_key())) is Code.XA_OK
        assert key in harness.committed()


# --- what can happen in the middle of a verb ------------------------------------------------------------------------
@contextmanager
def losing(harness: PostgresHarness, what: str) -> Iterator[None]:
    """Inside the block the next request, or its reply, gets lost with its connection."""
    if what == "request":
        harness.proxy.hold_requests()
    else:
        harness.proxy.hold_replies()
    with harness.proxy.cut_when_held():
        yield


LOST = ("request", "reply")


def test_in_the_middle_of_prepare(harness: PostgresHarness, client: Client) -> None:
    """Unknown to the caller: the branch is there, and can be completed either way, or it is not."""
    for lost, then in product(LOST, ("commit", "rollback")):
        with case(lost, then):
            xid = client.ended(key := new_key())
            with losing(harness, lost), refused(Code.XAER_RMFAIL):
                client.prepare(xid)
            with refused(Code.XAER_PROTO):
                client.rm.recover(RMID)
            client.reopen()
            assert (xid in client.in_doubt()) == (lost == "reply")
            if lost == "reply":
                assert client.retrying(then, xid) is Code.XA_OK
            else:
                with refused(Code.XAER_NOTA):
                    client.rollback(xid)
            assert (key in harness.committed()) == (lost == "reply" and then == "commit")


def test_in_the_middle_of_the_second_phase(harness: PostgresHarness, client: Client) -> None:
    for lost, verb in product(LOST, ("commit", "rollback")):
        with case(lost, verb):
            xid = client.prepared(key := new_key())
            with losing(harness, lost), refused(Code.XAER_RMFAIL):
                getattr(client, verb)(xid)
            client.reopen()
            assert (xid in client.in_doubt()) == (lost == "request")
            again = client.retrying(verb, xid)
            assert again is (Code.XA_OK if lost == "request" else Code.XAER_NOTA)
            assert (key in harness.committed()) == (verb == "commit")


def test_in_the_middle_of_what_is_not_prepared(harness: PostgresHarness, client: Client) -> None:
    """A one-phase commit is the one outcome that nobody can find out: it says so, and guesses nothing. Other work does
    not survive its connection: that is no unknown outcome."""
    for lost in LOST:
        with case("one phase", lost):
            xid = client.ended(key := new_key())
            with losing(harness, lost), refused(Code.XAER_RMFAIL):
                client.commit(xid, TMONEPHASE)
            client.reopen()
            with refused(Code.XAER_NOTA):
                client.rollback(xid)
            assert (key in harness.committed()) == (lost == "reply")

        with case("a rollback", lost):
            xid = client.ended(key := new_key())
            with losing(harness, lost):
                assert client.rollback(xid) is Code.XA_OK
            assert key not in harness.committed()
        with case("a statement", lost):
            xid = client.begun(first := new_key())
            with losing(harness, lost):
                client.write(second := new_key())  # SQLAlchemy tells it in its own words, which the harness knows
            with refused(Code.XAER_RMFAIL):
                client.end(xid)
            client.reopen()
            assert client.retrying("rollback", xid) in {Code.XA_OK, Code.XAER_NOTA}
            assert not {first, second} & harness.committed()


def test_in_the_middle_of_a_scan(harness: PostgresHarness, client: Client) -> None:
    xid = client.prepared(new_key())
    for lost in LOST:
        with losing(harness, lost), refused(Code.XAER_RMFAIL):
            client.in_doubt()
        client.reopen()
        assert client.in_doubt() == {xid}
    client.rollback(xid)


def test_a_vote_that_was_given_up_is_not_cast_later(harness: PostgresHarness) -> None:
    """PREPARE TRANSACTION is still at work in the server when the caller gives up and rolls back: the answer "unknown
    xid" would be a lie a moment later. The rollback stops it first."""
    harness.admin("CREATE TABLE slow (a int)")
    harness.admin(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NULL; END'"
    )
    harness.admin(
        "CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON slow DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION wait()"
    )
    harness.open_string += "?xa_reply_s=1"
    client = Client(harness)
    xid = client.begun(new_key())
    client.rm.session(RMID).psycopg.execute("INSERT INTO slow VALUES (1)")
    client.end(xid)

    with refused(Code.XAER_RMFAIL):
        client.prepare(xid)
    preparing = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE query LIKE '%PREPARE TRANSACTION%' AND state = 'active' AND pid <> pg_backend_pid()"
    )
    assert harness.admin(preparing) == [(1,)]
    client.reopen()
    with refused(Code.XAER_NOTA):
        client.rollback(xid)
    assert harness.admin(preparing) == [(0,)]
    client.rm.close("", RMID)
    assert harness.leaks() == []
    harness.admin("DROP TABLE slow")


def test_a_reply_that_came_before_the_connection_broke_counts(harness: PostgresHarness, client: Client) -> None:
    """With TMASYNC the vote may have arrived long before anybody asks for it."""
    xid = client.ended(key := new_key())
    handle = client.send("prepare", xid)
    while not harness.admin("SELECT 1 FROM pg_prepared_xacts WHERE gid = %s", str(xid)):
        pass
    wait = client.rm._operations[handle].pending.pending.wait  # type: ignore[attr-defined]
    if wait is not None:  # None: the reply was there at once, and has been read
        assert is_ready([wait], PATIENCE_S)  # the reply is in the socket
    harness.disconnect(client.rm)
    assert client.wait(handle) is Code.XA_OK
    assert client.commit(xid) is Code.XA_OK
    assert key in harness.committed()


def test_a_begin_that_the_server_cancels(harness: PostgresHarness, client: Client) -> None:
    """By the time-out of the role, for instance. Nothing is wrong with the program, and the next try may succeed; also
    for a branch that has no statement."""

    def message(words: bytes) -> bytes:
        return b"Q" + (len(words) + 5).to_bytes(4, "big") + words + b"\0"

    for statements in (1, 0, 2):
        harness.proxy.replace_request(message(b"BEGIN"), message(b"SET statement_timeout = 1; SELECT pg_sleep(9)"))
        client.start(xid := new_xid())
        for _ in range(statements):
            with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
                client.rm.session(RMID).psycopg.execute("SELECT 1")
        with refused(Code.XA_RBTIMEOUT):
            client.end(xid)
        client.rollback(xid)
        client.commit(client.prepared(new_key()))
