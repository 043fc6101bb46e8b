"""The transaction manager: begin, enlist, commit; decision logs, recovery, and the TX interface."""

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
