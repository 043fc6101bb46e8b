"""How long termini and nodes last, who may use them, and how many connections a container has.

The sentences are those of the messaging chapter, 3.5, of the transport chapter, 2.7.3, and of OASIS' "AMQP Enforcing
Connection Uniqueness"."""

from __future__ import annotations

from typing import Any

import pytest

from dtx.amqp.conditions import Condition
from dtx.amqp.frames import AMQP_HEADER
from dtx.amqp.sasl.mechanisms import Identity
from dtx.amqp.values import Array, Described, Symbol, Uint, Ulong, Value
from tests.dtx.amqp.described import items_of
from tests.dtx.broker.peer import World, frame
from tests.dtx.broker.strangers import (
    ATTACH,
    CLOSE,
    DETACH,
    OPEN,
    Stranger,
    attach_answer,
    closed_with,
    connected,
    said,
    source,
)

LIFETIME, MODES = Symbol("lifetime-policy"), Symbol("supported-dist-modes")
ON_CLOSE, ON_NO_LINKS, ON_NO_MESSAGES, ON_NEITHER = (Described(Ulong(code), []) for code in range(0x2B, 0x2F))


def target(address: str | None = None, **fields: Any) -> Described:
    """A target: `durable`, `expiry`, `timeout`, `dynamic`, `properties`."""
    names = ["durable", "expiry", "timeout", "dynamic", "properties"]
    return Described(Ulong(0x29), [address, *map(fields.get, names)])


def asked(world: World, *, receiver: bool, **fields: Any) -> str:
    """The condition with which a terminus is refused, "" where it is not."""
    stranger = connected(world)
    address = None if fields.get("dynamic") else "q"
    if receiver:
        stranger.attach(0, source=source(address, **fields), receiver=True)
    else:
        stranger.attach(0, target=target(address, **fields))
    told = stranger.told()
    refused = closed_with(told, DETACH)
    if refused:  # 2.6.3: an attach without the terminus that would be ours
        assert attach_answer(told)[5 if receiver else 6] is None
    return refused


BOTH = pytest.mark.parametrize("receiver", [True, False])


@BOTH
@pytest.mark.parametrize(
    ("properties", "condition"),
    [
        ({LIFETIME: ON_CLOSE}, ""),
        ({LIFETIME: Described(Symbol("amqp:delete-on-close:list"), [])}, ""),
        ({LIFETIME: ON_CLOSE, MODES: Array([Symbol("move"), Symbol("copy")])}, ""),
        ({MODES: Symbol("move")}, ""),
        ({Symbol("x-opt-unknown"): "y"}, ""),
        ({LIFETIME: ON_NO_LINKS}, Condition.NOT_IMPLEMENTED),
        ({LIFETIME: ON_NO_MESSAGES}, Condition.NOT_IMPLEMENTED),
        ({LIFETIME: ON_NEITHER}, Condition.NOT_IMPLEMENTED),
        ({LIFETIME: Described(Symbol("amqp:delete-on-no-links:list"), [])}, Condition.NOT_IMPLEMENTED),
        ({LIFETIME: Described(Ulong(0x2F), [])}, Condition.INVALID_FIELD),
        ({LIFETIME: Symbol("delete-on-close")}, Condition.INVALID_FIELD),
        ({LIFETIME: Described(Ulong(0x2B), "x")}, Condition.INVALID_FIELD),
        ({LIFETIME: Described("x", [])}, Condition.INVALID_FIELD),
        ({"lifetime-policy": ON_CLOSE}, Condition.INVALID_FIELD),
        ({MODES: Symbol("steal")}, Condition.INVALID_FIELD),
        ({MODES: [{}]}, Condition.INVALID_FIELD),
        ({MODES: "move"}, Condition.INVALID_FIELD),
    ],
)
def test_the_lifetime_policy_of_a_dynamic_node_is_honoured_or_refused(
    world: World, properties: Any, condition: str, *, receiver: bool
) -> None:
    """The value of this entry MUST be of a type which provides the lifetime-policy archetype.

    3.5.10 to 3.5.13: delete-on-close, delete-on-no-links, delete-on-no-messages, delete-on-no-links-or-messages."""
    nodes = set(world.container.resource.queues)
    assert asked(world, receiver=receiver, dynamic=True, properties=properties) == condition
    assert bool(set(world.container.resource.queues) - nodes) == (not condition)


@BOTH
def test_properties_of_a_node_are_for_a_dynamic_one(world: World, *, receiver: bool) -> None:
    """If the dynamic field is not set to true this field MUST be left unset."""
    assert asked(world, receiver=receiver, properties={LIFETIME: ON_CLOSE}) == Condition.INVALID_FIELD


@BOTH
@pytest.mark.parametrize(
    ("policy", "condition"),
    [
        ("link-detach", ""),
        ("session-end", ""),
        (None, ""),
        ("connection-close", Condition.NOT_IMPLEMENTED),
        ("never", Condition.NOT_IMPLEMENTED),
        ("tomorrow", Condition.INVALID_FIELD),
    ],
)
def test_the_expiry_policy_of_a_terminus_is_honoured_or_refused(
    world: World, policy: str | None, condition: str, *, receiver: bool
) -> None:
    """3.5.6: link-detach, session-end, connection-close, never."""
    expiry = None if policy is None else Symbol(policy)
    assert asked(world, receiver=receiver, expiry=expiry) == condition


@BOTH
def test_the_expiry_policy_of_the_peers_own_terminus_is_its_own(world: World, *, receiver: bool) -> None:
    """The sending endpoint says of the source, and the receiving one of the target, what is in force."""
    stranger = connected(world)
    never = Symbol("never")
    if receiver:
        stranger.attach(0, source=source("q"), target=target("mine", expiry=never), receiver=True)
    else:
        stranger.attach(0, source=source("mine", expiry=never), target=target("q"))
    assert closed_with(stranger.told(), DETACH) == ""


@BOTH
@pytest.mark.parametrize("mode", [None, "copy"])
def test_only_its_own_connection_may_receive_from_a_dynamic_node(
    world: World, mode: str | None, *, receiver: bool
) -> None:
    """A node that a peer has asked for is its own, whichever direction the link has that made it."""
    owner, other = connected(world), connected(world)
    if receiver:
        owner.attach(0, source=source(None, dynamic=True), receiver=True)
    else:
        owner.attach(0, target=target(dynamic=True))
    address = attach_answer(owner.told())[5 if receiver else 6].value[0]
    reads = source(address, mode=None if mode is None else Symbol(mode))
    other.attach(0, source=reads, receiver=True)
    assert closed_with(other.told(), DETACH) == Condition.NOT_ALLOWED
    other.attach(1, target=target(address))
    assert closed_with(other.told(), DETACH) == ""
    owner.attach(1, source=reads, receiver=True)
    assert closed_with(owner.told(), DETACH) == ""


def test_an_attach_of_a_sender_has_an_initial_delivery_count(world: World) -> None:
    """This MUST NOT be null if role is sender, and it is ignored if the role is receiver."""
    stranger = connected(world)
    fields: list[Value] = ["x", Uint(0), False, None, None, source(None), target("q")]
    stranger.say(frame(ATTACH, fields))
    assert closed_with(stranger.told(), DETACH) == Condition.INVALID_FIELD


# -- sole connections
SOLE = Symbol("sole-connection-for-container")
REFUSE, CLOSE_EXISTING = 0, 1
STRONG, WEAK = 0, 1


def opened(
    world: World, *, sole: bool = True, enforce: Any = None, detect: Any = None, user: str = "shop", name: str = "app"
) -> Stranger:
    """A connection of this container; `sole` says whether it asks to be the only one."""
    stranger = Stranger(world, Identity(user))
    properties: dict[Any, Any] = {}
    if enforce is not None:
        properties[Symbol("sole-connection-enforcement-policy")] = Uint(enforce) if type(enforce) is int else enforce
    if detect is not None:
        properties[Symbol("sole-connection-detection-policy")] = Uint(detect) if type(detect) is int else detect
    desired = Array([SOLE]) if sole else None
    fields: list[Value] = [name, None, None, None, None, None, None, None, desired, properties]
    stranger.say(AMQP_HEADER + frame(OPEN, fields))
    return stranger


def closing(stranger: Stranger) -> tuple[dict[Any, Any], str, dict[Any, Any]]:
    """Properties of the broker's open, and condition and info of its close."""
    stranger.listen()
    told = stranger.told()
    opens = said(told, OPEN)
    properties = opens[0][9] if opens else {}
    (close,) = said(told, CLOSE)
    condition, _, info = items_of(close[0])
    return properties, str(condition), info


def serves(stranger: Stranger) -> bool:
    """Whether the broker has answered with an open, and goes on."""
    stranger.listen()
    return closed_with(stranger.told()) == "" and not stranger.server.closed


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({"sole": False}, {"enforce": REFUSE, "detect": STRONG}),
        ({"detect": STRONG}, {"sole": False}),
        ({"detect": WEAK}, {"detect": WEAK}),
        ({"enforce": CLOSE_EXISTING}, {"enforce": REFUSE}),
    ],
)
def test_a_second_connection_of_a_container_is_refused(
    world: World, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """refuse-connection: the open is answered, and a close follows with amqp:invalid-field and the container-id."""
    before = opened(world, **first)
    assert serves(before)
    properties, condition, info = closing(opened(world, **second))
    assert properties[Symbol("amqp:connection-establishment-failed")] is True
    assert condition == Condition.INVALID_FIELD
    assert info == {Symbol("invalid-field"): Symbol("container-id")}
    assert serves(before)

    before.leave()
    assert serves(opened(world, **second))


@pytest.mark.parametrize("first", [{}, {"sole": False}, {"detect": WEAK}])
def test_earlier_connections_of_a_container_are_closed(world: World, first: dict[str, Any]) -> None:
    """close-existing: the earlier ones are closed with amqp:resource-locked."""
    before = opened(world, **first)
    before.told()
    after = opened(world, enforce=CLOSE_EXISTING)
    assert serves(after)
    _, condition, info = closing(before)
    assert condition == Condition.RESOURCE_LOCKED
    assert info == {Symbol("sole-connection-enforcement"): True}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"sole": False}, {"sole": False}),
        ({"sole": False}, {"detect": WEAK}),
        ({"detect": WEAK}, {"sole": False}),
        ({}, {"name": "another"}),
        ({}, {"user": "another"}),
    ],
)
def test_other_connections_are_no_concern(world: World, first: dict[str, Any], second: dict[str, Any]) -> None:
    """A container is that of one user: nobody takes the name of somebody else's. Weak detection passes over those that
    don't ask for it."""
    before = opened(world, **first)
    assert serves(before)
    assert serves(opened(world, **second))
    assert serves(before)


def test_what_is_in_force_is_said(world: World) -> None:
    """The open of the peer that enforces it offers the capability, and says how it detects."""
    stranger = opened(world, detect=WEAK)
    (fields,) = said(stranger.told(), OPEN)
    assert SOLE in fields[7]
    assert fields[9][Symbol("sole-connection-detection-policy")] == WEAK
    (fields,) = said(opened(world, sole=False, name="other").told(), OPEN)
    assert SOLE not in fields[7]


@pytest.mark.parametrize("wrong", [2, "close", Symbol("strong")])
@pytest.mark.parametrize("policy", ["enforce", "detect"])
def test_a_policy_that_is_none_is_refused(world: World, policy: str, wrong: Any) -> None:
    """The policies are the uints 0 and 1."""
    assert closing(opened(world, **{policy: wrong}))[1] == Condition.INVALID_FIELD


def test_a_container_that_is_gone_takes_no_memory(world: World) -> None:
    """Closed, lost, refused: whatever became of it."""
    one = opened(world)
    opened(world).leave()
    one.say(frame(CLOSE, []))
    lost = opened(world)
    lost.leave()
    assert world.container.named == {}
