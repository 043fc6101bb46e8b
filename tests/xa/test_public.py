"""These tests pin what `xa` exports, and what importing it loads."""

from __future__ import annotations

import subprocess
import sys

import xa

PUBLIC = """
    AxCode BranchRolledBack BreakingConnections CarryingOutSql Code Completion DecidingResource DecisionRecord
    EXCEPTIONS FORMAT_ID Gtrid Handle HEURISTIC_CODES HeuristicOutcome LateEnding LimitingPrepared NotedIncarnation
    NULL_XID Owner Registrar ResourceError ResourceFactory ResourceManager ResourceUnavailable ROLLBACK_CODES
    SendingMessages SharingBranches StartingAtOnce ThreadOfControl TMASYNC TMENDRSCAN TMFAIL TMJOIN TMMIGRATE TMMULTIPLE
    TMNOFLAGS TMNOMIGRATE TMNOWAIT TMONEPHASE TMREGISTER TMRESUME TMSTARTRSCAN TMSUCCESS TMSUSPEND TMUSEASYNC TryAgain
    UnknownBranch XaError XaMisuse Xid check_flags check_node entered flag_names log_prefix node_prefix switch_control
    thread_of_control xa_error
"""


def test_public_names() -> None:
    assert sorted(xa.__all__) == sorted(PUBLIC.split())
    assert all(hasattr(xa, name) for name in xa.__all__)


def test_importing_the_contract_loads_nothing_else_of_ours() -> None:
    code = "import sys, xa; print(*sorted(name for name in sys.modules if name.split('.')[0] in PACKAGES))"
    packages = {"dtx", "rm_amqp", "rm_db", "tm", "xabridge", "bench", "proton", "sqlalchemy", "psycopg"}
    result = subprocess.run(
        [sys.executable, "-c", f"PACKAGES = {packages | {'xa'}!r}\n{code}"], capture_output=True, text=True, check=True
    )
    loaded = result.stdout.split()
    assert not [
        name
        for name in loaded
        if name.split(".")[0] != "xa" or name.startswith(("xabridge.testing.reference", "xa.sql"))
    ]
