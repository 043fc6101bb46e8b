"""TxInterface: transaction demarcation as X/Open's TX specification (C504) has it, over one TransactionManager.

    tx = TxInterface(tm)
    tx.tx_open(); tx.tx_begin()
    tm["shop"].execute(…)
    tx.tx_commit()

Every routine answers a TxCode and raises nothing; what is behind a code goes to the log. Each thread of control (a
thread or an asyncio task) has its own state (`tm.tx.states.TX`) and its own characteristics, which tx_open sets to
their initial values: TX_COMMIT_COMPLETED, TX_UNCHAINED, and a timeout of 0, with which a transaction never expires: the
manager's `timeout_s` is for transactions that are begun through it. Call tx_set_transaction_timeout where a client that
hangs must not hold its locks for ever.

The resource managers belong to the manager and are open for all of the process. tx_open sees to it that they are,
and TX_OK means that some or all are; tx_close ends their use by the calling thread of control only.
"""

from __future__ import annotations

import logging
import math
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tm.errors import ManagerUnusable, ProtocolMisuse, TransactionError
from tm.transaction import live_of
from tm.tx.codes import (
    MAX_TIMEOUT_S,
    NO_BEGIN,
    STATE_OF,
    CommitReturn,
    TransactionControl,
    TransactionState,
    TxCode,
    TxInfo,
    outcome_code,
)
from tm.tx.states import CHAINED, IN_TRANSACTION, TX, TxState, TxVerb
from xa import FORMAT_ID, NULL_XID, Code, XaError, Xid
from xa.machine import advance

if TYPE_CHECKING:
    from tm.manager import Manager
    from tm.resources import Resource
    from tm.transaction import Transaction

logger = logging.getLogger("xabridge.tm.tx")


@dataclass(frozen=True, slots=True)
class _Thread:
    """The interface's data about one thread of control."""

    state: TxState = TX.initial
    when_return: CommitReturn = CommitReturn.TX_COMMIT_COMPLETED
    timeout_s: int = 0
    transaction: Transaction | None = None


_NEW: Final = _Thread()
_SET_CONTROL: Final = {
    TransactionControl.TX_CHAINED: TxVerb.SET_CHAINED,
    TransactionControl.TX_UNCHAINED: TxVerb.SET_UNCHAINED,
}
_WITHOUT_BEGIN: Final = {
    TxVerb.COMMIT: TxVerb.COMMIT_NO_BEGIN,
    TxVerb.ROLLBACK: TxVerb.ROLLBACK_NO_BEGIN,
}


class TxInterface:
    """The TX interface of `manager`, for every thread of control."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._threads: ContextVar[_Thread] = ContextVar(f"xabridge_tx_{manager.node}", default=_NEW)

    # --- resource managers ----------------------------------------------------------------------------------

    def tx_open(self) -> TxCode:
        """Opens the resource managers; where that is done already, TX_OK.

        TX_ERROR: none could be opened; try again later. TX_FAIL: the manager can decide nothing any more.
        """
        thread = self._threads.get()
        if thread.state is not TxState.S0:
            return self._move(thread, TxVerb.OPEN)
        try:
            self._manager.check_usable()
        except ManagerUnusable as error:
            logger.error("tx_open: %s", error)  # noqa: TRY400 — its message says it all
            return TxCode.TX_FAIL
        resources = self._manager.resources.values()
        opened = [_is_open(resource, "tx_open") for resource in resources]
        if opened and not any(opened):
            return TxCode.TX_ERROR
        return self._move(_NEW, TxVerb.OPEN)

    def tx_close(self) -> TxCode:
        """Ends the calling thread of control's use of the resource managers. TX_PROTOCOL_ERROR in a transaction."""
        return self._move(self._threads.get(), TxVerb.CLOSE)

    # --- transactions ---------------------------------------------------------------------------------------

    def tx_begin(self) -> TxCode:
        """Begins a transaction, with a branch in every resource manager that is open and is not one that registers
        itself.

        TX_OUTSIDE: a resource manager is at work for this thread outside any transaction. TX_ERROR: a resource
        manager can't now. TX_FAIL: the manager can decide nothing any more. There is no transaction then.
        """
        thread = self._threads.get()
        if TX.refusal(thread.state, TxVerb.BEGIN) is not None:
            return TxCode.TX_PROTOCOL_ERROR
        begun = self._begin(thread)
        if not isinstance(begun, TxCode):
            return self._move(replace(thread, transaction=begun), TxVerb.BEGIN)
        if begun is TxCode.TX_FAIL:
            self._move(thread, TxVerb.FAIL)
        return begun

    def tx_commit(self) -> TxCode:
        """Commits. TX_OK, TX_ROLLBACK, TX_MIXED, TX_HAZARD as `tm.tx.codes.OUTCOME_CODES` says; in a chain the next
        transaction begins, or the code's *_NO_BEGIN says that it could not. TX_FAIL: the manager can decide nothing
        any more, and the outcome is unknown."""
        return self._complete(TxVerb.COMMIT)

    def tx_rollback(self) -> TxCode:
        """Rolls back. TX_OK, TX_COMMITTED, TX_MIXED, TX_HAZARD, and for the chain as in tx_commit."""
        return self._complete(TxVerb.ROLLBACK)

    def tx_info(self) -> tuple[int, TxInfo | None]:
        """(1, info) in a transaction, (0, info) outside, (TX_PROTOCOL_ERROR, None) before tx_open."""
        thread = self._threads.get()
        if TX.refusal(thread.state, TxVerb.INFO) is not None:
            return TxCode.TX_PROTOCOL_ERROR, None
        transaction = thread.transaction
        control = TransactionControl.TX_CHAINED if thread.state in CHAINED else TransactionControl.TX_UNCHAINED
        if transaction is None:
            return 0, TxInfo(NULL_XID, thread.when_return, control, thread.timeout_s, None)
        state = TransactionState.TX_TIMEOUT_ROLLBACK_ONLY if transaction.expired else STATE_OF[transaction.status]
        xid = Xid(FORMAT_ID, transaction.gtrid)
        return 1, TxInfo(xid, thread.when_return, control, thread.timeout_s, state)

    # --- characteristics --------------------------------------------------------------------------------------

    def tx_set_commit_return(self, when_return: int) -> TxCode:
        """TX_COMMIT_COMPLETED: tx_commit returns when every branch has the decision. TX_COMMIT_DECISION_LOGGED: when
        the decision is durable; heuristic outcomes go to the log only. TX_EINVAL: neither of them."""
        try:
            chosen = CommitReturn(when_return)
        except ValueError:
            return self._invalid(TxVerb.SET_COMMIT_RETURN)
        return self._move(replace(self._threads.get(), when_return=chosen), TxVerb.SET_COMMIT_RETURN)

    def tx_set_transaction_control(self, control: int) -> TxCode:
        """TX_CHAINED: the end of a transaction begins the next one. TX_UNCHAINED: it does not. TX_EINVAL: neither."""
        try:
            verb = _SET_CONTROL[TransactionControl(control)]
        except ValueError:
            return self._invalid(TxVerb.SET_CHAINED)
        return self._move(self._threads.get(), verb)

    def tx_set_transaction_timeout(self, timeout_s: int) -> TxCode:
        """How many seconds the transactions begun from now on have; 0: as long as they like. TX_EINVAL: not between
        0 and 2³¹−1."""
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int) or not 0 <= timeout_s <= MAX_TIMEOUT_S:
            return self._invalid(TxVerb.SET_TIMEOUT)
        return self._move(replace(self._threads.get(), timeout_s=timeout_s), TxVerb.SET_TIMEOUT)

    # --- how it is done -------------------------------------------------------------------------------------

    def _move(self, thread: _Thread, verb: TxVerb) -> TxCode:
        """Makes `thread`, moved by `verb`, what is known of the calling thread of control."""
        if TX.refusal(thread.state, verb) is not None:
            return TxCode.TX_PROTOCOL_ERROR
        state = advance(TX, thread.state, verb)
        transaction = thread.transaction if state in IN_TRANSACTION else None
        self._threads.set(replace(thread, state=state, transaction=transaction))
        return TxCode.TX_OK

    def _invalid(self, verb: TxVerb) -> TxCode:
        refused = TX.refusal(self._threads.get().state, verb) is not None
        return TxCode.TX_PROTOCOL_ERROR if refused else TxCode.TX_EINVAL

    def _begin(self, thread: _Thread) -> Transaction | TxCode:
        manager = self._manager
        if manager.at_work_outside():
            logger.warning("tx_begin: a resource manager is at work outside any transaction in this thread of control")
            return TxCode.TX_OUTSIDE

        try:
            transaction = manager.begin(thread.timeout_s or math.inf)
        except ManagerUnusable as error:
            logger.error("tx_begin: no transaction can begin: %s", error)  # noqa: TRY400 — its message says it all
            return TxCode.TX_ERROR if isinstance(error.__cause__, XaError) else TxCode.TX_FAIL
        except ProtocolMisuse as error:
            logger.warning("tx_begin was refused: %s", error)
            return TxCode.TX_PROTOCOL_ERROR
        refused = self._start(transaction)
        if refused is None:
            return transaction
        try:
            transaction.rollback()
        except TransactionError as error:
            logger.error("tx_begin of %s: its rollback: %s", transaction, error)  # noqa: TRY400 — its message says it all
        return refused

    def _start(self, transaction: Transaction) -> TxCode | None:
        """Starts a branch in every resource manager that can take part; the code that refuses, if one does."""
        manager = self._manager
        opened = 0
        for resource in manager.resources.values():
            if resource.decides and resource.name != manager.decider:
                continue
            if not _is_open(resource, f"tx_begin of {transaction}"):
                continue
            opened += 1
            if resource.dynamic:
                continue

            try:
                transaction.enlist(resource.name)
            except TransactionError as error:
                logger.warning("tx_begin of %s: %s", transaction, error)
                cause = error.__cause__
                outside = isinstance(cause, XaError) and cause.code is Code.XAER_OUTSIDE
                return TxCode.TX_OUTSIDE if outside else TxCode.TX_ERROR
        return None if opened or not manager.resources else TxCode.TX_ERROR

    def _complete(self, verb: TxVerb) -> TxCode:
        thread = self._threads.get()
        transaction = thread.transaction
        if transaction is None or TX.refusal(thread.state, verb) is not None:
            return TxCode.TX_PROTOCOL_ERROR
        code = self._end(transaction, verb, thread.when_return)
        if code is TxCode.TX_PROTOCOL_ERROR:
            return code
        if code is TxCode.TX_FAIL:
            self._move(thread, TxVerb.FAIL)
            return code

        if thread.state in CHAINED:
            following = self._begin(thread)
            if isinstance(following, TxCode):
                self._move(thread, _WITHOUT_BEGIN[verb])
                return NO_BEGIN[code]
            thread = replace(thread, transaction=following)
        self._move(thread, verb)
        return code

    def _end(self, transaction: Transaction, verb: TxVerb, when_return: CommitReturn) -> TxCode:
        """Completes `transaction`, unless the reaper or another interface has done so; its code."""
        decided = False
        if transaction.suspended:
            return TxCode.TX_PROTOCOL_ERROR

        if transaction.outcome is None:
            try:
                if verb is TxVerb.ROLLBACK:
                    transaction.rollback()
                else:
                    logged = when_return is CommitReturn.TX_COMMIT_DECISION_LOGGED
                    transaction.commit(wait="logged" if logged else "completed")
                decided = True
            except TransactionError as error:
                logger.warning("%s of %s: %s", verb.value, transaction, error)
        outcome = transaction.outcome
        if outcome is None and not decided:
            return TxCode.TX_PROTOCOL_ERROR  # another thread is in it
        self._manager.detach(live_of(transaction))
        if outcome is None:
            return TxCode.TX_OK  # the decision is durable; the branches are committed in the background
        return outcome_code(verb, outcome, when_return)


def _is_open(resource: Resource, who: str) -> bool:
    """Whether `resource` can be used, opening it where it has to be."""
    if not resource.suspect:
        return True
    try:
        resource.reopen()
    except XaError as error:
        logger.warning("%s: %s can't be opened, and takes no part: %s", who, resource.name, error)
        return False
    return True
