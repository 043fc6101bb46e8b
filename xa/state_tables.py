"""The state tables of the XA specification, chapter 6, as machines.

`source` in a row says where it comes from. "6-2" and the like name the specification's table, and every entry of
its tables is here. A routine's name and "text" mean its description in chapter 5, for results that the tables leave
out. Rows with the source "design" are ours, each with its reason: what the specification leaves to the resource
manager (operator, timer and lost thread), and where it has no row for a case that its text allows (a join while
another thread works, prepare of a rollback-only branch).

In every table "any xa_ routine → [XAER_RMFAIL]" leads to R0 for the thread that got it; what becomes of the
branch itself is then unknown to that thread, so the branch machine has no such rows: the resource manager's
own copy of it moves by what really happened. xa_open, xa_recover and xa_close leave every branch as it is, and
are not verbs of that machine.
"""

from __future__ import annotations

from typing import Final

from xa.codes import Code
from xa.machine import Machine, Member, Result, Row

OK, RDONLY, RB = Result.OK, Result.RDONLY, Result.RB
HEUR, RETRY, RMERR, RMFAIL = Result.HEUR, Result.RETRY, Result.RMERR, Result.RMFAIL


# --- Table 6-1: resource manager ---------------------------------------------------------------------------
class ResourceState(Member):
    """Whether a resource manager instance has been opened."""

    R0 = "R0 un-initialised"
    R1 = "R1 initialised"


class ResourceVerb(Member):
    """The events of a resource manager instance."""

    OPEN = "xa_open"
    CLOSE = "xa_close"
    ANY = "any other xa_ routine"


R0, R1 = ResourceState.R0, ResourceState.R1
RESOURCE: Final = Machine(
    "resource manager",
    ResourceState,
    ResourceVerb,
    R0,
    (
        Row(ResourceVerb.OPEN, OK, (R0, R1), R1, "6-1"),
        Row(ResourceVerb.OPEN, RMERR, (R0,), R0, "xa_open, text: on an error the RM stays un-initialised"),
        Row(ResourceVerb.OPEN, RMFAIL, (R0, R1), R0, "6-2 to 6-4, xa_* → [XAER_RMFAIL]"),
        Row(ResourceVerb.CLOSE, OK, (R0, R1), R0, "6-1"),
        Row(ResourceVerb.CLOSE, RMERR, (R1,), R1, "xa_close, text: on an error the RM stays initialised"),
        Row(ResourceVerb.CLOSE, RMFAIL, (R0, R1), R0, "6-2 to 6-4, xa_* → [XAER_RMFAIL]"),
        *(
            Row(ResourceVerb.ANY, result, (R1,), R1, "chapter 6, text: the other routines leave table 6-1 alone")
            for result in (OK, RDONLY, RB, HEUR, RETRY, RMERR)
        ),
        Row(ResourceVerb.ANY, RMFAIL, (R1,), R0, "6-2 to 6-4, xa_* → [XAER_RMFAIL]"),
    ),
    {(R0, ResourceVerb.ANY): Code.XAER_PROTO},
)


# --- Table 6-2: association of a thread of control with a branch -----------------------------------------------
class AssociationState(Member):
    """How one thread of control stands to one branch."""

    T0 = "T0 not associated"
    T1 = "T1 associated"
    T2 = "T2 association suspended"


class AssociationVerb(Member):
    """The events of an association."""

    START = "xa_start"
    RESUME = "xa_start(TMRESUME)"
    SUSPEND = "xa_end(TMSUSPEND)"
    END = "xa_end(TMSUCCESS)"
    END_FAIL = "xa_end(TMFAIL)"
    LOSE = "thread of control or its connection lost"
    OPEN = "xa_open"
    RECOVER = "xa_recover"
    CLOSE = "xa_close"


T0, T1, T2 = AssociationState.T0, AssociationState.T1, AssociationState.T2
_GONE: Final = "6-2, xa_* → [XAER_RMFAIL]"
ASSOCIATION: Final = Machine(
    "association",
    AssociationState,
    AssociationVerb,
    T0,
    (
        Row(AssociationVerb.START, OK, (T0,), T1, "6-2 (TMJOIN included)"),
        Row(AssociationVerb.START, RB, (T0,), T0, "xa_start, text: no association is made"),
        Row(AssociationVerb.START, RETRY, (T0,), T0, "xa_start, text: TMNOWAIT, no effect"),
        Row(AssociationVerb.START, RMERR, (T0,), T0, "xa_start, text: no association is made"),
        Row(AssociationVerb.START, RMFAIL, (T0,), T0, _GONE),
        Row(AssociationVerb.RESUME, OK, (T2,), T1, "6-2"),
        Row(AssociationVerb.RESUME, RB, (T2,), T0, "6-2"),
        Row(AssociationVerb.RESUME, RETRY, (T2,), T2, "xa_start, text: TMNOWAIT, no effect"),
        Row(AssociationVerb.RESUME, RMERR, (T2,), T2, "xa_start, text: no association is made"),
        Row(AssociationVerb.RESUME, RMFAIL, (T2,), T0, _GONE),
        Row(AssociationVerb.SUSPEND, OK, (T1,), T2, "6-2"),
        Row(AssociationVerb.SUSPEND, RB, (T1,), T0, "6-2"),
        Row(AssociationVerb.SUSPEND, RMERR, (T1,), T0, "xa_end, text: the thread is dissociated"),
        Row(AssociationVerb.SUSPEND, RMFAIL, (T1,), T0, _GONE),
        Row(AssociationVerb.END, OK, (T1, T2), T0, "6-2"),
        Row(AssociationVerb.END, RB, (T1, T2), T0, "6-2, whatever xa_end returns"),
        Row(AssociationVerb.END, RMERR, (T1, T2), T0, "xa_end, text: the thread is dissociated"),
        Row(AssociationVerb.END, RMFAIL, (T1, T2), T0, _GONE),
        Row(AssociationVerb.END_FAIL, OK, (T1, T2), T0, "6-2"),
        Row(AssociationVerb.END_FAIL, RB, (T1, T2), T0, "6-2, whatever xa_end returns"),
        Row(AssociationVerb.END_FAIL, RMERR, (T1, T2), T0, "xa_end, text: the thread is dissociated"),
        Row(AssociationVerb.END_FAIL, RMFAIL, (T1, T2), T0, _GONE),
        Row(AssociationVerb.LOSE, OK, (T1, T2), T0, "design, rule 1: a lost thread holds no association"),
        *(
            Row(verb, OK, (state,), state, "6-2")
            for verb in (AssociationVerb.OPEN, AssociationVerb.RECOVER)
            for state in (T0, T1, T2)
        ),
        *(Row(verb, RMFAIL, (T0, T1, T2), T0, _GONE) for verb in (AssociationVerb.OPEN, AssociationVerb.RECOVER)),
        Row(AssociationVerb.CLOSE, OK, (T0, T2), T0, "6-2 (to R0); a suspended association is lost with it"),
        Row(AssociationVerb.CLOSE, RMERR, (T0,), T0, "xa_close, text: on an error the RM stays initialised"),
        Row(AssociationVerb.CLOSE, RMERR, (T2,), T2, "xa_close, text: on an error the RM stays initialised"),
        Row(AssociationVerb.CLOSE, RMFAIL, (T0, T2), T0, _GONE),
    ),
    {
        (T1, AssociationVerb.START): Code.XAER_PROTO,
        (T2, AssociationVerb.START): Code.XAER_PROTO,
        (T0, AssociationVerb.RESUME): Code.XAER_PROTO,
        (T1, AssociationVerb.RESUME): Code.XAER_PROTO,
        (T0, AssociationVerb.SUSPEND): Code.XAER_PROTO,
        (T2, AssociationVerb.SUSPEND): Code.XAER_PROTO,
        (T0, AssociationVerb.END): Code.XAER_PROTO,
        (T0, AssociationVerb.END_FAIL): Code.XAER_PROTO,
        (T0, AssociationVerb.LOSE): Code.XAER_PROTO,
        (T1, AssociationVerb.CLOSE): Code.XAER_PROTO,
    },
)


# --- Table 6-3: association where the resource manager registers dynamically ------------------------------------
class RegistrationState(Member):
    """How one thread of control of a dynamically registering resource manager stands to the manager."""

    D0 = "D0 not registered"
    D1 = "D1 registered with an XID"
    D2 = "D2 registered, suspended"
    D3 = "D3 registered with the null XID"


class RegistrationVerb(Member):
    """The events of a registration."""

    REGISTER = "ax_reg → XID"
    REGISTER_NULL = "ax_reg → null XID"
    REGISTER_RESUME = "ax_reg → TM_RESUME"
    UNREGISTER = "ax_unreg"
    SUSPEND = "xa_end(TMSUSPEND)"
    END = "xa_end(TMSUCCESS)"
    END_FAIL = "xa_end(TMFAIL)"
    LOSE = "thread of control or its connection lost"
    OPEN = "xa_open"
    RECOVER = "xa_recover"
    CLOSE = "xa_close"


D0, D1, D2, D3 = RegistrationState.D0, RegistrationState.D1, RegistrationState.D2, RegistrationState.D3
_GONE_DYNAMIC: Final = "6-3, xa_* → [XAER_RMFAIL]"
_REGISTRATION_ROWS: Final = (
    Row(RegistrationVerb.REGISTER, OK, (D0,), D1, "6-3"),
    Row(RegistrationVerb.REGISTER_NULL, OK, (D0,), D3, "6-3"),
    Row(RegistrationVerb.REGISTER_RESUME, OK, (D2,), D1, "6-3"),
    Row(RegistrationVerb.REGISTER, RB, (D0,), D0, "xa_start, text (the note of 6-4: ax_reg counts as xa_start)"),
    Row(RegistrationVerb.REGISTER, RMERR, (D0,), D0, "xa_start, text: no association is made"),
    Row(RegistrationVerb.REGISTER_RESUME, RB, (D2,), D0, "xa_start, text (the note of 6-4: ax_reg counts as xa_start)"),
    Row(RegistrationVerb.REGISTER_RESUME, RMERR, (D2,), D2, "xa_start, text: no association is made"),
    Row(RegistrationVerb.UNREGISTER, OK, (D3,), D0, "6-3"),
    Row(RegistrationVerb.SUSPEND, OK, (D1,), D2, "6-3"),
    Row(RegistrationVerb.SUSPEND, RB, (D1,), D0, "6-3"),
    Row(RegistrationVerb.END, OK, (D1, D2), D0, "6-3"),
    Row(RegistrationVerb.END, RB, (D1, D2), D0, "6-3, whatever xa_end returns"),
    Row(RegistrationVerb.END_FAIL, OK, (D1, D2), D0, "6-3"),
    Row(RegistrationVerb.END_FAIL, RB, (D1, D2), D0, "6-3, whatever xa_end returns"),
    Row(RegistrationVerb.SUSPEND, RMERR, (D1,), D0, "xa_end, text: the thread is dissociated"),
    Row(RegistrationVerb.END, RMERR, (D1, D2), D0, "xa_end, text: the thread is dissociated"),
    Row(RegistrationVerb.END_FAIL, RMERR, (D1, D2), D0, "xa_end, text: the thread is dissociated"),
    Row(RegistrationVerb.LOSE, OK, (D1, D2, D3), D0, "design, rule 1: a lost thread holds no association"),
    *(
        Row(verb, OK, (state,), state, "6-3")
        for verb in (RegistrationVerb.OPEN, RegistrationVerb.RECOVER)
        for state in (D0, D1, D2, D3)
    ),
    Row(RegistrationVerb.CLOSE, OK, (D0, D2), D0, "6-3 (to R0); a suspended association is lost with it"),
    Row(RegistrationVerb.CLOSE, RMERR, (D0,), D0, "xa_close, text: on an error the RM stays initialised"),
    Row(RegistrationVerb.CLOSE, RMERR, (D2,), D2, "xa_close, text: on an error the RM stays initialised"),
    Row(RegistrationVerb.SUSPEND, RMFAIL, (D1,), D0, _GONE_DYNAMIC),
    Row(RegistrationVerb.END, RMFAIL, (D1, D2), D0, _GONE_DYNAMIC),
    Row(RegistrationVerb.END_FAIL, RMFAIL, (D1, D2), D0, _GONE_DYNAMIC),
    Row(RegistrationVerb.OPEN, RMFAIL, (D0, D1, D2, D3), D0, _GONE_DYNAMIC),
    Row(RegistrationVerb.RECOVER, RMFAIL, (D0, D1, D2, D3), D0, _GONE_DYNAMIC),
    Row(RegistrationVerb.CLOSE, RMFAIL, (D0, D2), D0, _GONE_DYNAMIC),
)
REGISTRATION: Final = Machine(
    "registration",
    RegistrationState,
    RegistrationVerb,
    D0,
    _REGISTRATION_ROWS,
    {
        **dict.fromkeys(((state, RegistrationVerb.REGISTER) for state in (D1, D2, D3)), Code.XAER_PROTO),
        **dict.fromkeys(((state, RegistrationVerb.REGISTER_NULL) for state in (D1, D2, D3)), Code.XAER_PROTO),
        **dict.fromkeys(((state, RegistrationVerb.REGISTER_RESUME) for state in (D0, D1, D3)), Code.XAER_PROTO),
        **dict.fromkeys(((state, RegistrationVerb.UNREGISTER) for state in (D0, D1, D2)), Code.XAER_PROTO),
        **dict.fromkeys(((state, RegistrationVerb.SUSPEND) for state in (D0, D2, D3)), Code.XAER_PROTO),
        **dict.fromkeys(((state, RegistrationVerb.END) for state in (D0, D3)), Code.XAER_PROTO),
        **dict.fromkeys(((state, RegistrationVerb.END_FAIL) for state in (D0, D3)), Code.XAER_PROTO),
        **dict.fromkeys(((state, RegistrationVerb.CLOSE) for state in (D1, D3)), Code.XAER_PROTO),
        (D0, RegistrationVerb.LOSE): Code.XAER_PROTO,
    },
)


# --- Table 6-4: transaction branch --------------------------------------------------------------------------
class BranchState(Member):
    """The state of a branch. Active means that some thread of control is associated with it (T1)."""

    S0 = "S0 non-existent"
    S1 = "S1 active"
    S2 = "S2 idle"
    S3 = "S3 prepared"
    S4 = "S4 rollback only"
    S5 = "S5 heuristically completed"


class BranchVerb(Member):
    """The events of a branch: the XA routines, and what happens inside the resource manager."""

    START = "xa_start"
    JOIN = "xa_start(TMJOIN or TMRESUME)"
    END = "xa_end, and no other thread is at work"
    END_SHARED = "xa_end, while others are at work"
    END_FAIL = "xa_end(TMFAIL)"
    PREPARE = "xa_prepare"
    COMMIT = "xa_commit"
    COMMIT_ONE_PHASE = "xa_commit(TMONEPHASE)"
    ROLLBACK = "xa_rollback"
    FORGET = "xa_forget"
    LOSE = "an associated or suspended thread of control lost"
    EXPIRE = "the branch's timeout passed"
    DECIDE = "an operator completes the branch heuristically"


S0, S1, S2 = BranchState.S0, BranchState.S1, BranchState.S2
S3, S4, S5 = BranchState.S3, BranchState.S4, BranchState.S5
_V: Final = BranchVerb
_NOT_NOW: Final = "design: not now, no effect; nothing is presumed of a branch that could not be asked"
_NO_ROLLBACK_ONLY: Final = "design, rule 1: a rollback-only branch answers with a rollback code, never XA_OK"
BRANCH: Final = Machine(
    "branch",
    BranchState,
    BranchVerb,
    S0,
    (
        Row(_V.START, OK, (S0,), S1, "6-4"),
        Row(_V.START, RETRY, (S0,), S0, "xa_start, text: TMNOWAIT, no effect"),
        Row(_V.START, RMERR, (S0,), S0, "xa_start, text: no association is made"),
        Row(_V.JOIN, OK, (S2,), S1, "6-4"),
        Row(_V.JOIN, OK, (S1,), S1, "design: another thread is at work; 6-4 is the view of one thread"),
        Row(_V.JOIN, RB, (S2,), S4, "6-4"),
        Row(_V.JOIN, RB, (S4,), S4, "design: a rollback-only branch takes no more work"),
        Row(_V.JOIN, RETRY, (S1,), S1, "xa_start, text: TMNOWAIT, no effect"),
        Row(_V.JOIN, RETRY, (S2,), S2, "xa_start, text: TMNOWAIT, no effect"),
        Row(_V.JOIN, RMERR, (S1,), S1, "xa_start, text: no association is made"),
        Row(_V.JOIN, RMERR, (S2,), S2, "xa_start, text: no association is made"),
        Row(_V.END, OK, (S1,), S2, "6-4"),
        Row(_V.END, OK, (S2,), S2, "xa_end, text: a suspended association (T2) ends too"),
        Row(_V.END, RB, (S1,), S4, "6-4"),
        Row(_V.END, RB, (S2,), S4, "design: the same for a suspended association"),
        Row(_V.END, RB, (S4,), S4, "design: the end of a branch that became rollback-only says so"),
        Row(_V.END, RMERR, (S1, S2), S4, "design: work that may be incomplete can't be prepared"),
        Row(_V.END_SHARED, OK, (S1,), S1, "design: others are still at work; 6-4 is the view of one thread"),
        Row(_V.END_SHARED, RB, (S1, S4), S4, "design: others are still at work; it is rollback-only for them too"),
        Row(_V.END_SHARED, RMERR, (S1,), S4, "design: work that may be incomplete can't be prepared"),
        Row(_V.END_FAIL, OK, (S1, S2), S4, "design, rule 1 (S2: the association was suspended)"),
        Row(_V.END_FAIL, RB, (S1,), S4, "6-4"),
        Row(_V.END_FAIL, RB, (S2, S4), S4, "design, rule 1 (S2: the association was suspended)"),
        Row(_V.END_FAIL, RMERR, (S1, S2), S4, "design: work that may be incomplete can't be prepared"),
        Row(_V.PREPARE, OK, (S2,), S3, "6-4"),
        Row(_V.PREPARE, RDONLY, (S2,), S0, "6-4"),
        Row(_V.PREPARE, RB, (S2,), S0, "6-4"),
        Row(_V.PREPARE, RMERR, (S2,), S2, "6-4"),
        Row(_V.PREPARE, RETRY, (S2,), S2, _NOT_NOW),
        Row(_V.PREPARE, RB, (S4,), S0, _NO_ROLLBACK_ONLY),
        Row(_V.COMMIT, OK, (S3,), S0, "6-4"),
        Row(_V.COMMIT, RMERR, (S3,), S0, "6-4: the work was rolled back"),
        Row(_V.COMMIT, RETRY, (S3,), S3, "6-4"),
        Row(_V.COMMIT, HEUR, (S3, S5), S5, "6-4"),
        Row(_V.COMMIT_ONE_PHASE, OK, (S2,), S0, "6-4"),
        Row(_V.COMMIT_ONE_PHASE, RB, (S2,), S0, "6-4"),
        Row(_V.COMMIT_ONE_PHASE, RMERR, (S2,), S0, "6-4: the work was rolled back"),
        Row(_V.COMMIT_ONE_PHASE, HEUR, (S2,), S5, "6-4"),
        Row(_V.COMMIT_ONE_PHASE, RETRY, (S2,), S2, "xa_commit, text: TMNOWAIT, no effect"),
        Row(_V.COMMIT_ONE_PHASE, RB, (S4,), S0, _NO_ROLLBACK_ONLY),
        Row(_V.ROLLBACK, OK, (S2, S3, S4), S0, "6-4"),
        Row(_V.ROLLBACK, RB, (S2, S3, S4), S0, "6-4"),
        Row(_V.ROLLBACK, RMERR, (S2, S3, S4), S0, "6-4"),
        Row(_V.ROLLBACK, RETRY, (S3,), S3, _NOT_NOW),
        Row(_V.ROLLBACK, HEUR, (S3, S4, S5), S5, "6-4"),
        Row(_V.FORGET, OK, (S5,), S0, "6-4"),
        Row(_V.FORGET, RMERR, (S5,), S5, "6-4"),
        Row(_V.FORGET, RETRY, (S5,), S5, _NOT_NOW),
        Row(_V.LOSE, OK, (S1, S2, S4), S4, "design, rule 1"),
        Row(_V.EXPIRE, OK, (S1, S2, S4), S4, "design, rule 2: never a prepared one"),
        Row(_V.DECIDE, OK, (S3,), S5, "design, rule 3"),
    ),
    {
        **dict.fromkeys(((state, _V.START) for state in (S1, S2, S3, S4, S5)), Code.XAER_DUPID),
        **dict.fromkeys(((S0, verb) for verb in BranchVerb if verb is not _V.START), Code.XAER_NOTA),
        **dict.fromkeys(((state, _V.JOIN) for state in (S3, S5)), Code.XAER_PROTO),
        **dict.fromkeys(((state, _V.END) for state in (S3, S5)), Code.XAER_PROTO),
        **dict.fromkeys(((state, _V.END_SHARED) for state in (S2, S3, S5)), Code.XAER_PROTO),
        **dict.fromkeys(((state, _V.END_FAIL) for state in (S3, S5)), Code.XAER_PROTO),
        **dict.fromkeys(((state, _V.PREPARE) for state in (S1, S3, S5)), Code.XAER_PROTO),
        **dict.fromkeys(((state, _V.COMMIT) for state in (S1, S2, S4)), Code.XAER_PROTO),
        **dict.fromkeys(((state, _V.COMMIT_ONE_PHASE) for state in (S1, S3, S5)), Code.XAER_PROTO),
        (S1, _V.ROLLBACK): Code.XAER_PROTO,
        **dict.fromkeys(((state, _V.FORGET) for state in (S1, S2, S3, S4)), Code.XAER_PROTO),
        **dict.fromkeys(((state, _V.LOSE) for state in (S3, S5)), Code.XAER_PROTO),
        **dict.fromkeys(((state, _V.EXPIRE) for state in (S3, S5)), Code.XAER_PROTO),
        **dict.fromkeys(((state, _V.DECIDE) for state in (S1, S2, S4, S5)), Code.XAER_PROTO),
    },
)


# --- Table 6-5: asynchronous operations ---------------------------------------------------------------------
class AsyncState(Member):
    """Whether one handle's operation is outstanding."""

    A0 = "A0 initial"
    A1 = "A1 operation pending"


class AsyncVerb(Member):
    """The events of a handle."""

    SYNCHRONOUS = "any synchronous xa_ routine"
    ASYNCHRONOUS = "xa_open, close, start, end, prepare, commit, rollback or forget with TMASYNC"
    COMPLETE = "xa_complete"


A0, A1 = AsyncState.A0, AsyncState.A1
ASYNC: Final = Machine(
    "asynchronous operation",
    AsyncState,
    AsyncVerb,
    A0,
    (
        Row(AsyncVerb.SYNCHRONOUS, OK, (A0,), A0, "6-5"),
        Row(AsyncVerb.ASYNCHRONOUS, OK, (A0,), A1, "6-5"),
        Row(AsyncVerb.COMPLETE, OK, (A1,), A0, "6-5"),
        Row(AsyncVerb.COMPLETE, RETRY, (A1,), A1, "6-5, TMNOWAIT"),
        Row(AsyncVerb.COMPLETE, RMFAIL, (A1,), A0, "6-2, xa_* → [XAER_RMFAIL]"),
    ),
    {
        (A1, AsyncVerb.SYNCHRONOUS): Code.XAER_PROTO,
        (A1, AsyncVerb.ASYNCHRONOUS): Code.XAER_ASYNC,
        (A0, AsyncVerb.COMPLETE): Code.XAER_INVAL,
    },
)

MACHINES: Final = (RESOURCE, ASSOCIATION, REGISTRATION, BRANCH, ASYNC)
