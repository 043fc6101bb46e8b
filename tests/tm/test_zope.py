"""The data manager for the `transaction` package, with the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import transaction  # type: ignore[import-untyped]
from transaction.interfaces import IDataManager, IRetryDataManager  # type: ignore[import-untyped]
from zope.interface.verify import verifyObject  # type: ignore[import-untyped]

from tm import GlobalState, RolledBack
from tm.zope import DataManager, join
from xa import Code
from xa.reference import Fate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.tm.shop import Shop


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


def test_it_is_a_data_manager(shop: Shop, zope: Any) -> None:
    joined = join(shop.tm, zope)
    verifyObject(IDataManager, DataManager(zope, shop.tm, joined), tentative=True)
    verifyObject(IRetryDataManager, DataManager(zope, shop.tm, joined), tentative=True)


def test_commit_commits_everywhere(shop: Shop, zope: Any) -> None:
    zope.begin()
    other = Other(zope)
    tx = join(shop.tm, zope)
    zope.get().join(other)
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


def test_abort_rolls_back_everywhere(shop: Shop, zope: Any) -> None:
    tx = join(shop.tm, zope)
    tx["a"].write("k", 1)
    zope.abort()
    assert tx.status is GlobalState.ROLLED_BACK
    assert shop.values() == {"a": None, "b": None}
    shop.assert_nothing_left()


@pytest.mark.parametrize("key", ["aaa", "~", "~~sqlalchemy:1", "zzz"])
def test_another_that_votes_no_is_heard_first(shop: Shop, zope: Any, key: str) -> None:
    other = Other(zope, vote=LookupError("no"), key=key)
    tx = join(shop.tm, zope)
    zope.get().join(other)
    tx["a"].write("k", 1)
    with pytest.raises(LookupError, match="no"):
        zope.commit()
    assert shop.values() == {"a": None, "b": None}
    assert tx.status is GlobalState.ROLLED_BACK
    shop.assert_nothing_left()


def test_a_no_of_ours_aborts_the_others(shop: Shop, zope: Any) -> None:
    other = Other(zope)
    tx = join(shop.tm, zope)
    zope.get().join(other)
    tx["a"].write("k", 1)
    tx["b"].write("k", 1)
    shop["b"].script.plan("prepare", Code.XA_RBINTEGRITY)
    with pytest.raises(RolledBack):
        zope.commit()
    assert "tpc_abort" in other.heard
    assert "tpc_finish" not in other.heard
    zope.abort()
    assert shop.values() == {"a": None, "b": None}
    shop.assert_nothing_left()


def test_a_decision_that_could_not_be_told_everywhere_is_a_yes(shop: Shop, zope: Any) -> None:
    """That is what the log is for."""
    other = Other(zope)
    tx = join(shop.tm, zope)
    zope.get().join(other)
    tx["a"].write("k", 1)
    tx["b"].write("k", 1)
    shop["b"].script.plan("commit", fate=Fate.REQUEST_LOST, times=9)
    zope.commit()
    assert other.heard[-1] == "tpc_finish"
    shop.restart()
    assert shop.values() == {"a": 1, "b": 1}


def test_attempts_try_again_what_was_rolled_back(shop: Shop, zope: Any) -> None:
    shop["a"].script.plan("prepare", Code.XA_RBDEADLOCK)
    tries = 0
    for attempt in zope.attempts(3):
        with attempt:
            tries += 1
            tx = join(shop.tm, zope)
            tx["a"].write("k", tries)
            tx["b"].write("k", tries)
    assert tries == 2
    assert shop.values() == {"a": 2, "b": 2}


def test_the_package_s_own_manager_is_the_default(shop: Shop) -> None:
    transaction.begin()
    tx = join(shop.tm)
    tx["a"].write("k", 1)
    transaction.commit()
    assert shop.values() == {"a": 1, "b": None}
    shop.assert_nothing_left()
