"""These tests look at the floor of an incarnation whose process has died: it is raised when nothing of it is left, by a
later pass of another process, and by none that could not ask everybody. With a log of each kind, and with deciders.
"""

from __future__ import annotations

from contextlib import suppress

from tests.tm.recovery.test_restored import Restorable, kind, restorable
from tests.tm.shop import Clock
from tm import Transaction, TransactionError
from tm.recovery import Action
from tm.recovery.former import MOST, FormerIncarnations
from tm.recovery.ownership import OVER_BEFORE
from tm.sequences import LATE_S
from xa import TMSUCCESS
from xabridge.testing.reference import NetworkFault

__all__ = ["kind", "restorable"]

A, B = b"incarn-a", b"incarn-b"


def test_it_waits_for_requests_that_may_be_on_their_way() -> None:
    clock, former = Clock(), FormerIncarnations()
    gone = {"": frozenset({A})}
    assert not list(former.passed(clock(), clock(), gone, gone))
    began_at = clock() + LATE_S
    assert not list(former.passed(began_at - 1, began_at, gone, gone))
    assert not list(former.passed(began_at, began_at, gone, {})), "something is left, or a resource is away"
    assert list(former.passed(began_at, began_at, gone, gone)) == [("", A)]


def test_who_was_at_work_meanwhile_is_waited_for_again() -> None:
    former = FormerIncarnations(10)
    both, one = {"d": frozenset({A, B})}, {"d": frozenset({B})}
    assert not list(former.passed(0, 0, both, both))
    assert not list(former.passed(5, 5, one, one)), "A holds its lease again"
    assert list(former.passed(12, 12, both, both)) == [("d", B)]
    assert not list(former.passed(13, 13, {}, {})), "the decider could not be asked"
    assert list(former.passed(22, 22, {"d": frozenset({A})}, {"d": frozenset({A})})) == [("d", A)]


def test_one_pass_raises_a_few() -> None:
    former = FormerIncarnations(1)
    many = {"": frozenset(bytes((number,)) * 8 for number in range(2 * MOST))}
    assert len(list(former.passed(0, 0, many, many))) == 0, "it has learnt of them at its end"
    assert len(list(former.passed(1, 1, many, many))) == MOST


def die_in_doubt(restorable: Restorable) -> Transaction:
    """A transaction that is prepared and not decided; its process dies."""
    shop = restorable.shop
    tx = shop.tm.begin()
    restorable.write(tx, "undecided")
    for name in "ab":
        client, rmid = shop.clients[name], shop.tm.resources[name].rmid
        client.end(tx.xid(name), rmid, TMSUCCESS)
        client.prepare(tx.xid(name), rmid)
    restorable.copies[:] = [shop["b"].backed_up()]
    restorable.kill()
    return tx


def restart(restorable: Restorable) -> None:
    """The manager is closed, and starts when `b` was restored from the copy."""
    restorable.shop.close()
    restorable.restore()


def test_what_recovery_has_finished_is_left_alone_in_an_older_copy(restorable: Restorable) -> None:
    shop = restorable.shop
    tx = die_in_doubt(restorable)
    restorable.open()
    assert {one.action for one in shop.tm.recover().findings} <= {Action.ROLLED_BACK}
    shop.clock.pass_by(LATE_S)
    assert not shop.tm.recover().findings

    restart(restorable)
    for _ in range(2):
        findings = {one.branch.xid: (one.action, one.why) for one in shop.tm.recover().findings}
        assert findings[tx.xid("b")] == (Action.STRANDED, OVER_BEFORE)
        assert tx.xid("b") in shop["b"].in_doubt


def test_until_then_it_is_presumed_as_ever(restorable: Restorable) -> None:
    shop = restorable.shop
    tx = die_in_doubt(restorable)
    restorable.open()
    shop.clock.pass_by(LATE_S - 1)
    shop.tm.recover()
    restart(restorable)
    assert shop.tm.last_report is not None
    assert (tx.xid("b"), Action.ROLLED_BACK) in [(one.branch.xid, one.action) for one in shop.tm.last_report.findings]


def test_while_a_resource_is_away_nothing_is_raised(restorable: Restorable) -> None:
    """It has an honest branch in doubt, which is rolled back when it is there again, however late."""
    shop = restorable.shop
    tx = die_in_doubt(restorable)
    shop["b"].partition()
    restorable.open()
    for _ in range(3):
        shop.clock.pass_by(LATE_S)
        assert "b" in shop.tm.recover().unreachable
    shop["b"].heal()
    assert (tx.xid("b"), Action.ROLLED_BACK) in [(one.branch.xid, one.action) for one in shop.tm.recover().findings]


def test_what_is_left_is_waited_for(restorable: Restorable) -> None:
    """A branch that its resource manager does not roll back now."""
    shop = restorable.shop
    tx = die_in_doubt(restorable)
    restorable.open()
    with suppress(TransactionError):
        shop.tm.begin().rollback()
    shop["b"].restore(restorable.copies[0])
    shop["b"].heal()
    for _ in range(3):
        shop.clock.pass_by(LATE_S)
        shop["b"].script.plan("rollback", None, NetworkFault.REQUEST_LOST)
        findings = {one.branch.xid: one.action for one in shop.tm.recover().findings}
        assert findings[tx.xid("b")] is Action.PENDING
        shop["b"].heal()
    assert (tx.xid("b"), Action.ROLLED_BACK) in [(one.branch.xid, one.action) for one in shop.tm.recover().findings]
