"""The transaction manager: begin, enlist, commit; decision logs, recovery, and the TX interface.

A name is imported when it is first used: the command `xabridge`, which is here too, would otherwise load a whole
manager to print its help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xa.lazy_names import names_at_first_use

if TYPE_CHECKING:
    from tm.config import Configuration, configuration_from
    from tm.consumer import Consumer, ConsumerSettings, ConsumerState, Health, MessageCounts
    from tm.errors import (
        HeuristicCommitted,
        HeuristicHazard,
        HeuristicMixed,
        HeuristicOutcomeError,
        HeuristicRolledBack,
        ManagerUnusable,
        OutcomeUnknown,
        ProtocolMisuse,
        RolledBack,
        TransactionError,
    )
    from tm.outcome import Outcome, Reason, Verdict
    from tm.propagation import Propagation
    from tm.recovery import Action, Finding, Report
    from tm.resources import ConfigurationError, ResourceConfig
    from tm.telemetry.pages import HealthServer
    from tm.transaction import Transaction
    from tm.transaction_manager import TransactionManager
    from tm.two_phase.states import GlobalState
    from tm.tx import TxInterface
    from tm.tx.codes import CommitReturn, TransactionControl, TransactionState, TxCode, TxInfo

__all__ = [
    "Action",
    "CommitReturn",
    "Configuration",
    "ConfigurationError",
    "Consumer",
    "ConsumerSettings",
    "ConsumerState",
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
    "MessageCounts",
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
    "CommitReturn": "tm.tx.codes",
    "Configuration": "tm.config",
    "ConfigurationError": "tm.resources",
    "Consumer": "tm.consumer",
    "ConsumerSettings": "tm.consumer",
    "ConsumerState": "tm.consumer",
    "MessageCounts": "tm.consumer",
    "Finding": "tm.recovery",
    "GlobalState": "tm.two_phase.states",
    "Health": "tm.consumer",
    "HealthServer": "tm.telemetry.pages",
    "HeuristicCommitted": "tm.errors",
    "HeuristicHazard": "tm.errors",
    "HeuristicMixed": "tm.errors",
    "HeuristicOutcomeError": "tm.errors",
    "HeuristicRolledBack": "tm.errors",
    "ManagerUnusable": "tm.errors",
    "Outcome": "tm.outcome",
    "OutcomeUnknown": "tm.errors",
    "Propagation": "tm.propagation",
    "ProtocolMisuse": "tm.errors",
    "Reason": "tm.outcome",
    "Report": "tm.recovery",
    "ResourceConfig": "tm.resources",
    "RolledBack": "tm.errors",
    "Transaction": "tm.transaction",
    "TransactionControl": "tm.tx.codes",
    "TransactionError": "tm.errors",
    "TransactionManager": "tm.transaction_manager",
    "TransactionState": "tm.tx.codes",
    "TxCode": "tm.tx.codes",
    "TxInfo": "tm.tx.codes",
    "TxInterface": "tm.tx",
    "Verdict": "tm.outcome",
    "configuration_from": "tm.config",
}
"""Name → the module that has it."""


if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__, __dir__ = names_at_first_use(globals(), _HOME)
