"""These tests run every input of the fuzzer's corpus, and inputs near to them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.fuzz.endpoint import CORPUS, all_of_them

if TYPE_CHECKING:
    from pathlib import Path

INPUTS = sorted(path for path in CORPUS.iterdir() if path.is_file())
NEIGHBOURS = 200
"""Inputs that are tried near to each one of the corpus."""


def test_the_corpus_is_there() -> None:
    assert len(INPUTS) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_the_corpus_and_its_neighbours(part: int) -> None:
    for path in INPUTS[part::4]:
        _near(path)


def _near(path: Path) -> None:
    octets = path.read_bytes()
    all_of_them(octets)
    chance = random.Random(path.name)
    for number in range(NEIGHBOURS):
        near = bytearray(octets)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(near) + 1)
            near[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        try:
            all_of_them(bytes(near))
        except Exception as error:
            raise AssertionError(f"{path.name}, neighbour {number}: {bytes(near).hex()}") from error
