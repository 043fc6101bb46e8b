"""The gid of a prepared transaction in PostgreSQL, and the xid that it stands for.

A gid is the xid's one text form (`xa.xid`), the form that pgjdbc and psycopg write, at most 188 of PostgreSQL's 199
octets, and of ASCII characters that need no quoting. Whatever else stands in pg_prepared_xacts was named by somebody
else, in any octets that the database's encoding allows, so gids are read as bytes.
"""

from __future__ import annotations

from xa import Code, Xid, xa_error


def encode_gid(xid: Xid) -> bytes:
    """The gid of `xid`; XAER_INVAL for the null XID, which names no branch."""
    if xid.is_null:
        raise xa_error(Code.XAER_INVAL, "the null XID names no branch")
    return str(xid).encode("ascii")


def decode_gid(gid: bytes) -> Xid | None:
    """The xid that `gid` stands for, or None when it is none: somebody else's naming."""
    try:
        xid = Xid.parse(gid.decode("ascii"))
    except ValueError:  # UnicodeDecodeError is one
        return None
    return None if xid.is_null else xid
