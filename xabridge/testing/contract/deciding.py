"""Deciding resource managers: work and decision in one local transaction, tombstones against late ones."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest

from xa import (
    FORMAT_ID,
    ROLLBACK_CODES,
    TMENDRSCAN,
    TMFAIL,
    TMONEPHASE,
    TMSTARTRSCAN,
    BranchRolledBack,
    Code,
    DecidingResource,
    Gtrid,
    Owner,
    ResourceUnavailable,
    TryAgain,
    Xid,
    log_prefix,
)
from xa.gtrid import OVER

from .client import RMID, Client, case, elsewhere, new_key, new_xid, refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .harness import DeciderHarness

RECORD = bytes(range(256))
ROUNDS = 20
PATIENCE_S = 60
CROWD = 20
LONG_S = 300.0
SHORT_S = 0.2
NODES = ("orders-1", "orders-10", "orders-2")


def new_owner(node: str = "orders-1") -> Owner:
    """A new, unique owner."""
    return Owner(node, secrets.token_bytes(8), "")


def gtrid_of(client: Decider, node: str, sequence: int) -> bytes:
    """A gtrid of a manager of `node`."""
    return Gtrid(node, client.rm.decider_id, b"12345678", sequence).encode()


class Decider(Client):
    """A client of a deciding resource manager."""

    rm: DecidingResource

    def decide(self, xid: Xid, record: bytes = RECORD) -> Code:
        """The commit point."""
        return self.rm.decide(xid, RMID, record)

    def settle(self, xid: Xid) -> bytes | None:
        """The final word."""
        return self.rm.settle(xid.gtrid, RMID)

    def owners(self) -> set[Owner]:
        """The node that is at work."""
        owners = list(self.rm.owners(RMID))
        assert len(owners) == len(set(owners))
        return set(owners)

    def wait_until_gone(self, owner: Owner) -> None:
        """Waits for the end of a lease."""
        deadline = time.monotonic() + PATIENCE_S
        while owner in self.owners():
            assert time.monotonic() < deadline, f"the lease of {owner} does not run out"

    def decided(self, count: int = 1000) -> dict[bytes, bytes]:
        """Every decision that has not ended, in pages of `count`, seen to be in order."""
        found: list[tuple[bytes, bytes]] = []
        while True:
            page = self.rm.decisions(RMID, found[-1][0] if found else b"", count)
            assert len(page) <= count
            found += [(decision.gtrid, decision.record) for decision in page]
            if len(page) < count:
                break
        assert [gtrid for gtrid, _ in found] == sorted({gtrid for gtrid, _ in found})
        return dict(found)


class TestDeciding:
    """`xa.DecidingResource`, next to what it shares with other resource managers."""

    @pytest.fixture
    def client(self, harness: DeciderHarness) -> Iterator[Decider]:
        """A client, closed and seen to have left nothing behind but decisions."""
        client = Decider(harness)
        yield client
        client.rm.end_decisions(list(client.decided()), RMID)
        client.rm.close("", RMID)
        assert harness.leaks() == []

    # --- more than fits ------------------------------------------------------------------------------------
    def test_a_start_that_there_is_no_room_for(self, harness: DeciderHarness) -> None:
        """XA_RETRY, and nothing happened; what is at work can be decided, and then there is room."""
        harness.narrow()
        client = Decider(harness)
        at_work: dict[Xid, str] = {}
        refused_one: Xid | None = None
        while refused_one is None and len(at_work) < CROWD:
            xid = new_xid()
            with elsewhere():
                try:
                    client.start(xid)
                except TryAgain:
                    refused_one = xid
                    continue
                client.write(key := new_key())
                client.end(xid)
                at_work[xid] = key

        assert at_work
        for xid in at_work:
            assert client.decide(xid) is Code.XA_OK
        if refused_one is not None:
            at_work[refused_one] = new_key()
            assert client.decide(client.ended(at_work[refused_one], refused_one)) is Code.XA_OK
        assert set(at_work.values()) <= harness.committed()
        client.rm.end_decisions(list(client.decided()), RMID)
        client.rm.close("", RMID)
        assert harness.leaks() == []

    # --- whose decisions ------------------------------------------------------------------------------------
    def test_the_decider_has_an_id(self, harness: DeciderHarness, client: Decider) -> None:
        assert len(client.rm.decider_id) == 8
        other = Decider(harness)
        assert other.rm.decider_id == client.rm.decider_id
        other.rm.close("", RMID)

    def test_decisions_of_several_nodes_stand_side_by_side(self, harness: DeciderHarness, client: Decider) -> None:
        other = Decider(harness)
        xids = [Xid(FORMAT_ID, gtrid_of(client, node, sequence), b"d") for node in NODES for sequence in (1, 2)]
        for xid, decider in zip(xids, (client, other) * len(NODES), strict=True):
            decider.decide(decider.ended(new_key(), xid), xid.gtrid)
        for node in NODES:
            prefix = log_prefix(node, client.rm.decider_id)
            theirs = [gtrid_of(client, node, sequence) for sequence in (1, 2)]
            page = client.rm.decisions(RMID, prefix, 2)
            assert [decision.gtrid for decision in page] == theirs, "behind the prefix of a node come its decisions"
        client.rm.end_decisions([xids[0].gtrid], RMID)
        assert xids[0].gtrid not in client.decided()
        assert {xid.gtrid for xid in xids[1:]} <= other.decided().keys()
        other.rm.close("", RMID)

    # --- who is at work ---------------------------------------------------------------------------------------
    def test_no_owner_is_at_work_without_a_lease(self, client: Decider) -> None:
        assert client.owners() == set()
        client.rm.hold(new_owner(), 0, RMID)
        assert client.owners() == set()

    def test_a_lease_is_seen_by_others_and_outlives_its_owner(self, harness: DeciderHarness, client: Decider) -> None:
        other = Decider(harness)
        owner = new_owner()
        other.rm.hold(owner, LONG_S, RMID)
        assert client.owners() == {owner}
        harness.crash(other.rm)
        assert client.owners() == {owner}, "a crash is no end: it may be at work elsewhere"
        client.rm.hold(owner, 0, RMID)
        assert client.owners() == set()

    def test_several_nodes_and_several_processes_of_one(self, harness: DeciderHarness, client: Decider) -> None:
        other = Decider(harness)
        owners = [new_owner(node) for node in (*NODES, *NODES)]
        for owner, decider in zip(owners, (client, other) * len(NODES), strict=True):
            decider.rm.hold(owner, LONG_S, RMID)
        assert client.owners() == other.owners() == set(owners)
        client.rm.hold(owners[0], 0, RMID)
        assert other.owners() == set(owners[1:])
        for owner in owners[1:]:
            other.rm.hold(owner, 0, RMID)
        assert client.owners() == set()
        other.rm.close("", RMID)

    def test_floor_and_ceiling_of_an_owner_outlive_its_lease(self, harness: DeciderHarness, client: Decider) -> None:
        node = f"floors-{secrets.token_hex(6)}"  # what others of the node have noted stays
        owner, other = new_owner(node), new_owner(node)
        client.rm.hold(owner, LONG_S, RMID, 1, 9)
        before = {one.incarnation: one.noted_s for one in client.rm.incarnations(node, RMID)}
        client.rm.hold(owner, LONG_S, RMID, 17, 99)
        client.rm.hold(other, LONG_S, RMID, 2, 20)
        client.rm.hold(other, LONG_S, RMID, 2, 10)
        crashed = Decider(harness)
        crashed.rm.hold(owner, 0, RMID, 2**40, 2**41)
        harness.crash(crashed.rm)

        noted = {one.incarnation: one for one in client.rm.incarnations(node, RMID)}
        bounds = {incarnation: (one.floor, one.ceiling) for incarnation, one in noted.items()}
        assert bounds == {owner.incarnation: (2**40, 2**41), other.incarnation: (2, 10)}
        assert all(noted[incarnation].noted_s >= noted_s for incarnation, noted_s in before.items())
        assert not client.rm.incarnations(f"{node}-2", RMID)
        client.rm.hold(other, 0, RMID, 3, 10)

    def test_of_an_owner_of_whom_nothing_is_left_nothing_need_be_kept(self, client: Decider) -> None:
        owner = new_owner(f"over-{secrets.token_hex(6)}")
        client.rm.hold(owner, SHORT_S, RMID, 7, 9)
        client.wait_until_gone(owner)
        client.rm.hold(Owner(owner.node, owner.incarnation, ""), 0, RMID, OVER, OVER)
        assert {one.floor for one in client.rm.incarnations(owner.node, RMID)} <= {OVER}
        client.rm.hold(owner, LONG_S, RMID, 7, 9)  # it had only seemed to be dead
        (noted,) = client.rm.incarnations(owner.node, RMID)
        assert (noted.floor, noted.ceiling) == (7, 9)
        assert client.owners() == {owner}
        client.rm.hold(owner, 0, RMID, 7, 9)

    def test_an_owner_tells_all_about_itself(self, client: Decider) -> None:
        owner = Owner("n" * 32, bytes(range(8)), f"{'b' * 36}/pid:[4026531836]/4194304/123456789012")
        client.rm.hold(owner, LONG_S, RMID)
        assert client.owners() == {owner}
        client.rm.hold(owner, 0, RMID)

    def test_a_lease_runs_out_and_is_renewed(self, client: Decider) -> None:
        owner, other = new_owner(), new_owner()
        client.rm.hold(other, LONG_S, RMID)
        client.rm.hold(owner, SHORT_S, RMID)
        client.wait_until_gone(owner)
        client.rm.hold(owner, LONG_S, RMID)
        assert client.owners() == {owner, other}, "renewed, though it had run out"
        client.rm.hold(owner, SHORT_S, RMID)
        client.wait_until_gone(owner)
        assert client.owners() == {other}
        client.rm.hold(other, 0, RMID)

    def test_a_renewed_lease_runs_from_then_on(self, client: Decider) -> None:
        owner = new_owner()
        client.rm.hold(owner, SHORT_S, RMID)
        client.rm.hold(owner, LONG_S, RMID)
        other = new_owner()
        client.rm.hold(other, SHORT_S, RMID)
        client.wait_until_gone(other)
        assert client.owners() == {owner}
        client.rm.hold(owner, 0, RMID)

    def test_the_final_word_needs_no_lease_and_heeds_none(self, harness: DeciderHarness, client: Decider) -> None:
        owner = new_owner()
        client.rm.hold(owner, LONG_S, RMID)
        xid = Xid(FORMAT_ID, Gtrid(owner.node, client.rm.decider_id, owner.incarnation, 1).encode(), b"d")
        client.ended(new_key(), xid)
        other = Decider(harness)
        assert other.settle(xid) is None
        with refused(*ROLLBACK_CODES):
            client.decide(xid)
        with refused(Code.XAER_NOTA):
            client.rollback(xid)
        other.rm.end_decisions([xid.gtrid], RMID)
        other.rm.hold(owner, 0, RMID)
        other.rm.close("", RMID)

    # --- decide ---------------------------------------------------------------------------------------------
    def test_work_and_decision_are_one(self, client: Decider) -> None:
        xid = client.ended(key := new_key())
        assert key not in client.harness.committed()
        assert client.decide(xid) is Code.XA_OK
        assert key in client.harness.committed()
        assert client.settle(xid) == RECORD
        assert client.decided()[xid.gtrid] == RECORD
        with refused(Code.XAER_NOTA):
            client.rollback(xid)

    def test_a_decision_without_work(self, client: Decider) -> None:
        xid = new_xid()
        client.start(xid)
        client.end(xid)
        assert client.decide(xid) is Code.XA_OK
        assert client.settle(xid) == RECORD

    def test_records_come_back_as_they_were(self, client: Decider) -> None:
        for record in (b"", b"\0", bytes(20_000)):
            xid = client.ended(new_key())
            client.decide(xid, record)
            assert client.settle(xid) == record
            assert client.decided()[xid.gtrid] == record

    def test_a_branch_that_has_not_ended(self, client: Decider) -> None:
        xid = client.begun(key := new_key())
        with refused(Code.XAER_PROTO):
            client.decide(xid)
        client.end(xid)
        assert client.decide(xid) is Code.XA_OK
        assert key in client.harness.committed()

    def test_an_unknown_branch(self, client: Decider) -> None:
        xid = new_xid()
        with refused(Code.XAER_NOTA):
            client.decide(xid)
        assert xid.gtrid not in client.decided()
        assert client.settle(xid) is None
        client.rm.end_decisions([xid.gtrid], RMID)

    def test_a_failed_branch(self, client: Decider) -> None:
        xid = client.begun(key := new_key())
        try:
            client.end(xid, TMFAIL)
        except BranchRolledBack as said:
            assert said.xid == xid  # noqa: PT017 — one of two right answers
        with refused(*ROLLBACK_CODES):
            client.decide(xid)
        with refused(Code.XAER_NOTA):
            client.rollback(xid)
        assert key not in client.harness.committed()
        assert xid.gtrid not in client.decided()

    def test_it_is_never_prepared(self, client: Decider) -> None:
        xid = client.ended(key := new_key())
        with refused(Code.XAER_PROTO):
            client.prepare(xid)
        with refused(Code.XAER_PROTO):
            client.commit(xid)
        assert list(client.rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN)) == []
        assert client.decide(xid) is Code.XA_OK
        assert key in client.harness.committed()
        assert list(client.rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN)) == []

    def test_one_phase_commits_without_a_decision(self, client: Decider) -> None:
        xid = client.ended(key := new_key())
        assert client.commit(xid, TMONEPHASE) is Code.XA_OK
        assert key in client.harness.committed()
        assert xid.gtrid not in client.decided()

    def test_rollback(self, client: Decider) -> None:
        xid = client.ended(key := new_key())
        client.rollback(xid)
        assert key not in client.harness.committed()
        with refused(Code.XAER_NOTA):
            client.decide(xid)
        assert xid.gtrid not in client.decided()

    # --- settle ---------------------------------------------------------------------------------------------
    def test_a_settled_transaction_is_not_decided_any_more(self, harness: DeciderHarness, client: Decider) -> None:
        xid = client.ended(key := new_key())
        recovery = Decider(harness)
        assert recovery.settle(xid) is None
        with refused(*ROLLBACK_CODES):
            client.decide(xid)
        assert key not in harness.committed()
        assert recovery.settle(xid) is None
        assert xid.gtrid not in recovery.decided()
        with refused(Code.XAER_NOTA):
            client.rollback(xid)
        assert client.commit(client.ended(key), TMONEPHASE) is Code.XA_OK  # its locks are free
        recovery.rm.end_decisions([xid.gtrid], RMID)
        recovery.rm.close("", RMID)

    def test_the_final_word_stays(self, client: Decider) -> None:
        decided, undecided = client.ended(new_key()), new_xid()
        client.decide(decided)
        for _ in range(2):
            assert client.settle(decided) == RECORD
            assert client.settle(undecided) is None
        client.rm.end_decisions([undecided.gtrid], RMID)

    def test_settle_and_decide_race(self, harness: DeciderHarness, client: Decider) -> None:
        """Whichever is first, both say the same: decided with a record, or rolled back without."""
        recovery = Decider(harness)
        tombstones = []
        for _ in range(ROUNDS):
            key, xid = new_key(), new_xid()
            barrier = Barrier(2)

            def decide(key: str = key, xid: Xid = xid, barrier: Barrier = barrier) -> Code:
                client.ended(key, xid)
                barrier.wait(PATIENCE_S)
                try:
                    return client.decide(xid)
                except BranchRolledBack as said:
                    return said.code

            def settle(xid: Xid = xid, barrier: Barrier = barrier) -> bytes | None:
                barrier.wait(PATIENCE_S)
                return recovery.settle(xid)

            with ThreadPoolExecutor(2) as pool:
                code, record = pool.submit(decide), pool.submit(settle)
                won = code.result() is Code.XA_OK
                assert record.result() == (RECORD if won else None)
            assert (key in harness.committed()) == won
            assert (xid.gtrid in recovery.decided()) == won
            if not won:
                tombstones.append(xid.gtrid)
        recovery.rm.end_decisions(tombstones, RMID)
        recovery.rm.close("", RMID)

    # --- pages and ends -------------------------------------------------------------------------------------
    def test_decisions_in_pages(self, client: Decider) -> None:
        xids = [client.ended(new_key()) for _ in range(7)]
        for xid in reversed(xids):
            client.decide(xid, xid.gtrid)
        for count in (1, 2, 7, 8):
            found = client.decided(count)
            assert {xid.gtrid: xid.gtrid for xid in xids}.items() <= found.items()
        middle = sorted(xid.gtrid for xid in xids)[3]
        assert all(decision.gtrid > middle for decision in client.rm.decisions(RMID, middle))
        assert middle in client.decided()

    def test_a_count_that_is_none(self, client: Decider) -> None:
        for count in (0, -1):
            with refused(Code.XAER_INVAL):
                client.rm.decisions(RMID, b"", count)

    def test_ended_decisions_are_gone(self, client: Decider) -> None:
        first, second = client.ended(new_key()), client.ended(new_key())
        client.decide(first)
        client.decide(second)
        client.rm.end_decisions([first.gtrid, new_xid().gtrid], RMID)
        assert first.gtrid not in client.decided()
        assert second.gtrid in client.decided()
        client.rm.end_decisions([first.gtrid], RMID)
        client.rm.end_decisions([], RMID)
        assert second.gtrid in client.decided()

    # --- failures -------------------------------------------------------------------------------------------
    def test_a_client_that_dies_before_it_decides(self, harness: DeciderHarness, client: Decider) -> None:
        other = Decider(harness)
        xid = other.ended(key := new_key())
        harness.crash(other.rm)
        assert client.settle(xid) is None
        assert key not in harness.committed()
        client.retrying("rollback", xid)
        client.rm.end_decisions([xid.gtrid], RMID)

    def test_a_client_that_dies_after_it_decided(self, harness: DeciderHarness, client: Decider) -> None:
        other = Decider(harness)
        xid = other.ended(key := new_key())
        other.decide(xid)
        harness.crash(other.rm)
        assert client.settle(xid) == RECORD
        assert key in harness.committed()

    @pytest.mark.parametrize("before", [True, False])
    def test_a_connection_that_is_lost_while_it_decides(
        self, harness: DeciderHarness, client: Decider, *, before: bool
    ) -> None:
        xid = client.ended(key := new_key())
        expected = (ResourceUnavailable, BranchRolledBack) if before else ResourceUnavailable
        with pytest.raises(expected):
            harness.lose_decide(client.rm, xid, RMID, RECORD, before=before)
        client.reopen()
        assert client.settle(xid) == (None if before else RECORD)
        assert (key in harness.committed()) == (not before)
        client.retrying("rollback", xid)
        assert (key in harness.committed()) == (not before)
        client.rm.end_decisions([xid.gtrid], RMID)

    def test_what_is_not_open(self, harness: DeciderHarness) -> None:
        client = Decider(harness, opened=False)
        calls: dict[str, Callable[[int], object]] = {
            "settle": lambda rmid: client.rm.settle(new_xid().gtrid, rmid),
            "decisions": client.rm.decisions,
            "end_decisions": lambda rmid: client.rm.end_decisions([], rmid),
            "decide": lambda rmid: client.rm.decide(new_xid(), rmid, RECORD),
            "hold": lambda rmid: client.rm.hold(new_owner(), LONG_S, rmid),
            "owners": client.rm.owners,
        }
        for name, call in calls.items():
            with case(name), refused(Code.XAER_PROTO):
                call(RMID)

        client.reopen()
        for name, call in calls.items():
            with case(name), refused(Code.XAER_INVAL):
                call(RMID + 1)
        client.rm.close("", RMID)
