"""These tests check what an operator can do about a decision that names a resource which is not configured any more."""

from __future__ import annotations

import pytest

from tests.tm.shop import Shop
from tm import Action, ProtocolMisuse, Transaction
from tm.outcome import named
from xa import Xid


@pytest.fixture
def decided(shop: Shop) -> Transaction:
    """A transaction that is decided, and neither `a` nor `b` was told; `b` is not configured any more."""
    transaction = shop.in_doubt("a", "b")
    shop.kill()
    return transaction


def in_doubt(shop: Shop) -> dict[str, list[Xid]]:
    return {name: store.in_doubt for name, store in shop.stores.items()}


def test_recovery_commits_what_it_can_and_keeps_the_decision_until_said_what_is_gone(
    shop: Shop, decided: Transaction
) -> None:
    """Gone is only what the decision names and nobody has."""
    tm = shop.open(names="a")
    assert shop.values() == {"a": 1, "b": None}
    for gone, parts in (
        ([], (named(decided.gtrid), "decided to commit", str(decided.xid("b")), "Configure", "gone=['b']")),
        (["a"], ("a is configured",)),
        (["b", "a"], ("a is configured",)),
        (["x", "b"], ("x has no branch in it",)),
    ):
        with pytest.raises(ProtocolMisuse) as refused:
            tm.end_decision(decided.gtrid, gone=gone)
        assert all(part in str(refused.value) for part in parts), refused.value
        report = tm.recover()
        assert report.undone == [decided.gtrid]
        assert "not configured" in report.unreachable["b"]


def test_it_is_ended_for_good_when_said_so(shop: Shop, decided: Transaction, caplog: pytest.LogCaptureFixture) -> None:
    tm = shop.open(names="a")
    report = tm.end_decision(decided.gtrid, gone=["b"])
    assert report.ended == [decided.gtrid]
    assert f"(xid {decided.xid('b')}) on b: ended by hand" in caplog.text
    assert tm.log is not None
    assert not tm.log.decisions()
    assert tm.recover().clean
    with pytest.raises(ProtocolMisuse, match="no decision"):
        tm.end_decision(decided.gtrid, gone=["b"])
    tm.close()
    assert shop.open(names="a").last_report is not None
    assert shop.tm.recover().clean


def test_its_other_branches_are_committed_first(shop: Shop, decided: Transaction) -> None:
    shop["a"].partition()
    tm = shop.open(names="a")
    with pytest.raises(ProtocolMisuse, match="a can't be reached"):
        tm.end_decision(decided.gtrid, gone=["b"])
    assert in_doubt(shop)["a"]
    shop["a"].heal()
    report = tm.end_decision(decided.gtrid, gone=["b"])
    assert [finding.action for finding in report.findings] == [Action.COMMITTED]
    assert shop.values() == {"a": 1, "b": None}


def test_what_recovery_can_end_is_not_ended_by_hand(shop: Shop, decided: Transaction) -> None:
    shop["b"].partition()
    tm = shop.open()
    with pytest.raises(ProtocolMisuse, match="every resource of its decision is configured"):
        tm.end_decision(decided.gtrid)
    with pytest.raises(ProtocolMisuse, match="no decision"):
        tm.end_decision(b"no gtrid of anybody", gone=["b"])
