"""This module runs the contract suite for deciders over the reference one."""

from __future__ import annotations

import pytest

from tests.xabridge.testing.reference.test_contract import HarnessOfAStore
from xa import TMUSEASYNC, Code, DecidingResource, Registrar, Xid
from xabridge.testing.contract.deciding import TestDeciding
from xabridge.testing.contract.harness import Capabilities
from xabridge.testing.reference import DecidingStore, NetworkFault, ReferenceDecider

__all__ = ["TestDeciding"]


class ReferenceDeciderHarness(HarnessOfAStore):
    """A deciding store of its own for each test."""

    open_string = "reference://decider"
    capabilities = Capabilities(heuristics=False, votes_read_only=False)

    store: DecidingStore

    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.store = DecidingStore("decider", decider_id=b"decider1")

    def new(self, registrar: Registrar) -> ReferenceDecider:
        return ReferenceDecider(self.store, registrar, self.flags)

    def lose_decide(self, rm: DecidingResource, xid: Xid, rmid: int, record: bytes, *, before: bool) -> Code:
        self.store.script.plan("decide", fate=NetworkFault.REQUEST_LOST if before else NetworkFault.REPLY_LOST)
        return rm.decide(xid, rmid, record)

    def complete_heuristically(self, xid: Xid, *, commit: bool) -> None:
        raise NotImplementedError(f"{xid} can't be completed heuristically, to commit={commit} or otherwise")

    def expire(self, xid: Xid) -> None:
        self.store.expire(xid)

    def leaks(self) -> list[str]:
        left = super().leaks()
        left += [f"decision of {gtrid!r}" for gtrid in self.store.decided]
        left += [f"tombstone of {gtrid!r}" for gtrid in self.store.tombstones]
        return left


@pytest.fixture(params=[TMUSEASYNC, 0])
def harness(request: pytest.FixtureRequest) -> ReferenceDeciderHarness:
    """With and without TMASYNC."""
    return ReferenceDeciderHarness(request.param)
