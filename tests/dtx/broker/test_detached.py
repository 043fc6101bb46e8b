"""What a receiver says of deliveries when it has detached their link without closing it.

"As long as the links have not been closed or detached with an error then the deliveries are still "live" and the
updated state MUST be applied" (2.7.6). The session's end is the last word: the expiry-policy of such a source is
session-end (3.5.6)."""

from __future__ import annotations

from typing import Any

import pytest

from dtx.amqp.encoding import encode
from dtx.amqp.messages import value_message
from dtx.amqp.values import Described, Symbol, Uint, Ulong
from dtx.broker.settings import Limits, QueueSettings, Settings
from dtx.protocol.replies import ACCEPTED, MODIFIED, REJECTED, RELEASED
from tests.dtx.broker.peer import World, dead, flow, frame
from tests.dtx.broker.strangers import (
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    TRANSFER,
    Stranger,
    attach_answer,
    connected,
    coordinator,
    node,
    received,
    said,
    selecting,
    source,
    terminus,
)


def holding(world: World, count: int = 1, stranger: Stranger | None = None, handle: int = 0, **asked: Any) -> Stranger:
    """A receiver that has so many messages of q, and has detached its link without closing it."""
    stranger = stranger or connected(world)
    stranger.attach(handle, source=source("q", **asked), receiver=True)
    stranger.told()
    stranger.say(flow(handle, 0, count, None))
    world.pump()
    stranger.listen()
    stranger.told()
    stranger.say(frame(DETACH, [Uint(handle), False]))
    (answer,) = said(stranger.told(), DETACH)
    assert len(answer) < 2 or not answer[1], "it is not closed"
    return stranger


def says(stranger: Stranger, outcome: Any, *, number: int = 0, settled: bool = True) -> None:
    """Sends the state of a delivery."""
    stranger.say(frame(DISPOSITION, [True, Uint(number), None, settled, outcome]))


def filled(*bodies: str, settings: Settings | None = None) -> World:
    """A world with these messages in q."""
    world = World(settings)
    peer = world.connect()
    peer.fill("q", *bodies)
    return world


def outcome(code: int, *fields: Any) -> Described:
    """An outcome."""
    return Described(Ulong(code), list(fields))


def waiting(world: World) -> list[str]:
    """What another consumer can have of q."""
    return [str(one) for one in world.connect().drained("q")]


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("select", [False, True])
def test_an_accept_behind_the_receivers_detach_is_applied(*, settled: bool, select: bool) -> None:
    """The message is not given to anybody else before, nor afterwards; the outcome is durable when it is answered."""
    world = filled("x", "y")
    stranger = holding(world, filters=selecting("TRUE = TRUE") if select else None)
    assert waiting(world) == ["y"]
    says(stranger, outcome(ACCEPTED), settled=settled)
    answers = said(stranger.told(), DISPOSITION)
    assert [fields[4].descriptor for fields in answers] == [ACCEPTED] * (not settled)
    assert waiting(world.crash()) == ["y"]
    says(stranger, None)
    stranger.say(frame(CLOSE, []))
    assert waiting(world) == ["y"]
    assert world.queue().counters.held == 0


@pytest.mark.parametrize(
    ("said_of_it", "available", "dead_letters"),
    [
        (outcome(RELEASED), ["x"], []),
        (outcome(MODIFIED, True), ["x"], []),
        (outcome(REJECTED), [], [("q", "rejected")]),
        (None, ["x"], []),
    ],
)
def test_every_outcome_is_applied(said_of_it: Any, available: list[str], dead_letters: list[Any]) -> None:
    """As on a link that is attached. Settled without an outcome it has the default one."""
    world = filled("x")
    says(holding(world), said_of_it)
    assert waiting(world) == available
    assert dead(world.connect()) == dead_letters


def control(stranger: Stranger) -> bytes:
    """A local transaction of this peer, over handle 9."""
    stranger.attach(9, coordinator("amqp:local-transactions"))
    stranger.told()
    stranger.transfer(9, 0, value_message(encode(outcome(0x31))))
    ((*_, state),) = [fields[:5] for fields in said(stranger.told(), DISPOSITION)]
    return bytes(state.value[0])


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("settled", [False, True])
def test_a_transaction_decides_about_it(*, fail: bool, settled: bool) -> None:
    """Also the roll back of a message that is live still: it is the peer's again, until its session ends."""
    world = filled("x")
    stranger = holding(world)
    txn_id = control(stranger)
    says(stranger, Described(Ulong(0x34), [txn_id, outcome(ACCEPTED)]), settled=settled)
    assert waiting(world) == []
    stranger.transfer(9, 1, value_message(encode(outcome(0x32, txn_id, fail))))
    assert waiting(world) == (["x"] if fail and settled else [])
    stranger.say(frame(END, []))
    assert waiting(world) == (["x"] if fail else [])


@pytest.mark.parametrize("how", ["end", "close", "lost", "attached again", "another connection"])
def test_what_is_not_decided_when_the_session_ends_is_given_back(how: str) -> None:
    """Nobody can say anything of it any more. That is so, too, when the link is attached again: the receiver knows of
    nothing that is unsettled, and deliveries are not resumed."""
    world = filled("x")
    first = connected(world, "ada", "orders")
    holding(world, stranger=first)
    assert waiting(world) == []
    if how in {"end", "close"}:
        first.say(frame(END if how == "end" else CLOSE, []))
    elif how == "lost":
        first.leave()
    else:
        again = first if how == "attached again" else connected(world, "ada", "orders")
        again.told()
        again.attach(0, source=source("q"), receiver=True)
        again.say(flow(0, 0, 1, None))
        world.pump()
        again.listen()
        assert received(again) == ["x"]
        says(first, outcome(ACCEPTED))  # too late
        again.say(frame(END, []))

    assert waiting(world) == ["x"]
    assert world.queue().counters.held == 0
    assert world.queue().attached == 0


def test_the_expiry_policy_says_how_long_it_is_live() -> None:
    """link-detach: at once. It is what the answer says, as is session-end."""
    world = filled("x")
    stranger = connected(world)
    for handle, policy in enumerate(("session-end", "link-detach", None)):
        expiry = None if policy is None else Symbol(policy)
        stranger.attach(handle, source=source("q", expiry=expiry), receiver=True)
        assert terminus(attach_answer(stranger.told())[5])[2] in {policy or "session-end", None}
    ended = holding(world, expiry=Symbol("link-detach"))
    assert waiting(world) == ["x"]
    says(ended, outcome(ACCEPTED))
    assert waiting(world) == ["x"]


def test_links_that_are_suspended_are_bounded() -> None:
    """Beyond as many as a session may have links, a detach ends what the link has. Links in which nothing is left to
    decide don't count."""
    settings = Settings(limits=Limits(links=3), queue_defaults=QueueSettings(max_deliveries=0))
    world = filled(*map(str, range(10)), settings=settings)
    stranger = connected(world)
    for handle in range(5):
        holding(world, stranger=stranger, handle=handle)
    assert world.queue().counters.held == 3
    for number in range(3):
        says(stranger, outcome(ACCEPTED), number=number)
    holding(world, stranger=stranger, handle=5)
    assert world.queue().counters.held == 1
    assert len(stranger.server.suspended) == 1


# --- what a sender has detached ---------------------------------------------------------------------------------------
def posting(world: World, *, closed: bool = False, full: bool = False) -> list[list[Any]]:
    """What the broker says of the deliveries of a sender that detaches before it has their outcomes."""
    stranger = connected(world)
    stranger.attach(0, node("full" if full else "q"))
    stranger.told()
    message = value_message(encode("x"))
    transfers = [
        frame(TRANSFER, [Uint(0), Uint(number), bytes([number]), Uint(0), False], message) for number in range(2)
    ]
    stranger.say(b"".join(transfers) + frame(DETACH, [Uint(0), closed]))
    answers = stranger.told()
    assert [code for _, code, _ in answers].count(DETACH) == 1
    return said(answers, DISPOSITION)


@pytest.mark.parametrize("full", [False, True])
def test_a_sender_learns_the_outcome_behind_its_own_detach(*, full: bool) -> None:
    """The deliveries are live as long as the link is not closed, so that the sender applies what it gets."""
    world = World(Settings(queues={"full": QueueSettings(max_depth=1)}))
    assert not full or posting(world, full=True)
    outcomes = [(fields[1], fields[3], fields[4].descriptor) for fields in posting(world, full=full)]
    taken = REJECTED if full else ACCEPTED
    assert {number for first, *_ in outcomes for number in [first]} <= {0, 1}
    assert [(settled, code) for _, settled, code in outcomes] == [(True, taken)] * len(outcomes)
    assert outcomes
    assert len(waiting(world)) == (0 if full else 2)


def test_nothing_is_said_of_a_delivery_behind_a_close() -> None:
    """The link is gone then, and its deliveries with it."""
    world = World()
    assert posting(world, closed=True) == []
    assert len(waiting(world)) == 2


def test_what_is_not_settled_by_a_sender_that_has_detached_does_not_pile_up() -> None:
    """The session's end forgets it, and so do closes and links to other nodes."""
    world = World()
    stranger = connected(world)
    for number in range(50):
        stranger.attach(0, node("$management" if number % 2 else "q"))
        stranger.transfer(0, number, value_message(encode("x")))
        stranger.say(frame(DETACH, [Uint(0), False]))
    (session,) = stranger.server.sessions
    assert not session.incoming
    stranger.say(frame(END, []))
    assert not stranger.server.suspended
