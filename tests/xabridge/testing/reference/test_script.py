"""These tests script outcomes: every code at every verb must have the effect that the tables say, and every fate the
one that it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from xa import (
    EXCEPTIONS,
    HEURISTIC_CODES,
    TMASYNC,
    TMENDRSCAN,
    TMNOWAIT,
    TMONEPHASE,
    TMRESUME,
    TMSTARTRSCAN,
    TMSUCCESS,
    TMSUSPEND,
    Code,
    Handle,
    ResourceUnavailable,
    TryAgain,
    XaError,
    Xid,
)
from xa.machine import RESULT_OF, IllegalTransition
from xa.tables import BRANCH, BranchState, BranchVerb
from xabridge.testing.contract.client import case
from xabridge.testing.reference import Fate, ReferenceResource, ReferenceStore

if TYPE_CHECKING:
    from collections.abc import Callable

RMID = 1
X = Xid(1, b"global", b"branch")
S0, S1, S2, S3, S4, S5 = BranchState
NO_EFFECT = set(Code) - set(RESULT_OF) - {Code.XAER_NOTA}

CALLS: dict[str, tuple[str, BranchState, BranchVerb, Callable[[ReferenceResource], object]]] = {
    "start": ("start", S0, BranchVerb.START, lambda rm: rm.start(X, RMID)),
    "end": ("end", S1, BranchVerb.END, lambda rm: rm.end(X, RMID, TMSUCCESS)),
    "prepare": ("prepare", S2, BranchVerb.PREPARE, lambda rm: rm.prepare(X, RMID)),
    "commit": ("commit", S3, BranchVerb.COMMIT, lambda rm: rm.commit(X, RMID)),
    "one-phase": ("commit", S2, BranchVerb.COMMIT_ONE_PHASE, lambda rm: rm.commit(X, RMID, TMONEPHASE)),
    "rollback": ("rollback", S2, BranchVerb.ROLLBACK, lambda rm: rm.rollback(X, RMID)),
    "rollback of prepared": ("rollback", S3, BranchVerb.ROLLBACK, lambda rm: rm.rollback(X, RMID)),
    "commit of completed": ("commit", S5, BranchVerb.COMMIT, lambda rm: rm.commit(X, RMID)),
    "forget": ("forget", S5, BranchVerb.FORGET, lambda rm: rm.forget(X, RMID)),
}


def bring(store: ReferenceStore, rm: ReferenceResource, state: BranchState) -> None:
    """The branch X in `state`, with two writes."""
    if state is S0:
        return
    rm.start(X, RMID)
    rm.session(RMID).write("first", 1)
    rm.session(RMID).write("second", 2)
    if state is not S1:
        rm.end(X, RMID, TMSUCCESS)
    if state in {S3, S5}:
        rm.prepare(X, RMID)
    if state is S5:
        store.complete_heuristically(X, Code.XA_HEURRB)
    assert store.branches[X] is state


@pytest.mark.parametrize("call", CALLS)
def test_every_code_at_every_verb(call: str) -> None:
    for code in sorted(set(Code) - {Code.XAER_RMFAIL}):
        with case(call, code.name):
            store = ReferenceStore("a")
            rm = ReferenceResource(store)
            rm.open(store.url, RMID)
            check_code_at_verb(store, rm, call, code)


def check_code_at_verb(store: ReferenceStore, rm: ReferenceResource, call: str, code: Code) -> None:
    verb, state, move, issue = CALLS[call]
    bring(store, rm, state)
    store.script.plan(verb, code)
    rows = {result: target for at, v, result, target, _ in BRANCH.transitions() if (at, v) == (state, move)}
    result = RESULT_OF.get(code)
    no_answer = (call, code) == (
        "start",
        Code.XA_NOMIGRATE,
    )  # the tables take it for XA_OK; xa_start has no such answer
    if no_answer or (result is not None and result not in rows):
        with pytest.raises(IllegalTransition):  # a script may ask for nothing that the tables don't have
            issue(rm)
        assert store.branches.get(X, S0) is state
        return
    if code is Code.XA_RDONLY:
        with pytest.raises(ValueError, match="has pending writes"):
            issue(rm)
        return
    if code in EXCEPTIONS:
        with pytest.raises(EXCEPTIONS[code]) as raised:
            issue(rm)
        assert (raised.value.code, raised.value.xid) == (code, X)
    else:
        assert issue(rm) is code
    expected = state if code in NO_EFFECT else S0 if result is None else rows[result]
    assert store.branches.get(X, S0) is expected
    committed = {"first", "second"} if code is Code.XA_OK and call in {"commit", "one-phase"} else set()
    if code in HEURISTIC_CODES and state is not S5:
        committed = {Code.XA_HEURCOM: {"first", "second"}, Code.XA_HEURMIX: {"first"}}.get(code, set())
    assert set(store.data) == committed
    assert set(store.locked_keys) == ({"first", "second"} if expected in {S1, S2, S3} and state is not S0 else set())
    assert store.script.pending() == []


@pytest.mark.parametrize("code", sorted(HEURISTIC_CODES))
def test_a_heuristic_outcome_is_remembered(store: ReferenceStore, rm: ReferenceResource, code: Code) -> None:
    bring(store, rm, S3)
    store.script.plan("commit", code)
    for _ in range(3):
        with pytest.raises(XaError) as raised:
            rm.commit(X, RMID)
        assert raised.value.code is code
    assert rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN) == [X]
    rm.forget(X, RMID)
    assert store.branches == {}


def test_a_rollback_code_of_work_dooms_the_branch(store: ReferenceStore, rm: ReferenceResource) -> None:
    rm.start(X, RMID)
    session = rm.session(RMID)
    session.write("k", 1)
    store.script.plan("work", Code.XA_RBDEADLOCK)
    for _ in range(2):
        with pytest.raises(XaError) as raised:
            session.write("l", 1)
        assert raised.value.code is Code.XA_RBDEADLOCK
    assert store.locked_keys == {}
    with pytest.raises(XaError) as raised:
        rm.end(X, RMID, TMSUCCESS)
    assert raised.value.code is Code.XA_RBDEADLOCK
    with pytest.raises(XaError) as raised:
        rm.prepare(X, RMID)
    assert raised.value.code is Code.XA_RBDEADLOCK
    assert store.branches == {}


@pytest.mark.parametrize("verb", ["open", "close", "recover"])
def test_errors_of_the_other_verbs(store: ReferenceStore, rm: ReferenceResource, verb: str) -> None:
    store.script.plan(verb, Code.XAER_RMERR)
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: rm.open(store.url, RMID),
        "close": lambda: rm.close("", RMID),
        "recover": lambda: rm.recover(RMID, TMSTARTRSCAN),
    }
    with pytest.raises(XaError) as raised:
        calls[verb]()
    assert raised.value.code is Code.XAER_RMERR
    assert rm.recover(RMID, TMSTARTRSCAN) == []  # as open as before


# --- which call ---------------------------------------------------------------------------------------------
def test_the_nth_call_and_as_many_as_planned(store: ReferenceStore, rm: ReferenceResource) -> None:
    bring(store, rm, S3)
    store.script.plan("commit", Code.XA_RETRY, nth=1, times=2)
    store.script.plan("commit", Code.XAER_INVAL, nth=3)
    heard = []
    for _ in range(3):
        with pytest.raises(XaError) as raised:
            rm.commit(X, RMID)
        heard.append(raised.value.code)
    assert heard == [Code.XA_RETRY, Code.XA_RETRY, Code.XAER_INVAL]
    assert store.script.pending() == []
    assert rm.commit(X, RMID) is Code.XA_OK


def test_the_calls_of_one_branch(store: ReferenceStore, rm: ReferenceResource) -> None:
    other = Xid(1, b"global", b"other")
    for xid in (X, other):
        rm.start(xid, RMID)
        rm.end(xid, RMID, TMSUCCESS)
    store.script.plan("prepare", Code.XA_RBOTHER, xid=other)
    assert rm.prepare(X, RMID) is Code.XA_OK
    with pytest.raises(XaError) as raised:
        rm.prepare(other, RMID)
    assert raised.value.code is Code.XA_RBOTHER
    assert store.in_doubt == [X]


def test_plans_for_the_same_call_follow_each_other(store: ReferenceStore, rm: ReferenceResource) -> None:
    bring(store, rm, S3)
    store.script.plan("commit", Code.XA_RETRY)
    store.script.plan("commit", Code.XAER_INVAL)
    assert [step.answer for _, step in store.script.pending()] == [Code.XA_RETRY, Code.XAER_INVAL]
    for code in (Code.XA_RETRY, Code.XAER_INVAL):
        with pytest.raises(XaError) as raised:
            rm.commit(X, RMID)
        assert raised.value.code is code
    store.script.plan("commit", Code.XA_RETRY, times=99)
    store.script.clear()
    assert rm.commit(X, RMID) is Code.XA_OK


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("prepares", {"answer": Code.XA_OK}, "'prepares' can't be scripted"),
        ("prepare", {}, "changes the answer or the request's fate"),
        ("prepare", {"answer": Code.XA_RETRY, "nth": 0}, "count from 1"),
        ("prepare", {"answer": Code.XA_RETRY, "times": 0}, "count from 1"),
        ("start", {"fate": Fate.DELAYED}, "start can't be delayed"),
        ("prepare", {"answer": Code.XAER_RMFAIL}, "XAER_RMFAIL is a fate"),
    ],
)
def test_plans_that_are_none(store: ReferenceStore, verb: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        store.script.plan(verb, **arguments)  # type: ignore[arg-type]


# --- fates --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fate", "after"),
    [(Fate.REQUEST_LOST, S2), (Fate.REPLY_LOST, S3), (Fate.IN_FLIGHT, S2)],
)
def test_a_lost_prepare(store: ReferenceStore, rm: ReferenceResource, fate: Fate, after: BranchState) -> None:
    bring(store, rm, S2)
    store.script.plan("prepare", fate=fate)
    with pytest.raises(ResourceUnavailable) as lost:
        rm.prepare(X, RMID)
    assert lost.value.xid == X
    assert store.branches[X] is after
    with pytest.raises(XaError) as raised:
        rm.prepare(X, RMID)
    assert raised.value.code is Code.XAER_PROTO  # not open for this thread
    rm.open(store.url, RMID)
    if fate is Fate.IN_FLIGHT:
        assert store.deliver() == 1
    assert store.branches[X] is (S2 if fate is Fate.REQUEST_LOST else S3)
    rm.rollback(X, RMID)
    assert store.in_flight == []


@pytest.mark.parametrize(("fate", "answer"), [(Fate.REPLY_LOST, Code.XA_RBINTEGRITY), (Fate.IN_FLIGHT, Code.XA_HEURRB)])
def test_an_answer_that_nobody_hears(store: ReferenceStore, rm: ReferenceResource, fate: Fate, answer: Code) -> None:
    verb, state = ("prepare", S2) if fate is Fate.REPLY_LOST else ("commit", S3)
    bring(store, rm, state)
    store.script.plan(verb, answer, fate)
    with pytest.raises(ResourceUnavailable):
        getattr(rm, verb)(X, RMID)
    store.deliver()
    assert store.branches.get(X, S0) is (S0 if fate is Fate.REPLY_LOST else S5)


@pytest.mark.parametrize(
    ("verb", "fate", "after"),
    [
        ("start", Fate.REQUEST_LOST, S0),
        ("start", Fate.REPLY_LOST, S4),  # made, and its association lost with the connection
        ("start", Fate.IN_FLIGHT, S4),
        ("end", Fate.REQUEST_LOST, S4),
        ("end", Fate.REPLY_LOST, S2),
        ("end", Fate.IN_FLIGHT, S2),
    ],
)
def test_an_association_of_a_lost_connection(
    store: ReferenceStore, rm: ReferenceResource, verb: str, fate: Fate, after: BranchState
) -> None:
    bring(store, rm, S0 if verb == "start" else S1)
    store.script.plan(verb, fate=fate)
    with pytest.raises(ResourceUnavailable):
        CALLS[verb][3](rm)
    store.deliver()
    assert store.branches.get(X, S0) is after
    assert store.associations == 0
    rm.open(store.url, RMID)
    with pytest.raises(XaError):
        rm.end(X, RMID, TMSUCCESS)  # the client knows of none either
    rm.start(Xid(1, b"another"), RMID)


def test_an_end_in_flight_that_never_arrives(store: ReferenceStore, rm: ReferenceResource) -> None:
    bring(store, rm, S1)
    store.script.plan("end", fate=Fate.IN_FLIGHT)
    with pytest.raises(ResourceUnavailable):
        rm.end(X, RMID, TMSUCCESS)
    assert store.branches[X] is S1  # the server has not noticed
    assert store.drop() == 1
    assert store.branches[X] is S4
    assert store.locked_keys == {}


def test_a_resume_in_flight(store: ReferenceStore, rm: ReferenceResource) -> None:
    bring(store, rm, S1)
    rm.end(X, RMID, TMSUSPEND)
    store.script.plan("start", fate=Fate.IN_FLIGHT)
    with pytest.raises(ResourceUnavailable):
        rm.start(X, RMID, TMRESUME)
    store.deliver()
    assert store.branches[X] is S4
    assert store.associations == 0


def test_requests_arrive_late_in_their_order(store: ReferenceStore, rm: ReferenceResource) -> None:
    bring(store, rm, S2)
    for verb in ("prepare", "commit"):
        store.script.plan(verb, fate=Fate.IN_FLIGHT)
        with pytest.raises(ResourceUnavailable):
            getattr(rm, verb)(X, RMID)
        rm.open(store.url, RMID)
    assert [flight.verb for flight in store.in_flight] == ["prepare", "commit"]
    assert store.deliver() == 2
    assert set(store.data) == {"first", "second"}


def test_a_late_commit_finds_its_branch_rolled_back(store: ReferenceStore, rm: ReferenceResource) -> None:
    bring(store, rm, S3)
    store.script.plan("commit", fate=Fate.IN_FLIGHT)
    with pytest.raises(ResourceUnavailable):
        rm.commit(X, RMID)
    rm.open(store.url, RMID)
    rm.rollback(X, RMID)
    flight = store.in_flight[0]
    assert store.deliver(X) == 1
    assert flight.code is Code.XAER_NOTA
    assert store.data == {}


def test_a_late_request_finds_its_branch_by_the_xid(store: ReferenceStore, rm: ReferenceResource) -> None:
    for verb, call in (("start", CALLS["start"][3]), ("rollback", CALLS["rollback"][3])):
        store.script.plan(verb, fate=Fate.IN_FLIGHT)
        with pytest.raises(ResourceUnavailable):
            call(rm)
        rm.open(store.url, RMID)
    starting, ending = store.in_flight
    assert store.deliver() == 2
    assert (starting.code, ending.code) == (Code.XA_OK, Code.XA_OK)
    assert store.branches == {}


# --- asynchronously -----------------------------------------------------------------------------------------
def test_the_effect_is_at_the_server_when_the_request_is_sent(store: ReferenceStore, rm: ReferenceResource) -> None:
    bring(store, rm, S2)
    handle = rm.prepare(X, RMID, TMASYNC)
    assert isinstance(handle, Handle)
    assert store.in_doubt == [X]
    assert rm.outstanding == 1
    assert rm.complete(handle, RMID).code is Code.XA_OK
    assert rm.outstanding == 0


def delayed(store: ReferenceStore, rm: ReferenceResource) -> Handle:
    bring(store, rm, S2)
    store.script.plan("prepare", fate=Fate.DELAYED)
    handle = rm.prepare(X, RMID, TMASYNC)
    assert isinstance(handle, Handle)
    assert store.branches[X] is S2
    with pytest.raises(TryAgain):
        rm.complete(handle, RMID, TMNOWAIT)
    return handle


def test_a_delayed_request_arrives_when_somebody_waits(store: ReferenceStore, rm: ReferenceResource) -> None:
    handle = delayed(store, rm)
    assert rm.complete(handle, RMID).code is Code.XA_OK
    assert store.in_doubt == [X]
    assert store.in_flight == []


def test_a_delayed_request_arrives_when_the_test_says_so(store: ReferenceStore, rm: ReferenceResource) -> None:
    handle = delayed(store, rm)
    assert store.deliver() == 1
    assert store.in_doubt == [X]
    assert rm.complete(handle, RMID, TMNOWAIT).code is Code.XA_OK


def test_a_delayed_request_that_never_arrives(store: ReferenceStore, rm: ReferenceResource) -> None:
    handle = delayed(store, rm)
    assert store.drop() == 1
    assert rm.complete(handle, RMID).code is Code.XAER_RMFAIL
    assert store.branches[X] is S2


def test_a_delayed_request_behind_a_lost_connection(store: ReferenceStore, rm: ReferenceResource) -> None:
    """The client hears that the connection is gone; the request arrives after that."""
    handle = delayed(store, rm)
    store.cut(rm)
    assert rm.complete(handle, RMID, TMNOWAIT).code is Code.XAER_RMFAIL
    assert store.branches[X] is S2
    store.deliver()
    assert store.in_doubt == [X]


def test_a_lost_reply_takes_the_other_replies_of_the_thread_with_it(
    store: ReferenceStore, rm: ReferenceResource
) -> None:
    xids = [Xid(1, b"global", bytes([number])) for number in range(3)]
    for xid in xids:
        rm.start(xid, RMID)
        rm.end(xid, RMID, TMSUCCESS)
    store.script.plan("prepare", fate=Fate.REPLY_LOST, xid=xids[1])
    handles = [rm.prepare(xid, RMID, TMASYNC) for xid in xids]
    codes = [rm.complete(handle, RMID).code for handle in handles if isinstance(handle, Handle)]
    assert codes == [Code.XA_OK, Code.XAER_RMFAIL, Code.XAER_RMFAIL]
    assert store.in_doubt == xids
    assert rm.outstanding == 0


def test_a_synchronous_call_waits_for_what_is_delayed(store: ReferenceStore, rm: ReferenceResource) -> None:
    bring(store, rm, S2)
    store.script.plan("prepare", fate=Fate.DELAYED)
    assert rm.prepare(X, RMID) is Code.XA_OK
    assert store.in_doubt == [X]
