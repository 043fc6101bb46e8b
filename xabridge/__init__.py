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

`Broker`, `Database` and `PostgresDatabase` are the types of what `tx["…"]` gives, for annotations.

`xabridge.pipeline` has exactly-once pipelines on Spark, `xabridge.testing` what tests of applications and of resource
managers need. A name is imported when it is first used, because the command and Spark's workers need few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rm_amqp import Message, NoMessage
    from rm_amqp import Session as Broker
    from rm_db import BranchConnection as Database
    from rm_db import MariaBranchConnection as MariaDatabase
    from rm_db import PostgresBranchConnection as PostgresDatabase
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
    from xabridge.app import App, Codec, DeclaredConsumer, Depends, Tx
    from xabridge.shards import shard_address, shard_of

__all__ = [
    "Action",
    "App",
    "Broker",
    "Code",
    "Codec",
    "CommitReturn",
    "Configuration",
    "ConfigurationError",
    "Consumer",
    "ConsumerSettings",
    "ConsumerState",
    "Counts",
    "Database",
    "DeclaredConsumer",
    "Depends",
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
    "MariaDatabase",
    "Message",
    "NoMessage",
    "Outcome",
    "OutcomeUnknown",
    "PostgresDatabase",
    "Propagation",
    "ProtocolMisuse",
    "Reason",
    "Report",
    "ResourceConfig",
    "RolledBack",
    "Transaction",
    "TransactionControl",
    "TransactionError",
    "TransactionManager",
    "TransactionState",
    "Tx",
    "TxCode",
    "TxInfo",
    "TxInterface",
    "Verdict",
    "Xid",
    "configuration_from",
    "opentelemetry",
    "shard_address",
    "shard_of",
    "take_part",
]

_HOME: Final = {
    "Action": ("tm", "Action"),
    "App": ("xabridge.app", "App"),
    "Broker": ("rm_amqp", "Session"),
    "Code": ("xa", "Code"),
    "Codec": ("xabridge.app", "Codec"),
    "CommitReturn": ("tm", "CommitReturn"),
    "Configuration": ("tm", "Configuration"),
    "ConfigurationError": ("tm", "ConfigurationError"),
    "Consumer": ("tm", "Consumer"),
    "ConsumerSettings": ("tm", "ConsumerSettings"),
    "ConsumerState": ("tm", "ConsumerState"),
    "Counts": ("tm", "Counts"),
    "Database": ("rm_db", "BranchConnection"),
    "DeclaredConsumer": ("xabridge.app", "DeclaredConsumer"),
    "Depends": ("xabridge.app", "Depends"),
    "Finding": ("tm", "Finding"),
    "GlobalState": ("tm", "GlobalState"),
    "Health": ("tm", "Health"),
    "HealthServer": ("tm", "HealthServer"),
    "HeuristicCommitted": ("tm", "HeuristicCommitted"),
    "HeuristicHazard": ("tm", "HeuristicHazard"),
    "HeuristicMixed": ("tm", "HeuristicMixed"),
    "HeuristicOutcomeError": ("tm", "HeuristicOutcomeError"),
    "HeuristicRolledBack": ("tm", "HeuristicRolledBack"),
    "ManagerUnusable": ("tm", "ManagerUnusable"),
    "MariaDatabase": ("rm_db", "MariaBranchConnection"),
    "Message": ("rm_amqp", "Message"),
    "NoMessage": ("rm_amqp", "NoMessage"),
    "Outcome": ("tm", "Outcome"),
    "OutcomeUnknown": ("tm", "OutcomeUnknown"),
    "PostgresDatabase": ("rm_db", "PostgresBranchConnection"),
    "Propagation": ("tm", "Propagation"),
    "ProtocolMisuse": ("tm", "ProtocolMisuse"),
    "Reason": ("tm", "Reason"),
    "Report": ("tm", "Report"),
    "ResourceConfig": ("tm", "ResourceConfig"),
    "RolledBack": ("tm", "RolledBack"),
    "Transaction": ("tm", "Transaction"),
    "TransactionControl": ("tm", "TransactionControl"),
    "TransactionError": ("tm", "TransactionError"),
    "TransactionManager": ("tm", "TransactionManager"),
    "TransactionState": ("tm", "TransactionState"),
    "Tx": ("xabridge.app", "Tx"),
    "TxCode": ("tm", "TxCode"),
    "TxInfo": ("tm", "TxInfo"),
    "TxInterface": ("tm", "TxInterface"),
    "Verdict": ("tm", "Verdict"),
    "Xid": ("xa", "Xid"),
    "configuration_from": ("tm", "configuration_from"),
    "opentelemetry": ("tm.telemetry", "opentelemetry"),
    "shard_address": ("xabridge.shards", "shard_address"),
    "shard_of": ("xabridge.shards", "shard_of"),
    "take_part": ("rm_db", "take_part"),
}
"""Name → the package that has it, and its name there."""


if not TYPE_CHECKING:  # a type checker would take it for the answer to any name

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        package, its_name = _HOME[name]
        found = globals()[name] = getattr(import_module(package), its_name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
