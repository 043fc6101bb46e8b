"""This module runs the contract suite over the reference resource manager, in each of its variants."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import pytest

from xa import TMNOMIGRATE, TMREGISTER, TMUSEASYNC, Code, Registrar, ResourceManager, Xid
from xa.machine import IllegalTransition
from xabridge.testing.contract.harness import Capabilities
from xabridge.testing.contract.resource_manager import *  # noqa: F403 — the suite
from xabridge.testing.reference import NotingResource, ReferenceDecider, ReferenceResource, ReferenceStore

VARIANTS = {
    "async": (TMUSEASYNC, True),
    "sync": (0, False),
    "dynamic": (TMREGISTER | TMUSEASYNC, True),
    "stationary": (TMNOMIGRATE | TMUSEASYNC, False),
}


class HarnessOfAStore:
    """What a store does to its clients, whichever it is."""

    wrong_open_string = "reference://elsewhere"
    store: ReferenceStore

    def write(self, rm: ResourceManager, rmid: int, key: str) -> None:
        rm.session(rmid).write(key, True)

    def read(self, rm: ResourceManager, rmid: int) -> None:
        rm.session(rmid).read("nothing")

    def committed(self) -> AbstractSet[str]:
        return self.store.data.keys()

    def crash(self, rm: ResourceManager) -> None:
        assert isinstance(rm, ReferenceResource | ReferenceDecider)
        self.store.disconnect(rm)

    def disconnect(self, rm: ResourceManager) -> None:
        assert isinstance(rm, ReferenceResource | ReferenceDecider)
        self.store.cut(rm)

    def go_down(self) -> None:
        self.store.partition()

    def come_back(self) -> None:
        self.store.heal()

    def narrow(self) -> None:
        self.store.room = 3

    def leaks(self) -> list[str]:
        left = [f"{xid}: {state.value}" for xid, state in self.store.branches.items()]
        return left + [f"{key} locked by {xid}" for key, xid in self.store.locked_keys.items()]


class ReferenceHarness(HarnessOfAStore):
    """A store of its own for each test."""

    open_string = "reference://contract"

    def __init__(self, flags: int, *, read_only_votes: bool) -> None:
        self.flags = flags
        self.capabilities = Capabilities(votes_read_only=read_only_votes)
        self.store = ReferenceStore("contract", read_only_votes=read_only_votes, tells_outcomes=True)
        self.clients: list[ReferenceResource] = []

    def new(self, registrar: Registrar) -> ReferenceResource:
        client = NotingResource(self.store, registrar, self.flags)
        self.clients.append(client)
        return client

    def complete_heuristically(self, xid: Xid, *, commit: bool) -> None:
        self.store.complete_heuristically(xid, Code.XA_HEURCOM if commit else Code.XA_HEURRB)

    def expire(self, xid: Xid) -> None:
        try:
            self.store.expire(xid)
        except IllegalTransition as refused:
            assert refused.state.name in {"S3", "S5"}  # noqa: PT017 — the store's refusal is what is wanted

    def leaks(self) -> list[str]:
        left = super().leaks()
        left += [f"{client.outstanding} handles" for client in self.clients if client.outstanding]
        return left + ([f"{len(self.store.in_flight)} requests in flight"] if self.store.in_flight else [])


@pytest.fixture(params=VARIANTS)
def harness(request: pytest.FixtureRequest) -> ReferenceHarness:
    """The variants."""
    flags, read_only_votes = VARIANTS[request.param]
    return ReferenceHarness(flags, read_only_votes=read_only_votes)
