"""A forked process leaves the sessions of its parent alone: those at work, those that a prepared branch is bound to,
and those in the middle of a reply.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.rm_db.harness import MariaHarness

FORKS = """
import gc, os, sys
from pymysql.cursors import SSCursor
from rm_db import MariaResource
from xa import TMSUCCESS, TMSUSPEND, TMRESUME, Code, XaMisuse, Xid

def begin(rm, name):
    xid = Xid(7, name, b"b")
    rm.start(xid, 1)
    rm.session(1).pymysql.query("INSERT INTO work VALUES ('%s')" % name.decode())
    return xid

def finish(rm, xid):
    rm.end(xid, 1, TMSUCCESS)
    assert rm.prepare(xid, 1) is Code.XA_OK
    assert rm.commit(xid, 1) is Code.XA_OK

url, streams = sys.argv[1], sys.argv[2] == "streams"
rm = MariaResource()
rm.open(url, 1)
finish(rm, begin(rm, b"parent before"))
prepared = begin(rm, b"prepared across")
rm.end(prepared, 1, TMSUCCESS)
assert rm.prepare(prepared, 1) is Code.XA_OK
across = begin(rm, b"parent across")
rows = []
if streams:
    cursor = rm.session(1).pymysql.cursor(SSCursor)
    cursor.execute("SELECT seq, repeat('x', 1000) FROM seq_1_to_20000")
    rows.append(cursor.fetchone())
child = os.fork()
if child == 0:
    try:
        begin(rm, b"refused")
    except XaMisuse as error:
        assert "not open in this process" in error.message
        cursor = None
        rm.open(url, 1)
        gc.collect()
        finish(rm, begin(rm, b"child"))
        rm.close("", 1)
        del rm
        gc.collect()
        sys.exit(0)  # as a program does that ends
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
if streams:
    rows += cursor.fetchall()
    assert len(rows) == 20000
finish(rm, across)
assert rm.commit(prepared, 1) is Code.XA_OK
finish(rm, begin(rm, b"parent after"))
rm.close("", 1)
"""


@pytest.mark.parametrize("doing", ["nothing", "streams"])
def test_the_parent_goes_on(harness: MariaHarness, doing: str) -> None:
    harness.admin("DELETE FROM work")
    done = subprocess.run(
        [sys.executable, "-c", FORKS, harness.open_string, doing],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    expected = {"parent before", "prepared across", "parent across", "child", "parent after"}
    assert set(harness.committed()) == expected
    assert harness.leaks() == []
