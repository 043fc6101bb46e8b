"""The state table of the TX interface (C504, table 7-1), per thread of control.

The specification tells two groups of answers of tx_commit and tx_rollback apart: TX_SET1 (the transaction has
ended, and in a chain the next one has begun) and TX_SET2, the *_NO_BEGIN codes (it has ended, and the next one
could not be started). They are verbs here, and so are the two settings of the transaction_control
characteristic. TX_PROTOCOL_ERROR, TX_EINVAL, TX_ERROR and TX_OUTSIDE leave every state as it was.
"""

from __future__ import annotations

from typing import Final

from xa import Code
from xa.machine import Machine, Member, Result, Row


class TxState(Member):
    """The states of a thread of control in the TX interface."""

    S0 = "S0 resource managers not open"
    S1 = "S1 open, unchained, not in a transaction"
    S2 = "S2 open, chained, not in a transaction"
    S3 = "S3 in a transaction, unchained"
    S4 = "S4 in a transaction, chained"


class TxVerb(Member):
    """The events that move a thread of control."""

    BEGIN = "tx_begin"
    CLOSE = "tx_close"
    COMMIT = "tx_commit"
    COMMIT_NO_BEGIN = "tx_commit, *_NO_BEGIN"
    INFO = "tx_info"
    OPEN = "tx_open"
    ROLLBACK = "tx_rollback"
    ROLLBACK_NO_BEGIN = "tx_rollback, *_NO_BEGIN"
    SET_COMMIT_RETURN = "tx_set_commit_return"
    SET_CHAINED = "tx_set_transaction_control(TX_CHAINED)"
    SET_UNCHAINED = "tx_set_transaction_control(TX_UNCHAINED)"
    SET_TIMEOUT = "tx_set_transaction_timeout"
    FAIL = "any routine, TX_FAIL"


S0, S1, S2, S3, S4 = TxState.S0, TxState.S1, TxState.S2, TxState.S3, TxState.S4
_V: Final = TxVerb
_OK: Final = Result.OK
_ROWS: Final = (
    Row(_V.BEGIN, _OK, (S1,), S3, "7-1"),
    Row(_V.BEGIN, _OK, (S2,), S4, "7-1"),
    Row(_V.CLOSE, _OK, (S0, S1, S2), S0, "7-1"),
    Row(_V.COMMIT, _OK, (S3,), S1, "7-1, TX_SET1"),
    Row(_V.COMMIT, _OK, (S4,), S4, "7-1, TX_SET1"),
    Row(_V.COMMIT_NO_BEGIN, _OK, (S4,), S2, "7-1, TX_SET2"),
    *(Row(_V.INFO, _OK, (state,), state, "7-1") for state in (S1, S2, S3, S4)),
    Row(_V.OPEN, _OK, (S0,), S1, "7-1"),
    *(Row(_V.OPEN, _OK, (state,), state, "7-1") for state in (S1, S2, S3, S4)),
    Row(_V.ROLLBACK, _OK, (S3,), S1, "7-1, TX_SET1"),
    Row(_V.ROLLBACK, _OK, (S4,), S4, "7-1, TX_SET1"),
    Row(_V.ROLLBACK_NO_BEGIN, _OK, (S4,), S2, "7-1, TX_SET2"),
    *(Row(_V.SET_COMMIT_RETURN, _OK, (state,), state, "7-1") for state in (S1, S2, S3, S4)),
    Row(_V.SET_CHAINED, _OK, (S1, S2), S2, "7-1"),
    Row(_V.SET_CHAINED, _OK, (S3, S4), S4, "7-1"),
    Row(_V.SET_UNCHAINED, _OK, (S1, S2), S1, "7-1"),
    Row(_V.SET_UNCHAINED, _OK, (S3, S4), S3, "7-1"),
    *(Row(_V.SET_TIMEOUT, _OK, (state,), state, "7-1") for state in (S1, S2, S3, S4)),
    Row(_V.FAIL, _OK, (S0, S1, S2, S3, S4), S0, "design: after TX_FAIL no more work can be done; open again"),
)
_ROWED: Final = {(state, row.verb) for row in _ROWS for state in row.states}

TX: Final = Machine(
    "TX interface",
    TxState,
    TxVerb,
    S0,
    _ROWS,
    {(state, verb): Code.XAER_PROTO for state in TxState for verb in TxVerb if (state, verb) not in _ROWED},
)
"""A refusal is returned as TX_PROTOCOL_ERROR."""

CHAINED: Final = frozenset({S2, S4})
IN_TRANSACTION: Final = frozenset({S3, S4})
