"""The transaction manager: begin, enlist, commit; decision logs, recovery, and the TX interface.

A name is imported when it is first used: the command `xabridge`, which is here too, would otherwise load a whole
manager to print its help.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tm.config import Configuration, configuration_from
    from tm.consumer import Consumer, ConsumerSettings, ConsumerState, Counts, Health, HealthServer
    from tm.manager import TransactionManager
    from tm.outcome import (
        HeuristicCommitted,
        HeuristicHazard,
        HeuristicMixed,
        HeuristicOutcomeError,
        HeuristicRolledBack,
        ManagerUnusable,
        Outcome,
        OutcomeUnknown,
        ProtocolMisuse,
        Reason,
        RolledBack,
        TransactionError,
        Verdict,
    )
    from tm.propagation import Propagation
    from tm.recovery import Action, Finding, Report
    from tm.resources import ConfigurationError, ResourceConfig
    from tm.states import GlobalState
    from tm.transaction import Transaction
    from tm.tx import TxInterface
    from tm.tx_codes import CommitReturn, TransactionControl, TransactionState, TxCode, TxInfo

__all__ = [
    "Action",
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
    "Outcome",
    "OutcomeUnknown",
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
    "TxCode",
    "TxInfo",
    "TxInterface",
    "Verdict",
    "configuration_from",
]

_HOME: Final = {
    "Action": "tm.recovery",
    "CommitReturn": "tm.tx_codes",
    "Configuration": "tm.config",
    "ConfigurationError": "tm.resources",
    "Consumer": "tm.consumer",
    "ConsumerSettings": "tm.consumer",
    "ConsumerState": "tm.consumer",
    "Counts": "tm.consumer",
    "Finding": "tm.recovery",
    "GlobalState": "tm.states",
    "Health": "tm.consumer",
    "HealthServer": "tm.consumer",
    "HeuristicCommitted": "tm.outcome",
    "HeuristicHazard": "tm.outcome",
    "HeuristicMixed": "tm.outcome",
    "HeuristicOutcomeError": "tm.outcome",
    "HeuristicRolledBack": "tm.outcome",
    "ManagerUnusable": "tm.outcome",
    "Outcome": "tm.outcome",
    "OutcomeUnknown": "tm.outcome",
    "Propagation": "tm.propagation",
    "ProtocolMisuse": "tm.outcome",
    "Reason": "tm.outcome",
    "Report": "tm.recovery",
    "ResourceConfig": "tm.resources",
    "RolledBack": "tm.outcome",
    "Transaction": "tm.transaction",
    "TransactionControl": "tm.tx_codes",
    "TransactionError": "tm.outcome",
    "TransactionManager": "tm.manager",
    "TransactionState": "tm.tx_codes",
    "TxCode": "tm.tx_codes",
    "TxInfo": "tm.tx_codes",
    "TxInterface": "tm.tx",
    "Verdict": "tm.outcome",
    "configuration_from": "tm.config",
}
"""Name → the module that has it."""


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(home), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
