"""These tests send the slides' dtx grammar over the wire: what the grammar allows works, and what it does not allow is
refused and changes nothing.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from proton import Delivery

from dtx.amqp.conditions import Condition
from dtx.broker.endpoint.states import (
    ATTACHMENT,
    CUSTODY,
    SERVICE,
    AttachmentState,
    AttachmentVerb,
    CustodyState,
    CustodyVerb,
    ServiceState,
    ServiceVerb,
)
from dtx.broker.transactions.branches import MAX_TIMEOUT_S
from dtx.broker.transactions.state_tables import VERBS
from dtx.protocol.capabilities import LOCAL
from dtx.protocol.commands import (
    CONTROL,
    COORDINATION,
    Commit,
    Complete,
    Declare,
    Discharge,
    End,
    Fence,
    Forget,
    GetTimeout,
    Prepare,
    Recover,
    Rollback,
    SetTimeout,
    Start,
)
from dtx.protocol.conditions import CODE_OF, CONDITION_OF, Refusal
from dtx.protocol.replies import Recovered, Result, Timeout
from tests.cases import each
from tests.dtx.broker.peer import OK, XID, Coordinator, Peer, World
from xa import NULL_XID, Code, Xid
from xa.state_tables import BRANCH, BranchState, BranchVerb


class Stage:
    """A world with one branch, XID, brought into a state."""

    def __init__(self, state: BranchState) -> None:
        self.world = World()
        self.peer: Peer = self.world.connect()
        self.control: Coordinator = self.peer.coordinator()
        self.other: Peer = self.world.connect()
        self.txn_id = b""
        getattr(self, f"_{state.name.lower()}")()
        assert self.state is state

    def _s0(self) -> None:
        pass

    def _s1(self) -> None:
        self.txn_id = self.control.declare(Start(XID))
        self.peer.post(self.peer.sender("q"), "x", self.txn_id)

    def _s2(self) -> None:
        self._s1()
        self.control.discharge(self.txn_id)

    def _s3(self) -> None:
        self._s2()
        assert self.peer.ask(Prepare(XID)) == OK

    def _s4(self) -> None:
        self._s1()
        self.control.discharge(self.txn_id, fail=True)

    def _s5(self) -> None:
        self._s3()
        assert self.peer.ask(Complete(XID, commit=True)) == OK

    @property
    def state(self) -> BranchState:
        """The branch's state in the registry."""
        found = [branch.state for branch in self.world.container.registry if branch.xid == XID]
        return found[0] if found else BranchState.S0

    def holds(self) -> Any:
        """What could change: the queue, the branch, and what is on disk."""
        disk = self.world.disk
        return (
            self.state,
            self.other.drained("q"),
            [branch.work.holdings() for branch in self.world.container.registry],
            [(branch.xid, branch.outcome, list(branch.held)) for branch in disk.branches.values()],
            sorted(disk.messages),
        )


COMMANDS: dict[BranchVerb, Any] = {
    BranchVerb.PREPARE: Prepare(XID),
    BranchVerb.COMMIT: Commit(XID),
    BranchVerb.COMMIT_ONE_PHASE: Commit(XID, one_phase=True),
    BranchVerb.ROLLBACK: Rollback(XID),
    BranchVerb.FORGET: Forget(XID),
    BranchVerb.DECIDE: Complete(XID, commit=False),
}


@each("verb", COMMANDS)
@each("state", BranchState)
def test_every_command_in_every_state_is_what_the_branch_table_says(state: BranchState, verb: BranchVerb) -> None:
    stage = Stage(state)
    before = stage.holds()
    code = BRANCH.refusal(state, verb)
    answer = stage.other.ask(COMMANDS[verb])
    assert (code is None) == ((state, verb) in OUTCOMES)
    if code is None:
        assert answer == Result(OUTCOMES[state, verb])
    else:
        assert isinstance(answer, Refusal)
        assert (answer.code, answer.xid) == (code, XID)
        assert answer.condition == CONDITION_OF[code]
        assert stage.holds() == before, "a refusal changes nothing"
    if state is BranchState.S1:
        stage.control.discharge(stage.txn_id)
        assert stage.peer.ask(Commit(XID, one_phase=True)) == OK


@each("join", [False, True])
@each("state", BranchState)
def test_every_start_in_every_state_is_what_the_branch_table_says(state: BranchState, join: bool) -> None:
    stage = Stage(state)
    before = stage.holds()
    code = BRANCH.refusal(state, BranchVerb.JOIN if join else BranchVerb.START)
    control = stage.other.coordinator()
    outcome, data, refusal = control.outcome(CONTROL.encode(Declare(Start(XID, join=join))))
    if code is None and state is not BranchState.S4:
        assert refusal is None
        control.discharge(bytes(data[0]))
        return
    assert outcome == Delivery.REJECTED
    assert refusal is not None
    assert refusal.code is (code or Code.XA_RBROLLBACK)
    assert stage.holds() == before


OUTCOMES: dict[tuple[BranchState, BranchVerb], Code] = {
    (BranchState.S2, BranchVerb.PREPARE): Code.XA_OK,
    (BranchState.S4, BranchVerb.PREPARE): Code.XA_RBROLLBACK,
    (BranchState.S3, BranchVerb.COMMIT): Code.XA_OK,
    (BranchState.S5, BranchVerb.COMMIT): Code.XA_HEURCOM,
    (BranchState.S2, BranchVerb.COMMIT_ONE_PHASE): Code.XA_OK,
    (BranchState.S4, BranchVerb.COMMIT_ONE_PHASE): Code.XA_RBROLLBACK,
    (BranchState.S2, BranchVerb.ROLLBACK): Code.XA_OK,
    (BranchState.S3, BranchVerb.ROLLBACK): Code.XA_OK,
    (BranchState.S4, BranchVerb.ROLLBACK): Code.XA_OK,
    (BranchState.S5, BranchVerb.ROLLBACK): Code.XA_HEURCOM,
    (BranchState.S5, BranchVerb.FORGET): Code.XA_OK,
    (BranchState.S3, BranchVerb.DECIDE): Code.XA_OK,
}


# --- the transactional channel --------------------
def test_start_needs_a_selected_session(world: World, peer: Peer) -> None:
    """Once a channel IS selected it cannot be disassociated with XA support."""
    peer.coordinator().link.close()
    world.pump()
    plain = peer.coordinator((LOCAL,))
    plain.discharge(plain.declare(Start(XID)))
    other = peer.coordinator((LOCAL,), peer.new_session())
    for start in (Start(XID), Start(XID, join=True), Start(XID, resume=True)):
        refusal = other.refused(Declare(start))
        assert (refusal.condition, refusal.code) == (Condition.ILLEGAL_STATE, Code.XAER_PROTO)
    other.discharge(other.declare())


def test_suspended_work_is_resumed_where_it_was_suspended() -> None:
    stage = Stage(BranchState.S1)
    control, peer = stage.control, stage.peer
    sender = peer.sender("q")
    code, _, refusal = control.end(stage.txn_id, suspend=True)
    assert code == Delivery.ACCEPTED, refusal
    assert stage.state is BranchState.S2
    assert peer.post(sender, "while suspended", stage.txn_id).remote_state == Delivery.REJECTED
    assert peer.coordinator().refused(Declare(Start(XID, resume=True))).code is Code.XAER_PROTO
    for command in (Prepare(XID), Commit(XID, one_phase=True), Rollback(XID)):
        answer = peer.refusal(command)
        assert answer.code is Code.XAER_PROTO, "an association is suspended"

    txn_id = control.declare(Start(XID, resume=True))
    peer.post(sender, "resumed", txn_id)
    control.discharge(txn_id)
    assert control.refused(Declare(Start(XID, resume=True))).code is Code.XAER_PROTO
    assert peer.ask(Commit(XID, one_phase=True)) == OK
    assert peer.drained("q") == ["x", "resumed"]


@pytest.mark.parametrize("fail", [False, True])
def test_joined_associations_all_have_to_end(fail: bool) -> None:
    """And the failure of one dooms the others."""
    stage = Stage(BranchState.S1)
    joined, sender = stage.other.coordinator(), stage.other.sender("q")
    txn_id = joined.declare(Start(XID, join=True))
    stage.other.post(sender, "joined", txn_id)
    stage.control.discharge(stage.txn_id, fail=fail)
    assert stage.peer.refusal(Prepare(XID)).code is Code.XAER_PROTO, "somebody is associated still"

    if fail:
        assert stage.other.post(sender, "late", txn_id).remote_state == Delivery.REJECTED
        assert joined.refused(Discharge(txn_id)).condition == Condition.ROLLBACK
        assert stage.peer.ask(Prepare(XID)) == Result(Code.XA_RBROLLBACK)
        assert stage.state is BranchState.S0
    else:
        joined.discharge(txn_id)
        assert stage.peer.ask(Prepare(XID)) == OK
        assert stage.peer.ask(Commit(XID)) == OK
    assert stage.peer.drained("q") == ([] if fail else ["x", "joined"])


def test_ways_to_end_exclude_each_other() -> None:
    stage = Stage(BranchState.S1)
    for how in combinations(("fail", "suspend", "prepare"), 2):
        assert stage.control.refused(End(stage.txn_id, **dict.fromkeys(how, True))).code is Code.XAER_INVAL
    stage.control.discharge(stage.txn_id)


@pytest.mark.parametrize("how", [{}, {"suspend": True}, {"prepare": True}])
def test_a_local_transaction_is_discharged_not_ended(control: Coordinator, how: dict[str, bool]) -> None:
    txn_id = control.declare()
    assert control.refused(End(txn_id, **how)).code is Code.XAER_PROTO
    control.discharge(txn_id)


def test_end_and_prepare_in_one_exchange() -> None:
    stage = Stage(BranchState.S1)
    code, data, _ = stage.control.end(stage.txn_id, prepare=True)
    assert code == 0x58414231_00000020
    assert CODE_OF[data[0]] is Code.XA_OK
    assert stage.state is BranchState.S3
    empty = Xid(1, b"gtrid", b"empty")
    code, data, _ = stage.control.end(stage.control.declare(Start(empty)), prepare=True)
    assert CODE_OF[data[0]] is Code.XA_RDONLY
    txn_id = stage.control.declare(Start(empty))
    code, data, _ = stage.control.end(txn_id, prepare=True, keep=True)
    assert CODE_OF[data[0]] is Code.XA_OK
    assert stage.other.ask(Recover()) == Recovered((XID, empty))


def test_end_and_prepare_of_a_doomed_branch_is_rejected() -> None:
    stage = Stage(BranchState.S1)
    stage.world.pass_time(stage.world.settings.branch_timeout_s + 1)
    code, _, refusal = stage.control.end(stage.txn_id, prepare=True)
    assert code == Delivery.REJECTED
    assert refusal is not None
    assert (refusal.condition, refusal.code, refusal.xid) == (Condition.TIMEOUT, Code.XA_RBTIMEOUT, XID)
    assert stage.peer.ask(Rollback(XID)) == OK


def test_a_txn_id_may_be_proposed_and_used_ahead_of_the_answer(world: World, peer: Peer, control: Coordinator) -> None:
    sender = peer.sender("q")
    control.send(CONTROL.encode(Declare(Start(XID, txn_id=b"mine"))))
    peer.send_octets(sender, b"\x00\x53\x77\xa1\x01x", "m", b"mine", settled=True)
    ended = control.send(CONTROL.encode(End(b"mine", prepare=True)))
    world.pump()
    assert ended.remote_state == 0x58414231_00000020
    assert peer.ask(Commit(XID)) == OK
    assert peer.drained("q") == ["x"]
    control.declare(Start(Xid(1, b"g"), txn_id=b"again"))
    assert control.refused(Declare(Start(Xid(2, b"g"), txn_id=b"again"))).code is Code.XAER_DUPID
    assert control.refused(Declare(Start(Xid(2, b"g"), txn_id=b""))).code is Code.XAER_DUPID


# --- the null XID: the branch that is running --------------------
@pytest.mark.parametrize("ended", [False, True])
def test_a_null_xid_is_the_branch_that_the_session_runs(ended: bool) -> None:
    """Default: currently running; any works performed between dtx.start/dtx.commit is done on behalf of a
    transaction branch identified by XID. On another session it names nothing."""
    stage = Stage(BranchState.S2 if ended else BranchState.S1)
    for command in (Prepare(), Commit(), Commit(one_phase=True), Rollback(), SetTimeout(1), GetTimeout()):
        answer = stage.other.refusal(command)
        assert (answer.condition, answer.code) == (Condition.ILLEGAL_STATE, Code.XAER_PROTO)
    assert stage.peer.ask(SetTimeout(7)) == OK
    assert stage.peer.ask(GetTimeout()) == Timeout(7)
    assert stage.peer.ask(Prepare(NULL_XID)) == OK
    assert stage.state is BranchState.S3
    assert stage.peer.ask(Commit(NULL_XID)) == OK
    assert stage.peer.drained("q") == ["x"]
    answer = stage.peer.refusal(Rollback(NULL_XID))
    assert answer.code is Code.XAER_PROTO, "there is none any more"


@each(("command", "left"), [(Commit(one_phase=True), ["x"]), (Rollback(), [])])
def test_work_between_start_and_an_outcome_needs_no_end(command: Any, left: list[str]) -> None:
    """The running branch is the last one."""
    stage = Stage(BranchState.S1)
    assert stage.peer.ask(command) == OK
    assert stage.peer.drained("q") == left
    assert stage.control.refused(Discharge(stage.txn_id)).condition == Condition.UNKNOWN_ID
    stage = Stage(BranchState.S2)
    txn_id = stage.control.declare(Start(Xid(1, b"gtrid", b"second")))
    stage.peer.ask(command)
    assert stage.state is BranchState.S2
    assert stage.control.refused(Discharge(txn_id)).condition == Condition.UNKNOWN_ID


@pytest.mark.parametrize(
    ("command", "code", "about"),
    [
        (Commit(), Code.XAER_PROTO, XID),
        (Forget(NULL_XID), Code.XAER_INVAL, None),
        (Complete(NULL_XID, commit=True), Code.XAER_INVAL, None),
    ],
)
def test_what_the_running_branch_can_not_do_leaves_it_running(command: Any, code: Code, about: Xid | None) -> None:
    """What isn't in the grammar is refused, and harms nothing: the association is not ended for it."""
    stage = Stage(BranchState.S1)
    before = stage.holds()
    answer = stage.peer.refusal(command)
    assert (answer.code, answer.xid) == (code, about)
    assert stage.holds() == before
    stage.peer.post(stage.peer.sender("q"), "y", stage.txn_id)
    stage.control.discharge(stage.txn_id)
    assert stage.peer.ask(Commit(XID, one_phase=True)) == OK
    assert stage.peer.drained("q") == ["x", "y"]


@each("command", [Prepare(), Commit(one_phase=True), Rollback()])
def test_a_null_xid_does_not_end_what_others_are_at_work_for(command: Any) -> None:
    stage = Stage(BranchState.S1)
    theirs = stage.other.coordinator()
    joined = theirs.declare(Start(XID, join=True))
    assert stage.peer.refusal(command).code is Code.XAER_PROTO
    theirs.discharge(joined)
    stage.control.discharge(stage.txn_id)
    assert stage.peer.ask(Rollback(XID)) == OK


# --- timeouts --------------------
def test_timeouts_are_set_and_told() -> None:
    """One may come with the start."""
    stage = Stage(BranchState.S2)
    default = stage.world.settings.branch_timeout_s
    assert stage.peer.ask(GetTimeout(XID)) == Timeout(default)
    for asked_s, told_s in ((30, 30), (0, default)):
        assert stage.peer.ask(SetTimeout(asked_s, XID)) == OK
        assert stage.other.ask(GetTimeout(XID)) == Timeout(told_s)
    assert stage.peer.ask(SetTimeout(MAX_TIMEOUT_S, XID)) == OK
    too_long, another = MAX_TIMEOUT_S + 1, Xid(1, b"too long")
    for refusal in (
        stage.peer.refusal(SetTimeout(too_long, XID)),
        stage.control.refused(Declare(Start(another, timeout_s=too_long))),
    ):
        assert refusal.code is Code.XAER_INVAL
        assert f"the largest, {MAX_TIMEOUT_S} s" in refusal.description

    assert stage.other.ask(GetTimeout(XID)) == Timeout(MAX_TIMEOUT_S)
    assert stage.peer.refusal(GetTimeout(another)).code is Code.XAER_NOTA
    for unknown in (SetTimeout(1, Xid(9, b"g")), GetTimeout(Xid(9, b"g"))):
        assert stage.peer.refusal(unknown).code is Code.XAER_NOTA
    assert stage.peer.ask(Prepare(XID)) == OK
    assert stage.peer.refusal(SetTimeout(1, XID)).code is Code.XAER_PROTO, "no timeout touches a prepared branch"
    brief = Xid(1, b"brief")
    txn_id = stage.control.declare(Start(brief, timeout_s=5))
    assert stage.peer.ask(GetTimeout(brief)) == Timeout(5)
    stage.world.pass_time(6)
    assert stage.control.refused(Discharge(txn_id)).condition == Condition.TIMEOUT


# --- the tables --------------------
def test_every_command_has_its_verbs() -> None:
    assert set(COORDINATION.by_type) == {key for key in VERBS if isinstance(key, type)}


def test_a_message_has_one_decider() -> None:
    """Whoever holds one, or has decided about it, is alone with it."""
    for state in (CustodyState.HELD, CustodyState.DECIDED, CustodyState.ENDED):
        for verb in (CustodyVerb.HOLD, CustodyVerb.DECIDE):
            assert CUSTODY.refusal(state, verb) is Code.XAER_PROTO
    assert CUSTODY.refusal(CustodyState.DECIDED, CustodyVerb.REVERT) is Code.XAER_PROTO


def test_a_peer_that_is_gone_and_a_link_that_has_ended_stay_so() -> None:
    for service_verb in ServiceVerb:
        assert SERVICE.refusal(ServiceState.CLOSED, service_verb) is Code.XAER_PROTO
    assert ATTACHMENT.refusal(AttachmentState.SUSPENDED, AttachmentVerb.DETACH) is Code.XAER_PROTO
    for ended in set(AttachmentState) - {AttachmentState.ATTACHED, AttachmentState.SUSPENDED}:
        for verb in AttachmentVerb:
            assert ATTACHMENT.refusal(ended, verb) is Code.XAER_PROTO


def test_requests_are_answered_by_correlation() -> None:
    """Several requests at once, over one command channel, from two connections."""
    stage = Stage(BranchState.S2)
    for _ in range(3):
        stage.peer.request(GetTimeout(XID))
    stage.other.request(Prepare(XID))
    stage.peer.request(Commit(XID))
    stage.world.pump()
    answers: list[Any] = [stage.peer.answer() for _ in range(4)]
    assert answers[:3] == [Timeout(stage.world.settings.branch_timeout_s)] * 3
    assert stage.other.answer() == OK
    assert answers[3] == OK or answers[3].code is Code.XAER_PROTO


@each("second", [Commit(XID), Fence(1, b"gtrid")])
def test_operations_on_one_branch_take_their_turn(second: Any) -> None:
    """A commit or a fence that comes while the prepare is being forced waits for it. So the branch is prepared, and the
    answer to a fence is later."""
    stage = Stage(BranchState.S2)
    stage.peer.ask(GetTimeout(XID))
    stage.peer.request(Prepare(XID))
    stage.peer.request(second)
    stage.world.pump(store=False)
    assert stage.state is BranchState.S2, "nothing is forced yet"
    stage.world.pump()
    assert [stage.peer.answer(), stage.peer.answer()] == [OK, OK]
    assert stage.peer.drained("q") == (["x"] if isinstance(second, Commit) else [])
    assert len(stage.world.container.registry) == isinstance(second, Fence)
