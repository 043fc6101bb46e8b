"""These tests check that the fast reader reads and refuses the same as the catalogues."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from dtx.protocol.commands import (
    CONTROL,
    COORDINATION,
    Commit,
    Declare,
    Discharge,
    End,
    Forget,
    GetTimeout,
    Prepare,
    Recover,
    Rollback,
    Start,
)
from dtx.protocol.composites import WireError
from dtx.protocol.fast_commands import read_control, read_coordination
from dtx.protocol.messages import body_value, value_message
from xa import NULL_XID, Xid

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (1, 16, 64)
ROUNDS = 4000


def test_everything_that_is_written_is_read() -> None:
    dice = Random(1)
    for _ in range(ROUNDS):
        said = control(dice)
        assert read_control(value_message(CONTROL.encode(said))) == said
        asked = command(dice)
        assert read_coordination(COORDINATION.encode(asked)) == asked


def test_what_is_damaged_is_what_the_catalogues_say_it_is() -> None:
    dice = Random(2)
    for _ in range(4 * ROUNDS):
        octets = damaged(dice, value_message(CONTROL.encode(control(dice))))
        assert told(read_control, octets) == told(lambda some: CONTROL.decode(body_value(some)), octets), octets
        octets = damaged(dice, COORDINATION.encode(command(dice)))
        assert told(read_coordination, octets) == told(COORDINATION.decode, octets), octets


@given(st.binary(max_size=80))
def test_any_octets_behind_a_usual_beginning(rest: bytes) -> None:
    for kind in (Declare(Start(Xid(1, b"g"))), Discharge(b"t"), End(b"t", prepare=True)):
        octets = value_message(CONTROL.encode(kind)[:-6] + rest)
        assert told(read_control, octets) == told(lambda some: CONTROL.decode(body_value(some)), octets)
    for asked in (Commit(Xid(1, b"g")), Prepare(Xid(1, b"g"))):
        octets = COORDINATION.encode(asked)[:-6] + rest
        assert told(read_coordination, octets) == told(COORDINATION.decode, octets)


def told(read: Callable[[bytes], Any], octets: bytes) -> Any:
    try:
        found = read(octets)
    except WireError as error:
        return error.condition, str(error)
    return found, [type(value) for value in (found.__getstate__() if hasattr(found, "__getstate__") else ())]


def damaged(dice: Random, octets: bytes) -> bytes:
    some = bytearray(octets)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(some) + 1)
        some[at : at + dice.randrange(3)] = dice.choice(
            (b"", b"\x40", b"\x41", b"\xc0", bytes((dice.randrange(6),)), dice.randbytes(1))
        )
    return bytes(some)


def xid(dice: Random) -> Xid:
    return Xid(
        dice.choice((0, 1, 300, 2**31 - 1)), dice.randbytes(dice.choice(SIZES)), dice.randbytes(dice.choice((0, 6, 64)))
    )


def txn_id(dice: Random) -> bytes:
    return dice.randbytes(dice.choice((0, 1, 4, 32)))


def control(dice: Random) -> Declare | Discharge | End:
    kind = dice.randrange(4)
    if kind == 0:
        return Discharge(txn_id(dice), dice.random() < 0.5)
    if kind == 1:
        return End(txn_id(dice), *(dice.random() < 0.5 for _ in range(4)))
    if kind == 2:
        return Declare(Start(xid(dice)) if dice.random() < 0.8 else None)
    flags = dice.choice(((False, False), (True, False), (False, True)))
    named = dice.choice((None, txn_id(dice)))
    return Declare(Start(xid(dice), *flags, named, dice.choice((None, 0, 1, 255, 256, 2**32 - 1))))


def command(dice: Random) -> Any:
    who = NULL_XID if dice.random() < 0.1 else xid(dice)
    flag = dice.random() < 0.5
    return dice.choice(
        (Commit(who, flag), Prepare(who, flag), Rollback(who), GetTimeout(who), Recover(who), Forget(xid(dice)))
    )
