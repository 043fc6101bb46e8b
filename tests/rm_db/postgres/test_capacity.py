"""These tests ask for connections beyond the pool, or beyond what the server allows, and check that such a failure is
never reported as an outcome.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, cast

import psycopg
import pytest

from rm_db import PostgresResource
from rm_db.postgres.libpq import LibpqConnection
from rm_db.server.pending import OutstandingSteps
from tests.postgres import Postgres
from tests.rm_db.harness import PostgresDeciderHarness, PostgresHarness
from xa import ROLLBACK_CODES, TMONEPHASE, Code, XaError, xa_error
from xa.pool import RESERVE, ConnectionPool
from xabridge.testing.contract.capacity import overlap
from xabridge.testing.contract.client import RMID, Client, elsewhere, new_key, refused
from xabridge.testing.contract.deciding import RECORD, Decider

MANY: Final = 40
PATIENCE_S: Final = 60
COMMIT_REPLY: Final = 120
"""More octets than the reply to a commit has."""
STEP: Final = 1 if os.environ.get("XABRIDGE_POINTS") == "all" else 5
"""So many more octets arrive each time."""


@pytest.fixture
def worker(harness: PostgresHarness) -> Iterator[Client]:
    """A client that logs in as a role of its own."""
    harness.admin("CREATE ROLE worker LOGIN")
    harness.admin("GRANT ALL ON work TO worker")
    harness.open_string = harness.open_string.replace("postgres@", "worker@") + "?xa_pool_wait_s=5"
    client = Client(harness)
    yield client
    harness.admin("ALTER ROLE worker LOGIN CONNECTION LIMIT -1")
    client.reopen()
    assert client.in_doubt() == set()
    client.rm.close("", RMID)
    assert harness.leaks() == []
    harness.admin("DROP OWNED BY worker")
    harness.admin("DROP ROLE worker")


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_server_that_allows_fewer_connections_than_the_pool(
    worker: Client, harness: PostgresHarness, verb: str
) -> None:
    """What it allows is enough."""
    keys = {worker.prepared(key): key for key in (new_key() for _ in range(MANY))}
    harness.admin("ALTER ROLE worker CONNECTION LIMIT 3")
    assert set(overlap(worker, verb, keys).values()) == {Code.XA_OK}
    assert set(keys.values()) & harness.committed() == (set(keys.values()) if verb == "commit" else set())


@pytest.mark.timeout(PATIENCE_S)
@pytest.mark.parametrize("hindrance", ["NOLOGIN", "CONNECTION LIMIT 0"])
def test_a_server_that_does_not_let_us_in_any_more(worker: Client, harness: PostgresHarness, hindrance: str) -> None:
    """The branch stays prepared, and nobody is told that it was rolled back."""
    for verb in ("commit", "rollback"):
        xid = worker.prepared(key := new_key())
        harness.admin(f"ALTER ROLE worker {hindrance}")
        harness.disconnect(worker.rm)
        with refused(Code.XA_RETRY, Code.XAER_RMFAIL):
            getattr(worker.rm, verb)(xid, RMID)
        harness.admin("ALTER ROLE worker LOGIN CONNECTION LIMIT -1")
        worker.reopen()
        assert worker.in_doubt() == {xid}
        assert getattr(worker, verb)(xid) is Code.XA_OK
        assert (key in harness.committed()) == (verb == "commit")


def test_a_rollback_that_may_not_look_who_prepares(worker: Client, harness: PostgresHarness) -> None:
    """A rollback of a gid that is not there looks for a server process that is about to prepare it. Where it may not,
    nothing is known of the branch."""
    xid = worker.prepared(new_key())
    worker.rollback(xid)
    harness.admin("REVOKE EXECUTE ON FUNCTION pg_sleep(double precision) FROM PUBLIC")
    try:
        with refused(Code.XA_RETRY):
            worker.rollback(xid)
    finally:
        harness.admin("GRANT EXECUTE ON FUNCTION pg_sleep(double precision) TO PUBLIC")
    with refused(Code.XAER_NOTA):
        worker.rollback(xid)


# --- replies of which only a part arrives -----------------------------------------------------------------------
def outcomes(harness: PostgresHarness, make: Callable[[], Client], commit: Callable[[Client, str], Code]) -> set[Code]:
    """Commits again and again, and each time more of the reply arrives; the codes that were told. What was told as
    rolled back is not committed."""
    told: set[Code] = set()
    for octets in range(0, COMMIT_REPLY, STEP):
        client = make()
        key = new_key()
        try:
            code = commit(client, key)
        except XaError as error:
            code = error.code
        harness.proxy.cut()
        told.add(code)
        committed = key in harness.committed()
        if code is Code.XA_OK:
            assert committed, octets
        else:
            assert not (committed and code in ROLLBACK_CODES), f"{code.name} after {octets} octets, and committed"

        with elsewhere():
            client.reopen()
            client.rm.close("", RMID)
        if code is Code.XA_OK:
            break
    return told


@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_commit_of_whose_reply_only_a_part_arrives(harness: PostgresHarness) -> None:
    octets = iter(range(0, COMMIT_REPLY, STEP))

    def commit(client: Client, key: str) -> Code:
        xid = client.ended(key)
        harness.proxy.cut_replies_after(next(octets))
        return client.commit(xid, TMONEPHASE)

    assert outcomes(harness, lambda: Client(harness), commit) == {Code.XA_OK, Code.XAER_RMFAIL}


@pytest.mark.timeout(2 * PATIENCE_S)
def test_a_decision_of_whose_reply_only_a_part_arrives(postgres: Postgres, database: str) -> None:
    harness = PostgresDeciderHarness(postgres, database)
    octets = iter(range(0, COMMIT_REPLY, STEP))

    def commit(client: Client, key: str) -> Code:
        assert isinstance(client, Decider)
        xid = client.ended(key)
        harness.proxy.cut_replies_after(next(octets))
        return client.decide(xid, RECORD)

    try:
        assert outcomes(harness, lambda: Decider(harness), commit) == {Code.XA_OK, Code.XAER_RMFAIL}
    finally:
        harness.admin("DELETE FROM xabridge_decision")
        harness.close()


# --- the queue of those who wait --------------------------------------------------------------------------------
@pytest.fixture
def pool(harness: PostgresHarness) -> Iterator[ConnectionPool[LibpqConnection]]:
    """A pool for one branch at work."""
    pool = ConnectionPool(
        lambda _: LibpqConnection(psycopg.connect(harness.url), PATIENCE_S),
        size=1,
        wait_s=PATIENCE_S,
        busy=partial(xa_error, Code.XA_RETRY),
        outstanding=OutstandingSteps(60.0),
    )
    yield pool
    pool.close()


def test_who_waits_longest_is_next(pool: ConnectionPool[LibpqConnection]) -> None:
    """A thread that asks for a connection again and again leaves the others their turn."""
    held = [pool.acquire(work=False) for _ in range(1 + RESERVE)]
    with ThreadPoolExecutor(1) as threads:
        for _ in range(20):
            waiting = threads.submit(pool.acquire, work=False)
            while not pool._queue:
                pass
            pool.release(held.pop())
            with refused(Code.XA_RETRY):
                pool.acquire(work=False, wait=False)
            held.append(waiting.result(PATIENCE_S))
    for connection in held:
        pool.release(connection)


def test_work_that_waits_is_not_in_the_way_of_commands(pool: ConnectionPool[LibpqConnection]) -> None:
    work = pool.acquire(work=True)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.acquire, work=True)
        while not pool._queue:
            pass
        for _ in range(RESERVE + 1):
            pool.release(pool.acquire(work=False, wait=False))
        pool.release(work)
        pool.release(waiting.result(PATIENCE_S))


def test_closing_ends_the_wait(pool: ConnectionPool[LibpqConnection]) -> None:
    held = [pool.acquire(work=False) for _ in range(1 + RESERVE)]
    heard: list[XaError] = []

    def wait() -> None:
        with refused(Code.XAER_PROTO) as raised:
            pool.acquire(work=False)
        heard.append(raised.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not pool._queue:
        pass
    pool.close()
    waiting.join(PATIENCE_S)
    assert heard
    for connection in held:
        pool.release(connection)


def test_whether_a_start_would_wait(harness: PostgresHarness) -> None:
    """It would not, where a connection is idle, was used lately, and owes no reply."""
    harness.open_string += f"{'&' if '?' in harness.open_string else '?'}xa_pool_size=1"
    client = Client(harness)
    rm = cast("PostgresResource", client.rm)
    assert rm.starts_at_once(RMID)
    xid = client.begun(new_key())
    assert not rm.starts_at_once(RMID)
    client.end(xid)
    assert client.commit(xid, TMONEPHASE) is Code.XA_OK
    assert rm.starts_at_once(RMID)
    harness.proxy.cut()
    assert not rm.starts_at_once(RMID)  # another connection would have to be made
    client.rollback(client.ended(new_key()))
    rm.close("", RMID)
    assert not rm.starts_at_once(RMID)
