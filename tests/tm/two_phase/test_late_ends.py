"""These tests check which associations are ended together with the prepare of their branch, if the resource manager
offers that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.log import Disk, SimulatedLog
from tm import ResourceConfig, TransactionManager
from xa import TMUSEASYNC
from xabridge.testing.reference import ReferenceResource, ReferenceStore

if TYPE_CHECKING:
    from xa import Code, Handle, Registrar, Xid

LOG_ID = b"lateends"


class Late(ReferenceResource):
    """Notes what it is asked."""

    def __init__(self, store: ReferenceStore, registrar: Registrar, asked: list[str], name: str) -> None:
        super().__init__(store, registrar, TMUSEASYNC)
        self._asked_for = asked
        self._named = name

    def end_late(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        self._asked_for.append(f"{self._named} late")
        return super().end(xid, rmid, flags)

    def end(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        self._asked_for.append(f"{self._named} ends")
        return super().end(xid, rmid, flags)


def asked_of(*stores: ReferenceStore, used: int) -> list[str]:
    """What a transaction that works with the first `used` of these resources asks."""
    asked: list[str] = []
    resources = {
        f"rm{number}": ResourceConfig(
            store.url,
            factory=lambda registrar, store=store, name=f"rm{number}": Late(store, registrar, asked, name),
        )
        for number, store in enumerate(stores)
    }
    log = SimulatedLog(Disk(LOG_ID), "node-1")
    manager = TransactionManager("node-1", log, resources, sleep=lambda _: None, background=False)
    with manager.begin() as tx:
        for number in range(used):
            tx[f"rm{number}"].write(f"key {number}", "value")
    manager.close(timeout_s=0)
    return asked


def test_two_branches_are_ended_late() -> None:
    assert asked_of(ReferenceStore("one"), ReferenceStore("two"), used=2) == ["rm0 late", "rm1 late"]


def test_one_branch_is_not_prepared_and_so_ended_in_the_ordinary_way() -> None:
    assert asked_of(ReferenceStore("one"), ReferenceStore("two"), used=1) == ["rm0 ends"]


def test_where_two_are_associated_with_one_branch_nobody_is_ended_late() -> None:
    one = ReferenceStore("one")
    assert asked_of(one, ReferenceStore("two"), one, used=3) == ["rm0 ends", "rm1 ends", "rm2 ends"]
