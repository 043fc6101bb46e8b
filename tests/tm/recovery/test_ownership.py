"""These tests check to which node and process a decision belongs: with several nodes over one decider, several
processes of one node, and copies of a log.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tm.recovery import Action

if TYPE_CHECKING:
    from tests.tm.shop import Shop
    from tm import Transaction
    from xabridge.testing.reference import DecidingStore


@pytest.fixture
def store(shop: Shop) -> DecidingStore:
    """`d` decides; `a` and `b` take part."""
    return shop.add_decider()


def decided_only(shop: Shop, names: str) -> Transaction:
    """A transaction whose manager is killed right behind its decision."""
    tx = shop.in_doubt(*names)
    shop.kill()
    return tx


# --- nodes over one decider -------------------------------------------------------------------------------------------
def test_another_node_leaves_a_decision_to_its_own(shop: Shop, store: DecidingStore) -> None:
    tx = decided_only(shop, "ab")
    report = shop.open(node="orders-2").recover()
    assert {finding.action for finding in report.findings} == {Action.LEFT_ALONE}
    assert (report.ended, report.undone) == ([], [])
    assert tx.gtrid in store.decided
    shop.kill()
    shop.open()
    shop.assert_ended(1)
    assert not store.decided


# --- copies of a log --------------------------------------------------------------------------------------------------
def test_a_copy_that_is_one_opening_old_presumes_nothing_about_the_lost_opening(shop: Shop) -> None:
    shop.open()
    shop.kill()
    shutil.copytree(shop.folder / "log", shop.folder / "copy")
    tx = decided_only(shop, "ab")
    shutil.rmtree(shop.folder / "log")
    shutil.copytree(shop.folder / "copy", shop.folder / "log")
    report = shop.open().recover()
    assert {(finding.branch.xid, finding.action) for finding in report.findings} == {
        (tx.xid(name), Action.LEFT_ALONE) for name in "ab"
    }
    assert shop["a"].in_doubt
    assert shop["b"].in_doubt
