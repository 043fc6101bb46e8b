"""These tests cover the custody of a message at a consumer: every state with every verb."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from dtx.broker.endpoint.delivery_states import CUSTODY, Custody, CustodyVerb
from dtx.broker.endpoint.outgoing_delivery import OutgoingDelivery
from dtx.broker.queues.outcomes import FAILED
from dtx.broker.transactions.transactional_work import Retirement
from tests.cases import each
from xa import Code
from xa.machine import IllegalTransition, advance

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.broker.endpoint.outgoing_link import OutgoingLink
    from dtx.broker.queues.entry import Entry
    from dtx.broker.transactions.contexts import WorkContext


pytestmark = pytest.mark.pure  # the deliveries have no link, which compiled code refuses


class Transaction:
    """What a delivery knows of its transaction."""

    txn_id = b"txn"


LEADS_TO = {
    (Custody.FREE, CustodyVerb.HOLD): Custody.HELD,
    (Custody.FREE, CustodyVerb.DECIDE): Custody.DECIDED,
    (Custody.HELD, CustodyVerb.REVERT): Custody.FREE,
    (Custody.ENDED, CustodyVerb.REVERT): Custody.ENDED,
    **{(state, CustodyVerb.END): Custody.ENDED for state in Custody},
}
WAYS = {
    Custody.FREE: (),
    Custody.HELD: (CustodyVerb.HOLD,),
    Custody.DECIDED: (CustodyVerb.DECIDE,),
    Custody.ENDED: (CustodyVerb.END,),
}
"""How a delivery comes into each state."""


def delivery_in(state: Custody) -> OutgoingDelivery:
    """A delivery whose message and link nobody looks at."""
    delivery = OutgoingDelivery(cast("OutgoingLink", None), cast("Entry", None), FAILED)
    for verb in WAYS[state]:
        happens(delivery, verb)
    assert delivery.custody is state
    return delivery


def happens(delivery: OutgoingDelivery, verb: CustodyVerb) -> None:
    context = cast("WorkContext", Transaction())
    retirement = Retirement(cast("Entry", None), None, delivery)
    methods: dict[CustodyVerb, Callable[[], None]] = {
        CustodyVerb.HOLD: lambda: delivery.hold(context, retirement),
        CustodyVerb.REVERT: delivery.reverted,
        CustodyVerb.DECIDE: delivery.decide,
        CustodyVerb.END: delivery.end,
    }
    methods[verb]()


@each("verb", list(CustodyVerb))
@each("state", list(Custody))
def test_every_verb_in_every_state(state: Custody, verb: CustodyVerb) -> None:
    """A delivery has a transaction if and only if one holds it."""
    delivery = delivery_in(state)
    target = LEADS_TO.get((state, verb))
    if target is None:
        before = delivery.context, delivery.retirement
        with pytest.raises(IllegalTransition) as raised:
            happens(delivery, verb)
        assert raised.value.code is Code.XAER_PROTO
        assert (delivery.context, delivery.retirement) == before
    else:
        assert advance(CUSTODY, state, verb) is target
        happens(delivery, verb)
    assert delivery.custody is (target or state)
    held = delivery.custody is Custody.HELD
    assert [delivery.context is not None, delivery.retirement is not None] == [held, held]


def test_a_delivery_remembers_the_transaction_that_was_rolled_back() -> None:
    delivery = delivery_in(Custody.HELD)
    delivery.reverted()
    assert delivery.ended == Transaction.txn_id
