"""These tests interrupt commit and rollback at any instruction, once and twice. Recovery in the same process must
finish the transaction.

A transaction passes the same instruction many times, and so do transactions of different shapes. Without
`XABRIDGE_INTERRUPTIONS=all` each instruction is tried once, in a shape and at a time that the seed draws, and so are
some pairs; the fast tests try some of these. With it, each instruction is tried each time, and so are many pairs.
`XABRIDGE_SEED` sets the seed.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Final

import pytest

from tests.memory_disk import new_folder
from tests.tm.interrupting import Interruptions, Run
from tm import Transaction, Verdict
from xa import TMUSEASYNC

ALL: Final = os.environ.get("XABRIDGE_INTERRUPTIONS") == "all"
SEED: Final = int(os.environ.get("XABRIDGE_SEED", "20"))
PAIRS: Final = 24_000 if ALL else 90
SOME: Final = 48
SHARES: Final = [pytest.param(SOME, id="some"), pytest.param(None, id="each", marks=pytest.mark.slow)]
"""How many of the instructions, and how many of the pairs, a test tries; None for all."""


@dataclass(frozen=True)
class Shape:
    """What a transaction does: with which stores, and whether its block fails. It is interrupted in its end, or
    (`begins`) anywhere: in begin, in enlistments and in the work of the reference resource managers, too."""

    names: str
    decider: bool
    flags: int = TMUSEASYNC
    fails: bool = False
    begins: bool = False


PARTIES: Final = (("ab", False), ("a", False), ("ab", True))
ENDS: Final = [Shape(*party, *how) for party in PARTIES for how in itertools.product((TMUSEASYNC, 0), (False, True))]
SHAPES: Final = [*ENDS, *(Shape(*party, begins=True) for party in PARTIES)]


class SignalledRun(Run):
    """It is interrupted at these instructions."""

    def __init__(self, folder: Path, shape: Shape, *at: int) -> None:
        folder.mkdir()
        super().__init__(folder, shape.names, decider=shape.decider, flags=shape.flags)
        self.shape = shape
        self.interruptions = Interruptions(at)
        self.tx: Transaction | None = None

    @property
    def where(self) -> list[str]:
        return [f"seed {SEED}", str(self.shape), *self.interruptions.where]

    def block(self) -> str:
        """A block that commits, or fails; what its caller heard."""
        begins = self.shape.begins
        tm = self.shop.tm
        try:
            if begins:
                self.interruptions.__enter__()

            with tm.begin() as tx:
                self.tx = tx
                self.shop.write(tx)
                if not begins:
                    self.interruptions.__enter__()
                if self.shape.fails:
                    raise ValueError("the application failed")  # noqa: TRY301 — out of the block
        except KeyboardInterrupt:
            return "interrupted"
        except ValueError:
            return "failed"
        finally:
            self.interruptions.__exit__(None, None, None)
        return "committed"

    def block_and_check(self) -> str:
        """A block, and what its caller heard."""
        heard = self.block()
        committed = self.check() == 1
        if self.tx is not None:
            assert self.tx.outcome is not None, self.where
            told = self.tx.outcome.verdict
            assert told is not (Verdict.ROLLED_BACK if committed else Verdict.COMMITTED), (self.where, told)
        assert heard != "committed" or committed, self.where
        assert heard != "failed" or not committed, self.where
        self.shop.close()
        return heard


@pytest.fixture(scope="module")
def met() -> dict[Shape, list[tuple[CodeType, int]]]:
    """Shape → the instructions that its transaction passes, where nothing interrupts it."""
    folder, found = new_folder("counted"), {}
    for number, shape in enumerate(SHAPES):
        run = SignalledRun(folder / str(number), shape)
        run.block_and_check()
        found[shape] = run.interruptions.points
    return found


def some_of(met: dict[Shape, list[tuple[CodeType, int]]]) -> list[tuple[Shape, int]]:
    """The points to try: all of them, or of each instruction one."""
    every = [(shape, at) for shape, points in met.items() for at in range(1, len(points) + 1)]
    random.Random(SEED).shuffle(every)
    return every if ALL else list({met[shape][at - 1]: (shape, at) for shape, at in every}.values())


@pytest.mark.timeout(1200 if ALL else 120)
@pytest.mark.parametrize("share", SHARES)
def test_once(tmp_path: Path, met: dict[Shape, list[tuple[CodeType, int]]], share: int | None) -> None:
    heard = set()
    points = some_of(met)
    assert len(points) > 300, "transactions pass more instructions than these"
    for number, (shape, at) in enumerate(points[:share]):
        heard.add((shape.fails, SignalledRun(tmp_path / str(number), shape, at).block_and_check()))
    assert heard >= {(False, "interrupted"), (True, "interrupted")}


@pytest.mark.timeout(1200 if ALL else 120)
@pytest.mark.parametrize("share", SHARES)
def test_twice(tmp_path: Path, met: dict[Shape, list[tuple[CodeType, int]]], share: int | None) -> None:
    generator = random.Random(SEED)
    twice = 0
    for number in range(PAIRS if share is None else share // 6):
        shape = generator.choice(ENDS)
        first = generator.randint(1, len(met[shape]))
        run = SignalledRun(tmp_path / str(number), shape, first, first + generator.randint(1, 60))
        run.block_and_check()
        twice += len(run.interruptions.where) == 2
    assert twice
