"""Measures the contract by itself: text forms of xids, moves of state machines, branch cycles of the reference RM.

Each figure is the best of many short rounds, because other load on the machine disturbs the best one least.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from xa import TMASYNC, TMSUCCESS, Code, Gtrid, Handle, Xid
from xa.gtrid import FORMAT_ID
from xa.machine import advance
from xa.state_tables import BRANCH, BranchState, BranchVerb
from xabridge.testing.reference import ReferenceResource, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable

SUMMARY: Final = "xid text forms, state machines, branch cycles of the reference resource manager"

COUNT: Final = 500
RMID: Final = 1
_LIFE: Final = (BranchVerb.START, BranchVerb.END, BranchVerb.PREPARE, BranchVerb.COMMIT)


def measure(*, quick: bool) -> dict[str, Any]:
    """Per second: `xid_round_trips_per_s` (to text and back), `advances_per_s` (one move of the branch machine),
    `branch_cycles_per_s.sync` (start, end, prepare, commit) and `.async` (prepare and commit with TMASYNC)."""
    rounds = 3 if quick else 300
    return {
        "rounds": rounds,
        "xid_round_trips_per_s": _rate(rounds, _round_trips),
        "advances_per_s": _rate(rounds, _advances),
        "branch_cycles_per_s": {
            "sync": _rate(rounds, _cycles),
            "async": _rate(rounds, _overlapped_cycles),
        },
    }


def _rate(rounds: int, work: Callable[[list[Xid]], None]) -> int:
    """How often per second, in the best of `rounds` over COUNT xids."""
    xids = [Xid(FORMAT_ID, Gtrid("bench", bytes(8), 1, number).encode(), b"reference") for number in range(COUNT)]
    best_s = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work(xids)
        best_s = min(best_s, time.perf_counter() - start)
    return round(COUNT / best_s)


def _round_trips(xids: list[Xid]) -> None:
    for xid in xids:
        Xid.parse(str(xid))


def _advances(xids: list[Xid]) -> None:
    for _ in range(len(xids) // len(_LIFE)):
        state = BranchState.S0
        for verb in _LIFE:
            state = advance(BRANCH, state, verb)


def _opened() -> ReferenceResource:
    store = ReferenceStore("bench")
    rm = ReferenceResource(store)
    rm.open(store.url, RMID)
    return rm


def _cycles(xids: list[Xid]) -> None:
    rm = _opened()
    for xid in xids:
        rm.start(xid, RMID)
        rm.end(xid, RMID, TMSUCCESS)
        rm.prepare(xid, RMID)
        if rm.commit(xid, RMID) is not Code.XA_OK:
            raise AssertionError(f"{xid} was not committed")


def _overlapped_cycles(xids: list[Xid]) -> None:
    rm = _opened()
    for xid in xids:
        rm.start(xid, RMID)
        rm.end(xid, RMID, TMSUCCESS)
        for verb in (rm.prepare, rm.commit):
            handle = verb(xid, RMID, TMASYNC)
            if not isinstance(handle, Handle) or rm.complete(handle, RMID).code is not Code.XA_OK:
                raise AssertionError(f"{xid} was not committed")
