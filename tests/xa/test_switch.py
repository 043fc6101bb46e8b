"""These tests check what `Switch` does beyond the contract suite: forks, threads of control that have ended, ends that
are sent with the prepare, interrupted answers, and drivers that misbehave.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.xa.answers import RMID, Answer, X, Y, refused
from xa import (
    NULL_XID,
    TMASYNC,
    TMFAIL,
    TMMULTIPLE,
    TMNOWAIT,
    TMONEPHASE,
    TMSTARTRSCAN,
    TMSUCCESS,
    TMSUSPEND,
    Code,
    Completion,
    Handle,
    ResourceUnavailable,
    ThreadOfControl,
    Xid,
    entered,
    thread_of_control,
    xa_error,
)
from xa.driver import Pending
from xa.state_tables import BranchState
from xa.switch import EndingWithPrepareSwitch, Switch
from xabridge.testing.reference import NetworkFault, ReferenceStore
from xabridge.testing.reference.driver import ReferenceDriver
from xabridge.testing.reference.server import Association


class Driver(ReferenceDriver):
    """The reference driver, with what a test wants to go otherwise."""

    def __init__(self, store: ReferenceStore) -> None:
        super().__init__(store)
        self.started_over = 0
        self.together: list[Xid] = []
        """Branches whose end came together with prepare."""

    def start_over(self) -> None:
        self.started_over += 1

    def end_and_prepare(self, work: Association, *, later: bool) -> Code | Pending:
        self.together.append(work.branch.xid)
        self.end(work, fail=False)
        return self.prepare(work.branch.xid, later=later)


@pytest.fixture
def driver() -> Driver:
    return Driver(ReferenceStore("a"))


@pytest.fixture
def switch(driver: Driver) -> EndingWithPrepareSwitch[Association]:
    made = EndingWithPrepareSwitch(driver)
    made.open(driver.store.url, RMID)
    return made


def sent(answer: Code | Handle) -> Handle:
    assert isinstance(answer, Handle)
    return answer


def wait(switch: Switch[Association], handle: Handle) -> Completion:
    return switch.complete(handle, RMID)


# --- processes and threads of control -------------------------------------------------------------------------
def test_a_forked_process_opens_anew(switch: EndingWithPrepareSwitch[Association], driver: Driver) -> None:
    handle = switch.prepare(Y, RMID, TMASYNC)
    switch.start(X, RMID)
    switch.forked()  # as the interpreter calls it in the child
    refused(Code.XAER_PROTO, "prepare", switch, X, RMID)
    refused(Code.XAER_PROTO, "complete", switch, handle, RMID)
    refused(Code.XAER_PROTO, "session", switch, RMID)
    assert switch.close("", RMID) is Code.XA_OK  # the parent's is not touched
    assert driver.store.branches == {X: BranchState.S1}
    assert driver.started_over == 0
    switch.open(driver.store.url, RMID)
    assert driver.started_over == 1
    assert switch.associated == 0
    switch.start(Y, RMID)
    switch.open(driver.store.url, RMID)
    assert driver.started_over == 1


def test_a_thread_of_control_that_is_gone_has_lost_its_associations(
    switch: EndingWithPrepareSwitch[Association], driver: Driver
) -> None:
    control = ThreadOfControl()
    with entered(control):
        switch.start(Y, RMID)
        switch.end(Y, RMID, TMSUSPEND)
        switch.start(X, RMID)
    del control
    gc.collect()
    assert driver.store.branches == {X: BranchState.S1, Y: BranchState.S2}
    switch.recover(RMID, TMSTARTRSCAN)  # any verb of any thread
    assert driver.store.branches == {X: BranchState.S4, Y: BranchState.S4}
    assert driver.store.associations == 0
    assert refused(Code.XA_RBCOMMFAIL, "prepare", switch, X, RMID).xid == X


def test_the_null_xid_names_no_branch(switch: EndingWithPrepareSwitch[Association]) -> None:
    for verb in ("start", "prepare", "commit", "rollback", "forget"):
        assert "null XID" in refused(Code.XAER_INVAL, verb, switch, NULL_XID, RMID).message


def test_two_threads_end_the_same_association(
    switch: EndingWithPrepareSwitch[Association], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application, and who ends what takes too long: the slower one is refused, and changes nothing."""
    switch.start(X, RMID)
    control, end = thread_of_control(), driver.end

    def slow(work: Association, *, fail: bool) -> Code:
        assert (work.branch.xid, fail) == (X, False)
        monkeypatch.setattr(driver, "end", end)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(in_control, lambda: switch.end(X, RMID, TMSUCCESS)).result() is Code.XA_OK
        return Code.XA_OK

    def in_control(call: Callable[[], Code | Handle]) -> Code | Handle:
        with entered(control):
            return call()

    monkeypatch.setattr(driver, "end", slow)
    refused(Code.XAER_PROTO, "end", switch, X, RMID, TMSUCCESS)
    assert switch.associated == 0
    assert switch.commit(X, RMID, TMONEPHASE) is Code.XA_OK


# --- scans ----------------------------------------------------------------------------------------------------
def test_a_scan_that_fails_in_the_middle_is_not_at_its_end(
    switch: EndingWithPrepareSwitch[Association], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scan(page: int) -> Iterator[Xid]:
        del page
        yield X
        raise xa_error(Code.XA_RETRY, "not now")

    monkeypatch.setattr(driver, "scan", scan)
    assert switch.recover(RMID, TMSTARTRSCAN, 1) == [X]
    refused(Code.XA_RETRY, "recover", switch, RMID, 0, 1)
    refused(Code.XAER_INVAL, "recover", switch, RMID, 0, 1)  # no empty page, which would say that there is no more


# --- ends that ride with prepare ------------------------------------------------------------------------------
def late(switch: EndingWithPrepareSwitch[Association]) -> None:
    """X has ended, and the resource does not know yet."""
    switch.start(X, RMID)
    switch.session(RMID).write("k", 1)
    assert switch.end_late(X, RMID, TMSUCCESS) is Code.XA_OK


def test_a_late_end_is_told_with_prepare(switch: EndingWithPrepareSwitch[Association], driver: Driver) -> None:
    late(switch)
    assert driver.store.branches == {X: BranchState.S1}
    refused(Code.XAER_PROTO, "session", switch, RMID)
    refused(Code.XAER_PROTO, "close", switch, "", RMID)
    assert switch.associated == 1
    assert switch.prepare(X, RMID) is Code.XA_OK
    assert driver.together == [X]
    assert switch.associated == 0
    assert switch.commit(X, RMID) is Code.XA_OK
    assert driver.store.data == {"k": 1}


def test_a_late_end_is_told_with_an_asynchronous_prepare(
    switch: EndingWithPrepareSwitch[Association], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    late(switch)
    handle = sent(switch.prepare(X, RMID, TMASYNC))
    begin = driver.begin
    held: list[Xid] = []

    def noted(xid: Xid, beside: Sequence[Association], *, wait: bool) -> Association:
        held.extend(work.branch.xid for work in beside)
        return begin(xid, beside, wait=wait)

    monkeypatch.setattr(driver, "begin", noted)
    switch.start(Y, RMID)  # the thread goes on before it hears the vote, which still has its connection
    assert held == [X]
    assert wait(switch, handle).code is Code.XA_OK
    assert switch.associated == 1
    assert driver.store.branches == {X: BranchState.S3, Y: BranchState.S1}
    assert driver.together == [X]


@pytest.mark.parametrize("flags", [0, TMASYNC])
def test_a_late_end_that_is_refused_has_ended(
    switch: EndingWithPrepareSwitch[Association], driver: Driver, flags: int
) -> None:
    late(switch)
    driver.store.script.plan("end", Code.XA_RBDEADLOCK)
    if flags:
        assert wait(switch, sent(switch.prepare(X, RMID, flags))).code is Code.XA_RBDEADLOCK
    else:
        refused(Code.XA_RBDEADLOCK, "prepare", switch, X, RMID)
    assert switch.associated == 0
    switch.rollback(X, RMID)
    switch.start(X, RMID)


def test_a_late_end_whose_connection_is_lost(switch: EndingWithPrepareSwitch[Association], driver: Driver) -> None:
    late(switch)
    driver.store.script.plan("end", fate=NetworkFault.REQUEST_LOST)
    with pytest.raises(ResourceUnavailable):
        switch.prepare(X, RMID)
    refused(Code.XAER_PROTO, "rollback", switch, X, RMID)  # not before open
    switch.open(driver.store.url, RMID)
    assert switch.associated == 0
    assert driver.store.branches == {X: BranchState.S4}


@pytest.mark.parametrize("call", ["start another", "rollback", "commit in one phase", "prepare elsewhere"])
def test_every_other_verb_ends_it_first(
    switch: EndingWithPrepareSwitch[Association], driver: Driver, call: str
) -> None:
    late(switch)
    if call == "start another":
        switch.start(Y, RMID)
        assert driver.store.branches == {X: BranchState.S2, Y: BranchState.S1}
    elif call == "rollback":
        switch.rollback(X, RMID)
        assert driver.store.branches == {}
    elif call == "commit in one phase":
        switch.commit(X, RMID, TMONEPHASE)
        assert driver.store.data == {"k": 1}
    else:
        with entered(ThreadOfControl()):
            refused(Code.XAER_PROTO, "prepare", switch, X, RMID)  # to others it is at work still
        assert switch.prepare(X, RMID) is Code.XA_OK
    assert driver.together == ([X] if call == "prepare elsewhere" else [])


def test_what_is_wrong_with_a_late_end_is_told_by_later_verbs(
    switch: EndingWithPrepareSwitch[Association], driver: Driver
) -> None:
    late(switch)
    driver.store.script.plan("end", Code.XA_RBTIMEOUT)
    switch.start(Y, RMID)
    assert refused(Code.XA_RBTIMEOUT, "prepare", switch, X, RMID).xid == X


def test_only_a_plain_end_is_late(switch: EndingWithPrepareSwitch[Association], driver: Driver) -> None:
    switch.start(X, RMID)
    switch.end_late(X, RMID, TMFAIL)
    assert driver.store.branches == {X: BranchState.S4}
    refused(Code.XAER_NOTA, "end_late", switch, Y, RMID, TMSUCCESS)


# --- answers --------------------------------------------------------------------------------------------------


def answering(driver: Driver, monkeypatch: pytest.MonkeyPatch, *answers: Answer) -> None:
    remaining = iter(answers)
    monkeypatch.setattr(driver, "prepare", lambda _xid, *, later: next(remaining))  # noqa: ARG005 — one shape


def test_an_interrupted_wait_can_be_repeated(
    switch: EndingWithPrepareSwitch[Association], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(driver, monkeypatch, Answer(KeyboardInterrupt(), Code.XA_OK))
    handle = sent(switch.prepare(X, RMID, TMASYNC))
    with pytest.raises(KeyboardInterrupt):
        wait(switch, handle)
    refused(Code.XAER_PROTO, "commit", switch, X, RMID)
    assert wait(switch, handle).code is Code.XA_OK
    refused(Code.XAER_INVAL, "complete", switch, handle, RMID)


def test_a_pending_is_waited_for_without_tmasync(
    switch: EndingWithPrepareSwitch[Association], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(driver, monkeypatch, Answer(Code.XA_RDONLY), Answer(xa_error(Code.XAER_RMFAIL, "lost")))
    assert switch.prepare(X, RMID) is Code.XA_RDONLY
    refused(Code.XAER_RMFAIL, "prepare", switch, X, RMID)
    refused(Code.XAER_PROTO, "prepare", switch, X, RMID)


def test_any_of_several_is_the_one_that_is_ready(
    switch: EndingWithPrepareSwitch[Association], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(driver, monkeypatch, Answer(Code.XA_OK, ready=False), Answer(Code.XA_RDONLY))
    slow, fast = (sent(switch.prepare(xid, RMID, TMASYNC)) for xid in (X, Y))
    refused(Code.XA_RETRY, "complete", switch, slow, RMID, TMNOWAIT)
    assert switch.complete(None, RMID, TMMULTIPLE | TMNOWAIT).handle == fast
    assert switch.complete(None, RMID, TMMULTIPLE) == Completion(slow, Code.XA_OK)


def test_too_many_is_told_at_once_and_leaves_nothing(
    switch: EndingWithPrepareSwitch[Association], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(xid: Xid, *, later: bool) -> Code:
        del later
        raise xa_error(Code.XAER_ASYNC, "collect one first", xid)

    monkeypatch.setattr(driver, "prepare", full)
    refused(Code.XAER_ASYNC, "prepare", switch, X, RMID, TMASYNC)
    assert switch.outstanding == 0
    switch.start(X, RMID)
    switch.end(X, RMID, TMSUCCESS)
    assert switch.commit(X, RMID, TMONEPHASE) is Code.XA_OK


def test_too_many_leaves_a_late_end_as_it_was(
    switch: EndingWithPrepareSwitch[Association], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    late(switch)

    def full(work: Association, *, later: bool) -> Code:
        del later
        raise xa_error(Code.XAER_ASYNC, "collect one first", work.branch.xid)

    with monkeypatch.context() as patched:
        patched.setattr(driver, "end_and_prepare", full)
        refused(Code.XAER_ASYNC, "prepare", switch, X, RMID, TMASYNC)
    assert switch.associated == 1
    assert switch.prepare(X, RMID) is Code.XA_OK
    assert driver.together == [X]
    assert switch.associated == 0


# --- what a driver need not have --------------------------------------------------------------------------------
def test_the_work_beside(
    switch: EndingWithPrepareSwitch[Association], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver whose threads have one connection each is told what else the thread holds."""
    held: list[list[Xid]] = []
    begin = driver.begin

    def noted(xid: Xid, beside: Sequence[Association], *, wait: bool) -> Association:
        held.append([work.branch.xid for work in beside])
        return begin(xid, beside, wait=wait)

    monkeypatch.setattr(driver, "begin", noted)
    switch.start(X, RMID)
    switch.end(X, RMID, TMSUSPEND)
    switch.start(Y, RMID)
    assert held == [[], [X]]
