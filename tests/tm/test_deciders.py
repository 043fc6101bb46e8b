"""These tests use a resource that decides: completion, lost answers, restart and the tombstone, without a log of the
manager's own.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.tm.shop import NODE, Shop, outcome_of
from tests.tm.wrapped import hooked
from tm import (
    ConfigurationError,
    HeuristicMixed,
    ManagerUnusable,
    OutcomeUnknown,
    ProtocolMisuse,
    ResourceConfig,
    RolledBack,
)
from tm.log import Branch, FileLog
from tm.log.decider_record import decode_branches, encode_branches
from tm.recovery import Action
from xa import FORMAT_ID, Code, Gtrid, Xid
from xabridge.testing.reference import DecidingStore, NetworkFault, ReferenceFactory


@pytest.fixture
def store(shop: Shop) -> DecidingStore:
    """`d` decides; `a` and `b` take part."""
    return shop.add_decider()


def test_it_decides_and_its_decision_is_ended(shop: Shop, store: DecidingStore) -> None:
    decisions: list[Any] = []

    def look(when: str, verb: str) -> None:
        if (when, verb) == ("before", "commit"):
            decisions.append(store.decided)

    shop.wrap["a"] = hooked(look)
    with shop.tm.begin() as tx:
        shop.write(tx)
        assert Gtrid.decode(tx.gtrid).log_id == store.decider_id
    assert list(decisions[0]) == [tx.gtrid]
    assert {branch.resource for branch in decode_branches(decisions[0][tx.gtrid])} == {"a", "b"}
    assert shop.values() == {"a": 1, "b": 1, "d": 1}
    assert not store.decided
    shop.assert_nothing_left()


@pytest.mark.parametrize("code", [Code.XA_RBINTEGRITY, Code.XAER_RMERR])
def test_it_takes_part_with_the_decision_alone_where_others_need_one_and_may_say_no(
    shop: Shop, store: DecidingStore, code: Code
) -> None:
    store.script.plan("decide", code)
    with pytest.raises(RolledBack, match="d: "), shop.tm.begin() as tx:
        shop.write(tx, names="ab")
    assert "d" in tx.resources
    shop.assert_ended(None)
    with shop.tm.begin() as tx:
        shop.write(tx, names="ab")
    assert shop.values() == {"a": 1, "b": 1, "d": None}
    shop.assert_nothing_left()


@pytest.mark.parametrize("names", ["a", "d", ""])
def test_it_is_not_troubled_where_no_decision_is_needed(shop: Shop, store: DecidingStore, names: str) -> None:
    store.script.plan("decide", Code.XA_RBOTHER)
    with shop.tm.begin() as tx:
        shop.write(tx, names=names)
    assert tx.resources == tuple(names)
    assert store.script.pending()
    shop.assert_nothing_left()


@pytest.mark.parametrize(
    "fate", [NetworkFault.REQUEST_LOST, NetworkFault.REPLY_LOST, NetworkFault.IN_FLIGHT], ids=lambda f: f.name
)
def test_a_lost_answer_is_unknown_until_the_decider_settles_it(
    shop: Shop, store: DecidingStore, fate: NetworkFault
) -> None:
    store.script.plan("decide", None, fate)
    with pytest.raises(OutcomeUnknown, match="Recovery will find out") as told, shop.tm.begin() as tx:
        shop.write(tx)
    assert outcome_of(told.value).decided is None
    assert len(shop["a"].in_doubt) == 1
    report = shop.tm.recover()
    assert report.clean
    store.deliver()
    expected = 1 if fate is NetworkFault.REPLY_LOST else None
    assert set(shop.values().values()) == {expected}
    assert shop.tm.recover().clean
    assert tx.gtrid not in store.decided
    shop.assert_nothing_left()


def test_while_the_decider_is_away_nothing_is_presumed(shop: Shop, store: DecidingStore) -> None:
    store.script.plan("decide", None, NetworkFault.REPLY_LOST)
    with pytest.raises(OutcomeUnknown), shop.tm.begin() as tx:
        shop.write(tx)
    store.partition()
    report = shop.tm.recover()
    assert "d" in report.unreachable
    assert shop["a"].in_doubt == [tx.xid("a")]
    with pytest.raises(RolledBack, match="d: "), shop.tm.begin() as other:
        shop.write(other, names="d")
    store.heal()
    assert shop.tm.recover().clean
    assert set(shop.values().values()) == {1}


def test_a_start_without_the_decider_leaves_its_branches_alone_and_begins_nothing(
    shop: Shop, store: DecidingStore
) -> None:
    tx = shop.in_doubt("a")
    shop.kill()
    shop["a"].script.clear()
    store.partition()
    shop.open()
    assert shop["a"].in_doubt == [tx.xid("a")]
    with pytest.raises(ManagerUnusable, match="d decides, and can't be used"):
        shop.tm.begin()
    store.heal()
    assert shop.tm.recover().clean
    assert set(shop.values().values()) == {1}
    with shop.tm.begin() as tx:
        shop.write(tx)
    shop.assert_nothing_left()


def test_without_a_log_a_heuristic_is_told_and_kept_by_the_resource(shop: Shop, store: DecidingStore) -> None:
    shop["b"].script.plan("commit", Code.XA_HEURRB)
    with pytest.raises(HeuristicMixed), shop.tm.begin() as tx:
        shop.write(tx)
    assert tx.gtrid in store.decided, "it can't be noted, so the decision stays"
    assert not shop.tm.recover().clean
    shop.tm.forget("b", tx.xid("b"))
    assert shop.tm.recover().clean
    shop.assert_nothing_left()
    assert not store.decided


def test_many_pages_of_decisions_are_read(shop: Shop, store: DecidingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tm.recovery.blocking.PAGE", 2)
    gtrids = [shop.in_doubt("a", key=f"k{number}").gtrid for number in range(7)]
    assert sorted(store.decided) == gtrids
    report = shop.tm.recover()
    assert sorted(report.ended) == gtrids
    assert len(shop["a"].data) == 7
    shop.assert_nothing_left()


def test_a_record_that_can_not_be_read_presumes_nothing(shop: Shop, store: DecidingStore) -> None:
    tx = shop.in_doubt("a")
    good = store.decided[tx.gtrid]
    store._decisions[tx.gtrid] = good[:-1] + bytes([good[-1] ^ 1])
    report = shop.tm.recover()
    assert not report.clean
    assert "can't be read" in report.findings[0].why
    assert shop["a"].in_doubt
    store._decisions[tx.gtrid] = good
    assert shop.tm.recover().clean
    assert set(shop.values().values()) == {1}


# --- two of them, or one that is none ---------------------------------------------------------------------------------
def test_two_deciders_need_a_word(shop: Shop, store: DecidingStore) -> None:
    shop.stores["e"] = DecidingStore("e", decider_id=b"\0\0\0\0\0\0\0\2")
    shop.flags["e"] = 0
    with pytest.raises(ConfigurationError, match=r'd and e are both .*say which decides \(decider = "…"\)'):
        shop.open()
    shop.open(decider="e")
    with (
        pytest.raises(ProtocolMisuse, match="d can't take part, since e is the one that decides"),
        shop.tm.begin() as tx,
    ):
        shop.write(tx, names="ad")
    assert store.data == {}
    with shop.tm.begin() as tx:
        shop.write(tx, names="abe")
    assert Gtrid.decode(tx.gtrid).log_id == b"\0\0\0\0\0\0\0\2"
    shop.assert_nothing_left()


def test_who_can_not_decide_is_refused(shop: Shop) -> None:
    with pytest.raises(ConfigurationError, match='decider: "a": no resource of that name has mode = "decider"'):
        shop.open(decider="a")
    config = ResourceConfig("reference://a", "decider", ReferenceFactory(shop["a"]))
    with pytest.raises(ConfigurationError, match=r"a\.mode: xabridge reference can't be the one that decides"):
        shop.open(resources={"a": config})


# --- the record -----------------------------------------------------------------------------------------------------
RECORD = (Branch("shop", Xid(FORMAT_ID, b"g", b"shop")), Branch("bröker", Xid(0, b"\xff" * 64, b"\0" * 64)))


def test_a_record_says_what_it_was_made_of_and_changed_anywhere_or_cut_it_is_none() -> None:
    record = encode_branches(RECORD)
    assert decode_branches(record) == RECORD
    assert decode_branches(encode_branches(())) == ()
    for at in range(len(record)):
        for bit in range(8):
            changed = bytearray(record)
            changed[at] ^= 1 << bit
            with pytest.raises(ValueError, match="record"):
                decode_branches(bytes(changed))
        with pytest.raises(ValueError, match="record"):
            decode_branches(record[:at])


def test_a_heuristic_outcome_waits_for_a_log_beside_the_one_that_decides(shop: Shop, store: DecidingStore) -> None:
    """Nothing can note it before, so that the decision is kept."""
    tx = shop.in_doubt("b", names="abd")
    shop["b"].script.clear()
    shop["b"].complete_heuristically(tx.xid("b"), Code.XA_HEURRB)
    for _ in range(2):
        (finding,) = shop.tm.recover().findings
        assert finding.action is Action.PENDING
        assert "there is no log to note it in: configure one" in finding.why
        assert store.decided

    shop.kill()
    shop.open(log=FileLog(shop.folder / "log", NODE))
    assert not store.decided
    assert [one.action for one in shop.tm.recover().findings] == [Action.HEURISTIC]
    shop.tm.forget("b", tx.xid("b"))
    assert shop.tm.recover().clean
