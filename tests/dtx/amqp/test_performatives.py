"""The performatives and what stands in them: what is written is read, proton's engine says and hears the same as ours,
and what has a wrong type is refused by the name of its field; also by mypy, in the tables of composites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import (
    UNDESCRIBED,
    Array,
    Condition,
    Data,
    Link,
    Terminus,
    symbol,
    ulong,
)
from proton import Described as ProtonDescribed

from dtx.amqp import conditions, performatives, values
from dtx.amqp.composites import BOOLEAN, FIELDS, STRING, UINT, Catalog, Composite, WireError, standard
from dtx.amqp.decoding import decode
from dtx.amqp.encoding import encode, encode_list
from dtx.amqp.frames import AMQP_HEADER, FrameReader, performative_frame
from dtx.amqp.performatives import (
    COORDINATOR_TYPE,
    ERROR_TYPE,
    MAX_TAG,
    MAX_UINT,
    MAX_USHORT,
    PERFORMATIVES,
    SOURCE_TYPE,
    TARGET_TYPE,
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Error,
    Flow,
    Open,
    Source,
    Target,
)
from dtx.amqp.values import Symbol, Uint, Ulong
from tests.cases import each
from tests.dtx.amqp.described import items_of
from tests.dtx.amqp.engines import Engine

INNER: dict[str, Composite[Any]] = {
    "error": ERROR_TYPE,
    "source": SOURCE_TYPE,
    "target": TARGET_TYPE,
    "coordinator": COORDINATOR_TYPE,
}
COMPOSITES: list[Composite[Any]] = [*PERFORMATIVES.by_type.values(), *INNER.values()]
NUMBERS = {"ubyte": 255, "ushort": MAX_USHORT, "uint": MAX_UINT, "ulong": 2**64 - 1}
"""The names of kinds → their largest values."""
LIMITS = {"snd-settle-mode": 2, "rcv-settle-mode": 1}
ALLOWED: dict[str, set[int]] = {
    "boolean": {0x41, 0x42, 0x56},
    "ubyte": {0x50},
    "ushort": {0x60},
    "uint": {0x43, 0x52, 0x70},
    "ulong": {0x44, 0x53, 0x80},
    "string": {0xA1, 0xB1},
    "symbol": {0xA3, 0xB3},
    "map": {0xC1, 0xD1},
    "binary": {0xA0, 0xB0},
    "symbols": {0xA3, 0xB3, 0xE0, 0xF0},
}
"""The name of a kind → the constructors of its values, as the specification has them (1.6)."""
CONSTRUCTORS = {0x45, 0x51, 0x54, 0x71, 0x72, 0x84, 0xC0, 0x00, 0x3F, 0x46, 0x99, 0xFF}.union(*ALLOWED.values())
"""Those of every type, and some that are none."""
ACCEPTED = encode(values.Described(Ulong(0x24), []))

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
maps = st.dictionaries(
    names.map(Symbol), st.one_of(st.none(), st.booleans(), texts, st.integers(0, MAX_UINT).map(values.Uint)), max_size=3
)
states = st.one_of(
    st.just(ACCEPTED),
    st.binary(max_size=40).map(lambda txn_id: encode(values.Described(Ulong(0x34), [txn_id]))),
)


def strategy(composite: Composite[Any], index: int) -> st.SearchStrategy[Any]:
    """Values of a field, as our side has them."""
    field = composite.fields[index]
    kind = field.kind.name
    found: st.SearchStrategy[Any]

    if kind in NUMBERS:
        found = st.integers(0, LIMITS.get(field.name, NUMBERS[kind]))
    elif kind in INNER:
        found = inner(kind)
    else:
        found = {
            "boolean": st.booleans(),
            "string": texts,
            "symbol": names,
            "map": maps,
            "binary": st.binary(max_size=MAX_TAG),
            "delivery-state": states,
            "symbols": st.lists(names, max_size=3).map(tuple),
        }[kind]
    return found if field.mandatory else st.one_of(st.just(field.absent), found)


def inner(kind: str) -> st.SearchStrategy[Any]:
    """Values of the composites in others."""
    found = instances(INNER[kind])
    return st.one_of(found, instances(COORDINATOR_TYPE)) if kind == "target" else found


def instances(composite: Composite[Any]) -> st.SearchStrategy[Any]:
    """Instances of a composite with any values."""
    fields = [strategy(composite, index) for index in range(len(composite.fields))]
    return st.tuples(*fields).map(lambda items: composite.make(*items))


everything = st.one_of(*(instances(composite) for composite in PERFORMATIVES.by_type.values()))


@settings(max_examples=50)
@given(everything)
def test_what_we_write_we_read(value: Any) -> None:
    """Also where the descriptor is a symbol or a large number, and the list a large one."""
    composite = PERFORMATIVES.by_type[type(value)]
    octets = PERFORMATIVES.encode(value)
    assert PERFORMATIVES.decode(octets) == value
    items = items_of(decode(octets))
    body = b"".join(map(encode, items))
    large = b"\xd0" + (len(body) + 4).to_bytes(4, "big") + len(items).to_bytes(4, "big") + body
    for descriptor in (encode(composite.symbol), encode(composite.code), b"\x80" + composite.code.to_bytes(8, "big")):
        assert PERFORMATIVES.decode(b"\x00" + descriptor + large) == value


# -- wrong types
def smallest(composite: Composite[Any]) -> list[bytes]:
    """The fields of the smallest value of a composite, encoded."""
    given_by_kind = {"uint": b"\x43", "boolean": b"\x42", "string": b"\xa1\x01x", "symbol": b"\xa3\x01x"}
    return [given_by_kind[field.kind.name] if field.mandatory else b"\x40" for field in composite.fields]


def read_fields(composite: Composite[Any], items: list[bytes]) -> Any:
    octets = composite.prefix + encode_list(items)
    if composite.make in PERFORMATIVES.by_type:
        return PERFORMATIVES.decode(octets)
    value, end = composite.read(octets, len(composite.prefix), len(octets), 8)
    assert end == len(octets)
    return value


def refused(composite: Composite[Any], items: list[bytes]) -> WireError:
    with pytest.raises(WireError) as raised:
        read_fields(composite, items)
    return raised.value


EVERY_FIELD = [(composite, index) for composite in COMPOSITES for index in range(len(composite.fields))]


@each(("composite", "index"), EVERY_FIELD)
def test_a_wrong_constructor_is_refused_by_the_name_of_the_field(composite: Composite[Any], index: int) -> None:
    field = composite.fields[index]
    allowed = ALLOWED.get(field.kind.name, {0})
    for constructor in CONSTRUCTORS - allowed:
        items = smallest(composite)
        items[index] = bytes((constructor,)) + bytes(8)
        error = refused(composite, items)
        assert error.condition in {conditions.Condition.INVALID_FIELD, conditions.Condition.DECODE_ERROR}
        assert str(error).startswith(f"{composite.name}, {field.name}: ")
        assert field.kind.name in str(error)


@each(("composite", "index"), EVERY_FIELD)
def test_a_field_is_missing_only_where_it_may_be(composite: Composite[Any], index: int) -> None:
    field = composite.fields[index]
    for items in (
        smallest(composite)[:index],
        [*smallest(composite)[:index], b"\x40", *smallest(composite)[index + 1 :]],
    ):
        needs = [one for one in composite.fields[len(items) :] if one.mandatory]
        if field.mandatory or needs:
            error = refused(composite, items)
            assert error.condition == conditions.Condition.INVALID_FIELD
            assert str(error) == f"{composite.name} needs {(field if field.mandatory else needs[0]).name}"
        else:
            assert getattr(read_fields(composite, items), composite.attributes[index]) == field.absent
    error = refused(composite, [*smallest(composite), b"\x40"])
    assert error.condition == conditions.Condition.INVALID_FIELD
    assert composite.name in str(error)


@each(
    ("performative", "octets", "told"),
    [
        (performatives.ATTACH_TYPE, {3: b"\x50\x03"}, "attach, snd-settle-mode: snd-settle-mode is at most 2"),
        (performatives.ATTACH_TYPE, {4: b"\x50\x02"}, "attach, rcv-settle-mode: rcv-settle-mode is at most 1"),
        (performatives.TRANSFER_TYPE, {6: b"\x50\x02"}, "transfer, rcv-settle-mode: rcv-settle-mode is at most 1"),
        (
            performatives.TRANSFER_TYPE,
            {2: b"\xa0\x21" + bytes(33)},
            "transfer, delivery-tag: a delivery-tag has at most 32",
        ),
        (performatives.ATTACH_TYPE, {6: b"\x00\x53\x28\x45"}, "nothing is known of 0x28 here"),
        (performatives.ATTACH_TYPE, {5: b"\x00\x53\x29\x45"}, "nothing is known of 0x29 here"),
        (performatives.ATTACH_TYPE, {5: b"\x00\x53\x28\xc0\x03\x01\xa3\x00"}, "source, address: string is expected"),
        (performatives.ATTACH_TYPE, {5: b"\x00\x53\x28\xc0\x03\x02\xa1\x00"}, "a list is cut off"),
        (performatives.OPEN_TYPE, {7: b"\xe0\x03\x01\x50\x01"}, "open, offered-capabilities: symbols are expected"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_the_field(
    performative: Composite[Any], octets: dict[int, bytes], told: str
) -> None:
    items = smallest(performative)
    for index, item in octets.items():
        items[index] = item
    assert str(refused(performative, items)).startswith(told)


@each(
    ("index", "item"),
    [
        (0, b"\xa1\x02\xff\xff"),  # no UTF-8
        (0, b"\xa1\x7fx"),  # cut off
        (7, b"\xa3\x01\xff"),  # no ASCII
        (9, b"\xc1\x02\x01\x40"),  # a key without a value
        (9, b"\xc1\x04\x02\xc0\x01\x00"),  # a list as a key
    ],
)
def test_octets_that_are_no_value_are_no_performative(index: int, item: bytes) -> None:
    items = smallest(performatives.OPEN_TYPE)
    items[index] = item
    assert refused(performatives.OPEN_TYPE, items).condition == conditions.Condition.DECODE_ERROR


# -- proton's engine
def symbols(*items: str) -> Array:
    return Array(UNDESCRIBED, Data.SYMBOL, *map(symbol, items))  # type: ignore[arg-type] # None is what it is


def said_by(engine: Engine, *, started: bool = False) -> list[Any]:
    """The performatives that an engine of proton says, as our reader has them."""
    reader = FrameReader(2**20)
    reader.started = started
    while octets := engine.output():
        reader.feed(bytes(octets))
    assert started or reader.header()
    found = []
    while (one := reader.next()) is not None:
        found.append(one[1])
    return found


def test_what_the_engine_of_proton_says() -> None:
    """What it hears is what we write: one table reads and writes, and what we write we read. All tests of the broker
    look at it, whose peers are such engines (`dtx/broker/peer.py`)."""
    client = Engine(server=False, max_frame_size=4096)
    connection = client.connection
    connection.hostname = "there"
    connection.offered_capabilities = symbols("a", "b")
    connection.desired_capabilities = symbols("c")
    connection.properties = {symbol("product"): "x"}
    client.transport.channel_max = 7
    client.transport.idle_timeout = 4
    connection.open()
    session = connection.session()
    session.open()
    sender = session.sender("out")
    sender.source.address, sender.target.address = "from", "to"
    sender.source.durability = Terminus.CONFIGURATION
    sender.source.expiry_policy = Terminus.EXPIRE_WITH_LINK
    sender.source.timeout = 5
    sender.source.capabilities.put_object(symbol("topic"))
    sender.target.durability = Terminus.DELIVERIES
    sender.target.expiry_policy = Terminus.EXPIRE_NEVER
    sender.target.timeout = 9
    sender.target.capabilities.put_object(symbol("queue"))
    sender.snd_settle_mode, sender.rcv_settle_mode = Link.SND_UNSETTLED, Link.RCV_SECOND
    sender.max_message_size = 2**40
    sender.open()
    receiver = session.receiver("in")
    receiver.source.address = "from"
    receiver.source.distribution_mode = Terminus.DIST_MODE_COPY
    receiver.source.filter.put_object({symbol("f"): ProtonDescribed(symbol("x"), "y")})
    receiver.source.outcomes.put_object(symbols("amqp:accepted:list"))
    receiver.target.dynamic = True
    receiver.target.properties.put_object({symbol("lifetime"): ProtonDescribed(ulong(0x2B), [])})
    receiver.open()
    receiver.flow(3)
    found = said_by(client)
    client.push(AMQP_HEADER)

    for answer in (
        Open("server"),
        Begin(0, 0, 100, 100),
        Attach("out", 0, receiver=True),
        Attach("in", 1, receiver=False, initial_delivery_count=0),
    ):
        client.push(performative_frame(0, answer))

    found += said_by(client, started=True)
    receiver.close()
    found += said_by(client, started=True)
    session.condition = Condition("amqp:not-found", "gone", {symbol("x"): 1})
    session.close()
    connection.close()
    found += said_by(client, started=True)
    opened, begun, out, into, flow, detached, ended, closed = found
    assert opened == Open(
        "client",
        "there",
        max_frame_size=4096,
        channel_max=7,
        idle_timeout_ms=2000,  # proton announces half
        offered_capabilities=("a", "b"),
        desired_capabilities=("c",),
        properties={"product": "x"},
    )
    assert isinstance(begun, Begin)
    assert (begun.remote_channel, begun.next_outgoing_id) == (None, 0)
    assert isinstance(out, Attach)
    assert (out.name, out.receiver, out.initial_delivery_count, out.max_message_size) == ("out", False, 0, 2**40)
    assert (out.snd_settle_mode, out.rcv_settle_mode) == (0, 1)
    assert out.source == Source("from", 1, "link-detach", 5, capabilities=("topic",))
    assert out.target == Target("to", 2, "never", 9, capabilities=("queue",))
    assert isinstance(into, Attach)
    assert (into.name, into.receiver, into.initial_delivery_count) == ("in", True, 0)
    assert into.source is not None
    assert into.source.distribution_mode == "copy"
    assert into.source.filters == {"f": values.Described(Symbol("x"), "y")}
    assert into.source.outcomes == ("amqp:accepted:list",)
    assert isinstance(into.target, Target)
    assert into.target.dynamic
    assert into.target.dynamic_node_properties == {"lifetime": values.Described(Ulong(0x2B), [])}
    assert isinstance(flow, Flow)
    assert (flow.handle, flow.link_credit, flow.drain) == (into.handle, 3, False)
    assert detached == Detach(into.handle, closed=True)
    assert ended == End(Error("amqp:not-found", "gone", {"x": 1}))
    assert closed == Close()


# -- what mypy refuses
@dataclass
class Detached:
    name: str
    handle: int | None
    closed: bool = False


NAMED = FIELDS.mandatory("name", STRING)
DETACHED = standard(Detached, "detached", 1, NAMED.optional("handle", UINT).default("closed", BOOLEAN, absent=False))


def test_a_table_has_a_field_for_each_attribute() -> None:
    """mypy does not ask for the attributes that have a default."""
    assert len(DETACHED.fields) == 3
    with pytest.raises(ValueError, match="shorter"):
        standard(Detached, "detached", 1, NAMED.optional("handle", UINT))


def mistakes() -> None:
    """Nobody calls it."""
    other_type = FIELDS.mandatory("name", UINT).optional("handle", UINT).default("closed", BOOLEAN, absent=False)
    standard(Detached, "detached", 1, other_type)  # type: ignore[arg-type]
    may_be_null = FIELDS.optional("name", STRING).optional("handle", UINT).default("closed", BOOLEAN, absent=False)
    standard(Detached, "detached", 1, may_be_null)  # type: ignore[arg-type]
    other_order = NAMED.default("closed", BOOLEAN, absent=False).optional("handle", UINT)
    standard(Detached, "detached", 1, other_order)  # type: ignore[arg-type]
    too_many = NAMED.optional("handle", UINT).default("closed", BOOLEAN, absent=False).optional("error", STRING)
    standard(Detached, "detached", 1, too_many)  # type: ignore[arg-type]
    wrong_default = NAMED.optional("handle", UINT).default("closed", BOOLEAN, absent="no")
    standard(Detached, "detached", 1, wrong_default)  # type: ignore[arg-type]
    name: int = Catalog(DETACHED).decode(b"").name  # type: ignore[assignment]
    encode([(name, False), {Symbol("a"): Uint(1)}])  # type: ignore[list-item]
    encode(decode(b"")[0])  # type: ignore[index]
