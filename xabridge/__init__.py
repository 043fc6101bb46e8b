"""xabridge: one two-phase commit over AMQP brokers and databases. What an application imports.

    from xabridge import Message, RolledBack, TransactionManager

    manager = TransactionManager("orders-1", "file:///var/lib/orders", {
        "broker": "amqp://localhost",
        "shop": "postgresql://db/shop",
    })
    with manager.begin() as tx:
        message = tx["broker"].receive("orders", timeout_s=5)
        tx["shop"].execute(text("INSERT INTO orders VALUES (:n)"), message.body)
        tx["broker"].send("invoices", Message(message.body))

`xabridge.pipeline` has exactly-once pipelines on Spark, `xabridge.testing` what tests of applications and of resource
managers need. A name is imported when it is first used, because the command and Spark's workers need few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rm_amqp import AsyncSession, Message, NoMessage, Session
    from rm_db import take_part
    from tm import (
        Action,
        CommitReturn,
        Configuration,
        ConfigurationError,
        Consumer,
        ConsumerSettings,
        ConsumerState,
        Counts,
        Finding,
        GlobalState,
        Health,
        HealthServer,
        HeuristicCommitted,
        HeuristicHazard,
        HeuristicMixed,
        HeuristicOutcomeError,
        HeuristicRolledBack,
        ManagerUnusable,
        Outcome,
        OutcomeUnknown,
        Propagation,
        ProtocolMisuse,
        Reason,
        Report,
        ResourceConfig,
        RolledBack,
        Transaction,
        TransactionControl,
        TransactionError,
        TransactionManager,
        TransactionState,
        TxCode,
        TxInfo,
        TxInterface,
        Verdict,
        configuration_from,
    )
    from tm.telemetry import opentelemetry
    from xa import Code, Xid

__all__ = [
    "Action",
    "AsyncSession",
    "Code",
    "CommitReturn",
    "Configuration",
    "ConfigurationError",
    "Consumer",
    "ConsumerSettings",
    "ConsumerState",
    "Counts",
    "Finding",
    "GlobalState",
    "Health",
    "HealthServer",
    "HeuristicCommitted",
    "HeuristicHazard",
    "HeuristicMixed",
    "HeuristicOutcomeError",
    "HeuristicRolledBack",
    "ManagerUnusable",
    "Message",
    "NoMessage",
    "Outcome",
    "OutcomeUnknown",
    "Propagation",
    "ProtocolMisuse",
    "Reason",
    "Report",
    "ResourceConfig",
    "RolledBack",
    "Session",
    "Transaction",
    "TransactionControl",
    "TransactionError",
    "TransactionManager",
    "TransactionState",
    "TxCode",
    "TxInfo",
    "TxInterface",
    "Verdict",
    "Xid",
    "configuration_from",
    "opentelemetry",
    "take_part",
]

_HOME: Final = {
    "Action": "tm",
    "AsyncSession": "rm_amqp",
    "Code": "xa",
    "CommitReturn": "tm",
    "Configuration": "tm",
    "ConfigurationError": "tm",
    "Consumer": "tm",
    "ConsumerSettings": "tm",
    "ConsumerState": "tm",
    "Counts": "tm",
    "Finding": "tm",
    "GlobalState": "tm",
    "Health": "tm",
    "HealthServer": "tm",
    "HeuristicCommitted": "tm",
    "HeuristicHazard": "tm",
    "HeuristicMixed": "tm",
    "HeuristicOutcomeError": "tm",
    "HeuristicRolledBack": "tm",
    "ManagerUnusable": "tm",
    "Message": "rm_amqp",
    "NoMessage": "rm_amqp",
    "Outcome": "tm",
    "OutcomeUnknown": "tm",
    "Propagation": "tm",
    "ProtocolMisuse": "tm",
    "Reason": "tm",
    "Report": "tm",
    "ResourceConfig": "tm",
    "RolledBack": "tm",
    "Session": "rm_amqp",
    "Transaction": "tm",
    "TransactionControl": "tm",
    "TransactionError": "tm",
    "TransactionManager": "tm",
    "TransactionState": "tm",
    "TxCode": "tm",
    "TxInfo": "tm",
    "TxInterface": "tm",
    "Verdict": "tm",
    "Xid": "xa",
    "configuration_from": "tm",
    "opentelemetry": "tm.telemetry",
    "take_part": "rm_db",
}
"""Name → the package that has it."""


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
