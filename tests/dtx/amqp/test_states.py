"""The tables of the endpoint: total over state and verb, and every state can be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtx.amqp.states import (
    CONNECTION,
    DELIVERY,
    LINK,
    SESSION,
    ConnectionState,
    ConnectionVerb,
    DeliveryState,
    DeliveryVerb,
    LinkState,
    LinkVerb,
    SessionState,
    SessionVerb,
)
from tests.cases import each
from xa.machine import Machine, Result, advance

if TYPE_CHECKING:
    from enum import Enum

AnyMachine = Machine[Any, Any]
MACHINES = (CONNECTION, SESSION, LINK, DELIVERY)
LAST: dict[str, tuple[Enum, Enum]] = {
    CONNECTION.name: (ConnectionState.END, ConnectionVerb.LOSE),
    SESSION.name: (SessionState.ENDED, SessionVerb.LOSE),
    LINK.name: (LinkState.GONE, LinkVerb.LOSE),
    DELIVERY.name: (DeliveryState.SETTLED, DeliveryVerb.LOSE),
}
UNANSWERED = {ConnectionState.HDR_RCVD, ConnectionState.OPEN_RCVD, SessionState.BEGIN_RCVD, LinkState.ATTACH_RCVD}
"""Where an end owes an answer, and reads nothing more before it has given it."""


def members(kind: type[Enum]) -> list[Any]:
    return list(kind)


@each("machine", MACHINES)
def test_every_state_is_reached_and_left_and_a_loss_ends_it(machine: AnyMachine) -> None:
    """Every state but the last one is left; and what happens has one result."""
    assert {result for _, _, result, _, _ in machine.transitions()} == {Result.OK}
    reached = {machine.initial}
    for _ in members(machine.states):
        reached |= {target for state, _, _, target, _ in machine.transitions() if state in reached}
    assert reached == set(members(machine.states))
    last, lose = LAST[machine.name]
    for state in members(machine.states):
        leaves = {target for source, _, _, target, _ in machine.transitions() if source is state} - {state}
        assert bool(leaves) == (state is not last)
        assert advance(machine, state, lose) is last


def test_a_sender_and_a_receiver_of_the_same_frames_are_never_at_odds() -> None:
    """The tables of both ends, driven by the same frames in every order in which they can cross: what one end may send,
    the other one may receive, whatever it has sent meanwhile."""
    for machine, pairs in (
        (
            SESSION,
            {
                SessionVerb.SEND_BEGIN: SessionVerb.RECEIVE_BEGIN,
                SessionVerb.SEND_END: SessionVerb.RECEIVE_END,
                SessionVerb.SEND_ERROR: SessionVerb.RECEIVE_END,
            },
        ),
        (
            LINK,
            {
                LinkVerb.SEND_ATTACH: LinkVerb.RECEIVE_ATTACH,
                LinkVerb.SEND_DETACH: LinkVerb.RECEIVE_DETACH,
            },
        ),
        (
            CONNECTION,
            {
                ConnectionVerb.SEND_HEADER: ConnectionVerb.RECEIVE_HEADER,
                ConnectionVerb.SEND_OPEN: ConnectionVerb.RECEIVE_OPEN,
                ConnectionVerb.SEND_CLOSE: ConnectionVerb.RECEIVE_CLOSE,
                ConnectionVerb.SEND_ERROR: ConnectionVerb.RECEIVE_CLOSE,
            },
        ),
    ):
        crossings(machine, pairs)


def crossings(machine: AnyMachine, pairs: dict[Any, Any]) -> None:
    """Explores both ends with the frames between them. A frame that a receiver has no row for is found."""
    start = (machine.initial, machine.initial, (), ())
    seen, front = {start}, [start]
    while front:
        state = front.pop()
        for side in (0, 1):
            own, inbound, outbound = state[side], state[2 + side], state[3 - side]
            moves: list[tuple[Any, tuple[Any, ...], tuple[Any, ...]]] = []
            for send, receive in pairs.items():
                if machine.refusal(own, send) is None and answers(machine, own, state[1 - side], inbound, send):
                    moves.append((advance(machine, own, send), inbound, (*outbound, receive)))
            if inbound and own not in UNANSWERED:
                moves.append((advance(machine, own, inbound[0]), inbound[1:], outbound))
            for after, came, went in moves:
                ends = (after, state[1 - side]) if side == 0 else (state[0], after)
                wires = (came, went) if side == 0 else (went, came)
                found = (*ends, *wires)
                if found not in seen:
                    seen.add(found)
                    front.append(found)


def answers(machine: AnyMachine, own: Any, other: Any, inbound: tuple[Any, ...], send: Any) -> bool:
    """One end begins a session or attaches a link, and the other one answers that: both at once would be two."""
    begins = send is SessionVerb.SEND_BEGIN or send is LinkVerb.SEND_ATTACH
    if not begins or own is not machine.initial:
        return True
    return other is machine.initial and not inbound
