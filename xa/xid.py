"""Xid: the name of one transaction branch, and its one text form.

Text form, used in logs, in the CLI and as PostgreSQL gid: ``formatid_base64(gtrid)_base64(bqual)``,
the form that pgjdbc and psycopg use. At most 10 + 1 + 88 + 1 + 88 = 188 octets, within PostgreSQL's 199.
A text is an Xid's if and only if formatting the parsed Xid gives the same text back.
"""

from __future__ import annotations

import binascii
import re
from dataclasses import dataclass
from typing import Final

MAX_GTRID: Final = 64
MAX_BQUAL: Final = 64
MAX_FORMAT_ID: Final = 2**31 - 1
NULL_FORMAT_ID: Final = -1

_TEXT: Final = re.compile(r"(-?[0-9]{1,10})_([A-Za-z0-9+/=]*)_([A-Za-z0-9+/=]*)", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Xid:
    """Format id, global transaction id and branch qualifier; all three count in equality and order.

    The format id is a C long in X/Open and a signed 32-bit integer in JTA: 0 to 2³¹−1 are taken, and −1,
    with both other parts empty, is the null XID. gtrid holds 1 to 64 octets, bqual 0 to 64.
    """

    format_id: int
    gtrid: bytes
    bqual: bytes = b""

    def __post_init__(self) -> None:
        format_id, gtrid, bqual = self.format_id, self.gtrid, self.bqual
        if not (
            type(format_id) is int
            and 0 <= format_id <= MAX_FORMAT_ID
            and type(gtrid) is bytes
            and 1 <= len(gtrid) <= MAX_GTRID
            and type(bqual) is bytes
            and len(bqual) <= MAX_BQUAL
        ):
            self._check()

    def _check(self) -> None:
        """The null XID passes; for everything else that gets here, says why it is none."""
        if type(self.gtrid) is not bytes or type(self.bqual) is not bytes:
            raise TypeError(
                f"gtrid and bqual are bytes, not {type(self.gtrid).__name__} and {type(self.bqual).__name__}"
            )
        if type(self.format_id) is not int:
            raise TypeError(f"format id is an int, not {type(self.format_id).__name__}")

        if self.format_id == NULL_FORMAT_ID:
            if self.gtrid or self.bqual:
                raise ValueError("a null XID (format id -1) has neither gtrid nor bqual")
            return
        if not 0 <= self.format_id <= MAX_FORMAT_ID:
            raise ValueError(f"format id {self.format_id} is not between 0 and {MAX_FORMAT_ID}, nor -1 (null)")
        if not 1 <= len(self.gtrid) <= MAX_GTRID:
            raise ValueError(f"gtrid has {len(self.gtrid)} octets, allowed are 1 to {MAX_GTRID}")
        if len(self.bqual) > MAX_BQUAL:
            raise ValueError(f"bqual has {len(self.bqual)} octets, allowed are 0 to {MAX_BQUAL}")

    @property
    def is_null(self) -> bool:
        """Whether this is the null XID."""
        return self.format_id == NULL_FORMAT_ID

    def __str__(self) -> str:
        gtrid = binascii.b2a_base64(self.gtrid, newline=False).decode("ascii")
        bqual = binascii.b2a_base64(self.bqual, newline=False).decode("ascii")
        return f"{self.format_id}_{gtrid}_{bqual}"

    @classmethod
    def parse(cls, text: str) -> Xid:
        """The Xid that `text` is the text form of; ValueError says what is wrong with any other text."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise ValueError(f"not an xid: {text!r} (expected formatid_base64(gtrid)_base64(bqual))")
        try:
            gtrid = binascii.a2b_base64(match[2], strict_mode=True) if match[2] else b""
            bqual = binascii.a2b_base64(match[3], strict_mode=True) if match[3] else b""
            xid = cls(int(match[1]), gtrid, bqual)
        except ValueError as error:  # binascii.Error is one
            raise ValueError(f"not an xid: {text!r} ({error})") from error
        if str(xid) != text:
            raise ValueError(f"not an xid: {text!r} (canonical is {str(xid)!r})")
        return xid


NULL_XID: Final = Xid(NULL_FORMAT_ID, b"", b"")
