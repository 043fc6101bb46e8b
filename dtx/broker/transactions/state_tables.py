"""The order in which commands may follow each other: the slides' `dtx` grammar, and local transactions, as tables.

    dtx       = C:select S:select-ok *xaWork | *xaMonitor
    xaWork    = C:start S:resp *(C:suspend S:resp, later C:start(resume) S:resp) [C:end S:resp] xaOutcome
    xaOutcome = rollback | commit(one-phase) | prepare commit | prepare rollback
    xaMonitor = xaOutcome | recover | forget | set-timeout | get-timeout

A session is a channel: CHANNEL says what needs a selected one. What a txn-id may do is the association
table of xa, what may be done to a branch is its branch table; `VERBS` says which row of each an operation
takes. What has no row is refused with the code of the table, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from dtx.protocol.commands import (
    Commit,
    Complete,
    Fence,
    Forget,
    GetTimeout,
    Prepare,
    Recover,
    Rollback,
    SetTimeout,
)
from xa import Code
from xa.machine import Machine, Result, Row
from xa.state_tables import AssociationVerb, BranchVerb

OK: Final = Result.OK
RB: Final = Result.RB


class Channel(Enum):
    """Whether a session was selected for distributed transactions."""

    PLAIN = "not selected"
    SELECTED = "selected"


class ChannelVerb(Enum):
    """The requests to a session."""

    ATTACH = "control link without distributed transactions"
    SELECT = "select"
    START = "start (new, join or resume)"
    END = "end or suspend"
    LOCAL = "declare of a local transaction"
    COORDINATE = "any coordination"


_SLIDES: Final = "slides: once a channel is selected it cannot be disassociated with XA support"
CHANNEL: Final = Machine(
    "channel",
    Channel,
    ChannelVerb,
    Channel.PLAIN,
    (
        Row(ChannelVerb.ATTACH, OK, (Channel.PLAIN,), Channel.PLAIN, "transactions chapter, coordinator"),
        Row(ChannelVerb.ATTACH, OK, (Channel.SELECTED,), Channel.SELECTED, _SLIDES),
        Row(ChannelVerb.SELECT, OK, (Channel.PLAIN, Channel.SELECTED), Channel.SELECTED, _SLIDES),
        Row(ChannelVerb.START, OK, (Channel.SELECTED,), Channel.SELECTED, "slides: select, then xaWork"),
        Row(ChannelVerb.END, OK, (Channel.SELECTED,), Channel.SELECTED, "slides: select, then xaWork"),
        Row(ChannelVerb.LOCAL, OK, (Channel.PLAIN,), Channel.PLAIN, "design: on the same coordinator"),
        Row(ChannelVerb.LOCAL, OK, (Channel.SELECTED,), Channel.SELECTED, "design: on the same coordinator"),
        Row(ChannelVerb.COORDINATE, OK, (Channel.PLAIN,), Channel.PLAIN, "slides: xaMonitor needs no select"),
        Row(ChannelVerb.COORDINATE, OK, (Channel.SELECTED,), Channel.SELECTED, "slides: xaMonitor"),
    ),
    {
        (Channel.PLAIN, ChannelVerb.START): Code.XAER_PROTO,
        (Channel.PLAIN, ChannelVerb.END): Code.XAER_PROTO,
    },
)


class LocalState(Enum):
    """The state of a local transaction."""

    ACTIVE = "active"
    COMMITTING = "committing"
    ROLLED_BACK = "rolled back"
    DISCHARGED = "discharged"


class LocalVerb(Enum):
    """The events of a local transaction."""

    WORK = "posting, acquiring, retiring"
    COMMIT = "discharge"
    FORCED = "the commit is durable, or never will be"
    ROLLBACK = "discharge(fail)"
    EXPIRE = "its time passed"
    BREAK = "work that was sent settled could not be done"
    LOSE = "its control link was closed"


_CHAPTER: Final = "transactions chapter, discharging"
LOCAL: Final = Machine(
    "local transaction",
    LocalState,
    LocalVerb,
    LocalState.ACTIVE,
    (
        Row(LocalVerb.WORK, OK, (LocalState.ACTIVE,), LocalState.ACTIVE, "transactions chapter, transactional work"),
        Row(LocalVerb.COMMIT, OK, (LocalState.ACTIVE,), LocalState.COMMITTING, _CHAPTER),
        Row(LocalVerb.COMMIT, RB, (LocalState.ACTIVE, LocalState.ROLLED_BACK), LocalState.DISCHARGED, _CHAPTER),
        Row(LocalVerb.FORCED, OK, (LocalState.COMMITTING,), LocalState.DISCHARGED, _CHAPTER),
        Row(LocalVerb.FORCED, RB, (LocalState.COMMITTING,), LocalState.DISCHARGED, "design: the store is full"),
        Row(LocalVerb.ROLLBACK, OK, (LocalState.ACTIVE, LocalState.ROLLED_BACK), LocalState.DISCHARGED, _CHAPTER),
        Row(LocalVerb.EXPIRE, OK, (LocalState.ACTIVE,), LocalState.ROLLED_BACK, "transaction-timeout"),
        Row(LocalVerb.BREAK, OK, (LocalState.ACTIVE,), LocalState.ROLLED_BACK, "chapter, sent settled by controller"),
        Row(LocalVerb.LOSE, OK, (LocalState.ACTIVE, LocalState.ROLLED_BACK), LocalState.DISCHARGED, "design, rule 4"),
        Row(LocalVerb.LOSE, OK, (LocalState.COMMITTING,), LocalState.COMMITTING, "design: a commit goes its way"),
    ),
    {
        (LocalState.COMMITTING, LocalVerb.WORK): Code.XAER_PROTO,
        (LocalState.ROLLED_BACK, LocalVerb.WORK): Code.XA_RBROLLBACK,
        (LocalState.DISCHARGED, LocalVerb.WORK): Code.XAER_NOTA,
        (LocalState.COMMITTING, LocalVerb.COMMIT): Code.XAER_PROTO,
        (LocalState.DISCHARGED, LocalVerb.COMMIT): Code.XAER_NOTA,
        (LocalState.ACTIVE, LocalVerb.FORCED): Code.XAER_PROTO,
        (LocalState.ROLLED_BACK, LocalVerb.FORCED): Code.XAER_PROTO,
        (LocalState.DISCHARGED, LocalVerb.FORCED): Code.XAER_PROTO,
        (LocalState.COMMITTING, LocalVerb.ROLLBACK): Code.XAER_PROTO,
        (LocalState.DISCHARGED, LocalVerb.ROLLBACK): Code.XAER_NOTA,
        (LocalState.COMMITTING, LocalVerb.EXPIRE): Code.XAER_PROTO,
        (LocalState.ROLLED_BACK, LocalVerb.EXPIRE): Code.XAER_PROTO,
        (LocalState.DISCHARGED, LocalVerb.EXPIRE): Code.XAER_PROTO,
        (LocalState.COMMITTING, LocalVerb.BREAK): Code.XAER_PROTO,
        (LocalState.ROLLED_BACK, LocalVerb.BREAK): Code.XAER_PROTO,
        (LocalState.DISCHARGED, LocalVerb.BREAK): Code.XAER_PROTO,
        (LocalState.DISCHARGED, LocalVerb.LOSE): Code.XAER_PROTO,
    },
)


@dataclass(frozen=True, slots=True)
class Verbs:
    """Which rows an operation takes; None where a table has nothing to say about it."""

    channel: ChannelVerb
    association: AssociationVerb | None
    branch: BranchVerb | None


_C: Final = ChannelVerb.COORDINATE
VERBS: Final[dict[str | type, Verbs]] = {
    "start": Verbs(ChannelVerb.START, AssociationVerb.START, BranchVerb.START),
    "start(join)": Verbs(ChannelVerb.START, AssociationVerb.START, BranchVerb.JOIN),
    "start(resume)": Verbs(ChannelVerb.START, AssociationVerb.RESUME, BranchVerb.JOIN),
    "end": Verbs(ChannelVerb.END, AssociationVerb.END, BranchVerb.END),
    "end(fail)": Verbs(ChannelVerb.END, AssociationVerb.END_FAIL, BranchVerb.END_FAIL),
    "end(suspend)": Verbs(ChannelVerb.END, AssociationVerb.SUSPEND, BranchVerb.END),
    Prepare: Verbs(_C, None, BranchVerb.PREPARE),
    Commit: Verbs(_C, None, BranchVerb.COMMIT),
    Rollback: Verbs(_C, None, BranchVerb.ROLLBACK),
    Forget: Verbs(_C, None, BranchVerb.FORGET),
    Complete: Verbs(_C, None, BranchVerb.DECIDE),
    Recover: Verbs(_C, None, None),
    SetTimeout: Verbs(_C, None, None),
    GetTimeout: Verbs(_C, None, None),
    Fence: Verbs(_C, None, BranchVerb.EXPIRE),
}
"""Operation → rows. Commit with one-phase takes BranchVerb.COMMIT_ONE_PHASE."""
