"""What the brokers' exceptions mean, as XA codes.

ActiveMQ Classic writes the code into the message of an XAException (`xaErrorCode:-4`). ActiveMQ Artemis loses it on the
way: what is left is the class and the words. An exception that says neither is unknown (`code_of` gives None), and what
that means depends on what was asked.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from xa import Code

if TYPE_CHECKING:
    from rm_openwire.wire import Throwable

ARTEMIS: Final = "org.apache.activemq.artemis."
"""How the names of classes begin that only Artemis has."""
_MARKED: Final = re.compile(r"xaErrorCode:(-?[0-9]{1,3})")
_FULL: Final = frozenset({"ResourceAllocationException", "ActiveMQAddressFullException"})
"""The classes that say that there is no room for a message."""
_BY_WORDS: Final[tuple[tuple[str, Code], ...]] = (
    ("Transaction not started", Code.XAER_NOTA),
    ("has not been started", Code.XAER_NOTA),
    ("Cannot find xid in resource manager", Code.XAER_NOTA),
    ("Cannot prepare a transaction that had not been started", Code.XAER_NOTA),
    ("there is already a xid", Code.XAER_DUPID),
)
_BY_CLASS: Final[dict[str, Code]] = {
    "ActiveMQTransactionTimeoutException": Code.XA_RBTIMEOUT,
    "ActiveMQTransactionRolledBackException": Code.XA_RBROLLBACK,
    "TransactionRolledBackException": Code.XA_RBROLLBACK,
}


class ConnectionLost(Exception):
    """The connection is lost, or was broken off. What was being asked may have been carried out."""


class Refused(Exception):
    """The broker answered with an exception."""

    def __init__(self, cause: Throwable) -> None:
        super().__init__(str(cause))
        self.cause = cause

    @property
    def code(self) -> Code | None:
        """The XA code that it stands for; None: it says none."""
        return code_of(self.cause)


def code_of(cause: Throwable) -> Code | None:
    """The XA code that an exception of the broker's stands for, or None."""
    marked = _MARKED.search(cause.message)
    if marked is not None:
        number = int(marked[1])
        return Code(number) if number in Code._value2member_map_ else None
    for words, code in _BY_WORDS:
        if words in cause.message:
            return code
    return _BY_CLASS.get(cause.name.rpartition(".")[2])


def rollback_code_of(cause: Throwable) -> Code:
    """The XA_RB* for a branch that is rolled back because of an exception, where that stands for none itself:
    XA_RBTRANSIENT where there was no room."""
    return Code.XA_RBTRANSIENT if cause.name.rpartition(".")[2] in _FULL else Code.XA_RBOTHER


def is_security(cause: Throwable) -> bool:
    """Whether the broker refuses who we are, or what we may do."""
    return "Security" in cause.name or "not authorized" in cause.message or "security" in cause.message.lower()
