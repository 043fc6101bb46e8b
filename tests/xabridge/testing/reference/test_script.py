"""These tests script outcomes: every code at every verb must have the effect that the tables say, and every fate the
one that it names. And they cover what the contract suite can't see: a crash of the server, by the state of a branch.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from xa import (
    EXCEPTIONS,
    HEURISTIC_CODES,
    TMASYNC,
    TMENDRSCAN,
    TMFAIL,
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
from xa.state_tables import BRANCH, BranchState, BranchVerb
from xabridge.testing.contract.client import case
from xabridge.testing.reference import NetworkFault, ReferenceResource, ReferenceStore

RMID = 1
X, Y = Xid(1, b"global", b"branch"), Xid(1, b"global", b"other")
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


@pytest.fixture
def store() -> ReferenceStore:
    return ReferenceStore("a")


@pytest.fixture
def rm(store: ReferenceStore) -> ReferenceResource:
    client = ReferenceResource(store)
    client.open(store.url, RMID)
    return client


def bring(store: ReferenceStore, rm: ReferenceResource, state: BranchState) -> None:
    """The branch X in `state`, with two writes."""
    if state is S0:
        return
    rm.start(X, RMID)
    rm.session(RMID).write("first", 1)
    rm.session(RMID).write("second", 2)
    if state is not S1:
        rm.end(X, RMID, TMFAIL if state is S4 else TMSUCCESS)
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


# --- which call ---------------------------------------------------------------------------------------------
def test_which_calls_a_plan_is_for(store: ReferenceStore, rm: ReferenceResource) -> None:
    bring(store, rm, S3)
    store.script.plan("commit", Code.XA_RETRY, nth=1, times=2)
    store.script.plan("commit", Code.XAER_INVAL, nth=3)
    store.script.plan("commit", Code.XA_RETRY, nth=4)
    store.script.plan("commit", Code.XAER_INVAL, nth=4)
    assert len(store.script.pending()) == 4
    heard = []
    for _ in range(5):
        with pytest.raises(XaError) as raised:
            rm.commit(X, RMID)
        heard.append(raised.value.code)
    assert heard == [Code.XA_RETRY, Code.XA_RETRY, Code.XAER_INVAL, Code.XA_RETRY, Code.XAER_INVAL]
    assert store.script.pending() == []
    store.script.plan("commit", Code.XA_RETRY, xid=Y)
    assert rm.commit(X, RMID) is Code.XA_OK


@pytest.mark.parametrize(
    ("verb", "arguments", "message"),
    [
        ("prepares", {"answer": Code.XA_OK}, "'prepares' can't be scripted"),
        ("prepare", {}, "changes the answer or the request's fate"),
        ("prepare", {"answer": Code.XA_RETRY, "nth": 0}, "count from 1"),
        ("prepare", {"answer": Code.XA_RETRY, "times": 0}, "count from 1"),
        ("start", {"fate": NetworkFault.DELAYED}, "start can't be delayed"),
        ("prepare", {"answer": Code.XAER_RMFAIL}, "XAER_RMFAIL is a fate"),
    ],
)
def test_plans_that_are_none(store: ReferenceStore, verb: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        store.script.plan(verb, **arguments)  # type: ignore[arg-type]


# --- fates --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("answer", [None, Code.XA_RBINTEGRITY])
@pytest.mark.parametrize("fate", [NetworkFault.REQUEST_LOST, NetworkFault.REPLY_LOST, NetworkFault.IN_FLIGHT])
def test_a_lost_prepare(store: ReferenceStore, rm: ReferenceResource, fate: NetworkFault, answer: Code | None) -> None:
    bring(store, rm, S2)
    arrived = S0 if answer else S3
    store.script.plan("prepare", answer if fate is not NetworkFault.REQUEST_LOST else None, fate)
    with pytest.raises(ResourceUnavailable) as lost:
        rm.prepare(X, RMID)
    assert lost.value.xid == X
    assert store.branches.get(X, S0) is (arrived if fate is NetworkFault.REPLY_LOST else S2)
    with pytest.raises(XaError) as raised:
        rm.prepare(X, RMID)
    assert raised.value.code is Code.XAER_PROTO  # not open for this thread
    rm.open(store.url, RMID)
    assert store.deliver() == (fate is NetworkFault.IN_FLIGHT)
    assert store.branches.get(X, S0) is (S2 if fate is NetworkFault.REQUEST_LOST else arrived)
    assert store.in_flight == []


@pytest.mark.parametrize(
    ("verb", "fate", "after"),
    [
        ("start", NetworkFault.REQUEST_LOST, S0),
        ("start", NetworkFault.REPLY_LOST, S4),  # made, and its association lost with the connection
        ("start", NetworkFault.IN_FLIGHT, S4),
        ("end", NetworkFault.REQUEST_LOST, S4),
        ("end", NetworkFault.REPLY_LOST, S2),
        ("end", NetworkFault.IN_FLIGHT, S2),
    ],
)
def test_an_association_of_a_lost_connection(
    store: ReferenceStore, rm: ReferenceResource, verb: str, fate: NetworkFault, after: BranchState
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


def test_requests_arrive_late_in_their_order_or_never(store: ReferenceStore, rm: ReferenceResource) -> None:
    def in_flight(verb: str, call: Callable[[], object]) -> None:
        store.script.plan(verb, fate=NetworkFault.IN_FLIGHT)
        with pytest.raises(ResourceUnavailable):
            call()
        assert store.in_flight[-1].verb == verb

    bring(store, rm, S1)
    in_flight("end", lambda: rm.end(X, RMID, TMSUCCESS))
    assert store.branches[X] is S1  # the server has not noticed
    assert store.drop() == 1
    assert store.branches[X] is S4
    rm.open(store.url, RMID)
    rm.rollback(X, RMID)

    bring(store, rm, S2)
    in_flight("prepare", lambda: rm.prepare(X, RMID))
    rm.open(store.url, RMID)
    in_flight("commit", lambda: rm.commit(X, RMID))
    assert store.deliver() == 2
    assert set(store.data) == {"first", "second"}

    rm.open(store.url, RMID)
    bring(store, rm, S3)
    in_flight("commit", lambda: rm.commit(X, RMID))
    rm.open(store.url, RMID)
    rm.rollback(X, RMID)
    (flight,) = store.in_flight
    assert store.deliver(X) == 1
    assert (flight.code, store.branches) == (Code.XAER_NOTA, {}), "it is rolled back already"

    bring(store, rm, S1)
    rm.end(X, RMID, TMSUSPEND)
    in_flight("start", lambda: rm.start(X, RMID, TMRESUME))
    store.deliver()
    assert store.branches[X] is S4
    assert store.associations == 0


# --- asynchronously -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("ends", ["somebody waits", "it is delivered", "it is dropped", "the connection is cut"])
def test_a_delayed_request(store: ReferenceStore, rm: ReferenceResource, ends: str) -> None:
    bring(store, rm, S2)
    store.script.plan("prepare", fate=NetworkFault.DELAYED)
    handle = rm.prepare(X, RMID, TMASYNC)
    assert isinstance(handle, Handle)
    assert (store.branches[X], rm.outstanding) == (S2, 1)
    with pytest.raises(TryAgain):
        rm.complete(handle, RMID, TMNOWAIT)
    if ends == "it is delivered":
        assert store.deliver() == 1
    elif ends == "it is dropped":
        assert store.drop() == 1
    elif ends == "the connection is cut":
        store.cut(rm)

    is_heard = ends in {"somebody waits", "it is delivered"}
    flags = 0 if ends in {"somebody waits", "it is dropped"} else TMNOWAIT
    assert rm.complete(handle, RMID, flags).code is (Code.XA_OK if is_heard else Code.XAER_RMFAIL)
    assert (rm.outstanding, store.in_doubt) == (0, [X] if is_heard else [])
    store.deliver()  # what was cut off arrives after that
    assert store.in_doubt == ([] if ends == "it is dropped" else [X])


# --- crash and loss ----------------------------------------------------------------------------------------------
def test_a_crash_of_the_server_takes_what_was_not_prepared() -> None:
    for state in (S1, S2, S3, S4, S5):
        with case(state.name):
            store = ReferenceStore("a")
            rm = ReferenceResource(store)
            rm.open(store.url, RMID)
            bring(store, rm, state)
            left = [X] if state in {S3, S5} else []
            store.crash()
            assert store.branches == dict.fromkeys(left, state)
            assert set(store.locked_keys) == ({"first", "second"} if state is S3 else set())

            with pytest.raises(ResourceUnavailable):
                rm.recover(RMID, TMSTARTRSCAN)
            with pytest.raises(ResourceUnavailable):
                rm.open(store.url, RMID)
            store.heal()
            rm.open(store.url, RMID)
            assert rm.recover(RMID, TMSTARTRSCAN | TMENDRSCAN) == left


def test_open_does_not_hide_a_loss(store: ReferenceStore, rm: ReferenceResource) -> None:
    """Who has not heard yet that its association is lost hears it at the next verb, whatever was opened since."""
    rm.start(X, RMID)
    rm.end(X, RMID, TMSUSPEND)
    rm.start(Y, RMID)
    session = rm.session(RMID)
    store.cut(rm)
    rm.open(store.url, RMID)

    with pytest.raises(ResourceUnavailable):
        rm.end(Y, RMID, TMSUCCESS)
    rm.open(store.url, RMID)
    assert store.branches == {X: S4, Y: S4}
    assert store.associations == 0
    store.crash()
    store.heal()
    with pytest.raises((ResourceUnavailable, XaError)):
        session.write("k", 1)
    rm.open(store.url, RMID)
    rm.start(X, RMID)  # nothing is left of it
    assert store.branches == {X: S1}
    store.cut(rm)
    assert rm.close("", RMID) is Code.XA_OK  # with an association that is lost
