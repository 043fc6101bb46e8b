"""These tests run the data manager for the `transaction` package with the real package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import transaction  # type: ignore[import-untyped]
import zope.sqlalchemy as zope_sqlalchemy  # type: ignore[import-untyped]
from psycopg.errors import SerializationFailure, UniqueViolation
from sqlalchemy import Engine, create_engine, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from transaction.interfaces import IDataManager, IRetryDataManager  # type: ignore[import-untyped]
from zope.interface.verify import verifyObject  # type: ignore[import-untyped]

from tests.tm.shop import Shop
from tm import GlobalState, ProtocolMisuse, RolledBack, TransactionManager
from tm.zope import DataManager, join
from xa import Code, xa_error
from xabridge.testing.reference import NetworkFault


@pytest.fixture
def zope() -> Iterator[Any]:
    manager = transaction.TransactionManager()
    yield manager
    manager.abort()


class Other:
    """A data manager of somebody else's."""

    def __init__(self, zope: Any, vote: Exception | None = None, key: str = "~other") -> None:
        self.transaction_manager = zope
        self.vote = vote
        self.key = key
        self.heard: list[str] = []

    def sortKey(self) -> str:  # noqa: N802 — the interface's name
        return self.key

    def tpc_vote(self, _: object) -> None:
        self.heard.append("vote")
        if self.vote is not None:
            raise self.vote

    def __getattr__(self, name: str) -> Any:
        if name not in {"abort", "tpc_begin", "commit", "tpc_finish", "tpc_abort"}:
            raise AttributeError(name)
        return lambda _: self.heard.append(name)


def joined(zope: Any, vote: Exception | None = None, key: str = "~other") -> Other:
    """Somebody else's data manager, in the current transaction."""
    other = Other(zope, vote, key)
    zope.get().join(other)
    return other


def test_it_is_a_data_manager_and_the_package_s_own_manager_is_the_default(shop: Shop, zope: Any) -> None:
    for interface in (IDataManager, IRetryDataManager):
        verifyObject(interface, DataManager(zope, shop.tm, join(shop.tm, zope)), tentative=True)
    zope.abort()
    transaction.begin()
    tx = join(shop.tm)
    tx["a"].write("k", 1)
    transaction.commit()
    assert shop.values() == {"a": 1, "b": None}
    shop.assert_nothing_left()


def test_commit_commits_everywhere(shop: Shop, zope: Any) -> None:
    zope.begin()
    tx = join(shop.tm, zope)
    other = joined(zope)
    tx["a"].write("k", 1)
    shop.tm["b"].write("k", 1)
    assert join(shop.tm, zope) is tx
    assert shop.values() == {"a": None, "b": None}
    zope.commit()
    assert shop.values() == {"a": 1, "b": 1}
    assert other.heard == ["tpc_begin", "commit", "vote", "tpc_finish"]
    assert shop.tm.current_or_none() is None
    shop.assert_nothing_left()
    assert join(shop.tm, zope) is not tx  # of Zope's next transaction


@pytest.mark.parametrize("key", [None, "aaa", "~", "~~sqlalchemy:1", "zzz"])
def test_abort_rolls_back_everywhere_and_so_does_another_that_votes_no_which_is_heard_first(
    shop: Shop, zope: Any, key: str | None
) -> None:
    tx = join(shop.tm, zope)
    tx["a"].write("k", 1)
    if key is None:
        zope.abort()
    else:
        joined(zope, LookupError("no"), key)
        with pytest.raises(LookupError, match="no"):
            zope.commit()
    assert tx.status is GlobalState.ROLLED_BACK
    shop.assert_ended(None)


@pytest.mark.parametrize("refused", [True, False])
def test_a_no_of_ours_aborts_the_others_and_a_decision_that_could_not_be_told_everywhere_is_a_yes(
    shop: Shop, zope: Any, *, refused: bool
) -> None:
    """That is what the log is for."""
    shop.write(join(shop.tm, zope))
    other = joined(zope)
    if refused:
        shop["b"].script.plan("prepare", Code.XA_RBINTEGRITY)
        with pytest.raises(RolledBack):
            zope.commit()
        assert "tpc_abort" in other.heard
        assert "tpc_finish" not in other.heard
        zope.abort()
    else:
        shop["b"].script.plan("commit", fate=NetworkFault.REQUEST_LOST, times=9)
        zope.commit()
        assert other.heard[-1] == "tpc_finish"
        shop.restart()
    shop.assert_ended(None if refused else 1)


@pytest.mark.parametrize("again", [True, False])
@pytest.mark.parametrize("optimistic", [True, False])
def test_who_joins_behind_a_savepoint_that_is_taken_back_begins_anew(
    shop: Shop, zope: Any, *, optimistic: bool, again: bool
) -> None:
    """Without joining again there is nothing of ours to commit."""
    zope.begin()
    savepoint = zope.savepoint(optimistic)
    tx = join(shop.tm, zope)
    tx["a"].write("k", 1)
    savepoint.rollback()
    assert tx.status is GlobalState.ROLLED_BACK
    if again:
        second = join(shop.tm, zope)
        assert second is not tx
        assert second.status is GlobalState.ACTIVE
        second["b"].write("k", 2)
    zope.commit()
    assert shop.values() == {"a": None, "b": 2 if again else None}
    shop.assert_nothing_left()


def _caused(error: Exception) -> Exception:
    """An exception of the application's own, which was made from one of SQLAlchemy's."""
    own = ValueError("somebody's own")
    own.__cause__ = DBAPIError("INSERT", {}, error)
    return own


PREPARE = "deadlock at prepare"
TRANSIENT = {
    "a statement": _caused(SerializationFailure()),
    "a branch": xa_error(Code.XA_RBDEADLOCK, "as a session tells it"),
}
LASTING = {
    "a wrong value": ValueError(1213),
    "a constraint": _caused(UniqueViolation()),
    "a misuse": xa_error(Code.XAER_PROTO, "wrong"),
}
"""Which errors of databases are transient, tests/xa/sql/test_errors.py says."""


@pytest.mark.parametrize("way", ["attempts", "a decorated function"])
@pytest.mark.parametrize("case", [PREPARE, *TRANSIENT, *LASTING])
def test_what_a_statement_could_not_do_now_is_tried_again_and_what_will_fail_again_is_not(
    shop: Shop, zope: Any, case: str, way: str
) -> None:
    transient = case not in LASTING
    error = {**TRANSIENT, **LASTING}.get(case)
    tries = 0
    if error is None:
        shop["a"].script.plan("prepare", Code.XA_RBDEADLOCK)

    def work() -> None:
        nonlocal tries
        tries += 1
        shop.write(join(shop.tm, zope) if way == "attempts" else shop.tm.get_transaction(), tries)
        if tries == 1 and error is not None:
            raise error

    def attempts() -> None:
        for attempt in zope.attempts(3):
            with attempt:
                work()

    with nullcontext() if error is None or transient else pytest.raises(type(error)):
        (attempts if way == "attempts" else shop.tm.transactional(retries=2)(work))()
    assert tries == (2 if transient else 1)
    shop.assert_ended(2 if transient else None)


# --- others that commit when they vote --------------------------------------------------------------------------
class Base(DeclarativeBase):
    """The tables of zope.sqlalchemy's sessions."""


class Item(Base):
    """A row."""

    __tablename__ = "items"
    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """An engine that the application has of its own."""
    engine = create_engine(f"sqlite:///{tmp_path}/own.db")
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def _rows(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(select(Item.id)))


@pytest.mark.parametrize("writes", [True, False])
def test_a_session_of_zope_sqlalchemy_in_one_phase_is_refused_before_anybody_votes(
    shop: Shop, zope: Any, engine: Engine, *, writes: bool
) -> None:
    """It would keep its work where ours is rolled back. Where it has only read there is nothing to keep."""
    session = Session(engine)
    zope_sqlalchemy.register(session, transaction_manager=zope)
    tx = join(shop.tm, zope)
    tx["a"].write("k", 1)

    if writes:
        session.add(Item(id=1))
        with pytest.raises(ProtocolMisuse, match=r"zope\.sqlalchemy.*take_part"):
            zope.commit()
        zope.abort()
        assert (_rows(engine), shop.values()["a"]) == ([], None)
    else:
        session.execute(select(Item)).all()
        zope.commit()
        assert shop.values()["a"] == 1
    session.close()
    shop.assert_nothing_left()


def test_two_managers_in_one_transaction_of_zopes_are_refused(shop: Shop, zope: Any, tmp_path: Path) -> None:
    with TransactionManager("other-1", f"file://{tmp_path}/other", {}, background=False) as other:
        join(shop.tm, zope)["a"].write("k", 1)
        join(other, zope)
        with pytest.raises(ProtocolMisuse, match="commits when it votes"):
            zope.commit()
        zope.abort()
    assert shop.values()["a"] is None
    shop.assert_nothing_left()
