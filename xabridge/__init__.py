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
        MessageCounts,
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
    from xabridge.app import App, Codec, DeclaredConsumer, Depends, Router, Tx
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
    "MessageCounts",
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
    "Router",
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

_HOME: Final = dict.fromkeys(__all__, "tm") | {
    **dict.fromkeys(("App", "Codec", "DeclaredConsumer", "Depends", "Router", "Tx"), "xabridge.app"),
    **dict.fromkeys(("Code", "Xid"), "xa"),
    **dict.fromkeys(("Message", "NoMessage"), "rm_amqp"),
    **dict.fromkeys(("shard_address", "shard_of"), "xabridge.shards"),
    "Broker": "rm_amqp:Session",
    "Database": "rm_db:BranchConnection",
    "MariaDatabase": "rm_db:MariaBranchConnection",
    "PostgresDatabase": "rm_db:PostgresBranchConnection",
    "opentelemetry": "tm.telemetry",
    "take_part": "rm_db",
}
"""Name → the package that has it, and behind a colon its name there, if that is another one."""


def _check_packages() -> None:
    """ImportError: a module of somebody's has the name of one of our packages, and Python would import that."""
    from importlib.machinery import PathFinder  # noqa: PLC0415 — no name of ours
    from os import path  # noqa: PLC0415 — as above

    ours = path.dirname(path.dirname(path.realpath(__file__)))  # noqa: PTH120 — pathlib takes longer to load
    for name in ("xa", "dtx", "rm_amqp", "rm_openwire", "rm_db", "rm_delta", "tm"):
        spec = PathFinder.find_spec(name)
        found = spec.origin if spec is not None else None
        if found is None or not path.isfile(found):  # noqa: PTH113 — it is left out, or in an archive
            continue

        if not path.realpath(found).startswith(path.join(ours, name, "")):  # noqa: PTH118
            raise ImportError(
                f"{found} has the name of a package that xabridge has in {ours}, and would be imported in its place: "
                "give it another name",
                name=name,
                path=found,
            )


_check_packages()

if not TYPE_CHECKING:  # a type checker would take it for the answer to any name

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        package, _, its_name = _HOME[name].partition(":")
        found = globals()[name] = getattr(import_module(package), its_name or name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
