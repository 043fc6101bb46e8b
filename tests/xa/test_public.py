"""These tests pin what `xa` exports, and what importing it loads."""

from __future__ import annotations

import xa
from tests.programs import check_exports, loaded_by

PUBLIC = """
    AxCode BranchRolledBack BreakingConnections CarryingOutSql Code Completion DecidingResource DecisionRecord
    EndingWithPrepare EXCEPTIONS FORMAT_ID Gtrid Handle HEURISTIC_CODES HeuristicOutcome LimitingPrepared
    NotedIncarnation NULL_XID Owner Registrar ResourceError ResourceFactory ResourceManager ResourceUnavailable
    ROLLBACK_CODES SendingMessages SharingBranches StartingAtOnce ThreadOfControl TMASYNC TMENDRSCAN TMFAIL TMJOIN
    TMMIGRATE TMMULTIPLE TMNOFLAGS TMNOMIGRATE TMNOWAIT TMONEPHASE TMREGISTER TMRESUME TMSTARTRSCAN TMSUCCESS
    TMSUSPEND TMUSEASYNC TryAgain UnknownBranch XaError XaMisuse Xid check_flags check_node entered flag_names
    log_prefix node_prefix switch_control thread_of_control xa_error
"""


def test_public_names() -> None:
    check_exports(xa, PUBLIC)


def test_importing_the_contract_loads_nothing_else_of_ours() -> None:
    packages = {"dtx", "rm_amqp", "rm_db", "tm", "xabridge", "bench", "proton", "sqlalchemy", "psycopg"}
    loaded = loaded_by("import xa")
    assert not packages & {name.partition(".")[0] for name in loaded}
    assert not [name for name in loaded if name.startswith("xa.sql")]
