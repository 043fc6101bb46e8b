"""Messages that are not taken, and how their senders learn that.

The sentences are those of the messaging chapter, of the transport chapter, and of OASIS' "Using the AMQP Anonymous
Terminus for Message Routing", 2.2.2 (routing errors)."""

from __future__ import annotations

import logging
import os
import random
from typing import Any

import pytest
from proton import Delivery

from dtx.amqp.conditions import Condition
from dtx.amqp.encoding import encode
from dtx.amqp.values import Array, Described, Symbol, Uint, Ulong
from dtx.broker.access.rate_limited_log import MOST
from dtx.broker.endpoint.link import MOST_EMPTY
from dtx.broker.settings import Limits, QueueSettings, Settings
from dtx.protocol.capabilities import DISTRIBUTED, LOCAL
from dtx.protocol.commands import CONTROL, Declare, Discharge, End, Start
from dtx.protocol.conditions import Refusal
from dtx.protocol.replies import ACCEPTED, REJECTED
from dtx.store.contract import StoreFull
from tests.dtx.amqp.described import items_of
from tests.dtx.broker.peer import Coordinator, Peer, World, condition_of, flow, frame
from tests.dtx.broker.strangers import (
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    TRANSFER,
    Stranger,
    attach_fields,
    closed_with,
    connected,
    coordinator,
    node,
    said,
    source,
)
from xa import Code, Xid

GARBAGE = b"\xff no message"


def body(text: str = "x", to: str | None = None) -> bytes:
    """A message, to an address."""
    properties = b"" if to is None else encode(Described(Ulong(0x73), [None, None, to]))
    return properties + encode(Described(Ulong(0x77), text))


def error_of(fields: list[Any]) -> tuple[str, dict[Any, Any]]:
    """Condition and info of the error in which a detach ends."""
    condition, _, info = items_of(fields[-1])
    return str(condition), info


FULL = Settings(queues={"full": QueueSettings(max_depth=0)}, create_on_demand=False)
REFUSED = {"full": body(to="full"), "unknown": body(to="nowhere"), "garbage": GARBAGE}


@pytest.mark.parametrize("why", REFUSED)
def test_a_settled_message_that_can_not_be_routed_detaches_the_anonymous_terminus(
    caplog: pytest.LogCaptureFixture, why: str
) -> None:
    """If the source of the link does not support the rejected outcome, or the message has already been settled by the
    sender, then the routing node MUST detach the link with an error.

    The info field of error MUST contain an entry with symbolic key "delivery-tag" and binary value of the delivery-tag
    of the message which caused the failure."""
    world = World(FULL)
    stranger = connected(world)
    stranger.attach(0)
    stranger.told()
    stranger.transfer(0, 7, REFUSED[why], settled=True)
    (detach,) = said(stranger.told(), DETACH)
    condition, info = error_of(detach)
    expected = {"full": Condition.RESOURCE_LIMIT, "unknown": Condition.NOT_FOUND, "garbage": Condition.DECODE_ERROR}
    assert condition == expected[why]
    assert info[Symbol("delivery-tag")] == (7).to_bytes(4, "big")
    assert world.container.settled_and_refused == 1
    to = {"full": "full", "unknown": "nowhere", "garbage": "no address"}[why]
    assert f"a message to {to} was sent settled and is not taken" in caplog.text


def test_an_unsettled_message_that_can_not_be_routed_is_rejected_and_the_link_goes_on() -> None:
    """If the source of the link supports the rejected outcome, and the message has not already been settled by the
    sender, then the routing node MUST reject the message."""
    world = World(FULL)
    stranger = connected(world)
    stranger.attach(0, source=source(None, outcomes=Array([Symbol("amqp:rejected:list")])))
    stranger.told()
    stranger.transfer(0, 7, REFUSED["unknown"])
    answers = stranger.told()
    (disposition,) = said(answers, DISPOSITION)
    assert disposition[4].descriptor == REJECTED
    assert not said(answers, DETACH)


@pytest.mark.parametrize("target", [None, "full", "$management"])
def test_nothing_is_rejected_where_the_source_does_not_support_it(target: str | None) -> None:
    """If the source of the link does not support the rejected outcome, […] then the routing node MUST detach the link
    with an error.

    Source, 3.5.3: outcomes are the descriptors for the outcomes that can be chosen on this link."""
    stranger = connected(World(FULL))
    stranger.attach(0, node(target), source(None, outcomes=Array([Symbol("amqp:accepted:list")])))
    stranger.told()
    stranger.transfer(0, 9, REFUSED["full"])
    answers = stranger.told()
    assert not said(answers, DISPOSITION)
    (detach,) = said(answers, DETACH)
    assert error_of(detach)[1][Symbol("delivery-tag")] == (9).to_bytes(4, "big")


def test_a_transaction_does_not_commit_without_a_message_for_which_the_link_was_detached(
    peer: Peer, control: Coordinator
) -> None:
    """The refused message has no outcome in the transaction, so that its discharge must not succeed."""
    txn_id = control.declare()
    link = peer.session.sender("accepts only")
    link.target.address = "q"
    outcomes = link.source.outcomes
    outcomes.put_array(False, 21)
    outcomes.enter()
    outcomes.put_symbol("amqp:accepted:list")
    outcomes.exit()
    link.open()
    peer.world.pump()

    peer.send_octets(link, body("kept"), "1", txn_id)
    peer.send_octets(link, GARBAGE, "2", txn_id)
    peer.world.pump()
    assert condition_of(link).condition == Condition.DECODE_ERROR
    control.refused(Discharge(txn_id, fail=False))
    assert peer.drained("q") == []


@pytest.mark.parametrize("target", ["full", "$management"])
def test_a_settled_message_that_is_refused_is_counted_and_logged(caplog: pytest.LogCaptureFixture, target: str) -> None:
    """Nobody else hears of it. The link goes on, as its next messages may have room."""
    world = World(FULL)
    stranger = connected(world, "shop")
    stranger.attach(0, node(target))
    stranger.told()
    with caplog.at_level(logging.WARNING, "xabridge.broker"):
        for number in range(3 * MOST):
            stranger.transfer(0, number, body(), settled=True)
    assert world.container.settled_and_refused == 3 * MOST
    assert not said(stranger.told(), DETACH)
    lines = [record for record in caplog.records if "is lost" in record.getMessage()]
    assert len(lines) == MOST + 1  # a bounded rate: the last line says that the others are counted only
    assert target in lines[0].getMessage()
    assert "shop" in lines[0].getMessage()
    assert lines[-1].getMessage().endswith(lines[0].getMessage())


@pytest.mark.parametrize("anonymous", [False, True])
def test_a_settled_message_that_the_store_refuses_is_counted(
    caplog: pytest.LogCaptureFixture, *, anonymous: bool
) -> None:
    """A full disk is known only when the message is written."""
    world = World()
    stranger = connected(world)
    stranger.attach(0, None if anonymous else node("q"))
    stranger.told()
    world.fault = StoreFull("the disk is full")
    stranger.transfer(0, 1, body(to="q"), settled=True)
    assert world.container.settled_and_refused == 1
    detached = said(stranger.told(), DETACH)
    assert [error_of(fields)[1][Symbol("delivery-tag")] for fields in detached] == [b"\0\0\0\1"] * anonymous
    assert "a message to q was sent settled" in caplog.text


def test_a_message_that_closes_its_link_is_named_in_the_error(world: World) -> None:
    """Error, 2.8.14: info is a map of more detail; the delivery-tag says which of the messages on their way it was."""
    stranger = connected(world)
    stranger.attach(0, node("q"))
    stranger.told()
    state = Described(Ulong(0x34), [b"no transaction"])
    stranger.say(frame(TRANSFER, [Uint(0), Uint(5), b"five", Uint(0), True, False, None, state], body()))
    (detach,) = said(stranger.told(), DETACH)
    condition, info = error_of(detach)
    assert condition == Condition.UNKNOWN_ID
    assert info[Symbol("delivery-tag")] == b"five"


class Slow(Stranger):
    """A stranger whose broker has a store that answers when it is asked to."""

    def listen(self) -> None:
        while octets := self.server.output():
            self.heard += octets


# -- what was taken before
ACCEPTS_ONLY = source(None, outcomes=Array([Symbol("amqp:accepted:list")]))


def refused_behind_others(slow: Slow, why: str, *, first: int = 0) -> None:
    """Sends two messages to a queue, and one that is refused so that its link is closed, all before the store has
    answered."""
    rejects = why == "rejected"
    slow.attach(0, None, ACCEPTS_ONLY if rejects else None)
    answers_to(slow)
    slow.transfer(0, first, body(to="q"))
    slow.transfer(0, first + 1, body(to="q"))
    slow.transfer(0, first + 2, REFUSED["full" if rejects else why], settled=not rejects)


Answers = list[tuple[int, int, list[Any]]]


def answers_to(stranger: Stranger) -> Answers:
    """What the broker has said meanwhile."""
    stranger.listen()
    return stranger.told()


def first_to_last(answers: Answers) -> list[int]:
    """The numbers of the deliveries that are accepted and settled, one by one."""
    numbers: list[int] = []
    for _, first, last, settled, state, *_ in said(answers, DISPOSITION):
        assert settled
        assert state.descriptor == ACCEPTED
        numbers += range(first, (first if last is None else last) + 1)
    return numbers


CONTROL_MESSAGE = b"\x00\x53\x77"
PLAIN = Declare()
TAKES = Settings(queues={"full": QueueSettings(max_depth=0), "q": QueueSettings()}, create_on_demand=False)


@pytest.mark.parametrize("why", [*REFUSED, "rejected"])
def test_the_outcomes_of_earlier_messages_go_before_the_detach_with_an_error(why: str) -> None:
    """A sender that does not learn that a message is taken sends it again. What comes behind the refused message is not
    taken."""
    world = World(TAKES)
    slow = Slow(world)
    slow.greet()
    refused_behind_others(slow, why)
    slow.transfer(0, 3, body(to="q"))
    assert not said(answers_to(slow), DETACH)

    while world.jobs:
        world.jobs.popleft()()
    answers = answers_to(slow)
    assert [code for _, code, _ in answers if code in {DISPOSITION, DETACH}][-1] == DETACH
    assert first_to_last(answers) == [0, 1]
    (detach,) = said(answers, DETACH)
    assert error_of(detach)[1][Symbol("delivery-tag")] == (2).to_bytes(4, "big")
    assert world.queue().available == 2
    assert not slow.server.links


def test_messages_that_had_room_are_accepted_before_the_detach() -> None:
    """A queue with room for two of three messages that come together."""
    world = World(Settings(queues={"full": QueueSettings(max_depth=2)}))
    stranger = connected(world)
    stranger.attach(0, node("full"), ACCEPTS_ONLY)
    answers_to(stranger)
    transfers = [frame(TRANSFER, [Uint(0), Uint(n), bytes((n,)), Uint(0), False], body()) for n in range(3)]
    stranger.say(b"".join(transfers))
    answers = answers_to(stranger)
    assert first_to_last(answers) == [0, 1]
    assert answers[-1][1] == DETACH
    assert world.queue("full").available == 2


def test_one_detach_says_that_the_store_takes_nothing() -> None:
    """It refuses messages that came together, and the source does not have the outcome rejected: the first is named."""
    world = World()
    slow = Slow(world)
    slow.greet()
    slow.attach(0, node("q"), ACCEPTS_ONLY)
    for number in range(3):
        slow.transfer(0, number, body())
    world.fault = StoreFull("the disk is full")
    while world.jobs:
        world.jobs.popleft()()
    answers = answers_to(slow)
    assert not said(answers, DISPOSITION)
    (detach,) = said(answers, DETACH)
    assert error_of(detach)[1][Symbol("delivery-tag")] == (0).to_bytes(4, "big")
    assert not slow.server.links


def test_a_client_library_has_the_outcomes_of_what_it_sent_before(peer: Peer) -> None:
    """Proton, with transfers that are pipelined: each message in the queue is accepted, though the link is closed."""
    link = peer.sender("q")
    before = [peer.send_octets(link, body(), peer.name("m")) for _ in range(10)]
    peer.send_octets(link, body(), peer.name("m"), b"no transaction", settled=True)
    peer.world.pump()
    assert condition_of(link).condition == Condition.UNKNOWN_ID
    assert {one.remote_state for one in before} == {Delivery.ACCEPTED}
    assert peer.world.queue().available == 10


@pytest.mark.parametrize(("code", "fields"), [(CLOSE, []), (END, []), (DETACH, [Uint(0), True]), (DETACH, [Uint(0)])])
def test_an_end_that_comes_before_the_detach_is_answered_with_its_error(code: int, fields: list[Any]) -> None:
    """The peer does not wait for the outcomes of earlier messages: it learns all the same that one was refused."""
    world = World(TAKES)
    slow = Slow(world)
    slow.greet()
    refused_behind_others(slow, "full")
    slow.say(frame(code, fields))
    while world.jobs:
        world.jobs.popleft()()
    answers = answers_to(slow)
    (last,) = said(answers, code)
    assert error_of(last)[0] == Condition.RESOURCE_LIMIT
    assert first_to_last(answers) == ([0, 1] if fields == [Uint(0)] else [])
    assert world.queue().available == 2
    assert not slow.server.links
    assert code != DETACH or not said(answers, CLOSE)


WRONG: dict[str, tuple[int, bytes]] = {
    "a size that is none": (CLOSE, b"\x00\x00\x00\x04\x02\x00\x00\x00"),
    "no performative": (CLOSE, b"\x00\x00\x00\x0a\x02\x00\x00\x00\xff\xff"),
    "no session": (CLOSE, frame(END, [], channel=9)),
    "no link": (END, frame(TRANSFER, [Uint(7), Uint(2), b"2", Uint(0), False], body())),
    "a delivery twice": (END, frame(TRANSFER, [Uint(0), Uint(1), b"2", Uint(0), False], body())),
    "a resumed delivery": (DETACH, frame(TRANSFER, [Uint(0), Uint(2), b"2", Uint(0), False, False, None, None, True])),
}
"""What breaks the protocol, and what the broker ends for it."""
TWO = b"".join(frame(TRANSFER, [Uint(0), Uint(n), bytes((n,)), Uint(0), False], body()) for n in range(2))


@pytest.mark.parametrize("why", WRONG)
def test_the_outcomes_of_earlier_messages_go_before_what_ends_for_a_broken_protocol(why: str) -> None:
    """The frames come together. Nothing behind the wrong one is carried out."""
    code, octets = WRONG[why]
    world = World()
    slow = Slow(world)
    slow.greet()
    slow.attach(0, node("q"))
    answers_to(slow)
    slow.say(TWO + octets + frame(TRANSFER, [Uint(0), Uint(3), b"3", Uint(0), False], body()))
    assert not {said for _, said, _ in answers_to(slow)} & {DISPOSITION, DETACH, END, CLOSE}

    while world.jobs:
        world.jobs.popleft()()
    answers = answers_to(slow)
    assert first_to_last(answers) == [0, 1]
    assert [said for _, said, _ in answers if said in {DISPOSITION, DETACH, END, CLOSE}][-1] == code
    assert closed_with(answers, code).startswith("amqp:")
    assert world.queue().available == 2
    assert not slow.server.links
    assert slow.server.closed == (code == CLOSE)


def test_another_session_goes_on_while_one_waits_to_be_ended() -> None:
    world = World()
    slow = Slow(world)
    slow.greet(sessions=2)
    slow.attach(0, node("q"))
    slow.say(frame(ATTACH, attach_fields(node("other"), handle=1), channel=1))
    answers_to(slow)
    slow.say(TWO + WRONG["no link"][1])
    slow.say(frame(TRANSFER, [Uint(1), Uint(0), b"0", Uint(0), False], body(), channel=1))
    while world.jobs:
        world.jobs.popleft()()
    answers = answers_to(slow)
    assert [channel for channel, said, _ in answers if said == END] == [0]
    assert [channel for channel, said, _ in answers if said == DISPOSITION] == [0, 1]
    assert world.queue("other").available == 1


@pytest.mark.parametrize("why", ["no link", "a resumed delivery"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_peer_that_ends_first_gets_the_error_all_the_same(why: str, *, gone: bool) -> None:
    """Or it is gone before the outcomes are there."""
    code, octets = WRONG[why]
    world = World()
    slow = Slow(world)
    slow.greet()
    slow.attach(0, node("q"))
    answers_to(slow)
    slow.say(TWO + octets)

    if gone:
        slow.leave()
    else:
        slow.say(frame(code, [] if code == END else [Uint(0), True]))
    while world.jobs:
        world.jobs.popleft()()
    answers = answers_to(slow)
    assert [said for _, said, _ in answers if said in {DETACH, END, CLOSE}] == ([] if gone else [code])
    assert gone or closed_with(answers, code).startswith("amqp:")
    assert world.queue().available == 2
    assert not slow.server.links


def test_a_connection_that_an_operator_closes_has_the_outcomes_of_its_messages() -> None:
    """What comes behind them is not taken."""
    world = World()
    slow = Slow(world)
    slow.greet()
    slow.attach(0, node("q"))
    answers_to(slow)
    slow.say(TWO)
    slow.server.close(Refusal(Condition.CONNECTION_FORCED, "an operator closed the connection", Code.XAER_RMFAIL))
    slow.transfer(0, 3, body())
    while world.jobs:
        world.jobs.popleft()()
    answers = answers_to(slow)
    assert first_to_last(answers) == [0, 1]
    assert answers[-1][1] == CLOSE
    assert world.queue().available == 2
    assert slow.server.closed


def declared(stranger: Stranger, declare: Declare = PLAIN) -> bytes:
    """A transaction's id, from a control link."""
    stranger.attach(1, coordinator(LOCAL, DISTRIBUTED))
    stranger.transfer(1, 0, CONTROL_MESSAGE + CONTROL.encode(declare))
    ((*_, state),) = said(answers_to(stranger), DISPOSITION)
    (txn_id,) = state.value
    return bytes(txn_id)


def test_a_transaction_does_not_commit_without_a_message_behind_a_refused_one() -> None:
    """It came while the link was about to be closed, and is not taken."""
    slow = Slow(World(TAKES))
    slow.greet()
    txn_id = declared(slow)
    refused_behind_others(slow, "full", first=1)
    state = Described(Ulong(0x34), [txn_id])
    slow.say(frame(TRANSFER, [Uint(0), Uint(4), b"4", Uint(0), True, False, None, state], body(to="q")))
    slow.transfer(1, 5, CONTROL_MESSAGE + CONTROL.encode(Discharge(txn_id)))
    (disposition,) = said(answers_to(slow), DISPOSITION)
    assert disposition[1] == 5
    assert disposition[4].descriptor == REJECTED


def posts_in(txn_id: bytes, numbers: range) -> bytes:
    """Messages that a transaction posts, on the link with handle 0."""
    state = Described(Ulong(0x34), [txn_id])
    fields = [[Uint(0), Uint(n), bytes((n,)), Uint(0), False, False, None, state] for n in numbers]
    return b"".join(frame(TRANSFER, each, body()) for each in fields)


def asked(number: int, command: Declare | Discharge | End) -> bytes:
    """A control message, on the link with handle 1."""
    return frame(TRANSFER, control_fields(number), CONTROL_MESSAGE + CONTROL.encode(command))


ENDS: dict[str, tuple[int, bytes]] = {
    **{why: WRONG[why] for why in ("a size that is none", "no performative", "no session", "no link")},
    "a settled command": (DETACH, frame(TRANSFER, [Uint(1), Uint(6), b"6", Uint(0), True], CONTROL_MESSAGE)),
    "a resumed command": (
        DETACH,
        frame(TRANSFER, [Uint(1), Uint(6), b"6", Uint(0), False, False, None, None, True], CONTROL_MESSAGE),
    ),
}


@pytest.mark.parametrize("why", ENDS)
@pytest.mark.parametrize("fault", [None, StoreFull("the disk is full")])
@pytest.mark.parametrize("prepares", [False, True])
def test_what_became_of_a_transaction_is_said_before_what_ends_for_a_broken_protocol(
    why: str, fault: StoreFull | None, *, prepares: bool
) -> None:
    """The transaction is committed, or its branch is prepared: its controller would do the work again."""
    code, octets = ENDS[why]
    world = World()
    slow = Slow(world)
    slow.greet()
    txn_id = declared(slow, Declare(Start(Xid(1, b"gtrid", b"bqual"))) if prepares else Declare())
    slow.attach(0, node("q"))
    answers_to(slow)
    last = End(txn_id, prepare=True) if prepares else Discharge(txn_id)
    slow.say(posts_in(txn_id, range(1, 5)) + asked(5, last) + octets)
    answers = answers_to(slow)
    assert not said(answers, code)

    world.fault = fault
    while world.jobs:
        world.jobs.popleft()()
    answers += answers_to(slow)
    (*_, (_, number, *_, state)) = said(answers, DISPOSITION)
    assert number == 5
    assert (state.descriptor == REJECTED) == (fault is not None)
    assert answers[-1][1] == code
    assert closed_with(answers, code).startswith("amqp:")
    assert world.queue().available == (4 if fault is None and not prepares else 0)
    assert slow.server.closed == (code == CLOSE)


def test_transactions_whose_control_link_is_about_to_be_closed_are_rolled_back_at_once() -> None:
    """The link is closed behind the outcome of an earlier one."""
    world = World()
    slow = Slow(world)
    slow.greet()
    first = declared(slow)
    slow.say(asked(1, Declare()))
    ((*_, state),) = said(answers_to(slow), DISPOSITION)
    second = bytes(state.value[0])

    slow.attach(0, node("q"))
    slow.say(posts_in(first, range(2, 3)) + posts_in(second, range(3, 4)))
    slow.say(asked(4, Discharge(first)) + ENDS["a settled command"][1] + asked(7, Discharge(second)))
    answers_to(slow)
    slow.say(posts_in(second, range(8, 9)))
    (refused,) = said(answers_to(slow), DISPOSITION)
    assert refused[4].descriptor == REJECTED

    while world.jobs:
        world.jobs.popleft()()
    answers = answers_to(slow)
    assert [one for _, one, _ in answers] == [DISPOSITION, DETACH]
    assert world.queue().available == 1


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("why", ["no link", "no session", "a settled command"])
def test_a_controller_that_leaves_first_changes_nothing(why: str, *, gone: bool) -> None:
    """It ends, closes or detaches, or is gone, before the transaction is decided."""
    code, octets = ENDS[why]
    world = World()
    slow = Slow(world)
    slow.greet()
    txn_id = declared(slow)
    slow.attach(0, node("q"))
    slow.say(posts_in(txn_id, range(1, 5)) + asked(5, Discharge(txn_id)) + octets)

    if gone:
        slow.leave()
    else:
        slow.say(frame(code, [] if code != DETACH else [Uint(1), True]))
    while world.jobs:
        world.jobs.popleft()()
    answers = answers_to(slow)
    assert len(said(answers, code)) == (not gone)
    assert world.queue().available == 4
    assert slow.server.closed == (gone or code == CLOSE)


BROKEN = {why: octets for why, (_, octets) in WRONG.items() if why in {"no link", "a resumed delivery"}}


@pytest.mark.parametrize("why", [*BROKEN, "refused"])
@pytest.mark.parametrize("settled", [False, True])
def test_a_transaction_does_not_commit_without_a_message_that_is_not_looked_at(why: str, *, settled: bool) -> None:
    """It comes behind the detach of its link, or the end of its session, of which its sender does not know yet."""
    stranger = Stranger(World(TAKES))
    stranger.greet(sessions=2)
    stranger.say(frame(ATTACH, attach_fields(coordinator(), handle=1), channel=1))
    stranger.say(frame(TRANSFER, control_fields(0), CONTROL_MESSAGE + CONTROL.encode(Declare()), channel=1))
    ((*_, state),) = said(answers_to(stranger), DISPOSITION)
    (txn_id,) = state.value
    stranger.attach(0)
    stranger.say(BROKEN.get(why, frame(TRANSFER, [Uint(0), Uint(2), b"2", Uint(0), True], body(to="nowhere"))))
    assert said(answers_to(stranger), END if why == "no link" else DETACH)

    posted = Described(Ulong(0x34), [txn_id])
    stranger.say(frame(TRANSFER, [Uint(0), Uint(4), b"4", Uint(0), settled, False, None, posted], body(to="q")))
    discharge = CONTROL_MESSAGE + CONTROL.encode(Discharge(txn_id))
    stranger.say(frame(TRANSFER, control_fields(1), discharge, channel=1))
    (disposition,) = said(answers_to(stranger), DISPOSITION)
    assert disposition[4].descriptor == REJECTED


def test_a_transaction_does_not_commit_without_an_outcome_in_a_session_that_ended() -> None:
    """The message comes again, and would be handled twice."""
    world = World(TAKES)
    stranger = Stranger(world)
    stranger.greet(sessions=2)
    stranger.attach(0, node("q"))
    stranger.transfer(0, 0, body())
    stranger.say(frame(ATTACH, attach_fields(coordinator(), handle=1), channel=1))
    stranger.say(frame(TRANSFER, control_fields(0), CONTROL_MESSAGE + CONTROL.encode(Declare()), channel=1))
    (txn_id,) = said(answers_to(stranger), DISPOSITION)[-1][4].value
    stranger.attach(2, source=source("q"), receiver=True)
    stranger.say(flow(2, 0, 1, None))
    assert said(answers_to(stranger), TRANSFER)

    accepted = Described(Ulong(0x34), [bytes(txn_id), Described(Ulong(0x24), [])])
    stranger.say(BROKEN["no link"] + frame(DISPOSITION, [True, Uint(0), None, True, accepted]))
    discharge = CONTROL_MESSAGE + CONTROL.encode(Discharge(bytes(txn_id)))
    stranger.say(frame(TRANSFER, control_fields(1), discharge, channel=1))
    assert said(answers_to(stranger), DISPOSITION)[-1][4].descriptor == REJECTED
    assert world.queue().available == 1


@pytest.mark.parametrize("why", ["empty parts", "a resumed delivery", "no link"])
def test_a_transaction_does_not_commit_without_a_message_whose_link_ended_in_its_middle(why: str) -> None:
    """The message has more empty parts than one may have, or a broken protocol ends the link or the session."""
    stranger = Stranger(World())
    stranger.greet(sessions=2)
    stranger.say(frame(ATTACH, attach_fields(coordinator(), handle=1), channel=1))
    stranger.say(frame(TRANSFER, control_fields(0), CONTROL_MESSAGE + CONTROL.encode(Declare()), channel=1))
    (txn_id,) = said(answers_to(stranger), DISPOSITION)[-1][4].value
    stranger.attach(0, node("q"))
    begun = [Uint(0), Uint(1), b"1", Uint(0), True, True, None, Described(Ulong(0x34), [bytes(txn_id)])]
    more = frame(TRANSFER, [Uint(0), Uint(1), b"1", Uint(0), True, True]) * MOST_EMPTY

    stranger.say(frame(TRANSFER, begun) + BROKEN.get(why, more))
    assert said(answers_to(stranger), END if why == "no link" else DETACH)
    discharge = CONTROL_MESSAGE + CONTROL.encode(Discharge(bytes(txn_id)))
    stranger.say(frame(TRANSFER, control_fields(1), discharge, channel=1))
    (disposition,) = said(answers_to(stranger), DISPOSITION)
    assert disposition[4].descriptor == REJECTED


def control_fields(number: int) -> list[Any]:
    """The fields of a transfer on the control link with handle 1."""
    return [Uint(1), Uint(number), bytes((number,)), Uint(0), False]


@pytest.mark.parametrize("more", [False, True])
def test_a_transaction_does_not_commit_without_a_message_that_is_too_large(*, more: bool) -> None:
    """Its link is detached for it, also where more of it was to come."""
    stranger = connected(World(Settings(limits=Limits(message_octets=100))))
    txn_id = declared(stranger)
    stranger.attach(0, node("q"))
    state = Described(Ulong(0x34), [txn_id])
    stranger.say(frame(TRANSFER, [Uint(0), Uint(1), b"1", Uint(0), True, more, None, state], body("x" * 200)))
    stranger.transfer(1, 2, CONTROL_MESSAGE + CONTROL.encode(Discharge(txn_id)))
    answers = answers_to(stranger)
    assert [error_of(fields)[0] for fields in said(answers, DETACH)] == [Condition.MESSAGE_SIZE]
    (disposition,) = said(answers, DISPOSITION)
    assert disposition[4].descriptor == REJECTED


# -- close
@pytest.mark.parametrize(("code", "fields"), [(CLOSE, []), (END, []), (DETACH, [Uint(0), True]), (DETACH, [Uint(0)])])
@pytest.mark.parametrize("refused", [False, True])
def test_an_end_of_any_kind_is_answered_when_settled_messages_are_in_their_queues(
    world: World, code: int, fields: list[Any], *, refused: bool
) -> None:
    """2.4.3, 2.5.5, 2.6.6: a peer that has sent a close, an end or a detach, and has its answer, knows that what it
    sent before was carried out."""
    slow = Slow(world)
    slow.greet()
    slow.attach(0, node("q"))
    slow.transfer(0, 1, body(), settled=True)
    slow.told()
    world.fault = StoreFull("the disk is full") if refused else None
    slow.say(frame(code, fields))
    assert slow.told() == []
    assert not slow.server.closed
    while world.jobs:
        world.jobs.popleft()()
    assert [said for _, said, _ in answers_to(slow)] == [code]
    assert world.queue().available == (not refused)
    assert slow.server.closed == (code == CLOSE)


@pytest.mark.parametrize("what", ["link", "session"])
def test_a_peer_that_does_not_wait_for_the_answer_goes_on(world: World, what: str) -> None:
    """It attaches the link again, or begins a session on the same channel, while its settled message is on its way:
    that is neither refused nor overtaken."""
    slow = Slow(world)
    slow.greet()
    slow.attach(0, node("q"))
    slow.transfer(0, 1, body(), settled=True)
    slow.told()
    if what == "link":
        slow.say(frame(DETACH, [Uint(0), True]))
        slow.attach(0, node("q"))
        slow.transfer(0, 2, body(), settled=True)
    else:
        slow.say(frame(END, []))
        slow.say(frame(BEGIN, [None, Uint(0), Uint(2048), Uint(2048)]))
        slow.attach(0, node("q"))
        slow.transfer(0, 0, body(), settled=True)

    while world.jobs:
        world.jobs.popleft()()
    slow.say(frame(CLOSE, []))
    while world.jobs:
        world.jobs.popleft()()
    answers = answers_to(slow)
    assert [said for _, said, _ in answers if said in {DETACH, END, CLOSE}] == [
        DETACH if what == "link" else END,
        CLOSE,
    ]
    assert closed_with(answers) == "without an error"
    assert world.queue().available == 2


def test_a_close_behind_nothing_is_answered_at_once(world: World) -> None:
    """There is nothing to wait for: no force of the store is made for a close."""
    slow = Slow(world)
    slow.greet()
    slow.told()
    slow.say(frame(CLOSE, []))
    assert closed_with(slow.told()) == "without an error"
    assert not world.jobs


# -- any order
SCHEDULES = int(os.environ.get("XABRIDGE_SCHEDULES", "60"))
SEED = int(os.environ.get("XABRIDGE_SEED", "0"))


class Talk:
    """A peer that posts on links of two sessions, in a transaction of a third one and outside of it, and breaks the
    protocol now and then, while the store answers when it likes."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.world = World(Settings(queues={"full": QueueSettings(max_depth=0), "small": QueueSettings(max_depth=3)}))
        self.slow = Slow(self.world)
        self.slow.greet(sessions=3)
        self.slow.say(frame(ATTACH, attach_fields(coordinator(), handle=1), channel=2))
        self.slow.say(frame(TRANSFER, control_fields(0), CONTROL_MESSAGE + CONTROL.encode(Declare()), channel=2))
        (txn_id,) = said(answers_to(self.slow), DISPOSITION)[-1][4].value
        self.txn_id = bytes(txn_id)

        for handle in range(2, 8):
            target = chance.choice([node("q"), node("small"), None])
            terminus = chance.choice([None, ACCEPTS_ONLY])
            self.slow.say(frame(ATTACH, attach_fields(target, terminus, handle), channel=handle % 2))
        self.answers = answers_to(self.slow)
        self.next = [0, 0]
        self.posted: dict[tuple[int, int], tuple[bool, bool]] = {}
        """Session and delivery → whether it was sent settled, and in the transaction."""

    def act(self) -> bytes:
        """The next frame."""
        handle, channel = self.chance.randrange(2, 8), self.chance.randrange(2)
        if self.chance.random() < 0.15:
            resumed = [Uint(handle), Uint(self.next[handle % 2]), b"r", Uint(0), False, False, None, None, True]
            wrong = frame(TRANSFER, [Uint(77), Uint(0), b"w", Uint(0), False], body(), channel=channel)
            return self.chance.choice([wrong, frame(TRANSFER, resumed, body(), channel=handle % 2)])

        channel = handle % 2
        number, self.next[channel] = self.next[channel], self.next[channel] + 1
        settled, transactional = self.chance.random() < 0.4, self.chance.random() < 0.6
        self.posted[channel, number] = settled, transactional
        state = Described(Ulong(0x34), [self.txn_id]) if transactional else None
        fields = [Uint(handle), Uint(number), b"%d-%d" % (channel, number), Uint(0), settled, False, None, state]
        to = self.chance.choice(["q", "q", "small", "full"])
        return frame(TRANSFER, fields, body(f"{channel}-{number}", to=to), channel=channel)

    def run(self) -> bool:
        """Some frames, several at a time, and the discharge; whether that succeeds."""
        for _ in range(self.chance.randrange(1, 8)):
            self.slow.say(b"".join(self.act() for _ in range(self.chance.randrange(1, 4))))
            while self.world.jobs and self.chance.random() < 0.5:
                self.world.jobs.popleft()()

        discharge = CONTROL_MESSAGE + CONTROL.encode(Discharge(self.txn_id))
        self.slow.say(frame(TRANSFER, control_fields(1), discharge, channel=2))
        while self.world.jobs:
            self.world.jobs.popleft()()
            self.answers += answers_to(self.slow)
        self.answers += answers_to(self.slow)
        outcomes = [fields for channel, code, fields in self.answers if (channel, code) == (2, DISPOSITION)]
        return bool(outcomes[-1][4].descriptor == ACCEPTED)


@pytest.mark.parametrize("seed", range(SEED, SEED + SCHEDULES))
def test_whatever_breaks_no_outcome_is_missing_and_no_transaction_commits_a_part(seed: int) -> None:
    talk = Talk(random.Random(seed))
    committed = talk.run()
    outcomes: dict[tuple[int, int], Any] = {}
    for channel, code, fields in talk.answers:
        if code == DISPOSITION and channel < 2:
            _, first, last, _, state, *_ = fields
            numbers = range(first, (first if last is None else last) + 1)
            outcomes |= {(channel, number): state.descriptor for number in numbers}

    reader = talk.world.connect()
    stored = [text for queue in ("q", "small") for text in reader.drained(queue) if text != "x"]
    there = {(int(channel), int(number)) for channel, _, number in (text.partition("-") for text in stored)}
    assert len(there) == len(stored)
    for one, (settled, transactional) in talk.posted.items():
        if transactional:
            assert (one in there) <= committed
            assert not committed or one in there or (not settled and one in outcomes)
        elif not settled:
            assert (one in there) == (outcomes.get(one) == ACCEPTED)
