"""The messages of every transaction as octets, put together without encoding them value by value, because they are most
of what a branch costs a client.

What is written here is what the protocol's catalogues write (a test compares them). All other messages are written, and
read, by the catalogues.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from dtx.amqp.decoding import DecodeError, decode
from dtx.amqp.encoding import encode, encode_list
from dtx.amqp.messages import PROPERTIES, VALUE, read_request
from dtx.amqp.values import Uint, Ulong
from dtx.protocol.commands import (
    CONTROL,
    COORDINATION,
    START,
    XID_TYPE,
    Commit,
    Declare,
    Discharge,
    End,
    Forget,
    Prepare,
    Rollback,
)
from dtx.protocol.conditions import CODE_OF
from dtx.protocol.replies import decode_reply
from xa import Code

if TYPE_CHECKING:
    from dtx.amqp.composites import Composite
    from dtx.protocol.commands import Coordination, Start
    from dtx.protocol.replies import Reply
    from xa import Xid

NULL: Final = b"\x40"
TRUE: Final = b"\x41"
FALSE: Final = b"\x42"
SHORT: Final = 64
"""Octets of a reply that is remembered."""


def _begins(composite: Composite[object]) -> bytes:
    return b"\x00" + encode(composite.sent)


_PROPERTIES: Final = b"\x00" + encode(Ulong(PROPERTIES))
_VALUE: Final = b"\x00" + encode(Ulong(VALUE))
_DECLARE: Final = _begins(CONTROL.by_type[Declare])
_DISCHARGE: Final = _begins(CONTROL.by_type[Discharge])
_END: Final = _begins(CONTROL.by_type[End])
_XID: Final = _begins(XID_TYPE)
_START: Final = _begins(START)
_COMMIT: Final = _begins(COORDINATION.by_type[Commit])
_SIMPLE: Final[dict[type, bytes]] = {kind: _begins(COORDINATION.by_type[kind]) for kind in (Prepare, Rollback, Forget)}
_CORRELATION: Final = b"\x06" + 5 * NULL
"""Behind the size of the properties of a response: six fields, of which five are null."""


def _binary(octets: bytes) -> bytes:
    return b"\xa0" + bytes((len(octets),)) + octets if len(octets) < 256 else encode(octets)


def _list(count: int, items: bytes) -> bytes:
    """A list of so many values, which are encoded already."""
    if len(items) < 255:
        return bytes((0xC0, len(items) + 1, count)) + items
    return b"\xd0" + (len(items) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + items


@lru_cache(maxsize=64)
def _format(format_id: int) -> bytes:
    return encode(Uint(format_id & 0xFFFF_FFFF))


@lru_cache(maxsize=1024)
def _xid(xid: Xid) -> bytes:
    gtrid, bqual = xid.gtrid, xid.bqual  # of 64 octets at most
    items = _format(xid.format_id) + b"\xa0" + bytes((len(gtrid),)) + gtrid
    if bqual:
        items += b"\xa0" + bytes((len(bqual),)) + bqual
    return _XID + bytes((0xC0, len(items) + 1, 3 if bqual else 2)) + items


def start_message(start: Start) -> bytes:
    """The octets of a declare that starts work. Null fields at the end of a start are left out."""
    fields = [
        _xid(start.xid),
        TRUE if start.join else NULL,
        TRUE if start.resume else NULL,
        NULL if start.txn_id is None else _binary(start.txn_id),
        NULL if start.timeout_s is None else encode(Uint(start.timeout_s)),
    ]
    while fields[-1] == NULL:
        fields.pop()
    started = fields[0] if len(fields) == 1 else _START + _list(len(fields), b"".join(fields))
    return _VALUE + _DECLARE + _list(1, started)


def control_message(command: Declare | Discharge | End) -> bytes:
    """The octets that go over a control link."""
    if type(command) is Declare and command.start is not None:
        return start_message(command.start)
    if type(command) is Discharge:
        txn_id = _binary(command.txn_id)
        return _VALUE + _DISCHARGE + (_list(2, txn_id + TRUE) if command.fail else _list(1, txn_id))
    if type(command) is End and command.prepare and not (command.fail or command.suspend or command.keep):
        return _VALUE + _END + _list(4, _binary(command.txn_id) + NULL + NULL + TRUE)
    return _VALUE + CONTROL.encode(command)


def whole_discharge(txn_id: bytes, *, fail: bool) -> bytes:
    """A discharge that says `fail` where it could be left out: not every broker reads one that does not (Artemis)."""
    return _VALUE + _DISCHARGE + _list(2, _binary(txn_id) + (TRUE if fail else FALSE))


def coordination(command: Coordination) -> bytes:
    """The body of a request on a command channel."""
    if type(command) is Commit and command.xid.format_id >= 0:
        return _COMMIT + (_list(2, _xid(command.xid) + TRUE) if command.one_phase else _list(1, _xid(command.xid)))
    begins = _SIMPLE.get(type(command))
    if begins is None or command.xid.format_id < 0 or (type(command) is Prepare and command.keep):  # type: ignore[union-attr]
        return COORDINATION.encode(command)
    return begins + _list(1, _xid(command.xid))  # type: ignore[union-attr]


class Requests:
    """Writes the requests of one command channel, whose responses go to `reply_to`. They are distinguished by
    number."""

    def __init__(self, reply_to: str) -> None:
        items = [NULL, NULL, NULL, NULL, encode(reply_to), b"\x80" + bytes(8)]
        self._begins = _PROPERTIES + encode_list(items)[:-8]

    def write(self, number: int, body: bytes) -> bytes:
        """A request; its body is a command (`coordination`)."""
        return b"".join((self._begins, number.to_bytes(8, "big"), _VALUE, body))


def read_response(octets: bytes) -> tuple[int | None, bytes]:
    """The number of the request that is answered, None for none, and the answer, still encoded; WireError where it is
    no response."""
    if octets.startswith(_PROPERTIES + b"\xc0") and octets[5:11] == _CORRELATION:
        at = {0x80: 20, 0x53: 13}.get(octets[11], 0)
        if octets[4] + 5 == at and octets.startswith(_VALUE, at):
            return int.from_bytes(octets[12:at], "big"), octets[at + len(_VALUE) :]
    response = read_request(octets)
    return (int(response.correlation) if type(response.correlation) is Ulong else None), response.body


@lru_cache(maxsize=64)
def read_vote(fields: bytes | None) -> Code:
    """The result of an end with prepare, from the fields of its outcome; XAER_RMERR for what is no vote."""
    try:
        found = decode(fields or b"")
    except DecodeError:
        return Code.XAER_RMERR
    status = found[0] if isinstance(found, list) and found else None
    return CODE_OF.get(status, Code.XAER_RMERR) if isinstance(status, int) else Code.XAER_RMERR


def read_reply(octets: bytes) -> Reply:
    """The content of a response; WireError if it can't be understood."""
    return _short_reply(octets) if len(octets) <= SHORT else decode_reply(octets)


_short_reply: Final = lru_cache(maxsize=64)(decode_reply)
