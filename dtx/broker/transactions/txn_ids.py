"""TxnIds: the txn-ids of one connection, what each of them stands for, and the states of deliveries that name them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.broker.queues.outcomes import read_state
from dtx.broker.transactions.contexts import unknown_id
from dtx.protocol.conditions import RefusedError, refused
from xa import Code

if TYPE_CHECKING:
    from dtx.broker.queues.outcomes import Outcome
    from dtx.broker.transactions.contexts import WorkContext
    from dtx.protocol.conditions import Refusal

MAX_STATES: Final = 1000
LONGEST: Final = 256
"""Octets of a state that may come many times."""


class TxnIds:
    """At most `limit` txn-ids at once. `live` are those in use, on every session of the connection."""

    __slots__ = ("_limit", "_number", "_states", "live")

    def __init__(self, limit: int) -> None:
        self.live: dict[bytes, WorkContext] = {}
        self._limit = limit
        self._number = 0
        self._states: dict[bytes, tuple[bytes | None, Outcome | None]] = {}

    def new(self) -> bytes:
        """A txn-id that the connection has not in use. RefusedError: it has as many as it may."""
        if len(self.live) >= self._limit:
            message = f"a connection may have {self._limit} transactions at once"
            raise refused(Code.XAER_RMERR, message, condition=Condition.RESOURCE_LIMIT)
        while True:
            self._number += 1
            txn_id = (self._number & 0xFFFF_FFFF).to_bytes(4, "big")
            if txn_id not in self.live:
                return txn_id

    def context(self, txn_id: bytes) -> WorkContext:
        """The transaction; RefusedError where there is none."""
        context = self.live.get(txn_id)
        if context is None:
            raise RefusedError(unknown_id(txn_id))
        return context

    def drop(self, context: WorkContext) -> None:
        """The txn-id of a transaction is no longer in use."""
        self.live.pop(context.txn_id, None)

    def refuse_success(self, state: bytes, refusal: Refusal) -> None:
        """The transaction that `state` names can't succeed without what is left out; it may name none."""
        with suppress(WireError):
            context = self.live.get(self.read(state)[0] or b"")
            if context is not None:
                context.refuse_success(refusal)

    def read(self, octets: bytes) -> tuple[bytes | None, Outcome | None]:
        """txn-id and outcome of a delivery state, as `read_state` has them. The same state comes many times."""
        found = self._states.get(octets)
        if found is None:
            found = read_state(octets)
            if len(octets) > LONGEST:
                return found
            if len(self._states) >= MAX_STATES:
                self._states.clear()
            self._states[octets] = found
        return found
