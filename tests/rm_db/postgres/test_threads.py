"""These tests cover threads, processes and signals: which of them wait for which, and what an interruption leaves."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import pytest
import sqlalchemy as sa

from tests.rm_db.harness import connections
from xa import TMFAIL, TMJOIN, TMNOWAIT, TMONEPHASE, TMSUCCESS, Code, ThreadOfControl, XaMisuse, entered
from xabridge.testing.contract.client import RMID, Client, elsewhere, new_key, new_xid, refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rm_db.harness import PostgresHarness

PATIENCE_S: Final = 60


# --- a manager that ends what takes too long, while the application is inside ---------------------------------------
def test_a_statement_is_cancelled_when_its_branch_is_rolled_back(client: Client, harness: PostgresHarness) -> None:
    """The manager's reaper does so for the application's thread of control, from a thread of its own."""
    control = ThreadOfControl()
    with entered(control):
        xid = client.begun(key := new_key())
        shop = client.rm.session(RMID)

    def work() -> None:
        with pytest.raises(sa.exc.OperationalError, match="canceling statement"):
            shop.execute(sa.text("SELECT pg_sleep(600)"))
        with pytest.raises(XaMisuse, match="over"):
            shop.execute(sa.text("SELECT 1"))

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        wait_for_statement(harness, "SELECT pg_sleep(600)")
        with entered(control):
            assert client.end(xid, TMFAIL) is Code.XA_OK
            assert client.rollback(xid) is Code.XA_OK
        working.result(PATIENCE_S)
    assert key not in harness.committed()
    assert client.commit(client.ended(key), TMONEPHASE) is Code.XA_OK


def test_commit_while_another_thread_is_in_a_statement(client: Client, harness: PostgresHarness) -> None:
    control = ThreadOfControl()
    with entered(control):
        xid = client.begun(key := new_key())
        shop = client.rm.session(RMID)

    def work() -> None:
        with pytest.raises(sa.exc.OperationalError):
            shop.execute(sa.text("SELECT pg_sleep(600)"))

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        wait_for_statement(harness, "SELECT pg_sleep(600)")
        with entered(control), refused(Code.XA_RBPROTO):
            client.end(xid)
        client.retrying("rollback", xid)
        working.result(PATIENCE_S)
    assert key not in harness.committed()


@pytest.mark.slow
def test_a_server_that_does_not_even_cancel(client: Client, harness: PostgresHarness) -> None:
    """Nothing is heard of it any more: the connection is cut under the statement, and everybody goes on."""
    control = ThreadOfControl()
    with entered(control):
        xid = client.begun(key := new_key())
        shop = client.rm.session(RMID)

    def work() -> None:
        with pytest.raises(sa.exc.OperationalError):
            shop.execute(sa.text("SELECT 1"))

    harness.proxy.hold_requests()
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        assert harness.proxy.held.wait(PATIENCE_S)
        with entered(control):
            client.end(xid, TMFAIL)
            assert client.rollback(xid) is Code.XA_OK
        working.result(PATIENCE_S)
    harness.proxy.cut()
    assert key not in harness.committed()
    assert client.commit(client.ended(key), TMONEPHASE) is Code.XA_OK


def wait_for_statement(harness: PostgresHarness, statement: str) -> None:
    """Returns when the server is carrying it out."""
    while not harness.admin("SELECT 1 FROM pg_stat_activity WHERE query = %s AND state = 'active'", statement):
        pass


# --- threads that share a branch ------------------------------------------------------------------------------
def test_a_join_waits_for_the_thread_at_work(client: Client) -> None:
    xid = client.begun(first := new_key())
    joined = threading.Event()

    def join() -> str:
        client.start(xid, TMJOIN)
        joined.set()
        client.write(key := new_key())
        client.end(xid)
        return key

    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(join)
        with elsewhere(), refused(Code.XA_RETRY):
            client.start(xid, TMJOIN | TMNOWAIT)
        assert not joined.is_set()
        client.end(xid)
        second = joining.result(PATIENCE_S)
    client.prepare(xid)
    client.commit(xid)
    assert {first, second} <= client.harness.committed()


def test_threads_that_are_gone_leave_nothing(client: Client) -> None:
    """A thread that ends while it is associated has lost its association; the branch is rollback-only."""
    with ThreadPoolExecutor(1) as pool:
        xid = pool.submit(client.begun, new_key()).result()
    with refused(Code.XA_RBCOMMFAIL):
        client.prepare(xid)
    with refused(Code.XAER_NOTA):
        client.rollback(xid)


# --- the pool -------------------------------------------------------------------------------------------------
def test_the_pool_has_bounds(harness: PostgresHarness) -> None:
    harness.open_string += "?xa_pool_size=2&xa_pool_wait_s=0.1"
    client = Client(harness)
    prepared = client.prepared(key := new_key())
    at_work = []
    for _ in range(2):
        with elsewhere():
            at_work.append(client.ended(new_key()))
    with elsewhere():
        with refused(Code.XA_RETRY):
            client.start(new_xid(), TMNOWAIT)
        with refused(Code.XA_RETRY) as raised:
            client.start(new_xid())
    assert "xa_pool_size" in raised.value.message
    assert client.commit(prepared) is Code.XA_OK  # what frees locks does not wait for what holds connections
    assert key in harness.committed()
    client.rollback(at_work.pop())
    xid = client.ended(new_key())
    for branch in (xid, *at_work):
        client.rollback(branch)
    assert len(connections(client.rm)) <= 2 + 4
    client.rm.close("", RMID)
    assert harness.leaks() == []


def test_a_thread_that_waits_gets_the_connection_that_comes_free(harness: PostgresHarness) -> None:
    harness.open_string += "?xa_pool_size=1"
    client = Client(harness)
    xid = client.ended(new_key())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.ended, new_key())
        client.rollback(xid)
        client.rollback(waiting.result(PATIENCE_S))
    client.rm.close("", RMID)
    assert harness.leaks() == []


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


# --- signals and processes --------------------------------------------------------------------------------------
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("verb", ["prepare", "commit", "rollback"])
def test_an_interrupted_verb(client: Client, harness: PostgresHarness, verb: str) -> None:
    """Ctrl-C while a reply is awaited: the connection goes, nothing stays busy, and recovery finds the rest."""
    xid = client.ended(key := new_key()) if verb == "prepare" else client.prepared(key := new_key())
    harness.proxy.hold_replies()

    def interrupt() -> None:
        assert harness.proxy.held.wait(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        getattr(client.rm, verb)(xid, RMID)
    interrupter.join()
    harness.proxy.flow()
    if verb == "prepare":
        assert client.in_doubt() == {xid}
        client.rollback(xid)
    else:
        assert client.retrying(verb, xid) in {Code.XA_OK, Code.XAER_NOTA}
    assert (key in harness.committed()) == (verb == "commit")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_statement(client: Client, harness: PostgresHarness) -> None:
    xid = client.begun(key := new_key())

    def interrupt() -> None:
        wait_for_statement(harness, "SELECT pg_sleep(600)")
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        client.rm.session(RMID).psycopg.execute("SELECT pg_sleep(600)")
    interrupter.join()
    with refused(Code.XA_RBTIMEOUT, Code.XA_RBROLLBACK):
        client.end(xid)
    client.retrying("rollback", xid)
    assert key not in harness.committed()


FORKS = """
import os, sys
from rm_db import PostgresResource
from xa import TMONEPHASE, TMSUCCESS, Code, XaMisuse, Xid

def work(rm, name):
    xid = Xid(1, name, b"")
    rm.start(xid, 1)
    rm.session(1).psycopg.execute("INSERT INTO work VALUES (%s)", [name.decode()])
    rm.end(xid, 1, TMSUCCESS)
    assert rm.commit(xid, 1, TMONEPHASE) is Code.XA_OK

rm = PostgresResource()
rm.open(sys.argv[1], 1)
work(rm, b"parent before")
open_branch = Xid(1, b"parent across", b"")
rm.start(open_branch, 1)
rm.session(1).psycopg.execute("INSERT INTO work VALUES ('parent across')")
child = os.fork()
if child == 0:
    try:
        work(rm, b"refused")
    except XaMisuse as error:
        assert "not open in this process" in error.message
        rm.open(sys.argv[1], 1)
        work(rm, b"child")
        rm.close("", 1)
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
rm.end(open_branch, 1, TMSUCCESS)
assert rm.commit(open_branch, 1, TMONEPHASE) is Code.XA_OK
work(rm, b"parent after")
rm.close("", 1)
"""


def test_a_forked_process_opens_for_itself(harness: PostgresHarness) -> None:
    """... and does not touch the connections of its parent, which goes on with them."""
    done = subprocess.run([sys.executable, "-c", FORKS, harness.url], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"parent before", "parent across", "child", "parent after"} <= harness.committed()
    assert "refused" not in harness.committed()


def test_connections_made_by_many_threads_at_once(client: Client) -> None:
    """No thread's transaction is another's: each sees its own work only."""
    keys: list[str] = []

    def work() -> None:
        for _ in range(10):
            xid = client.begun(key := new_key())
            seen = client.rm.session(RMID).psycopg.execute(
                "SELECT key FROM work WHERE xmin::text = (pg_current_xact_id()::text::bigint % 4294967296)::text"
            )
            assert [row[0] for row in seen] == [key]
            client.end(xid)
            client.prepare(xid)
            client.commit(xid)
            keys.append(key)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work) for _ in range(8)]:
            future.result()
    assert len(keys) == 80
    assert set(keys) <= client.harness.committed()


def test_a_branch_leaves_nothing_to_the_garbage_collector(client: Client) -> None:
    """What refers to itself costs every thread a pause, later."""
    rm = client.rm

    def work() -> None:
        rm.start(xid := new_xid(), RMID)
        rm.session(RMID).psycopg.execute("SELECT 1")
        rm.end(xid, RMID, TMSUCCESS)
        rm.commit(xid, RMID, TMONEPHASE)

    work()
    gc.collect()
    gc.disable()
    try:
        work()
        found = gc.collect()
    finally:
        gc.enable()
    assert found == 0
