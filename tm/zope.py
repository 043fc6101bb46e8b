"""The `transaction` package of Zope with our decision log: everything a manager's transaction did is one data manager.

    import transaction
    from tm.zope import join

    join(manager)                          # begins a transaction of the manager's, inside the current one of Zope's
    manager["shop"].execute(…)
    transaction.commit()

Zope's package asks every data manager to vote, then tells all to finish, and keeps no log. Ours comes last in its
order and commits when it is asked to vote, everybody else having voted yes: whatever is behind our manager (databases,
brokers) is committed by one decision, which is logged and recovered. Towards data managers of others it is one that
commits in one phase: what they do after their vote is not ours to repair.

There is room for one that commits when it votes. Another one (a second manager of ours, zope.sqlalchemy in its
default, one phase) would keep its work where we say no. Those two are seen and refused, before anybody votes;
zope.sqlalchemy over an engine that takes part in our transaction (`rm_db.take_part`) is none, because its commit is a
savepoint's then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from tm.errors import OutcomeUnknown, ProtocolMisuse, is_transient
from tm.two_phase.states import FINAL

if TYPE_CHECKING:
    from tm.manager import Manager, Tx
    from tm.transaction import Transaction

LAST: Final = "~~xabridge"
"""Zope's package sorts data managers by name; nothing that people write comes behind this."""


def join(manager: Manager[Tx], zope_manager: Any = None, *, timeout_s: float | None = None) -> Tx:
    """Begins a transaction of `manager` as part of the current transaction of `zope_manager` (`transaction.manager`
    where it is not given), or returns the one that is part of it already. It ends with Zope's, which commits it and
    rolls it back; a savepoint of Zope's from before, rolled back, ends it too, and the next `join` begins another."""
    if zope_manager is None:
        import transaction  # type: ignore[import-untyped]  # noqa: PLC0415 — an extra

        zope_manager = transaction.manager
    current = zope_manager.get()
    try:
        known = current.data(manager)
    except KeyError:
        known = None
    if known is not None:
        return cast("Tx", known)
    joined = manager.begin(timeout_s)
    try:
        current.join(DataManager(zope_manager, manager, joined))
    except BaseException:
        joined.rollback()
        raise
    current.set_data(manager, joined)
    return joined


def _commits_when_it_votes(other: Any) -> bool:
    if isinstance(other, DataManager):
        return True
    kinds = {f"{kind.__module__.partition('.datamanager')[0]}.{kind.__name__}" for kind in type(other).__mro__}
    if "zope.sqlalchemy.SessionDataManager" not in kinds or "zope.sqlalchemy.TwoPhaseSessionDataManager" in kinds:
        return False
    used = getattr(other.tx, "_connections", None) or ()  # engines and connections; none: there is nothing to commit
    return not all(_takes_part(place) for place in used)


def _takes_part(place: Any) -> bool:
    return bool(getattr(place, "takes_part", False) or getattr(place.engine.pool, "takes_part", False))


class DataManager:
    """`transaction.interfaces.IDataManager` over one transaction of ours."""

    def __init__(self, zope_manager: Any, manager: Manager, joined: Transaction) -> None:
        self.transaction_manager = zope_manager
        self.joined = joined
        self._manager = manager

    def sortKey(self) -> str:  # noqa: N802 — the interface's name
        """Behind everybody else."""
        return f"{LAST}:{self._manager.node}:{id(self):x}"

    def should_retry(self, error: BaseException) -> bool:
        """Whether to try again, for `transaction.manager.attempts()`: nothing of a transaction that was rolled back is
        left, and one that was in the way of another may succeed now."""
        return is_transient(error)

    def abort(self, given_up: Any) -> None:
        """Zope's transaction is given up before it was to be committed, or was taken back to a savepoint from before
        we joined: then it goes on without us."""
        self._roll_back()
        given_up.set_data(self._manager, None)

    def tpc_begin(self, _: object) -> None:
        """The others are about to vote."""

    def commit(self, committing: Any) -> None:
        """All work is done already. ProtocolMisuse: another data manager commits when it votes, too."""
        for other in committing._resources:  # noqa: SLF001 — Zope's package has no other way to see them
            if other is not self and _commits_when_it_votes(other):
                raise ProtocolMisuse(
                    f"{type(other).__module__}.{type(other).__qualname__} commits when it votes, and so do we: its "
                    "work would be kept where ours is rolled back. Let only one of them join; with zope.sqlalchemy, "
                    "register a session whose engine takes part (rm_db.take_part), or one with twophase=True"
                )

    def tpc_vote(self, _: object) -> None:
        """The others have voted yes: commits. Raises what `Transaction.commit` raises. Where the decision to commit is
        durable, and only telling it was interrupted, this is a yes: recovery finishes it."""
        try:
            self.joined.commit()
        except OutcomeUnknown as unknown:
            if unknown.outcome is None or not unknown.outcome.decided:
                raise

    def tpc_finish(self, _: object) -> None:
        """Done."""

    def tpc_abort(self, _: object) -> None:
        """Rolls back after a vote of no."""
        self._roll_back()

    def _roll_back(self) -> None:
        if self.joined.status not in FINAL and self.joined.outcome is None:
            self.joined.rollback()
