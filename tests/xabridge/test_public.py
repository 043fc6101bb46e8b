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


def test_a_name_that_is_none() -> None:
    assert not hasattr(xabridge, "nothing")


def test_importing_it_loads_nothing_else() -> None:
    code = "import sys, xabridge; print(*{name.split('.')[0] for name in sys.modules})"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "xabridge" in told
    assert not {"xa", "dtx", "rm_amqp", "rm_db", "tm", "proton", "sqlalchemy", "psycopg", "pyspark", "asyncio"} & set(
        told
    )


def test_what_every_application_uses_loads_no_resource_manager() -> None:
    code = "import sys; from xabridge import Message, RolledBack, TransactionManager; print(*sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tm.manager" in told
    assert not {"rm_db", "rm_amqp.connections", "dtx.broker", "proton", "sqlalchemy", "psycopg"} & set(told)
