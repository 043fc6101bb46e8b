"""A forked process leaves the sessions of its parent alone: those at work, those that a prepared branch of MariaDB is
bound to, and those in the middle of a reply.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any, Final

import pytest

from rm_db.sessions.statement_lock import StatementLock
from tests.rm_db.harness import MariaHarness, PostgresHarness
from xa import XaMisuse
from xabridge.testing.contract.client import new_xid

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
