"""Each decoder raises what it declares: over valid samples, over octets near to them, and over the fuzzer's corpus."""

from __future__ import annotations

import os
import random

import pytest

from tests.cases import each
from tests.fuzz.decoders import CORPUS, DECODERS

SEED = int(os.environ.get("XABRIDGE_SEED", "20261123"))
FEW, MANY = 100, 400
"""Neighbours that are tried, per decoder."""
NEIGHBOURS = 200
"""Of each input of the corpus."""
NASTY = (
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"a = " + b"[" * 100_000,
    b"a = " + b"9" * 5000,
    b"1e400", b"9" * 5000, b"-1", b"Infinity", b"NaN", b"null", b"[]", b"{}", b"[[]]", b'"\\ud800"', b"\xed\xa0\x80",
    b"\xff" * 16, b"\0" * 16, b"",
)  # fmt: skip

TOKEN = b'"founder": "3132333435363738", "slot": 0, "generation": 0, "epoch": 0, "floor": 0'
SEEN: list[tuple[str, bytes]] = [
    ("tokens", b"\0" + b"[" * 100_000),
    ("tokens", b"\x01" + b'{"version": [], "founder": "3132333435363738", "slots": 1}'),
    ("tokens", b'\0{"version": 1, %b, "decided": [], "fenced": [["00", 1e400]]}' % TOKEN),
    ("tokens", b'\0{"version": 2, %b, "decided": [], "fenced": [["00", -1]], "leases": []}' % TOKEN),
    ("permissions", b'{"coordinate": []}'),
    ("permissions", b"[" * 100_000),
    ("log segments", b"\x54" + bytes(36) + b"\x01\xff" + bytes(5000)),
    ("log segments", b"\x54" + bytes(36) + b"\x01/" + bytes(5000)),
    ("configuration", b"timeout_s = " + b"9" * 5000),
    ("broker configuration", b"a = " + b"[" * 100_000),
    ("console configuration", b'[console.brokers]\nb = "amqp://[1]:2]/"'),
    ("open strings", b"\0amqp://a:" + b"9" * 5000),
    ("open strings", b"\0amqp://a?prefetch=" + b"9" * 5000),
    ("open strings", b"\x01amqp010://a/\xff"),
    ("ledger", b'\0{"skipped": 1}'),
    ("Delta manifests", b'{"version": 2, "appends": [{"files": 3}]}'),
    ("JSON of bodies", b"\x01" + b'{"a":' * 100_000),
    ("JSON of bodies", b'\x01{"type": [5e3333332333233333332]}'),
]
"""Octets at which a decoder has raised something else."""


@each(("name", "octets"), SEEN)
def test_what_was_seen_once_is_refused(name: str, octets: bytes) -> None:
    assert not DECODERS[name].try_on(octets)


@each("name", DECODERS)
def test_samples_are_decoded(name: str) -> None:
    decoder = DECODERS[name]
    assert [sample for sample in decoder.samples if not decoder.try_on(sample)] == []
    assert len(CORPUS) >= 20


@pytest.mark.slow
@each("name", DECODERS)
def test_a_decoder_raises_what_it_declares(name: str) -> None:
    for octets in [*NASTY, *(bytes([way]) + nasty for nasty in NASTY for way in range(DECODERS[name].ways))]:
        _try_on(name, octets)
    try_neighbours(name, FEW)


@pytest.mark.slow
@each("name", DECODERS)
def test_a_decoder_raises_what_it_declares_near_to_its_samples(name: str) -> None:
    try_neighbours(name, MANY)


def try_neighbours(name: str, count: int) -> None:
    chance = random.Random(f"{SEED} {name} {count}")
    samples = DECODERS[name].samples or (b"\0\x53\x01\x45",)
    for _ in range(count):
        _try_on(name, near(chance.choice(samples), chance))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AMQP endpoint", "AMQP endpoint that answers late", "AMQP values", "AMQP messages"])
def test_the_neighbours_of_the_corpus(name: str) -> None:
    for number, octets in enumerate(CORPUS):
        chance = random.Random(f"{SEED} {name} {number}")
        for _ in range(NEIGHBOURS):
            _try_on(name, near(octets, chance))


def _try_on(name: str, octets: bytes) -> None:
    try:
        DECODERS[name].try_on(octets)
    except Exception as error:
        raise AssertionError(f"{name}, seed {SEED}, XABRIDGE_SEED={SEED}: {octets[:500]!r}") from error


def near(octets: bytes, chance: random.Random) -> bytes:
    """Octets near to these: some changed, left out, put in, doubled, or in the place of a number or a text."""
    made = bytearray(octets)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        end = at + chance.choice((0, 0, 1, 1, 2, 8))
        kind = chance.randrange(5)

        if kind == 0:
            made[at:end] = chance.randbytes(chance.randrange(3))
        elif kind == 1:
            made[at:end] = chance.choice(NASTY[4:])
        elif kind == 2:
            made[at:end] = made[chance.randrange(len(made) + 1) :][: chance.randrange(12)]
        elif kind == 3 and made:
            made[at % len(made)] ^= 1 << chance.randrange(8)
        else:
            del made[at:end]
    return bytes(made)
