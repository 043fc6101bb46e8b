"""These tests pin what `xabridge` exports, and what importing it loads."""

from __future__ import annotations

import subprocess
import sys

import xabridge

PUBLIC = """
    Action App Broker Code Codec CommitReturn Configuration ConfigurationError Consumer ConsumerSettings
    ConsumerState Counts Database DeclaredConsumer Depends
    Finding GlobalState Health HealthServer HeuristicCommitted HeuristicHazard
    HeuristicMixed HeuristicOutcomeError HeuristicRolledBack ManagerUnusable MariaDatabase Message NoMessage Outcome
    OutcomeUnknown PostgresDatabase Propagation ProtocolMisuse Reason Report ResourceConfig RolledBack Transaction
    TransactionControl TransactionError TransactionManager TransactionState Tx TxCode TxInfo TxInterface Verdict
    Xid configuration_from opentelemetry shard_address shard_of take_part
"""


def test_public_names() -> None:
    assert sorted(xabridge.__all__) == sorted(PUBLIC.split())
    assert set(xabridge.__all__) == set(xabridge._HOME)
    assert set(xabridge.__all__) <= set(dir(xabridge))
    for name in xabridge.__all__:
        assert getattr(xabridge, name) is not None
    assert not hasattr(xabridge, "nothing")


def test_importing_it_loads_nothing_else_and_using_it_no_resource_manager() -> None:
    code = (
        "import sys, xabridge; print(*sys.modules)\n"
        "from xabridge import Message, RolledBack, TransactionManager; print(*sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    imported, used = (set(line.split()) for line in told.splitlines())
    assert "xabridge" in imported
    packages = {"xa", "dtx", "rm_amqp", "rm_db", "tm", "proton", "sqlalchemy", "psycopg", "pyspark", "asyncio"}
    assert not packages & imported
    assert "tm.manager" in used
    assert not {"rm_db", "rm_amqp.connections", "dtx.broker", "proton", "sqlalchemy", "psycopg"} & used
