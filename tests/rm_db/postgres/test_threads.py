"""These tests cover threads, processes and signals: which of them wait for which, and what an interruption leaves."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
import sqlalchemy as sa

from tests.rm_db.harness import PostgresHarness
from xa import TMFAIL, TMONEPHASE, TMSUCCESS, Code, ThreadOfControl, entered
from xabridge.testing.contract.client import RMID, Client, new_key, new_xid

PATIENCE_S: Final = 60


# --- a manager that ends what takes too long, while the application is inside ---------------------------------------
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
