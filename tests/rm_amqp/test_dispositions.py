"""These tests check that joined dispositions say what the single ones said, in their order, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from dtx.amqp.decoding import MAX_DEPTH
from dtx.amqp.encoding import encode, encode_uint
from dtx.amqp.performatives import MAX_UINT, PERFORMATIVES, Disposition
from dtx.amqp.values import Described, Ulong
from dtx.protocol.replies import ACCEPTED, MODIFIED, RELEASED, TRANSACTIONAL
from rm_amqp import Message
from rm_amqp.connection.dispositions import join_dispositions
from tests.rm_amqp.client import Client
from tests.simulation.seeds import EVERY_POINT

HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"


def state(txn_id: bytes, code: int = ACCEPTED, *, failed: bool | None = None) -> bytes:
    """A transactional-state."""
    outcome = Described(Ulong(code), [failed] if failed is not None else [])
    return encode(Described(Ulong(TRANSACTIONAL), [txn_id, outcome]))


def frame(body: bytes, channel: int = 0) -> bytes:
    """A frame with this performative."""
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + body


def disposition(
    number: int,
    told: bytes,
    *,
    last: int | None = None,
    role: bytes = b"\x41",
    settled: bytes = b"\x41",
    channel: int = 0,
) -> bytes:
    """A disposition as proton writes it."""
    fields = role + encode_uint(number) + (b"\x40" if last is None else encode_uint(last)) + settled + told
    return frame(b"\x00\x53\x15\xc0" + bytes((len(fields) + 1, 5)) + fields, channel)


def frames_of(octets: bytes) -> list[bytes]:
    """The frames, one by one."""
    found, at = [], 0
    while at < len(octets):
        stop = at + int.from_bytes(octets[at : at + 4], "big")
        assert at + 8 <= stop <= len(octets)
        found.append(octets[at:stop])
        at = stop
    return found


def said(octets: bytes) -> list[object]:
    """What the peer hears of each delivery, in its order; other frames as they are."""
    heard: list[object] = []
    for one in frames_of(octets):
        told = PERFORMATIVES.read(one, 9, len(one), MAX_DEPTH)[0] if len(one) > 8 and one[10] == 0x15 else None
        if not isinstance(told, Disposition):
            heard.append(one)
            continue
        last = told.first if told.last is None else told.last
        heard += [
            (one[6:8], (told.first + step) & MAX_UINT, told.receiver, told.settled, told.state, told.batchable)
            for step in range(((last - told.first) & MAX_UINT) + 1)
        ]
    return heard


@pytest.mark.parametrize("first", [0, 1, 254, 255, 256, 65_535, 2**32 - 50])
def test_the_messages_of_a_batch_have_one(first: int) -> None:
    single = b"".join(disposition((first + n) & MAX_UINT, state(b"t1")) for n in range(100))
    joined = join_dispositions(single)
    assert len(frames_of(joined)) == 1
    assert said(joined) == said(single)


OTHERS: dict[str, Callable[[int], bytes]] = {
    "outcome": lambda n: disposition(n, state(b"t1", RELEASED)),
    "txn-id": lambda n: disposition(n, state(b"t2")),
    "role": lambda n: disposition(n, state(b"t1"), role=b"\x42"),
    "settled": lambda n: disposition(n, state(b"t1"), settled=b"\x42"),
    "channel": lambda n: disposition(n, state(b"t1"), channel=1),
    "number": lambda n: disposition(n + 1, state(b"t1")),
    "the same": lambda n: disposition(n - 1, state(b"t1")),
    "range": lambda n: disposition(n, state(b"t1"), last=n + 2),
    "heartbeat": lambda n: HEARTBEAT,  # noqa: ARG005
    "long": lambda n: disposition(n, state(b"t" * 220)),
    "stateless": lambda n: disposition(n, b"\x40"),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_is_different_stays_apart(other: Callable[[int], bytes]) -> None:
    single = disposition(7, state(b"t1")) + other(8) + disposition(20, state(b"t1"))
    assert join_dispositions(single) == single


def test_schedules() -> None:
    for seed in range(2000 if EVERY_POINT else 300):
        dice = Random(seed)
        number, pieces = dice.choice([0, 250, 65_530, 2**32 - 8]), []
        for _ in range(dice.randrange(30)):
            number = (number + dice.choice([1, 1, 1, 1, 1, 2, 0])) & MAX_UINT
            told = state(dice.choice([b"t1", b"t1", b"t2"]), dice.choice([ACCEPTED] * 5 + [RELEASED]))
            if dice.random() < 0.1:
                told = state(b"t1", MODIFIED, failed=True)
            if dice.random() < 0.1:
                pieces.append(dice.choice([HEARTBEAT, frame(b"\x00\x53\x14\xc0\x01\x00" + b"\x00\x53\x15\xc0" * 3)]))
            pieces.append(disposition(number, told, channel=dice.random() < 0.1))
        single = b"".join(pieces)
        joined = join_dispositions(single)
        assert said(joined) == said(single), seed
        assert join_dispositions(joined) == joined, seed


def test_what_came_with_one_disposition(client: Client, queue: str) -> None:
    """Taken, given back and refused messages in one batch each go their way, and a rollback gives all back."""
    client.put(queue, list(range(50)))
    for commit in (False, True):
        xid = client.start()
        messages: list[Message] = client.session.receive_batch(queue, 50, 5)
        assert [message.body for message in messages] == list(range(50))
        client.session.release(messages[10])
        client.session.reject(messages[20])
        client.session.modify(messages[30])
        client.session.modify(messages[40], failed=False)
        client.commit(xid) if commit else client.rollback(xid)
    with client.work() as session:
        again = session.receive_batch(queue, 5, 5)
        assert [(each.body, each.delivery_count) for each in again] == [(10, 1), (30, 2), (40, 1)]
    assert client.look(f"{queue}.dead") == [20]
