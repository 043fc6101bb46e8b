"""These tests cover in_doubt and diagnose, the reports for operators, of resource managers that offer them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xa import HEURISTIC_CODES, TMENDRSCAN, TMNOFLAGS, TMSTARTRSCAN, Code
from xa.diagnosis import Diagnosing, Health
from xa.holdings import HoldingsReporting

from .client import RMID, Client, Contract, new_key, refused

if TYPE_CHECKING:
    from xa import Xid
    from xa.holdings import InDoubtBranch

    from .harness import Harness


def reported(client: Client, count: int = 1000) -> list[InDoubtBranch]:
    """A whole scan, in pages of `count`."""
    rm = client.rm
    if not isinstance(rm, HoldingsReporting):
        pytest.skip(f"{client.rm.name} does not tell what branches hold")
    found: list[InDoubtBranch] = []
    flags = TMSTARTRSCAN
    while True:
        page = rm.in_doubt(RMID, flags, count)
        assert len(page) <= count
        found += page
        if len(page) < count:
            return found
        flags = TMNOFLAGS


def of(xid: Xid, found: list[InDoubtBranch]) -> InDoubtBranch:
    """The one branch `xid`."""
    (branch,) = [branch for branch in found if branch.xid == xid]
    return branch


class TestHoldings(Contract):
    """Reports of branches in doubt, and of the resource itself."""

    def test_tells_of_the_branches_that_recover_lists(self, client: Client) -> None:
        assert isinstance(reported(client), list)
        prepared = client.prepared(new_key())
        ended = client.ended(new_key())
        xids = {branch.xid for branch in reported(client)}
        assert xids == client.in_doubt()
        assert prepared in xids
        assert ended not in xids
        for xid in (prepared, ended):
            client.rollback(xid)

    def test_a_prepared_branch_holds_what_it_wrote(self, client: Client) -> None:
        reported(client)
        xid = client.prepared(new_key())
        branch = of(xid, reported(client))
        assert branch.outcome is None
        assert branch.holdings
        assert all(holding.place and holding.unit for holding in branch.holdings)
        assert branch.age_s is None or 0 <= branch.age_s < 3600
        client.rollback(xid)

    def test_it_pages_beside_a_scan_of_recover(self, client: Client) -> None:
        reported(client)
        xids = {client.prepared(new_key()) for _ in range(3)}
        first = set(client.rm.recover(RMID, TMSTARTRSCAN, 1))
        found = [branch.xid for branch in reported(client, 1)]
        assert len(found) == len(set(found))
        assert set(found) >= xids
        rest = set(client.rm.recover(RMID, TMENDRSCAN, 1000))
        assert first | rest >= xids
        assert not first & rest
        for xid in xids:
            client.rollback(xid)

    def test_a_scan_that_is_none(self, client: Client) -> None:
        reported(client)
        assert isinstance(client.rm, HoldingsReporting)
        with refused(Code.XAER_INVAL):
            client.rm.in_doubt(RMID, TMSTARTRSCAN, 0)
        client.rm.in_doubt(RMID, TMSTARTRSCAN | TMENDRSCAN, 10)
        with refused(Code.XAER_INVAL):
            client.rm.in_doubt(RMID, TMNOFLAGS, 10)

    def test_a_completed_branch_says_how(self, client: Client) -> None:
        if not client.harness.capabilities.heuristics:
            pytest.skip("completes nothing on its own")
        reported(client)
        xid = client.prepared(new_key())
        client.harness.complete_heuristically(xid, commit=False)
        assert of(xid, reported(client)).outcome in HEURISTIC_CODES
        client.rm.forget(xid, RMID)
        assert xid not in {branch.xid for branch in reported(client)}

    def test_a_diagnosis_needs_no_opening_and_changes_nothing(self, harness: Harness) -> None:
        client = Client(harness, opened=False)
        rm = client.rm
        if not isinstance(rm, Diagnosing):
            pytest.skip(f"{client.rm.name} does not diagnose")
        diagnosis = rm.diagnose(harness.open_string)
        assert diagnosis.checks
        assert all(check.health is not Health.FAIL for check in diagnosis.checks), diagnosis
        with refused(Code.XAER_PROTO):
            client.rm.recover(RMID, TMSTARTRSCAN, 1)

    def test_a_diagnosis_of_what_is_down_or_wrong_advises(self, harness: Harness) -> None:
        client = Client(harness, opened=False)
        rm = client.rm
        if not isinstance(rm, Diagnosing):
            pytest.skip(f"{client.rm.name} does not diagnose")
        open_strings = [harness.wrong_open_string]
        if harness.capabilities.unreachable:
            harness.go_down()
            open_strings.append(harness.open_string)

        try:
            for open_string in open_strings:
                failed = [check for check in rm.diagnose(open_string).checks if check.health is Health.FAIL]
                assert failed
                assert all(check.advice for check in failed)
        finally:
            if harness.capabilities.unreachable:
                harness.come_back()
