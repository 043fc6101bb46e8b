"""Codes, characteristics and TxInfo of the TX interface, with X/Open's names and values (tx.h, C504), and the table
that says which code tells which outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from tm.log import LogStopped
from tm.outcome import Verdict
from tm.two_phase.states import GlobalState
from tm.tx.states import TxVerb

if TYPE_CHECKING:
    from tm.outcome import Outcome
    from xa import Xid


class TxCode(IntEnum):
    """The return codes of a tx_ routine."""

    TX_NOT_SUPPORTED = 1
    TX_OK = 0
    TX_OUTSIDE = -1
    TX_ROLLBACK = -2
    TX_MIXED = -3
    TX_HAZARD = -4
    TX_PROTOCOL_ERROR = -5
    TX_ERROR = -6
    TX_FAIL = -7
    TX_EINVAL = -8
    TX_COMMITTED = -9
    TX_NO_BEGIN = -100
    TX_ROLLBACK_NO_BEGIN = -102
    TX_MIXED_NO_BEGIN = -103
    TX_HAZARD_NO_BEGIN = -104
    TX_COMMITTED_NO_BEGIN = -109


class CommitReturn(IntEnum):
    """The moment at which tx_commit returns."""

    TX_COMMIT_COMPLETED = 0
    TX_COMMIT_DECISION_LOGGED = 1


class TransactionControl(IntEnum):
    """Whether the end of a transaction begins the next one."""

    TX_UNCHAINED = 0
    TX_CHAINED = 1


class TransactionState(IntEnum):
    """The state of the caller's transaction."""

    TX_ACTIVE = 0
    TX_TIMEOUT_ROLLBACK_ONLY = 1
    TX_ROLLBACK_ONLY = 2


MAX_TIMEOUT_S: Final = 2**31 - 1
"""The longest timeout that tx_set_transaction_timeout takes: what every C long holds."""


@dataclass(frozen=True, slots=True)
class TxInfo:
    """TXINFO: the caller's characteristics, and its transaction. Outside a transaction `xid` is the null XID and
    `transaction_state` is None (undefined, says the specification). `transaction_timeout` is in seconds, 0: none."""

    xid: Xid
    when_return: CommitReturn
    transaction_control: TransactionControl
    transaction_timeout: int
    transaction_state: TransactionState | None


_C, _V = TxCode, Verdict
OUTCOME_CODES: Final[dict[TxVerb, dict[Verdict, TxCode]]] = {
    TxVerb.COMMIT: {
        _V.COMMITTED: _C.TX_OK,
        _V.ROLLED_BACK: _C.TX_ROLLBACK,
        # all of the work was rolled back, which is what TX_ROLLBACK says; the log knows that it was heuristic
        _V.HEUR_ROLLED_BACK: _C.TX_ROLLBACK,
        # rollback was decided (rollback-only, or a refusal), and the work stands committed: tx_commit has no code
        # for that. TX_OK would hide that the decision was violated, TX_ROLLBACK would be false.
        _V.HEUR_COMMITTED: _C.TX_HAZARD,
        _V.MIXED: _C.TX_MIXED,
        _V.HAZARD: _C.TX_HAZARD,
        # The decision may be durable, but prepared branches can't be reached now. This is the "long-lasting
        # network or node failure" that tx_set_commit_return speaks of: phase two is not possible, heuristic results
        # may occur. TX_COMMIT_COMPLETED promises to tell that they may have occurred. TX_OK would say that the work
        # is there, TX_ROLLBACK that it may be done again; both may lose or double it.
        _V.UNKNOWN: _C.TX_HAZARD,
    },
    TxVerb.ROLLBACK: {
        _V.ROLLED_BACK: _C.TX_OK,
        _V.HEUR_ROLLED_BACK: _C.TX_OK,
        _V.HEUR_COMMITTED: _C.TX_COMMITTED,
        # only when it was committed behind the interface's back: the work is there, whatever was asked for
        _V.COMMITTED: _C.TX_COMMITTED,
        _V.MIXED: _C.TX_MIXED,
        _V.HAZARD: _C.TX_HAZARD,
        _V.UNKNOWN: _C.TX_HAZARD,
    },
}
"""Requested completion → verdict → code; total. `outcome_code` adds what depends on more than the verdict."""

NO_BEGIN: Final[dict[TxCode, TxCode]] = {
    _C.TX_OK: _C.TX_NO_BEGIN,
    _C.TX_ROLLBACK: _C.TX_ROLLBACK_NO_BEGIN,
    _C.TX_MIXED: _C.TX_MIXED_NO_BEGIN,
    _C.TX_HAZARD: _C.TX_HAZARD_NO_BEGIN,
    _C.TX_COMMITTED: _C.TX_COMMITTED_NO_BEGIN,
}
"""The code of a completion → the same, when the next transaction of the chain could not be started."""

STATE_OF: Final[dict[GlobalState, TransactionState]] = {
    **dict.fromkeys(GlobalState, TransactionState.TX_ROLLBACK_ONLY),  # no more work of it can be committed
    GlobalState.ACTIVE: TransactionState.TX_ACTIVE,
    GlobalState.SUSPENDED: TransactionState.TX_ACTIVE,
    GlobalState.PREPARING: TransactionState.TX_ACTIVE,
}
"""The manager's state → what tx_info tells."""


def outcome_code(asked: TxVerb, outcome: Outcome, when_return: CommitReturn) -> TxCode:
    """The code that tells `outcome` to whom `asked`.

    An unknown outcome is TX_FAIL where the log stopped: the manager can no longer work for the application, and
    the state of the transaction is unknown, as that code says. With TX_COMMIT_DECISION_LOGGED a durable decision
    is all that was asked for.
    """
    if outcome.verdict is Verdict.UNKNOWN:
        if any(isinstance(reason.said, LogStopped) for reason in outcome.reasons):
            return TxCode.TX_FAIL
        if outcome.decided and asked is TxVerb.COMMIT and when_return is CommitReturn.TX_COMMIT_DECISION_LOGGED:
            return TxCode.TX_OK
    return OUTCOME_CODES[asked][outcome.verdict]
