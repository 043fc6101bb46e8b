"""Open strings: a database's URL, with settings of ours among its parameters.

    postgresql://user:password@host:port/database?xa_pool_size=20&…

    xa_pool_size       how many transactions may be at work at once (default 20)
    xa_pool_wait_s     how long a transaction waits for a free connection (default 30)
    xa_reply_s         how long a verb waits for the database's answer before the connection is given up (default 60)
    xa_pooler          none, session or transaction: what kind of pooler stands before the database (default none)
    xa_plain_without_tls   true: the server may see the password without having been verified by TLS (default false)

    password_env       the environment variable that holds the password, instead of one in the URL

Everything else goes to the database's own library.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from xa import Code, xa_error
from xa.open_string import OpenString

DECIDER_PREFIX: Final = "decider+"
"""The prefix of an open string, before the URL, when the database is to decide."""
POSTGRES_SCHEMES: Final = ("postgresql", "postgres", "postgresql+psycopg")
_PREFIX: Final = "xa_"
_DEFAULTS: Final = {
    "xa_pool_size": "20",
    "xa_pool_wait_s": "30",
    "xa_reply_s": "60",
    "xa_pooler": "none",
    "xa_plain_without_tls": "false",
}
_FLAGS: Final = {"true": True, "false": False}
_POOLERS: Final = {"none": False, "session": False, "transaction": True}
_LONG_S: Final = 1e6


@dataclass(frozen=True, slots=True)
class Address:
    """An open string taken apart: `url` is without our settings."""

    url: str = field(repr=False)
    pool_size: int
    pool_wait_s: float
    reply_s: float
    pooled: bool
    plain_without_tls: bool = False

    @classmethod
    def parse(cls, open_string: str) -> Address:
        """Reads an open string; XAER_INVAL names what is wrong with it."""
        try:
            found = OpenString.parse(open_string, os.environ)
        except ValueError as error:
            raise xa_error(Code.XAER_INVAL, f"open: {error}") from None
        ours = {name: value for name, value in found.decoded if name.startswith(_PREFIX)}
        unknown = ours.keys() - _DEFAULTS.keys()
        if unknown:
            known = ", ".join(_DEFAULTS)
            raise xa_error(Code.XAER_INVAL, f"open: no such setting: {', '.join(sorted(unknown))}; there are {known}")

        settings = {**_DEFAULTS, **ours}
        try:
            address = cls(
                found.without(ours).url,
                pool_size=int(settings["xa_pool_size"]),
                pool_wait_s=float(settings["xa_pool_wait_s"]),
                reply_s=float(settings["xa_reply_s"]),
                pooled=_POOLERS[settings["xa_pooler"]],
                plain_without_tls=_FLAGS[settings["xa_plain_without_tls"]],
            )
        except (KeyError, ValueError) as error:
            raise xa_error(Code.XAER_INVAL, f"open: a setting of the open string is wrong: {error}") from None
        if address.pool_size < 1 or not 0 < address.pool_wait_s < _LONG_S or not 0 < address.reply_s < _LONG_S:
            raise xa_error(Code.XAER_INVAL, "open: xa_pool_size, xa_pool_wait_s and xa_reply_s are above 0")
        return address
