"""Xids in the statements of MariaDB and MySQL, and in the answer of XA RECOVER.

Their limits are those of an xid: gtrid and bqual have up to 64 octets each, and the format id up to 31 bits. The parts
are written as hexadecimal literals, because gtrids and bquals may hold any octets.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from xa import Code, Xid, xa_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def encode_xid(xid: Xid) -> bytes:
    """The xid as it follows XA START and the other statements; XAER_INVAL for the null XID, which names no branch."""
    if xid.is_null:
        raise xa_error(Code.XAER_INVAL, "the null XID names no branch")
    return f"X'{xid.gtrid.hex()}',X'{xid.bqual.hex()}',{xid.format_id}".encode("ascii")


def decode_xids(rows: Iterable[tuple[Any, ...]]) -> Iterator[Xid]:
    """The branches in the rows of XA RECOVER: format id, the two lengths, and gtrid and bqual in one. Some of those
    that other software made may be no xids; they are left out."""
    for format_id, gtrid_length, bqual_length, data in rows:
        octets = _octets(data)
        if octets is None or len(octets) != gtrid_length + bqual_length:
            continue
        try:
            yield Xid(int(format_id), octets[:gtrid_length], octets[gtrid_length:])
        except ValueError:
            continue


def _octets(data: Any) -> bytes | None:
    """MariaDB answers with the octets themselves, MySQL is asked for hexadecimal digits behind 0x."""
    if isinstance(data, str):
        try:
            return bytes.fromhex(data.removeprefix("0x"))
        except ValueError:
            return None
    return bytes(data)


def lock_name(xid: Xid) -> str:
    """The name of the user lock that a session holds while it is bound to the branch: it says which session that is.
    (Names have at most 64 characters, an xid may need more.)"""
    octets = b"%d\x00%d\x00" % (xid.format_id, len(xid.gtrid)) + xid.gtrid + xid.bqual
    return f"xabridge-{blake2b(octets, digest_size=16).hexdigest()}"
