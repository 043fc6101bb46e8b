"""These tests pin what `xabridge` exports, and what importing it loads."""

from __future__ import annotations

import xabridge
from tests.programs import check_exports, loaded_by

PUBLIC = """
    Action App Broker Code Codec CommitReturn Configuration ConfigurationError Consumer ConsumerSettings
    ConsumerState Database DeclaredConsumer Depends MessageCounts
    Finding GlobalState Health HealthServer HeuristicCommitted HeuristicHazard
    HeuristicMixed HeuristicOutcomeError HeuristicRolledBack ManagerUnusable MariaDatabase Message NoMessage Outcome
    OutcomeUnknown PostgresDatabase Propagation ProtocolMisuse Reason Report ResourceConfig RolledBack Router
    Transaction TransactionControl TransactionError TransactionManager TransactionState Tx TxCode TxInfo TxInterface
    Verdict Xid configuration_from opentelemetry shard_address shard_of take_part
"""


def test_public_names() -> None:
    check_exports(xabridge, PUBLIC)


def test_importing_it_loads_nothing_else_and_using_it_no_resource_manager() -> None:
    imported = loaded_by("import xabridge")
    packages = {"xa", "dtx", "rm_amqp", "rm_db", "tm", "proton", "sqlalchemy", "psycopg", "pyspark", "asyncio"}
    assert "xabridge" in imported
    assert not packages & imported
    used = loaded_by("from xabridge import Message, RolledBack, TransactionManager")
    assert "tm.manager" in used
    assert not {"rm_db", "rm_amqp.connections", "dtx.broker", "proton", "sqlalchemy", "psycopg"} & used
