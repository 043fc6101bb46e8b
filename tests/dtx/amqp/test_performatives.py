"""The performatives and what stands in them, against proton: its codec reads what we write and writes what we read, and
its engine says and hears the same as ours. What has a wrong type is refused by the name of its field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import (
    UNDESCRIBED,
    Array,
    Condition,
    Data,
    Delivery,
    Endpoint,
    Link,
    Terminus,
    symbol,
    ubyte,
    uint,
    ulong,
    ushort,
)
from proton import Described as ProtonDescribed

from dtx.amqp import conditions, performatives, values
from dtx.amqp.composites import Composite, WireError
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
    Coordinator,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
)
from dtx.amqp.values import Symbol, Ulong
from tests.cases import each
from tests.dtx.amqp.described import items_of, performative_at
from tests.dtx.amqp.engines import Engine

INNER: dict[str, Composite[Any]] = {
    "error": ERROR_TYPE,
    "source": SOURCE_TYPE,
    "target": TARGET_TYPE,
    "coordinator": COORDINATOR_TYPE,
}
COMPOSITES: list[Composite[Any]] = [*PERFORMATIVES.by_type.values(), *INNER.values()]
NUMBERS = {"ubyte": ubyte, "ushort": ushort, "uint": uint, "ulong": ulong}
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
FEWER = settings(max_examples=40)
"""For what takes a while."""
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
    top = LIMITS.get(field.name, {"ubyte": 255, "ushort": MAX_USHORT, "uint": MAX_UINT, "ulong": 2**64 - 1}.get(kind))
    found: st.SearchStrategy[Any]
    if kind in NUMBERS:
        assert top is not None
        found = st.integers(0, top)
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


# -- proton's codec
def type_of(value: Any) -> Composite[Any]:
    return next(composite for composite in COMPOSITES if composite.make is type(value))


def as_proton(value: Any) -> ProtonDescribed:
    """A composite as proton's codec has it."""
    composite = type_of(value)
    items = []
    for field, attribute in zip(composite.fields, composite.attributes, strict=True):
        item = getattr(value, attribute)
        items.append(None if item == field.absent and not field.mandatory else item_as_proton(field.kind.name, item))
    while items and items[-1] is None:
        items.pop()
    return ProtonDescribed(ulong(composite.code), items)


def symbols(*items: str) -> Array:
    return Array(UNDESCRIBED, Data.SYMBOL, *map(symbol, items))  # type: ignore[arg-type] # None is what it is


def item_as_proton(kind: str, item: Any) -> Any:
    if kind in NUMBERS:
        return NUMBERS[kind](item)
    if kind == "symbol":
        return symbol(item)
    if kind == "symbols":
        return symbols(*item)
    if kind == "map":
        return {symbol(key): uint(one) if isinstance(one, values.Uint) else one for key, one in item.items()}
    if kind == "delivery-state":
        code, items, _ = performative_at(item, 0)
        return ProtonDescribed(ulong(code), items)
    return as_proton(item) if kind in INNER else item


def read_by_proton(octets: bytes) -> Any:
    """What proton's codec reads, as `shown`."""
    data = Data(1024)
    assert data.decode(octets) == len(octets)
    data.rewind()
    data.next()
    return shown(data.get_object())  # now: binaries are views of `data`


def written_by_proton(value: Any) -> bytes:
    data = Data(1024)
    data.put_object(value)
    return bytes(data.encode())


def shown(value: Any) -> Any:
    """A value of proton's with the types of everything in it: uint(1) == ubyte(1) otherwise."""
    if isinstance(value, ProtonDescribed):
        return "described", shown(value.descriptor), shown(value.value)
    if isinstance(value, bytes | bytearray | memoryview):
        return "binary", bytes(value)
    if isinstance(value, Array):
        return "array", value.type, list(map(shown, value.elements))
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return {shown(key): shown(item) for key, item in value.items()}
    return type(value).__name__, value


def comparable(value: Any) -> Any:
    """One of our composites, and its delivery states decoded: equal states may be different octets."""
    state, source = getattr(value, "state", None), getattr(value, "source", None)
    decoded = None if state is None else decode(state)
    if state is not None:
        value = replace(value, state=None)
    default = None
    if isinstance(source, Source) and source.default_outcome is not None:
        default = source.default_outcome
        value = replace(value, source=replace(source, default_outcome=None))
    return value, decoded, None if default is None else decode(default)


@given(everything)
def test_what_we_write_we_read(value: Any) -> None:
    assert PERFORMATIVES.decode(PERFORMATIVES.encode(value)) == value


@FEWER
@given(everything)
def test_proton_reads_what_we_write(value: Any) -> None:
    assert read_by_proton(PERFORMATIVES.encode(value)) == shown(as_proton(value))


@given(everything)
def test_we_read_what_proton_writes(value: Any) -> None:
    assert comparable(PERFORMATIVES.decode(written_by_proton(as_proton(value)))) == comparable(value)


@given(everything)
def test_a_descriptor_may_be_a_symbol_and_a_list_large(value: Any) -> None:
    composite = type_of(value)
    octets = PERFORMATIVES.encode(value)
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


FIELDS = [(composite, index) for composite in COMPOSITES for index in range(len(composite.fields))]


@each(("composite", "index"), FIELDS)
def test_a_wrong_constructor_is_refused_by_the_name_of_the_field(composite: Composite[Any], index: int) -> None:
    field = composite.fields[index]
    allowed = ALLOWED.get(field.kind.name, {0})
    for constructor in range(256):
        if constructor in allowed or constructor == 0x40:
            continue
        items = smallest(composite)
        items[index] = bytes((constructor,)) + bytes(8)
        error = refused(composite, items)
        assert error.condition in {conditions.Condition.INVALID_FIELD, conditions.Condition.DECODE_ERROR}
        assert str(error).startswith(f"{composite.name}, {field.name}: ")
        assert field.kind.name in str(error)


@each(("composite", "index"), FIELDS)
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


@each("composite", COMPOSITES)
def test_there_are_no_further_fields(composite: Composite[Any]) -> None:
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


@given(everything, st.data())
def test_a_damaged_performative_is_refused_or_another_one(value: Any, data: st.DataObject) -> None:
    octets = bytearray(PERFORMATIVES.encode(value))
    octets[data.draw(st.integers(0, len(octets) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = PERFORMATIVES.decode(bytes(octets))
    except WireError:
        return
    assert type(found) in PERFORMATIVES.by_type


# -- proton's engine
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
    assert out.source == Source("from")
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


class Speaker:
    """A peer of proton's engine that says what our tables write."""

    def __init__(self) -> None:
        self.engine = Engine(server=True)
        self.engine.push(AMQP_HEADER)

    def say(self, performative: Any, payload: bytes = b"", channel: int = 0) -> None:
        body = performative_frame(channel, performative) + payload
        self.engine.push(len(body).to_bytes(4, "big") + body[4:])
        for _ in self.engine.events():
            pass
        assert self.engine.transport.condition is None, self.engine.transport.condition


@FEWER
@given(instances(performatives.OPEN_TYPE))
def test_the_engine_hears_an_open(said: Open) -> None:
    said.max_frame_size = max(512, said.max_frame_size)
    speaker = Speaker()
    speaker.say(said)
    connection, transport = speaker.engine.connection, speaker.engine.transport
    assert connection.remote_container == said.container_id
    assert (connection.remote_hostname or "") == (said.hostname or "")
    assert transport.remote_max_frame_size == said.max_frame_size
    assert transport.remote_channel_max in {said.channel_max, 32767}  # what proton takes at most
    assert transport.remote_idle_timeout == (said.idle_timeout_ms or 0) / 1000
    for ours, theirs in (
        (said.offered_capabilities, connection.remote_offered_capabilities),
        (said.desired_capabilities, connection.remote_desired_capabilities),
    ):
        assert tuple(theirs or ()) == ours
    assert (connection.remote_properties or {}) == (said.properties or {})


def attached(said: Attach) -> tuple[Speaker, Link]:
    """A session, with a link in it that our tables attach."""
    speaker = Speaker()
    speaker.say(Open("x"))
    speaker.say(Begin(None, 0, 100, 100))
    speaker.say(said)
    connection = speaker.engine.connection
    connection.open()
    link = connection.link_head(Endpoint.REMOTE_ACTIVE)
    assert link is not None
    link.session.open()
    link.open()
    speaker.engine.output()
    return speaker, link


termini = st.one_of(st.none(), instances(TARGET_TYPE), instances(COORDINATOR_TYPE))


@FEWER
@given(instances(performatives.ATTACH_TYPE), termini)
def test_the_engine_hears_an_attach(said: Attach, target: Target | Coordinator | None) -> None:
    said.handle, said.target, said.unsettled = 0, target, None
    policies = {"session-end", "link-detach", "connection-close", "never"}
    for terminus in (said.source, said.target):
        if isinstance(terminus, Source | Target):
            terminus.durable %= 3
            terminus.address = terminus.address or "a"  # proton reads no terminus without one
            if terminus.expiry_policy not in policies:
                terminus.expiry_policy = "never"
    _, link = attached(said)
    assert link.name == said.name
    assert link.is_sender == said.receiver
    assert (link.remote_snd_settle_mode, link.remote_rcv_settle_mode) == (said.snd_settle_mode, said.rcv_settle_mode)
    assert link.remote_max_message_size == said.max_message_size
    assert (link.remote_properties or {}) == (said.properties or {})
    check_terminus(link.remote_source, said.source)
    if isinstance(said.target, Coordinator):
        assert link.remote_target.type == Terminus.COORDINATOR
    else:
        check_terminus(link.remote_target, said.target)


POLICIES = {
    Terminus.EXPIRE_WITH_SESSION: "session-end",
    Terminus.EXPIRE_WITH_LINK: "link-detach",
    Terminus.EXPIRE_WITH_CONNECTION: "connection-close",
    Terminus.EXPIRE_NEVER: "never",
}


def check_terminus(found: Terminus, said: Source | Target | None) -> None:
    if said is None:
        assert found.type == Terminus.UNSPECIFIED
        return
    assert (found.address or "") == (said.address or "")
    assert (found.durability, POLICIES[found.expiry_policy]) == (said.durable, said.expiry_policy)
    assert (found.timeout, found.dynamic) == (said.timeout, said.dynamic)
    assert entry(found.properties) == (said.dynamic_node_properties or None)
    if isinstance(said, Source):
        modes = {"copy": Terminus.DIST_MODE_COPY, "move": Terminus.DIST_MODE_MOVE}
        assert found.distribution_mode == modes.get(said.distribution_mode or "", Terminus.DIST_MODE_UNSPECIFIED)
        assert entry(found.filter) == (said.filters or None)
        assert several(found.outcomes) == said.outcomes
    assert several(found.capabilities) == said.capabilities


def entry(data: Data) -> Any:
    data.rewind()
    return (data.get_object() or None) if data.next() is not None else None


def several(data: Data) -> tuple[str, ...]:
    found = entry(data)
    return () if found is None else tuple(found.elements) if isinstance(found, Array) else (found,)


@FEWER
@given(credit=st.integers(0, 2**31 - 1), drain=st.booleans(), count=st.integers(0, 100))
def test_the_engine_hears_a_flow(credit: int, count: int, *, drain: bool) -> None:
    speaker, link = attached(Attach("x", 0, receiver=True, source=Source("a"), target=Target("b")))
    speaker.say(Flow(0, 100, 0, 100, 0, 0, credit, drain=drain))
    assert link.credit == credit
    assert link.drain_mode == drain
    speaker.say(Flow(0, 100, 0, 100))  # the session's alone
    assert link.credit == credit
    speaker.say(Flow(0, 100, 0, 100, 0, 0, count))
    assert link.credit == count


@FEWER
@given(
    tag=names.map(str.encode),
    parts=st.lists(st.binary(max_size=50), min_size=1, max_size=4),
    state=st.one_of(st.none(), st.just(ACCEPTED)),
    settled=st.booleans(),
    aborted=st.booleans(),
)
def test_the_engine_hears_transfers(
    tag: bytes, parts: list[bytes], state: bytes | None, *, settled: bool, aborted: bool
) -> None:
    attach = Attach("x", 0, receiver=False, source=Source("a"), target=Target("b"), initial_delivery_count=0)
    speaker, link = attached(attach)
    link.flow(10)
    aborted = aborted and len(parts) > 1
    for number, part in enumerate(parts):
        last = number + 1 == len(parts)
        first = {"delivery_id": 0, "delivery_tag": tag, "settled": settled, "state": state, "message_format": 0}
        said = Transfer(0, more=not last, aborted=aborted and last, **(first if not number else {}))  # type: ignore[arg-type]
        speaker.say(said, b"" if said.aborted else part)
    delivery = link.current
    assert delivery is not None
    assert delivery.tag == tag.decode()
    assert delivery.aborted == aborted
    if not aborted:
        assert not delivery.partial
        assert (link.recv(1000) or b"") == b"".join(parts)
        assert delivery.settled == settled
        assert (delivery.remote_state == Delivery.ACCEPTED) == (state is not None)


@FEWER
@given(settled=st.booleans(), accepted=st.booleans(), last=st.booleans())
def test_the_engine_hears_dispositions(*, settled: bool, accepted: bool, last: bool) -> None:
    speaker, link = attached(Attach("x", 0, receiver=True, source=Source("a"), target=Target("b")))
    speaker.say(Flow(0, 100, 0, 100, 0, 0, 10))
    deliveries = []
    for number in range(3):
        deliveries.append(link.delivery(f"{number}"))
        link.send(b"x")
        link.advance()
    sent = said_by(speaker.engine, started=True)
    numbers = [one.delivery_id for one in sent if isinstance(one, Transfer)]
    assert numbers == [0, 1, 2]
    speaker.say(Disposition(True, 0, 1 if last else None, settled, ACCEPTED if accepted else None))
    told = [delivery.settled for delivery in deliveries]
    assert told == [settled, settled and last, False]
    states = [delivery.remote_state == Delivery.ACCEPTED for delivery in deliveries]
    assert states == [accepted, accepted and last, False]


@FEWER
@given(instances(ERROR_TYPE))
def test_the_engine_hears_why_something_ends(error: Error) -> None:
    attach = Attach("x", 0, receiver=True, source=Source("a"), target=Target("b"))
    speaker, link = attached(attach)
    speaker.say(Detach(0, closed=True, error=error))
    speaker.say(End(error))
    speaker.say(Close(error))
    for found in (link.remote_condition, link.session.remote_condition, link.connection.remote_condition):
        assert found is not None
        assert (found.name, found.description or "") == (error.condition, error.description)
        assert (found.info or {}) == (error.info or {})
