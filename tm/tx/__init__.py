"""The TX interface of X/Open (C504): transaction demarcation with return codes. docs/tx.md is its guide."""

from tm.tx.codes import CommitReturn, TransactionControl, TransactionState, TxCode, TxInfo
from tm.tx.interface import TxInterface

__all__ = ["CommitReturn", "TransactionControl", "TransactionState", "TxCode", "TxInfo", "TxInterface"]
