"""These tests pin the public names of rm_amqp and what importing them loads. They try every pair of state and event of
the client's machines below XA: connection, link and work.
"""

from __future__ import annotations

from itertools import product

import pytest

import rm_amqp
from rm_amqp.channel.work import WORK, Work, WorkEvent, WorkState
from rm_amqp.connection.endpoint import ENDPOINT, EndpointEvent, EndpointState
from rm_amqp.connection.links import LINK, LinkEvent, LinkState
from tests.programs import check_exports, loaded_by
from xa import NULL_XID


def test_public_names() -> None:
    names = "AmqpResource AsyncSession DecidingBroker Environment Message MessagingSession NoMessage Session Settings"
    check_exports(rm_amqp, f"{names} deciding dynamic static")


def test_what_is_loaded_only_when_it_is_used() -> None:
    modules = loaded_by("from rm_amqp import Message")
    assert "rm_amqp.message" in modules
    others = {"rm_amqp.connections", "rm_amqp.decider", "ssl", "asyncio", "proton", "cproton"}
    assert not others & {name for module in modules for name in (module, module.partition(".")[0])}


def test_a_connection_that_is_lost_is_never_found_again() -> None:
    assert {state for state, _ in ENDPOINT} == {EndpointState.OPENING, EndpointState.OPEN}
    for state in (EndpointState.OPENING, EndpointState.OPEN):
        assert ENDPOINT[state, EndpointEvent.LOSE] is EndpointState.LOST


def test_a_link_that_is_over_stays_what_it_is() -> None:
    living = {LinkState.ATTACHING, LinkState.ATTACHED}
    over = {
        LinkEvent.DETACH: LinkState.DETACHED,
        LinkEvent.CLOSE: LinkState.CLOSED,
        LinkEvent.LOSE: LinkState.LOST,
    }
    for state, event in product(LinkState, LinkEvent):
        target = LINK.get((state, event))
        if state not in living:
            assert target is None
        elif event in over:
            assert target is over[event]
        else:
            assert target is (LinkState.ATTACHED if state is LinkState.ATTACHING else None)


def test_work_begins_before_it_ends() -> None:
    """What has no row is an error, and leaves the state as it is."""
    for state, event in product(WorkState, WorkEvent):
        work = Work(NULL_XID)
        work.state = state
        if (state, event) in WORK:
            work.move(event)
            assert work.state is WORK[state, event]
        else:
            with pytest.raises(KeyError):
                work.move(event)
            assert work.state is state
    after = {event: target for (state, event), target in WORK.items() if state is WorkState.ENDED}
    assert after == dict.fromkeys((WorkEvent.LEAVE, WorkEvent.END), WorkState.ENDED), "only what is repeated"
