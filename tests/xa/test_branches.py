"""These tests run `Branches` over a resource with scripted answers, for cases that the contract suite can't cause."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import xa.in_process_branches
from tests.xa.answers import RMID, Answer, X, Y, refused
from xa import (
    TMASYNC,
    TMFAIL,
    TMJOIN,
    TMMIGRATE,
    TMNOWAIT,
    TMONEPHASE,
    TMRESUME,
    TMSUCCESS,
    TMSUSPEND,
    TMUSEASYNC,
    Code,
    DecisionRecord,
    Handle,
    NotedIncarnation,
    Owner,
    ThreadOfControl,
    Xid,
    entered,
    xa_error,
)
from xa.driver import Pending, SessionContext
from xa.in_process_branches import AssociatedWork, Branches, DecidingBranches, DecidingUnitOfWorkDriver, UnitOfWork
from xa.switch import DecidingSwitch, Switch

PATIENCE_S = 30


class Work(UnitOfWork):
    """A unit that notes what is asked of it, and answers what the test has planned."""

    def __init__(self, resource: Resource, xid: Xid) -> None:
        self.asked: list[str] = []
        self._resource = resource
        self._xid = xid

    def _answer(self, call: str) -> Code:
        self.asked.append(call)
        outcome = self._resource.planned.pop(call, Code.XA_OK)
        if isinstance(outcome, BaseException):
            raise outcome
        code = outcome if isinstance(outcome, Code) else outcome()
        if code is not Code.XA_OK:
            raise xa_error(code, f"{call}: planned", self._xid)
        return code

    def session(self, context: SessionContext[Any]) -> Work:
        assert context.current() is not None
        return self

    def end(self, *, fail: bool) -> None:
        self._answer("end(fail)" if fail else "end")

    def prepare(self, *, later: bool) -> Code | Pending:
        return self._resource.later.pop(0) if later else self._answer("prepare")

    def commit(self, *, later: bool) -> Code:  # noqa: ARG002 — at once
        return self._answer("commit")

    def rollback(self, *, later: bool) -> Code:  # noqa: ARG002 — at once
        return self._answer("rollback")

    def start_rollback(self) -> None:
        self.asked.append("start_rollback")

    def abandon(self) -> None:
        self.asked.append("abandon")


class Resource(DecidingUnitOfWorkDriver[Work]):
    """A resource in which everything succeeds, unless the test has planned otherwise."""

    flags = TMUSEASYNC
    wait_s = 0.2

    def __init__(self) -> None:
        self.units: dict[Xid, Work] = {}
        self.planned: dict[str, Code | BaseException | Callable[[], Code]] = {}
        self.later: list[Pending] = []
        self.decided: dict[Xid, bytes] = {}

    def open(self, open_string: str) -> None:
        assert open_string == "test://"

    def close(self) -> None:
        return

    def begin(self, xid: Xid, *, wait: bool) -> Work:  # noqa: ARG002 — there is room
        outcome = self.planned.pop("begin", None)
        if isinstance(outcome, Code):
            raise xa_error(outcome, "begin: planned", xid)
        unit = self.units[xid] = Work(self, xid)
        return unit

    def commit_prepared(self, xid: Xid, *, later: bool) -> Code:  # noqa: ARG002 — at once
        outcome = self.planned.pop("commit_prepared", None)
        if isinstance(outcome, Code):
            raise xa_error(outcome, "commit: planned", xid)
        return Code.XA_OK

    @property
    def decider_id(self) -> bytes:
        return b"decider1"

    def decide(self, unit: Work, xid: Xid, record: bytes) -> Code:
        code = unit._answer("decide")
        self.decided[xid] = record
        return code

    def hold(self, owner: Owner, lease_s: float, floor: int, ceiling: int) -> None:
        raise NotImplementedError

    def incarnations(self, node: str) -> Sequence[NotedIncarnation]:
        raise NotImplementedError

    def owners(self) -> Sequence[Owner]:
        raise NotImplementedError

    def settle(self, gtrid: bytes) -> bytes | None:
        raise NotImplementedError

    def decisions(self, after: bytes, count: int) -> Sequence[DecisionRecord]:
        raise NotImplementedError

    def end_decisions(self, gtrids: Sequence[bytes]) -> None:
        raise NotImplementedError


@pytest.fixture
def resource() -> Resource:
    return Resource()


@pytest.fixture
def rm(resource: Resource) -> Switch[AssociatedWork[Work]]:
    made: Switch[AssociatedWork[Work]] = Switch(Branches(resource))
    made.open("test://", RMID)
    return made


def ended(rm: Switch[AssociatedWork[Work]], xid: Xid) -> None:
    rm.start(xid, RMID)
    rm.end(xid, RMID, TMSUCCESS)


def left(rm: Switch[AssociatedWork[Work]]) -> int:
    branches = rm.driver
    assert isinstance(branches, Branches)
    return len(branches)


# --- associations ---------------------------------------------------------------------------------------------
def test_a_branch_that_can_not_begin_leaves_nothing(rm: Switch[AssociatedWork[Work]], resource: Resource) -> None:
    resource.planned["begin"] = Code.XA_RETRY
    refused(Code.XA_RETRY, "start", rm, X, RMID)
    assert left(rm) == 0
    rm.start(X, RMID)


def test_who_joins_waits_for_who_is_at_work(rm: Switch[AssociatedWork[Work]], resource: Resource) -> None:
    resource.wait_s = PATIENCE_S
    rm.start(X, RMID)
    with ThreadPoolExecutor(1) as pool:
        joined = pool.submit(lambda: rm.start(X, RMID, TMJOIN))
        assert not joined.done()
        rm.end(X, RMID, TMSUCCESS)
        assert joined.result(PATIENCE_S) is Code.XA_OK


@pytest.mark.parametrize(
    ("wait_s", "flags", "code"),
    [(0.1, 0, Code.XAER_RMERR), (0.1, TMNOWAIT, Code.XA_RETRY), (0.0, 0, Code.XAER_PROTO)],
)
def test_who_joins_does_not_wait_for_ever(
    rm: Switch[AssociatedWork[Work]], resource: Resource, wait_s: float, flags: int, code: Code
) -> None:
    resource.wait_s = wait_s
    rm.start(X, RMID)
    with entered(ThreadOfControl()):
        refused(code, "start", rm, X, RMID, TMJOIN | flags)
    rm.end(X, RMID, TMSUCCESS)
    assert rm.prepare(X, RMID) is Code.XA_OK


def test_the_end_of_a_suspended_association_while_another_is_at_work(rm: Switch[AssociatedWork[Work]]) -> None:
    rm.start(X, RMID)
    rm.end(X, RMID, TMSUSPEND)
    other = ThreadOfControl()
    with entered(other):
        rm.start(X, RMID, TMJOIN)
    rm.end(X, RMID, TMSUCCESS)
    refused(Code.XAER_PROTO, "prepare", rm, X, RMID)
    with entered(other):
        rm.end(X, RMID, TMSUCCESS)
    assert rm.prepare(X, RMID) is Code.XA_OK


def test_suspended_work_that_does_not_migrate(rm: Switch[AssociatedWork[Work]], resource: Resource) -> None:
    resource.migrates = False
    rm.start(X, RMID)
    assert rm.end(X, RMID, TMSUSPEND | TMMIGRATE) is Code.XA_NOMIGRATE
    with entered(ThreadOfControl()):
        refused(Code.XAER_PROTO, "start", rm, X, RMID, TMRESUME)
    rm.start(X, RMID, TMRESUME)


@pytest.mark.parametrize(
    ("flags", "fault", "told", "vote"),
    [
        (TMSUCCESS, Code.XA_RBDEADLOCK, Code.XA_RBDEADLOCK, Code.XA_RBDEADLOCK),
        (TMSUSPEND, Code.XA_RBDEADLOCK, Code.XA_RBDEADLOCK, Code.XA_RBDEADLOCK),
        (TMSUCCESS, Code.XAER_RMFAIL, Code.XAER_RMFAIL, Code.XA_RBCOMMFAIL),
        (TMFAIL, Code.XA_RBDEADLOCK, Code.XA_OK, Code.XA_RBROLLBACK),
        (TMFAIL, Code.XAER_RMFAIL, Code.XA_RBCOMMFAIL, Code.XA_RBCOMMFAIL),
    ],
)
def test_a_branch_whose_work_went_wrong_can_only_be_rolled_back(
    rm: Switch[AssociatedWork[Work]], resource: Resource, flags: int, fault: Code, told: Code, vote: Code
) -> None:
    rm.start(X, RMID)
    resource.planned["end(fail)" if flags == TMFAIL else "end"] = fault
    if told is Code.XA_OK:
        assert rm.end(X, RMID, flags) is told
    else:
        refused(told, "end", rm, X, RMID, flags)
    assert "start_rollback" in resource.units[X].asked
    if told is Code.XAER_RMFAIL:
        refused(Code.XAER_PROTO, "prepare", rm, X, RMID)
        rm.open("test://", RMID)
    refused(vote, "prepare", rm, X, RMID)
    assert resource.units[X].asked[-1] == "rollback"
    assert left(rm) == 0


# --- completion -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "flags"), [("prepare", 0), ("commit", TMONEPHASE)], ids=["prepare", "one-phase commit"]
)
@pytest.mark.parametrize(
    ("code", "stays", "abandoned"),
    [
        (Code.XA_RBINTEGRITY, False, False),
        (Code.XA_RETRY, True, False),
        (Code.XAER_RMFAIL, False, True),
        (Code.XAER_NOTA, False, False),
    ],
)
def test_what_an_answer_leaves(
    rm: Switch[AssociatedWork[Work]],
    resource: Resource,
    call: str,
    flags: int,
    code: Code,
    *,
    stays: bool,
    abandoned: bool,
) -> None:
    ended(rm, X)
    resource.planned[call] = code
    refused(code, call, rm, X, RMID, flags)
    if code is Code.XAER_RMFAIL:
        rm.open("test://", RMID)
    assert left(rm) == stays
    assert ("abandon" in resource.units[X].asked) == abandoned
    if stays:
        assert getattr(rm, call)(X, RMID, flags) is Code.XA_OK
    else:
        refused(Code.XAER_NOTA, call, rm, X, RMID, flags)


def test_a_branch_that_could_not_be_prepared_can_be_rolled_back(
    rm: Switch[AssociatedWork[Work]], resource: Resource
) -> None:
    ended(rm, X)
    resource.planned["prepare"] = Code.XAER_RMERR
    refused(Code.XAER_RMERR, "prepare", rm, X, RMID)
    assert rm.rollback(X, RMID) is Code.XA_OK
    assert left(rm) == 0


@pytest.mark.parametrize("call", ["prepare", "rollback"])
def test_an_interrupted_call_gives_the_unit_up(rm: Switch[AssociatedWork[Work]], resource: Resource, call: str) -> None:
    ended(rm, X)
    resource.planned[call] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        getattr(rm, call)(X, RMID)
    assert resource.units[X].asked[-1] == "abandon"
    refused(Code.XAER_NOTA, "rollback", rm, X, RMID)


def test_one_operation_on_a_branch_at_a_time(rm: Switch[AssociatedWork[Work]], resource: Resource) -> None:
    resource.wait_s = PATIENCE_S
    ended(rm, X)
    entered_it, gate = threading.Event(), threading.Event()

    def slow() -> Code:
        entered_it.set()
        assert gate.wait(PATIENCE_S)
        return Code.XA_OK

    resource.planned["prepare"] = slow
    with ThreadPoolExecutor(2) as pool:
        voted = pool.submit(lambda: rm.prepare(X, RMID))
        assert entered_it.wait(PATIENCE_S)
        committed = pool.submit(lambda: rm.commit(X, RMID))  # waits, and finds the branch prepared
        resource.wait_s = 0.05
        refused(Code.XAER_PROTO, "rollback", rm, X, RMID)
        gate.set()
        assert voted.result(PATIENCE_S) is Code.XA_OK
        assert committed.result(PATIENCE_S) is Code.XA_OK


def test_a_vote_whose_wait_is_interrupted(rm: Switch[AssociatedWork[Work]], resource: Resource) -> None:
    ended(rm, X)
    lost = xa_error(Code.XAER_RMFAIL, "interrupted", X)
    resource.later = [Answer(KeyboardInterrupt(), lost)]
    handle = rm.prepare(X, RMID, TMASYNC)
    assert isinstance(handle, Handle)
    with pytest.raises(KeyboardInterrupt):
        rm.complete(handle, RMID)
    assert resource.units[X].asked[-1] == "abandon"
    assert rm.complete(handle, RMID).code is Code.XAER_RMFAIL


@pytest.mark.parametrize(
    ("code", "remembered"),
    [(Code.XA_RETRY, True), (Code.XAER_RMFAIL, True), (Code.XAER_NOTA, False), (Code.XAER_RMERR, False)],
)
def test_what_was_prepared_here_is_remembered_until_it_is_gone(
    rm: Switch[AssociatedWork[Work]], resource: Resource, code: Code, *, remembered: bool
) -> None:
    ended(rm, X)
    rm.prepare(X, RMID)
    refused(Code.XAER_PROTO, "commit", rm, X, RMID, TMONEPHASE)
    resource.planned["commit_prepared"] = code
    refused(code, "commit", rm, X, RMID)
    rm.open("test://", RMID)
    refused(Code.XAER_PROTO if remembered else Code.XAER_NOTA, "commit", rm, X, RMID, TMONEPHASE)


def test_the_memory_of_prepared_branches_is_bounded(
    rm: Switch[AssociatedWork[Work]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xa.in_process_branches, "MAX_REMEMBERED", 1)
    for xid in (X, Y):
        ended(rm, xid)
        rm.prepare(xid, RMID)
    refused(Code.XAER_NOTA, "end", rm, X, RMID, TMSUCCESS)
    refused(Code.XAER_PROTO, "end", rm, Y, RMID, TMSUCCESS)


# --- the one that decides -------------------------------------------------------------------------------------
def test_a_decision_is_carried_out_once(resource: Resource) -> None:
    rm = DecidingSwitch(DecidingBranches(resource))
    rm.open("test://", RMID)
    for xid, code in ((X, Code.XA_OK), (Y, Code.XA_RBROLLBACK)):
        ended(rm, xid)
        resource.planned["decide"] = code
        if code is Code.XA_OK:
            assert rm.decide(xid, RMID, b"record") is code
        else:
            refused(code, "decide", rm, xid, RMID, b"record")
        refused(Code.XAER_NOTA, "decide", rm, xid, RMID, b"record")
    assert resource.decided == {X: b"record"}
    refused(Code.XAER_PROTO, "prepare", rm, X, RMID)
    refused(Code.XAER_PROTO, "commit", rm, X, RMID)
    assert rm.decider_id == b"decider1"
