"""The addresses that a resource keeps for itself, and the keys that go with them."""

from __future__ import annotations

from typing import Final

from xa import Xid

RESERVED: Final = "$"
"""The beginning of every address of the resource itself."""

COORDINATION: Final = "$dtx"
"""Target of the command channel's requests."""

MANAGEMENT: Final = "$management"
"""Target of requests about queues, connections and branches."""

DYNAMIC: Final = "$reply/"
"""The beginning of the addresses of dynamic nodes."""

_BRANCH: Final = "$branch/"
BRANCH_WORK: Final = ("all", "retired", "posted")
"""The kinds of work that a browse of a branch may ask for."""

DEPTH: Final = "$depth/"
"""Before the name of a queue: the source of one message, whose body is how many messages are available there now."""

TXN_ID: Final = "txn-id"
"""The key in a flow's properties: what the link acquires from now on belongs to this transaction."""

ORIGIN_QUEUE: Final = "x-xabridge-queue"
ORIGIN_WORK: Final = "x-xabridge-work"
"""Delivery annotations of a browsed branch's messages: the queue, and `retired` or `posted`."""


def branch_address(xid: Xid, work: str = "all") -> str:
    """The source address that browses what a prepared branch holds: all of it, or the messages that it
    retires as accepted, or those that it posts."""
    if work not in BRANCH_WORK:
        raise ValueError(f"{work!r}: a branch's work is one of {', '.join(BRANCH_WORK)}")
    return f"{_BRANCH}{work}/{xid}"


def parse_branch_address(address: str) -> tuple[Xid, str] | None:
    """Whose work of what kind an address browses; None where it is no such address. ValueError: a wrong
    one."""
    if not address.startswith(_BRANCH):
        return None
    work, separator, text = address.removeprefix(_BRANCH).partition("/")
    if not separator or work not in BRANCH_WORK:
        raise ValueError(f"{address!r}: expected {_BRANCH}all, retired or posted, and an xid")
    return Xid.parse(text), work
