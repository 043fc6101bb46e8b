"""A fast path for the commands that every transaction sends: they are read from the octets directly.

Decoding them into values first was a tenth of what a branch costs a broker. The fast path takes a command only in its
usual encoding: lists and binaries with sizes of one octet, small numbers, no join and no resume. Everything else, and
whatever is wrong, is left to the catalogues of `dtx.protocol.commands`. The result is the same in both ways; a test
compares them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from dtx.protocol.commands import (
    CONTROL,
    COORDINATION,
    MAX_TXN_ID,
    START,
    XID_TYPE,
    Commit,
    Declare,
    Discharge,
    End,
    Prepare,
    Rollback,
    Start,
    xid_from_wire,
)
from dtx.protocol.decoding import decode
from dtx.protocol.encoding import encode
from dtx.protocol.messages import body_value

if TYPE_CHECKING:
    from dtx.protocol.commands import Coordination
    from dtx.protocol.composites import Composite
    from xa import Xid

LIST: Final = 0xC0
BINARY: Final = 0xA0
NULL: Final = 0x40
VALUE: Final = b"\x00\x53\x77"
FLAGS: Final = {NULL: False, 0x41: True, 0x42: False}
XIDS: Final = 1024
"""Xids that are remembered: each is read twice or three times."""


class _UnusualError(Exception):
    """The catalogue has to read it."""


def _begins(composite: Composite[Any]) -> bytes:
    return b"\x00" + encode(composite.sent)


_DECLARE: Final = VALUE + _begins(CONTROL.by_type[Declare])
_DISCHARGE: Final = VALUE + _begins(CONTROL.by_type[Discharge])
_END: Final = VALUE + _begins(CONTROL.by_type[End])
_XID: Final = _begins(XID_TYPE)
_START: Final = _begins(START)
_PREPARE, _COMMIT, _ROLLBACK = (_begins(COORDINATION.by_type[kind]) for kind in (Prepare, Commit, Rollback))


def read_control(octets: bytes) -> Declare | Discharge | End:
    """What a message on a control link says; WireError where it says nothing that belongs there."""
    command: Declare | Discharge | End
    try:
        if octets.startswith(_DISCHARGE):
            return Discharge(*_txn_id_and_flags(octets, len(_DISCHARGE), 1))
        if octets.startswith(_END):
            return End(*_txn_id_and_flags(octets, len(_END), 4))
        if octets.startswith(_DECLARE):
            return _declare(octets, len(_DECLARE))
    except (_UnusualError, IndexError, KeyError, ValueError):
        pass
    command = CONTROL.decode(body_value(octets))
    return command


def read_coordination(octets: bytes) -> Coordination:
    """What the body of a request on a command channel says; WireError where it says nothing that belongs there."""
    command: Coordination
    try:
        if octets.startswith(_COMMIT):
            return Commit(*_xid_and_flag(octets, len(_COMMIT), 1))
        if octets.startswith(_PREPARE):
            return Prepare(*_xid_and_flag(octets, len(_PREPARE), 1))
        if octets.startswith(_ROLLBACK):
            return Rollback(*_xid_and_flag(octets, len(_ROLLBACK), 0))
    except (_UnusualError, IndexError, KeyError, ValueError):
        pass
    command = COORDINATION.decode(octets)
    return command


def _items(octets: bytes, at: int, stop: int) -> tuple[int, int]:
    """How many items the list at `at` has, which is to end at `stop`, and where the first one is."""
    if octets[at] != LIST or at + 2 + octets[at + 1] != stop:
        raise _UnusualError
    return octets[at + 2], at + 3


def _flags(octets: bytes, at: int, stop: int, count: int, most: int) -> list[bool]:
    """The `count` booleans that stand from `at` to `stop`."""
    if not 0 <= count <= most or at + count != stop:
        raise _UnusualError
    return [FLAGS[octets[number]] for number in range(at, stop)]


def _txn_id(octets: bytes, at: int) -> tuple[bytes, int]:
    stop = at + 2 + octets[at + 1]
    if octets[at] != BINARY or octets[at + 1] > MAX_TXN_ID or stop > len(octets):
        raise _UnusualError
    return octets[at + 2 : stop], stop


def _txn_id_and_flags(octets: bytes, at: int, most: int) -> tuple[Any, ...]:
    stop = len(octets)
    count, at = _items(octets, at, stop)
    txn_id, at = _txn_id(octets, at)
    return txn_id, *_flags(octets, at, stop, count - 1, most)


def _xid_and_flag(octets: bytes, at: int, most: int) -> tuple[Any, ...]:
    stop = len(octets)
    count, at = _items(octets, at, stop)
    xid, at = _xid(octets, at)
    return xid, *_flags(octets, at, stop, count - 1, most)


def _xid(octets: bytes, at: int) -> tuple[Xid, int]:
    if not octets.startswith(_XID, at):
        raise _UnusualError
    head = at + len(_XID)
    stop = head + 2 + octets[head + 1]
    if octets[head] != LIST or stop > len(octets):
        raise _UnusualError
    return _known(octets[at:stop]), stop


@lru_cache(maxsize=XIDS)
def _known(octets: bytes) -> Xid:
    return xid_from_wire(decode(octets))


def _declare(octets: bytes, at: int) -> Declare:
    stop = len(octets)
    count, at = _items(octets, at, stop)
    if count != 1:
        raise _UnusualError
    if octets.startswith(_XID, at):
        xid, end = _xid(octets, at)
        txn_id, timeout_s = None, None
    elif octets.startswith(_START, at):
        xid, txn_id, timeout_s = _start(octets, at + len(_START), stop)
        end = stop
    else:
        raise _UnusualError
    if end != stop or xid.is_null:
        raise _UnusualError
    return Declare(Start(xid, txn_id=txn_id, timeout_s=timeout_s))


def _start(octets: bytes, at: int, stop: int) -> tuple[Xid, bytes | None, int | None]:
    count, at = _items(octets, at, stop)
    xid, at = _xid(octets, at)
    if not 4 <= count <= 5 or octets[at] != NULL or octets[at + 1] != NULL:
        raise _UnusualError
    at += 2
    txn_id: bytes | None = None
    if octets[at] == NULL:
        at += 1
    else:
        txn_id, at = _txn_id(octets, at)
    timeout_s: int | None = None
    if count == 5:
        width = {0x52: 1, 0x70: 4}[octets[at]]
        timeout_s = int.from_bytes(octets[at + 1 : at + 1 + width], "big")
        at += 1 + width
    if at != stop:
        raise _UnusualError
    return xid, txn_id, timeout_s
