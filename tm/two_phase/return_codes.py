"""The meaning of each return code at each verb, for the one who drives the commitment: the manager's table.

`MEANING[verb]` covers every code. The same code says different things at different verbs: an unknown xid is a
lost branch at prepare, a hazard at the first commit, and a branch already finished at a rollback or in recovery.
"""

from __future__ import annotations

from typing import Final

from xa import HEURISTIC_CODES, ROLLBACK_CODES, Code
from xa.machine import Member


class Verb(Member):
    """The calls of a completion. END_LATE is an end that may be sent with the prepare that follows; COMMIT_AGAIN is a
    commit that may have been carried out before: by an earlier try, or by recovery meanwhile."""

    END = "end"
    END_LATE = "end, with prepare"
    PREPARE = "prepare"
    COMMIT = "commit"
    COMMIT_AGAIN = "commit, again"
    COMMIT_ONE_PHASE = "commit, one phase"
    DECIDE = "commit with the decision"
    ROLLBACK = "rollback"
    FORGET = "forget"


class AnswerMeaning(Member):
    """The meaning of an answer for its branch."""

    DONE = "as asked"
    READ_ONLY = "nothing to commit; the branch does not exist any more"
    ROLLED_BACK = "the work was rolled back; the branch does not exist any more"
    REFUSED = "not done; the branch is still there, to be rolled back"
    LATER = "not done, or unknown; the next try repeats it"
    HEUR_COMMITTED = "completed on its own: committed"
    HEUR_ROLLED_BACK = "completed on its own: rolled back"
    HEUR_MIXED = "completed on its own: in part committed, in part rolled back"
    HEUR_HAZARD = "may have been completed on its own"
    LOST_ROLLED_BACK = "was prepared, and rolled back without being asked; nothing is left to forget"
    LOST_HAZARD = "was prepared, and is not known any more; nothing is left to forget"


_M = AnswerMeaning
_HEURISTICS: Final = {
    Code.XA_HEURCOM: _M.HEUR_COMMITTED,
    Code.XA_HEURRB: _M.HEUR_ROLLED_BACK,
    Code.XA_HEURMIX: _M.HEUR_MIXED,
    Code.XA_HEURHAZ: _M.HEUR_HAZARD,
}
_WRONG_CALL: Final = (Code.XAER_PROTO, Code.XAER_INVAL, Code.XAER_ASYNC, Code.XAER_DUPID, Code.XAER_OUTSIDE)


def _row(**meanings: AnswerMeaning) -> dict[Code, AnswerMeaning]:
    """One verb's row. `RB`, `HEUR` and `WRONG` stand for their groups; every code has to be covered."""
    row: dict[Code, AnswerMeaning] = {}
    for name, meaning in meanings.items():
        if name == "RB":
            row.update(dict.fromkeys(ROLLBACK_CODES, meaning))
        elif name == "HEUR":
            row.update(dict.fromkeys(HEURISTIC_CODES, meaning))
        elif name == "WRONG":
            row.update(dict.fromkeys(_WRONG_CALL, meaning))
        else:
            row[Code[name]] = meaning
    return row


_ENDED: Final = _row(
    XA_OK=_M.DONE,
    XA_NOMIGRATE=_M.DONE,
    RB=_M.REFUSED,
    XAER_RMERR=_M.REFUSED,
    XAER_NOTA=_M.ROLLED_BACK,
    XAER_RMFAIL=_M.REFUSED,
    WRONG=_M.REFUSED,
    HEUR=_M.REFUSED,
    XA_RETRY=_M.REFUSED,
    XA_RDONLY=_M.DONE,
)

MEANING: Final[dict[Verb, dict[Code, AnswerMeaning]]] = {
    Verb.END: _ENDED,
    Verb.END_LATE: _ENDED,
    Verb.PREPARE: _row(
        XA_OK=_M.DONE,
        XA_RDONLY=_M.READ_ONLY,
        RB=_M.ROLLED_BACK,
        XAER_NOTA=_M.ROLLED_BACK,
        # it may be prepared all the same: rolled back now, or by recovery, which presumes it
        XAER_RMFAIL=_M.REFUSED,
        XAER_RMERR=_M.REFUSED,
        XA_RETRY=_M.REFUSED,
        WRONG=_M.REFUSED,
        HEUR=_M.REFUSED,
        XA_NOMIGRATE=_M.REFUSED,
    ),
    Verb.COMMIT: _row(
        XA_OK=_M.DONE,
        XA_RDONLY=_M.DONE,
        XA_RETRY=_M.LATER,
        XAER_RMFAIL=_M.LATER,
        **{c.name: m for c, m in _HEURISTICS.items()},
        RB=_M.LOST_ROLLED_BACK,
        XAER_RMERR=_M.LOST_ROLLED_BACK,
        XAER_NOTA=_M.LOST_HAZARD,
        # refused as a wrong call: the branch is as it was, prepared, and must not be given up
        WRONG=_M.LATER,
        XA_NOMIGRATE=_M.LATER,
    ),
    Verb.COMMIT_AGAIN: _row(
        XA_OK=_M.DONE,
        XA_RDONLY=_M.DONE,
        XA_RETRY=_M.LATER,
        XAER_RMFAIL=_M.LATER,
        **{c.name: m for c, m in _HEURISTICS.items()},
        RB=_M.LOST_ROLLED_BACK,
        XAER_RMERR=_M.LOST_ROLLED_BACK,
        XAER_NOTA=_M.DONE,
        WRONG=_M.LATER,
        XA_NOMIGRATE=_M.LATER,
    ),
    Verb.COMMIT_ONE_PHASE: _row(
        XA_OK=_M.DONE,
        XA_RDONLY=_M.DONE,
        RB=_M.ROLLED_BACK,
        XAER_RMERR=_M.ROLLED_BACK,
        XAER_NOTA=_M.ROLLED_BACK,
        XAER_RMFAIL=_M.LATER,
        XA_RETRY=_M.REFUSED,
        WRONG=_M.REFUSED,
        XA_NOMIGRATE=_M.REFUSED,
        **{c.name: m for c, m in _HEURISTICS.items()},
    ),
    Verb.DECIDE: _row(
        XA_OK=_M.DONE,
        RB=_M.ROLLED_BACK,
        XAER_RMERR=_M.ROLLED_BACK,
        XAER_NOTA=_M.ROLLED_BACK,
        XAER_RMFAIL=_M.LATER,
        XA_RETRY=_M.REFUSED,
        WRONG=_M.REFUSED,
        XA_NOMIGRATE=_M.REFUSED,
        XA_RDONLY=_M.LATER,
        # a decider completes nothing on its own; whatever it means, the decision is unknown
        HEUR=_M.LATER,
    ),
    Verb.ROLLBACK: _row(
        XA_OK=_M.DONE,
        XA_RDONLY=_M.DONE,
        RB=_M.DONE,
        XAER_RMERR=_M.DONE,
        XAER_NOTA=_M.DONE,
        XA_RETRY=_M.LATER,
        XAER_RMFAIL=_M.LATER,
        WRONG=_M.LATER,
        XA_NOMIGRATE=_M.LATER,
        **{c.name: m for c, m in _HEURISTICS.items()},
    ),
    Verb.FORGET: _row(
        XA_OK=_M.DONE,
        XAER_NOTA=_M.DONE,
        XA_RDONLY=_M.DONE,
        RB=_M.LATER,
        XAER_RMERR=_M.LATER,
        XA_RETRY=_M.LATER,
        XAER_RMFAIL=_M.LATER,
        WRONG=_M.LATER,
        XA_NOMIGRATE=_M.LATER,
        HEUR=_M.LATER,
    ),
}
"""Verb → code → meaning; total."""

HEURISTIC_CODE: Final[dict[AnswerMeaning, Code]] = {
    _M.HEUR_COMMITTED: Code.XA_HEURCOM,
    _M.HEUR_ROLLED_BACK: Code.XA_HEURRB,
    _M.HEUR_MIXED: Code.XA_HEURMIX,
    _M.HEUR_HAZARD: Code.XA_HEURHAZ,
    _M.LOST_ROLLED_BACK: Code.XA_HEURRB,
    _M.LOST_HAZARD: Code.XA_HEURHAZ,
}
"""Meaning → the code under which it is noted in the log."""
