"""These tests compare flags with X/Open's values, and try for every verb every combination of flags, allowed or
refused.
"""

from __future__ import annotations

from itertools import product

import pytest

import xa
from xa import Code, XaError, check_flags, flag_names
from xa.flags import (
    FLAG_RULES,
    TMASYNC,
    TMENDRSCAN,
    TMFAIL,
    TMJOIN,
    TMMIGRATE,
    TMMULTIPLE,
    TMNOFLAGS,
    TMNOMIGRATE,
    TMNOWAIT,
    TMONEPHASE,
    TMREGISTER,
    TMRESUME,
    TMSTARTRSCAN,
    TMSUCCESS,
    TMSUSPEND,
    TMUSEASYNC,
)
from xabridge.testing.contract.client import case, refused

XA_H = {
    "TMNOFLAGS": 0x00000000,
    "TMREGISTER": 0x00000001,
    "TMNOMIGRATE": 0x00000002,
    "TMUSEASYNC": 0x00000004,
    "TMASYNC": 0x80000000,
    "TMONEPHASE": 0x40000000,
    "TMFAIL": 0x20000000,
    "TMNOWAIT": 0x10000000,
    "TMRESUME": 0x08000000,
    "TMSUCCESS": 0x04000000,
    "TMSUSPEND": 0x02000000,
    "TMSTARTRSCAN": 0x01000000,
    "TMENDRSCAN": 0x00800000,
    "TMMULTIPLE": 0x00400000,
    "TMJOIN": 0x00200000,
    "TMMIGRATE": 0x00100000,
}
VERB_FLAGS = [
    TMASYNC,
    TMONEPHASE,
    TMFAIL,
    TMNOWAIT,
    TMRESUME,
    TMSUCCESS,
    TMSUSPEND,
    TMSTARTRSCAN,
    TMENDRSCAN,
    TMMULTIPLE,
    TMJOIN,
    TMMIGRATE,
]


def with_options(*needed: int, options: int) -> set[int]:
    """Each of `needed`, with every subset of the flags in `options`."""
    chosen = [flag for flag in VERB_FLAGS if flag & options]
    subsets = {sum(subset) for subset in product(*((0, flag) for flag in chosen))}
    return {one | subset for one in needed for subset in subsets}


ALLOWED = {
    # The FLAGS part of each routine's page in the specification, written out a second time.
    "open": with_options(0, options=TMASYNC),
    "close": with_options(0, options=TMASYNC),
    "start": with_options(0, TMJOIN, TMRESUME, options=TMNOWAIT | TMASYNC),
    "end": with_options(TMSUCCESS, TMFAIL, TMSUSPEND, TMSUSPEND | TMMIGRATE, options=TMASYNC),
    "prepare": with_options(0, options=TMASYNC),
    "commit": with_options(0, options=TMONEPHASE | TMNOWAIT | TMASYNC),
    "rollback": with_options(0, options=TMASYNC),
    "recover": with_options(0, options=TMSTARTRSCAN | TMENDRSCAN),
    "forget": with_options(0, options=TMASYNC),
    "complete": with_options(0, options=TMMULTIPLE | TMNOWAIT),
    "ax_reg": {0},
    "ax_unreg": {0},
}
COMBINATIONS = [sum(chosen) for chosen in product(*((0, flag) for flag in VERB_FLAGS))]


def test_values_are_xopens() -> None:
    assert {name: getattr(xa, name) for name in XA_H} == XA_H


def test_every_verb_has_a_rule() -> None:
    assert set(FLAG_RULES) == set(ALLOWED)


@pytest.mark.parametrize("verb", sorted(ALLOWED))
def test_every_combination(verb: str) -> None:
    assert len(COMBINATIONS) == 4096
    allowed, messages = set(), {}
    for flags in COMBINATIONS:
        try:
            check_flags(verb, flags, TMUSEASYNC)
            allowed.add(flags)
        except XaError as error:
            messages[flags] = str(error)
    assert allowed == ALLOWED[verb]
    assert messages == {
        flags: f"XAER_INVAL: {verb} does not allow the flags {flag_names(flags)}"
        for flags in COMBINATIONS
        if flags not in allowed
    }


def test_what_is_no_flag_is_refused() -> None:
    for verb, strange in product(ALLOWED, (1, 2, 4, 0x00080000, 1 << 32, -1)):
        with case(verb, strange), refused(Code.XAER_INVAL):
            check_flags(verb, min(ALLOWED[verb]) | strange, TMUSEASYNC)


@pytest.mark.parametrize("verb", sorted(verb for verb, allowed in ALLOWED.items() if any(f & TMASYNC for f in allowed)))
def test_tmasync_needs_the_switch_flag(verb: str) -> None:
    for flags in (flags for flags in ALLOWED[verb] if flags & TMASYNC):
        check_flags(verb, flags, TMUSEASYNC)
        for switch in (0, TMREGISTER, TMNOMIGRATE):
            with pytest.raises(XaError) as raised:
                check_flags(verb, flags, switch)
            assert raised.value.code is Code.XAER_ASYNC


def test_tmmigrate_is_refused_by_a_switch_that_does_not_migrate() -> None:
    check_flags("end", TMSUSPEND | TMMIGRATE, 0)
    with pytest.raises(XaError) as raised:
        check_flags("end", TMSUSPEND | TMMIGRATE, TMNOMIGRATE)
    assert raised.value.code is Code.XAER_INVAL
    check_flags("end", TMSUSPEND, TMNOMIGRATE)


def test_flags_in_words() -> None:
    assert flag_names(TMNOFLAGS) == "TMNOFLAGS"
    assert flag_names(TMJOIN | TMNOWAIT) == "TMNOWAIT|TMJOIN"
    assert flag_names(TMJOIN | 0x10) == "TMJOIN|0x10"
    for flag in VERB_FLAGS:
        assert getattr(xa, flag_names(flag)) == flag
