"""What an octet of a peer costs whoever decodes it: the same in a large message as in a small one, and not more than
the ceiling of its kind."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

from bench.worst_messages import (
    DECODERS,
    JSON,
    KINDS,
    MOST_MEMORY,
    MOST_TIME,
    all_decoders,
    colliding_numbers,
    colliding_uuids,
    compound,
    map_of,
    memory_per_octet,
    nanoseconds_per_octet,
)
from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.decoding import FEW_KEYS, DecodeError, decode, keys_collide
from dtx.amqp.encoding import encode
from dtx.amqp.messages import read_facts, with_message_annotations
from dtx.amqp.values import Long, Map, Symbol, Timestamp, Ulong
from rm_amqp.message import Message
from tests.cases import each
from tests.programs import output_of

SMALL, LARGE = 4 << 10, 48 << 10
GROWTH = 4.0
"""An octet of a message that is 12 times as large may cost so much more, as caches of the processor have limits; where
the cost is the square, it is 12 times as much."""


def _cases() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Each kind with one of its decoders, and each decoder with some kinds; and all the others."""
    met: Counter[str] = Counter()
    fast, others = [], []
    decoders = all_decoders()
    for kind in dict.fromkeys(kind for _, kinds in decoders.values() for kind in kinds):
        names = [name for name, (_, kinds) in decoders.items() if kind in kinds]
        chosen = min(names, key=lambda name: met[name])
        met[chosen] += 1
        fast.append((chosen, kind))
        others += [(name, kind) for name in names if name != chosen]
    return fast, others


FAST, OTHERS = _cases()


@contextmanager
def _no_collections() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.slow
@each(("name", "kind"), FAST)
def test_an_octet_takes_no_more_than_its_ceiling_and_in_a_large_message_no_more_than_in_a_small_one(
    name: str, kind: str
) -> None:
    check(name, kind)


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2, 3))])
def test_the_same_for_every_decoder_of_a_kind(part: int) -> None:
    for name, kind in OTHERS[part::4]:
        check(name, kind)


def check(name: str, kind: str) -> None:
    """Measures again, and longer, if it is too much: the machine may be busy."""
    decoder, kinds = all_decoders()[name]
    small, large, nulls = kinds[kind](SMALL), kinds[kind](LARGE), KINDS["null"](SMALL)
    times = JSON if name == "rows of a pipeline" else 1.0

    with _no_collections():
        for tries in (2, 5, 20, 80):
            unit = nanoseconds_per_octet(DECODERS["bodies"], nulls, tries)
            of_large = nanoseconds_per_octet(decoder, large, tries)
            of_small = nanoseconds_per_octet(decoder, small, 2 * tries)
            if of_large <= GROWTH * of_small and of_small <= times * MOST_TIME * unit:
                break

    assert of_large <= GROWTH * of_small
    assert of_small <= times * MOST_TIME * unit
    assert memory_per_octet(decoder, small) <= times * MOST_MEMORY.get(kind, MOST_MEMORY[""])


# --- keys that collide --------------------
COLLIDING: dict[str, Callable[[], list[Any]]] = {
    "UUIDs": lambda: colliding_uuids(200),
    "ulongs": lambda: [Ulong(key) for key in colliding_numbers(600)],
    "timestamps": lambda: [Timestamp(key) for key in colliding_numbers(600)],
    "doubles": lambda: [float(key) for key in colliding_numbers(600)],
    "UUIDs behind texts": lambda: [*map(str, range(600)), *colliding_uuids(300)],
}
"""They are made when they are asked for, because that takes a second. Texts have other hashes in each process."""


@pytest.mark.slow
@each("keys", COLLIDING)
def test_a_map_whose_keys_collide_is_refused_by_every_decoder(keys: str) -> None:
    octets = map_of(map(encode, COLLIDING[keys]()))

    for decode_it, wrapped in (
        (decode, octets),
        (Message.from_octets, b"\x00\x53\x77" + octets),
        (Message.from_octets, b"\x00\x53\x77" + compound(0xD0, [octets])),
    ):
        with pytest.raises(DecodeError, match="keys whose hashes collide"):
            decode_it(wrapped)


@each(
    "keys",
    [
        colliding_uuids(FEW_KEYS),
        [Long(number) for number in range(2_000)],
        [Long(-number) for number in range(2_000)],
        [Long(number << 32) for number in range(2_000)],
        [Long(number // 100 << 32 | number % 100) for number in range(2_000)],
        [Timestamp(1_732_000_000_000 + 3_600_000 * number) for number in range(2_000)],
        [number / 100 for number in range(2_000)],
        [number * 2.0**-40 for number in range(2_000)],
        [UUID(int=number << 96) for number in range(2_000)],
        [None, True, *map(str, range(2_000)), *(Symbol(f"s{number}") for number in range(2_000))],
    ],
)
def test_keys_that_people_have_are_taken(keys: list[object]) -> None:
    octets = map_of(map(encode, keys))  # type: ignore[arg-type] # they are values

    assert list(decode(octets)) == keys  # type: ignore[arg-type] # it is a map
    assert list(Message.from_octets(b"\x00\x53\x77" + octets).body) == keys


def test_text_is_looked_at_where_the_seed_of_hashes_is_fixed() -> None:
    program = "from dtx.amqp.decoding import _SECRET; print(len(_SECRET))"
    found = {seed: output_of(program, env={**os.environ, "PYTHONHASHSEED": seed}) for seed in ("0", "7", "random")}
    assert found == {"0": "0\n", "7": "0\n", "random": "4\n"}


def test_what_collides_is_counted_as_python_looks_for_it() -> None:
    """The model of a dict agrees with the real one: only what it calls slow is slow."""
    slow, quick = colliding_uuids(1_500), [UUID(int=key << 61) for key in range(1_500)]
    assert keys_collide(slow)
    assert not keys_collide(quick)

    with _no_collections():
        of_slow = nanoseconds_per_octet(lambda _: dict.fromkeys(slow), b"x")
        of_quick = nanoseconds_per_octet(lambda _: dict.fromkeys(quick), b"x", 5)

    assert of_slow > 10 * of_quick


# --- annotations --------------------
def test_a_delay_is_found_in_annotations_of_which_no_dict_is_made() -> None:
    annotations: Map = {Ulong(7): None, Symbol("x-opt-delivery-delay"): Long(5), Symbol("n" * 300): [Symbol("x")]}
    octets = b"\x00\x53\x72" + encode(annotations)
    assert read_facts(octets, 0).delay_ms == 5


@each("key", [UUID(int=1), 1.5, b"x", Long(1), None])
def test_annotations_have_symbols_or_ulongs_as_keys(key: UUID | float | bytes | Long | None) -> None:
    octets = b"\x00\x53\x72" + encode({key: Long(1), Symbol("x-opt-delivery-delay"): Long(5)})
    assert read_facts(octets, 0).delay_ms == 0
    with pytest.raises(WireError, match="symbol or a ulong"):
        with_message_annotations(octets, {})


def test_annotations_that_are_too_long_for_a_broker_to_read_are_refused() -> None:
    octets = b"\x00\x53\x72" + encode({Symbol("x-opt-delivery-delay"): Long(5), Symbol("x"): "y" * 70_000})
    with pytest.raises(WireError, match="65536 are allowed") as caught:
        read_facts(octets, 0)
    assert caught.value.condition is Condition.INVALID_FIELD


def test_annotations_are_changed_without_being_decoded() -> None:
    before = Message("x", annotations={"x-opt-a": {Long(1): "deep"}, "x-opt-retry-b": 2, "x-opt-delivery-delay": 3})
    octets = with_message_annotations(before.encode(), {Symbol("x-opt-a"): Long(4)}, without="x-opt-retry")
    assert Message.from_octets(octets).annotations == {"x-opt-a": 4}
    octets = with_message_annotations(before.encode(), {Symbol("x-opt-c"): Long(5)})
    assert Message.from_octets(octets).annotations == {"x-opt-a": {1: "deep"}, "x-opt-retry-b": 2, "x-opt-c": 5}
