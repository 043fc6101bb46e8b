"""A loop without a consumer: `begin`, `receive`, work. What a resource that is away, or another transaction in the way,
makes of a transaction counts for no message; what the work itself fails with does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pytest
from proton.utils import BlockingConnection

from tests.rm_amqp.embedded import EmbeddedBroker
from tests.tm.consumer.stall import Stall
from tm import RolledBack, Transaction
from xa import Code, ResourceError, xa_error
from xabridge.testing.reference import NetworkFault

LIMIT: Final = 10
"""Deliveries in vain after which the broker makes a dead letter of a message."""


def write(stall: Stall, tx: Transaction) -> None:
    """The work of one turn of the loop."""
    message = tx["broker"].receive(stall.queue, 5)
    tx["shop"].write(message.body, message.delivery_count)


def in_a_block(stall: Stall) -> None:
    with stall.manager.begin() as tx:
        write(stall, tx)


def in_a_task(stall: Stall) -> None:
    async def turn() -> None:
        async with stall.manager.begin() as tx:
            write(stall, tx)

    asyncio.run(turn())


def by_hand(stall: Stall) -> None:
    tx = stall.manager.begin()
    try:
        write(stall, tx)
    except BaseException:
        tx.rollback()
        raise
    tx.commit()


def in_a_function(stall: Stall) -> None:
    @stall.manager.transactional
    def turn() -> None:
        write(stall, stall.manager.get_transaction())

    turn()


def with_the_error_hidden(stall: Stall) -> None:
    """The transaction is marked, and rolled back by its commit."""
    with stall.manager.begin() as tx:
        message = tx["broker"].receive(stall.queue, 5)
        try:
            tx["shop"].write(message.body, message.delivery_count)
        except RolledBack:
            return


LOOPS: Final = [in_a_block, in_a_task, by_hand, in_a_function, with_the_error_hidden]


@pytest.mark.parametrize("turn", LOOPS)
def test_a_resource_that_is_away_uses_up_no_delivery(stall: Stall, turn: Callable[[Stall], None]) -> None:
    stall.put("a")
    stall.store.script.plan("start", fate=NetworkFault.REQUEST_LOST, times=LIMIT + 2)
    failed = 0
    while stall.store.script.pending():
        try:
            turn(stall)
        except RolledBack:
            failed += 1
    assert failed > LIMIT
    turn(stall)
    assert stall.store.data == {"a": 0}, "the broker has counted none of them"
    assert stall.letters() == []


@pytest.mark.parametrize(
    ("error", "count"),
    [
        (xa_error(Code.XA_RBDEADLOCK, "another transaction"), 0),
        (xa_error(Code.XAER_RMFAIL, "away"), 0),
        (ValueError("the program's own"), 1),
        (xa_error(Code.XA_RBINTEGRITY, "no such customer"), 1),
    ],
    ids=str,
)
def test_what_the_work_itself_fails_with_counts(stall: Stall, error: Exception, count: int) -> None:
    stall.put("a")
    with pytest.raises(type(error)), stall.manager.begin() as tx:
        tx["broker"].receive(stall.queue, 5)
        raise error
    in_a_block(stall)
    assert stall.store.data == {"a": count}


def test_what_can_not_be_read_goes_to_the_dead_letters_where_the_error_is_caught(
    stall: Stall, broker: EmbeddedBroker
) -> None:
    """As the error says. Otherwise it comes again."""
    connection = BlockingConnection(broker.address)
    sender = connection.create_sender(stall.queue)
    delivery = sender.link.delivery("1")
    sender.link.stream(b"\x00\x53\x77\x73\x6b\x81\xac\x27")  # a char that is none
    sender.link.advance()
    connection.wait(lambda: delivery.remote_state != 0)
    connection.close()

    def depth(queue: str) -> int:
        return broker.inside(lambda broker: broker.container.resource.queues[queue].depth)

    with pytest.raises(ResourceError, match="Catch this and commit"), stall.manager.begin() as tx:
        tx["broker"].receive(stall.queue, 5)
    assert depth(stall.queue) == 1
    with stall.manager.begin() as tx, pytest.raises(ResourceError, match="goes to the dead letters"):
        tx["broker"].receive(stall.queue, 5)
    assert (depth(stall.queue), depth(f"{stall.queue}.dead")) == (0, 1)
