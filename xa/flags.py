"""Flags of the XA routines and of the switch, with X/Open's names and values (xa.h), and who may use which.

`FLAG_RULES` is the table: the flags that a verb allows, and of which groups at most or exactly one.
`check_flags` refuses what is not in it with XAER_INVAL, and TMASYNC with XAER_ASYNC where the switch
does not offer it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xa.codes import Code
from xa.errors import xa_error

TMNOFLAGS: Final = 0x00000000
TMASYNC: Final = 0x80000000
TMONEPHASE: Final = 0x40000000
TMFAIL: Final = 0x20000000
TMNOWAIT: Final = 0x10000000
TMRESUME: Final = 0x08000000
TMSUCCESS: Final = 0x04000000
TMSUSPEND: Final = 0x02000000
TMSTARTRSCAN: Final = 0x01000000
TMENDRSCAN: Final = 0x00800000
TMMULTIPLE: Final = 0x00400000
TMJOIN: Final = 0x00200000
TMMIGRATE: Final = 0x00100000

TMREGISTER: Final = 0x00000001
"""Switch flag: the resource manager registers dynamically."""
TMNOMIGRATE: Final = 0x00000002
"""Switch flag: an association must be resumed in the thread of control that suspended it."""
TMUSEASYNC: Final = 0x00000004
"""Switch flag: the resource manager takes TMASYNC."""

_NAMES: Final = {
    TMASYNC: "TMASYNC",
    TMONEPHASE: "TMONEPHASE",
    TMFAIL: "TMFAIL",
    TMNOWAIT: "TMNOWAIT",
    TMRESUME: "TMRESUME",
    TMSUCCESS: "TMSUCCESS",
    TMSUSPEND: "TMSUSPEND",
    TMSTARTRSCAN: "TMSTARTRSCAN",
    TMENDRSCAN: "TMENDRSCAN",
    TMMULTIPLE: "TMMULTIPLE",
    TMJOIN: "TMJOIN",
    TMMIGRATE: "TMMIGRATE",
}


@dataclass(frozen=True, slots=True)
class FlagRule:
    """Which flags a verb allows: any of `allowed`, at most one of each group in `at_most_one`, exactly one
    of `exactly_one` where that is not empty, and each key of `needs` only together with its value."""

    allowed: int
    at_most_one: tuple[int, ...] = ()
    exactly_one: int = 0
    needs: tuple[tuple[int, int], ...] = ()

    def allows(self, flags: int) -> bool:
        """Whether `flags` obey this rule."""
        if flags & ~self.allowed:
            return False
        if any((flags & group).bit_count() > 1 for group in self.at_most_one):
            return False
        if self.exactly_one and (flags & self.exactly_one).bit_count() != 1:
            return False
        return all(not flags & flag or flags & other for flag, other in self.needs)


FLAG_RULES: Final[dict[str, FlagRule]] = {
    "open": FlagRule(TMASYNC),
    "close": FlagRule(TMASYNC),
    "start": FlagRule(TMJOIN | TMRESUME | TMNOWAIT | TMASYNC, at_most_one=(TMJOIN | TMRESUME,)),
    "end": FlagRule(
        TMSUSPEND | TMMIGRATE | TMSUCCESS | TMFAIL | TMASYNC,
        exactly_one=TMSUSPEND | TMSUCCESS | TMFAIL,
        needs=((TMMIGRATE, TMSUSPEND),),
    ),
    "prepare": FlagRule(TMASYNC),
    "commit": FlagRule(TMNOWAIT | TMASYNC | TMONEPHASE),
    "rollback": FlagRule(TMASYNC),
    "recover": FlagRule(TMSTARTRSCAN | TMENDRSCAN),
    "forget": FlagRule(TMASYNC),
    "complete": FlagRule(TMMULTIPLE | TMNOWAIT),
    "ax_reg": FlagRule(TMNOFLAGS),
    "ax_unreg": FlagRule(TMNOFLAGS),
}
"""Verb → its flags (XA specification, chapter 5, the FLAGS part of each routine)."""


def flag_names(flags: int) -> str:
    """`flags` in words: TMJOIN|TMNOWAIT; TMNOFLAGS for none; what has no name as a number."""
    names = [name for flag, name in _NAMES.items() if flags & flag]
    rest = flags & ~sum(flag for flag in _NAMES if flags & flag)
    if rest:
        names.append(hex(rest))
    return "|".join(names) or "TMNOFLAGS"


_PASSED: Final[dict[tuple[str, int, int], bool]] = {}


def check_flags(verb: str, flags: int, switch_flags: int) -> None:
    """Raises XAER_INVAL when `verb` does not allow `flags`, XAER_ASYNC for TMASYNC at a switch without it."""
    if (verb, flags, switch_flags) in _PASSED:
        return
    if not FLAG_RULES[verb].allows(flags):
        raise xa_error(Code.XAER_INVAL, f"{verb} does not allow the flags {flag_names(flags)}")
    if flags & TMASYNC and not switch_flags & TMUSEASYNC:
        raise xa_error(Code.XAER_ASYNC, f"{verb}: this resource manager does not offer TMASYNC (TMUSEASYNC is not set)")
    if flags & TMMIGRATE and switch_flags & TMNOMIGRATE:
        raise xa_error(Code.XAER_INVAL, f"{verb}: this resource manager does not migrate (TMNOMIGRATE is set)")
    _PASSED[verb, flags, switch_flags] = True
