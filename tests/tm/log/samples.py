"""This module makes decisions and heuristic outcomes for tests to log."""

from __future__ import annotations

from tm.log import Branch, Decision, Heuristic
from xa import FORMAT_ID, Code, Gtrid, Xid

LOG_ID = b"\x01\x02\x03\x04\x05\x06\x07\x08"


def gtrid(sequence: int, incarnation: int = 1, node: str = "orders-1", log_id: bytes = LOG_ID) -> bytes:
    """The gtrid of transaction `sequence`."""
    return Gtrid(node, log_id, incarnation, sequence).encode()


def decision(sequence: int, branches: int = 2, node: str = "orders-1") -> Decision:
    """A decision like those of the transaction manager."""
    name = gtrid(sequence, node=node)
    return Decision(name, tuple(Branch(f"rm{n}", Xid(FORMAT_ID, name, b"rm%d" % n)) for n in range(branches)))


def heuristic(sequence: int, code: Code = Code.XA_HEURRB, node: str = "orders-1") -> Heuristic:
    """A heuristic outcome of the first branch of transaction `sequence`."""
    return Heuristic(decision(sequence, node=node).branches[0], code)
