"""The gid of a prepared transaction in PostgreSQL, and the xid that it stands for.

A gid is the text form of the xid (`xa.xid`), which pgjdbc and psycopg use as well. It has at most 188 of PostgreSQL's
199 octets, and only ASCII characters that need no quoting. Other gids in pg_prepared_xacts were chosen by other
software, and may contain any octets that the database's encoding allows. Therefore gids are read as bytes.
"""

from __future__ import annotations

from xa import Code, Xid, xa_error
from xa.xid import NULL_FORMAT_ID


def encode_gid(xid: Xid) -> bytes:
    """The gid of `xid`; XAER_INVAL for the null XID, which names no branch."""
    if xid.format_id == NULL_FORMAT_ID:
        raise xa_error(Code.XAER_INVAL, "the null XID names no branch")
    return str(xid).encode("ascii")


def decode_gid(gid: bytes) -> Xid | None:
    """The xid that `gid` stands for, or None when it is not the text form of an xid."""
    try:
        xid = Xid.parse(gid.decode("ascii"))
    except ValueError:  # UnicodeDecodeError is one
        return None
    return None if xid.is_null else xid
