"""These tests interrupt commit and rollback at any instruction, once and twice. Recovery in the same process must
finish the transaction.

A transaction passes the same instruction many times, and so do transactions of different shapes. Without
`XABRIDGE_INTERRUPTIONS=all` each instruction is tried once, in a shape and at a time that the seed draws, and so are
some pairs; with it, each instruction each time, and many pairs. `XABRIDGE_SEED` sets the seed.
"""

from __future__ import annotations

import itertools
import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from tests.tm.interrupting import Interruptions
from tests.tm.shop import Shop
from tm import Verdict
from xa import TMUSEASYNC

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType

    from tm import Transaction

ALL: Final = os.environ.get("XABRIDGE_INTERRUPTIONS") == "all"
SEED: Final = int(os.environ.get("XABRIDGE_SEED", "20"))
PAIRS: Final = 24_000 if ALL else 90


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


class Run:
    """One transaction over fresh stores."""

    def __init__(self, folder: Path, shape: Shape, *at: int) -> None:
        folder.mkdir()
        self.shape = shape
        self.interruptions = Interruptions(at)
        self.shop = Shop(folder, shape.names)
        if shape.decider:
            self.shop.add_decider()
        for name in self.shop.stores:
            self.shop.flags[name] = shape.flags
        self.tm = self.shop.open()
        self.tx: Transaction | None = None

    def block(self) -> str:
        """A block that commits, or fails; what its caller heard."""
        begins = self.shape.begins
        try:
            if begins:
                self.interruptions.__enter__()
            with self.tm.begin() as tx:
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
        """A block, and what its caller heard. The context can be used again, and recovery has finished everything,
        alike everywhere."""
        heard = self.block()
        where = (f"seed {SEED}", self.shape, self.interruptions.where)
        with self.tm.begin() as again:
            self.shop.write(again, 2, key="again")
        assert set(self.shop.values("again").values()) == {2}, where
        self.tm.wait_for_completions()
        for _ in range(2):
            report = self.tm.recover()
        assert report.clean, (where, report)
        self.shop.assert_nothing_left()
        values = set(self.shop.values().values())
        assert len(values) == 1, (where, self.shop.values())
        committed = values == {1}
        if self.tx is not None:
            assert self.tx.outcome is not None, where
            told = self.tx.outcome.verdict
            assert told is not (Verdict.ROLLED_BACK if committed else Verdict.COMMITTED), (where, told)
        assert heard != "committed" or committed, where
        assert heard != "failed" or not committed, where
        assert self.tm.current_or_none() is None, where
        self.shop.close()
        return heard


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> dict[Shape, list[tuple[CodeType, int]]]:
    """Shape → the instructions that its transaction passes, where nothing interrupts it."""
    folder, found = tmp_path_factory.mktemp("counted"), {}
    for number, shape in enumerate(SHAPES):
        run = Run(folder / str(number), shape)
        run.block_and_check()
        found[shape] = run.interruptions.points
    return found


def some_of(met: dict[Shape, list[tuple[CodeType, int]]]) -> list[tuple[Shape, int]]:
    """The points to try: all of them, or of each instruction one."""
    every = [(shape, at) for shape, points in met.items() for at in range(1, len(points) + 1)]
    random.Random(SEED).shuffle(every)
    return every if ALL else list({met[shape][at - 1]: (shape, at) for shape, at in every}.values())


@pytest.mark.timeout(1200 if ALL else 120)
def test_once(tmp_path: Path, met: dict[Shape, list[tuple[CodeType, int]]]) -> None:
    heard = set()
    for number, (shape, at) in enumerate(some_of(met)):
        heard.add((shape.fails, Run(tmp_path / str(number), shape, at).block_and_check()))
    assert heard > {(False, "interrupted"), (True, "interrupted")}
    assert number > 300, "transactions pass more instructions than these"


@pytest.mark.timeout(1200 if ALL else 120)
def test_twice(tmp_path: Path, met: dict[Shape, list[tuple[CodeType, int]]]) -> None:
    generator = random.Random(SEED)
    twice = 0
    for number in range(PAIRS):
        shape = generator.choice(ENDS)
        first = generator.randint(1, len(met[shape]))
        run = Run(tmp_path / str(number), shape, first, first + generator.randint(1, 60))
        run.block_and_check()
        twice += len(run.interruptions.where) == 2
    assert twice
