"""Every call that the state tables refuse: with the code of the table, and without an effect.

Generated from `xa.state_tables`: each branch state is brought about, each verb that is illegal there is called from
another thread of control, and the branch is then finished as if nothing had been.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xa import TMFAIL, TMJOIN, TMONEPHASE, TMRESUME, TMSUCCESS, TMSUSPEND, BranchRolledBack, Code
from xa.state_tables import ASSOCIATION, BRANCH, AssociationState, AssociationVerb, BranchState, BranchVerb

from .client import RMID, Client, Contract, case, elsewhere, new_key, new_xid, refused

if TYPE_CHECKING:
    from collections.abc import Callable

    from xa import Xid

S0, S1, S2, S3, S4, S5 = BranchState
T0, T1, T2 = AssociationState
BRANCH_CALLS: dict[BranchVerb, Callable[[Client, Xid], object]] = {
    BranchVerb.START: lambda client, xid: client.start(xid),
    BranchVerb.JOIN: lambda client, xid: client.start(xid, TMJOIN),
    BranchVerb.END: lambda client, xid: client.end(xid, TMSUCCESS),
    BranchVerb.END_FAIL: lambda client, xid: client.end(xid, TMFAIL),
    BranchVerb.PREPARE: lambda client, xid: client.prepare(xid),
    BranchVerb.COMMIT: lambda client, xid: client.commit(xid),
    BranchVerb.COMMIT_ONE_PHASE: lambda client, xid: client.commit(xid, TMONEPHASE),
    BranchVerb.ROLLBACK: lambda client, xid: client.rollback(xid),
    BranchVerb.FORGET: lambda client, xid: client.forget(xid),
}
ASSOCIATION_CALLS: dict[AssociationVerb, Callable[[Client, Xid], object]] = {
    AssociationVerb.START: lambda client, _: client.start(new_xid()),
    AssociationVerb.RESUME: lambda client, xid: client.start(xid, TMRESUME),
    AssociationVerb.SUSPEND: lambda client, xid: client.end(xid, TMSUSPEND),
    AssociationVerb.END: lambda client, xid: client.end(xid, TMSUCCESS),
    AssociationVerb.END_FAIL: lambda client, xid: client.end(xid, TMFAIL),
    AssociationVerb.CLOSE: lambda client, _: client.rm.close("", RMID),
}
ILLEGAL_BRANCH_CALLS = [(state, verb, code) for (state, verb), code in BRANCH.refusals.items() if verb in BRANCH_CALLS]
ILLEGAL_ASSOCIATION_CALLS = [
    (state, verb, code)
    for (state, verb), code in ASSOCIATION.refusals.items()
    if verb in ASSOCIATION_CALLS and (state, verb) != (T2, AssociationVerb.START)  # refused for the same branch only
]


class TestRefusals(Contract):
    """What is refused has no effect."""

    @pytest.mark.parametrize("state", BranchState, ids=lambda state: state.name)
    def test_verbs_that_the_branch_is_not_in_the_state_for(self, client: Client, state: BranchState) -> None:
        if state is S5 and not client.harness.capabilities.heuristics:
            pytest.skip("no heuristics")
        calls = [(verb, code) for illegal_in, verb, code in ILLEGAL_BRANCH_CALLS if illegal_in is state]
        assert calls
        for verb, code in calls:
            with case(state, verb):
                key = new_key()
                xid = self.bring(client, state, key)
                with elsewhere(), refused(code):
                    BRANCH_CALLS[verb](client, xid)
                self.finish(client, state, xid, key)

    @pytest.mark.parametrize("state", AssociationState, ids=lambda state: state.name)
    def test_verbs_that_the_association_is_not_in_the_state_for(self, client: Client, state: AssociationState) -> None:
        for verb, code in ((verb, code) for of, verb, code in ILLEGAL_ASSOCIATION_CALLS if of is state):
            if client.registers and (verb is AssociationVerb.START or (state, verb) == (T1, AssociationVerb.RESUME)):
                continue  # registers itself: never starts nor resumes in T1
            with case(state, verb):
                key = new_key()
                xid = self.bring(client, S2 if state is T0 else S1, key)
                if state is T2:
                    client.end(xid, TMSUSPEND)
                with refused(code):
                    ASSOCIATION_CALLS[verb](client, xid)
                if state is T2:
                    client.end(xid)
                self.finish(client, S1 if state is T1 else S2, xid, key)

    def test_the_end_of_an_association_that_is_anothers(self, client: Client) -> None:
        key = new_key()
        xid = self.bring(client, S1, key)
        for verb in (BranchVerb.END, BranchVerb.END_FAIL):
            with elsewhere(), refused(Code.XAER_PROTO):
                BRANCH_CALLS[verb](client, xid)
        self.finish(client, S1, xid, key)

    def test_start_of_a_branch_that_the_thread_has_suspended(self, client: Client) -> None:
        """The branch is known (XAER_DUPID), and the thread is associated with it (XAER_PROTO): both are true."""
        xid = client.begun(key := new_key())
        client.end(xid, TMSUSPEND)
        for flags in (0, TMJOIN):
            with refused(Code.XAER_PROTO, Code.XAER_DUPID):
                client.start(xid, flags)
        client.end(xid)
        self.finish(client, S2, xid, key)

    @staticmethod
    def bring(client: Client, state: BranchState, key: str) -> Xid:
        """An xid whose branch is in `state`, with `key` written under it."""
        if state is S0:
            return new_xid()
        if state in {S3, S5}:
            xid = client.prepared(key)
            if state is S5:
                client.harness.complete_heuristically(xid, commit=False)
            return xid

        xid = client.begun(key)
        if state is S2:
            client.end(xid)
        elif state is S4:
            try:
                client.end(xid, TMFAIL)
            except BranchRolledBack as said:
                assert said.xid == xid  # noqa: PT017 — one of two right answers
        return xid

    @staticmethod
    def finish(client: Client, state: BranchState, xid: Xid, key: str) -> None:
        """The branch is still in `state`: what is legal there has the effect that it should."""
        assert key not in client.harness.committed()
        if state is S1:
            client.end(xid)
        if state in {S1, S2}:
            assert client.prepare(xid) is Code.XA_OK
        if state in {S1, S2, S3}:
            assert client.commit(xid) is Code.XA_OK
            assert key in client.harness.committed()
        elif state is S4:
            with pytest.raises(BranchRolledBack):
                client.prepare(xid)
        elif state is S5:
            assert client.forget(xid) is Code.XA_OK

        assert xid not in client.in_doubt()
        with refused(Code.XAER_NOTA):
            client.rollback(xid)
