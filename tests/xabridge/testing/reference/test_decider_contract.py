"""This module runs the contract suite for deciders over the reference one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xa import TMUSEASYNC, Code
from xabridge.testing.contract.deciding import TestDeciding
from xabridge.testing.contract.harness import Capabilities
from xabridge.testing.reference import DecidingStore, Fate, ReferenceDecider

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from xa import DecidingResource, Registrar, ResourceManager, Xid

__all__ = ["TestDeciding"]


class ReferenceDeciderHarness:
    """A deciding store of its own for each test."""

    open_string = "reference://decider"
    wrong_open_string = "reference://elsewhere"
    capabilities = Capabilities(heuristics=False, votes_read_only=False)

    def __init__(self, flags: int) -> None:
        self.flags = flags
        self.store = DecidingStore("decider", decider_id=b"decider1")
        self.clients: list[ReferenceDecider] = []

    def new(self, registrar: Registrar) -> ReferenceDecider:
        client = ReferenceDecider(self.store, registrar, self.flags)
        self.clients.append(client)
        return client

    def write(self, rm: ResourceManager, rmid: int, key: str) -> None:
        rm.session(rmid).write(key, True)

    def read(self, rm: ResourceManager, rmid: int) -> None:
        rm.session(rmid).read("nothing")

    def committed(self) -> AbstractSet[str]:
        return self.store.data.keys()

    def crash(self, rm: ResourceManager) -> None:
        assert isinstance(rm, ReferenceDecider)
        self.store.disconnect(rm)

    def disconnect(self, rm: ResourceManager) -> None:
        assert isinstance(rm, ReferenceDecider)
        self.store.cut(rm)

    def lose_decide(self, rm: DecidingResource, xid: Xid, rmid: int, record: bytes, *, before: bool) -> Code:
        self.store.script.plan("decide", fate=Fate.REQUEST_LOST if before else Fate.REPLY_LOST)
        return rm.decide(xid, rmid, record)

    def complete_heuristically(self, xid: Xid, *, commit: bool) -> None:
        raise NotImplementedError(f"{xid} can't be completed heuristically, to commit={commit} or otherwise")

    def expire(self, xid: Xid) -> None:
        self.store.expire(xid)

    def go_down(self) -> None:
        self.store.partition()

    def come_back(self) -> None:
        self.store.heal()

    def narrow(self) -> None:
        self.store.room = 3

    def leaks(self) -> list[str]:
        left = [f"{xid}: {state.value}" for xid, state in self.store.branches.items()]
        left += [f"{key} locked by {xid}" for key, xid in self.store.locked_keys.items()]
        left += [f"decision of {gtrid!r}" for gtrid in self.store.decided]
        left += [f"tombstone of {gtrid!r}" for gtrid in self.store.tombstones]
        return left


@pytest.fixture(params=[TMUSEASYNC, 0])
def harness(request: pytest.FixtureRequest) -> ReferenceDeciderHarness:
    """With and without TMASYNC."""
    return ReferenceDeciderHarness(request.param)
