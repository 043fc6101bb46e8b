"""These tests cover dynamic registration: resource managers with TMREGISTER announce their work by ax_reg, and end work
outside of any transaction by ax_unreg.
"""

from __future__ import annotations

import pytest

from tests.tm.shop import Shop
from tm import ProtocolMisuse, RolledBack
from xa import NULL_XID, TMJOIN, TMREGISTER, TMUSEASYNC, AxCode, ThreadOfControl, entered
from xa.state_tables import BranchState
from xabridge.testing.reference import KeyLocked, NetworkFault


@pytest.fixture
def dynamic(shop: Shop) -> Shop:
    """`a` registers dynamically, `b` does not."""
    shop.flags["a"] = TMREGISTER | TMUSEASYNC
    return shop


def rmid(shop: Shop) -> int:
    return shop.tm.resource("a").rmid


def test_it_takes_part_with_its_first_work_only(dynamic: Shop) -> None:
    with dynamic.tm.begin() as tx:
        session = tx["a"]
        assert not tx.resources
        assert not dynamic["a"].branches
        session.write("k", 1)
        assert tx.resources == ("a",)
        assert list(dynamic["a"].branches) == [tx.xid("a")]
        tx["b"].write("k", 1)
        tx["a"].write("j", 2)
    assert dynamic["a"].data == {"k": 1, "j": 2}
    assert dynamic["b"].data == {"k": 1}
    dynamic.assert_nothing_left()


def test_without_work_it_is_asked_nothing_and_with_work_it_is_rolled_back_with_the_rest(dynamic: Shop) -> None:
    dynamic["a"].script.plan("prepare", None, NetworkFault.REQUEST_LOST)
    with dynamic.tm.begin() as tx:
        assert tx["a"] is not None
        tx["b"].write("k", 1)
    assert dynamic["a"].script.pending()
    dynamic["a"].script.clear()
    with pytest.raises(ValueError, match="no"), dynamic.tm.begin() as tx:
        tx["a"].write("k", 1)
        raise ValueError("no")
    assert not dynamic["a"].data
    dynamic.assert_nothing_left()


@pytest.mark.parametrize("how", ["delisted", "suspended"])
def test_its_next_work_joins_or_resumes_its_branch(dynamic: Shop, how: str) -> None:
    with dynamic.tm.begin() as tx:
        tx["a"].write("k", 1)
        if how == "delisted":
            tx.delist("a")
            assert dynamic["a"].associations == 0
        else:
            dynamic.tm.suspend()
            dynamic.tm.resume(tx)
            assert list(dynamic["a"].branches.values()) == [BranchState.S2]
        assert tx["a"].read("k") == 1
        assert list(dynamic["a"].branches.values()) == [BranchState.S1]
    assert dynamic["a"].data == {"k": 1}
    dynamic.assert_nothing_left()


def test_work_outside_any_transaction_is_its_own(dynamic: Shop) -> None:
    """Before one, after one, and beside a suspended one."""
    session = dynamic.tm.resource("a").rm.session(rmid(dynamic))
    session.write("k", 1)
    with dynamic.tm.begin() as tx:
        tx["a"].write("k", 2)
    session.write("k", 3)
    assert dynamic["a"].data == {"k": 3}
    tx = dynamic.tm.begin()
    tx["a"].write("k", 4)
    dynamic.tm.suspend()
    session.write("j", 2)

    with pytest.raises(KeyLocked):
        session.write("k", 2)
    dynamic.tm.resume(tx)
    tx.rollback()
    assert dynamic["a"].data == {"k": 3, "j": 2}
    dynamic.assert_nothing_left()


def test_two_instances_join(dynamic: Shop) -> None:

    dynamic.flags["b"] = TMREGISTER
    dynamic.stores["b"] = dynamic["a"]
    dynamic.open(resources={"a": dynamic.config("a"), "b": dynamic.config("b")})
    with dynamic.tm.begin() as tx:
        tx["a"].write("k", 1)
        tx["b"].write("j", 2)
        assert tx.xid("a") == tx.xid("b")
        assert dynamic["a"].associations == 2
    assert dynamic["a"].data == {"k": 1, "j": 2}
    dynamic.assert_nothing_left()


# --- what is asked wrongly ----------------------------------------------------------------------------------------
def test_what_is_wrong_is_refused(dynamic: Shop) -> None:
    registrar = dynamic.tm._registrar
    assert registrar.ax_reg(4711) == (AxCode.TMER_INVAL, NULL_XID)
    assert registrar.ax_reg(rmid(dynamic), TMJOIN) == (AxCode.TMER_INVAL, NULL_XID)
    assert registrar.ax_unreg(4711) is AxCode.TMER_INVAL
    assert registrar.ax_unreg(rmid(dynamic), TMJOIN) is AxCode.TMER_INVAL
    without_tmregister = dynamic.tm.resource("b").rmid
    assert registrar.ax_reg(without_tmregister) == (AxCode.TMER_PROTO, NULL_XID)
    with dynamic.tm.begin() as tx:
        assert tx["a"] is not None
        with pytest.raises(ProtocolMisuse, match="not enlisted"):  # it has not worked yet
            tx.delist("a")


def test_registering_twice_outside_and_unregistering_twice(dynamic: Shop) -> None:
    registrar, number = dynamic.tm._registrar, rmid(dynamic)
    with entered(ThreadOfControl()):
        assert registrar.ax_unreg(number) is AxCode.TMER_PROTO
        assert registrar.ax_reg(number) == (AxCode.TM_OK, NULL_XID)
        assert registrar.ax_reg(number) == (AxCode.TMER_PROTO, NULL_XID)
        with entered(ThreadOfControl()):
            assert registrar.ax_reg(number) == (AxCode.TM_OK, NULL_XID), "another thread of control"
        assert registrar.ax_unreg(number) is AxCode.TM_OK
        assert registrar.ax_unreg(number) is AxCode.TMER_PROTO


def test_registering_twice_inside(dynamic: Shop) -> None:
    registrar, number = dynamic.tm._registrar, rmid(dynamic)
    with dynamic.tm.begin() as tx:
        tx["a"].write("k", 1)
        assert registrar.ax_reg(number) == (AxCode.TMER_PROTO, NULL_XID)
        assert registrar.ax_unreg(number) is AxCode.TMER_PROTO
        tx.delist("a")
        assert registrar.ax_reg(number) == (AxCode.TM_JOIN, tx.xid("a"))
        tx.set_rollback_only()
        assert registrar.ax_reg(number) == (AxCode.TMER_PROTO, NULL_XID)
        tx.rollback()


def test_one_that_can_not_be_reached(dynamic: Shop) -> None:
    dynamic["a"].partition()
    with pytest.raises(RolledBack, match="a: "), dynamic.tm.begin() as tx:
        tx["a"]
    dynamic["a"].heal()
    dynamic.clock.pass_by(1)
    with dynamic.tm.begin() as tx:
        tx["a"].write("k", 1)
    assert dynamic["a"].data == {"k": 1}
