"""These tests interrupt commit and rollback at any instruction, once and twice. Recovery in the same process must
finish the transaction.

`XABRIDGE_INTERRUPTIONS=all` interrupts at every point, and at every one of many pairs of them; without it at a part.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Final

import pytest

from tests.tm.interrupting import Interruptions
from tests.tm.shop import Shop
from tm import Verdict
from xa import TMUSEASYNC

if TYPE_CHECKING:
    from pathlib import Path

    from tm import Transaction

ALL: Final = os.environ.get("XABRIDGE_INTERRUPTIONS") == "all"
SAMPLE: Final = 60
PAIRS: Final = 4000 if ALL else 60
SHAPES: Final = {
    "two": ("ab", False),
    "one phase": ("a", False),
    "decider": ("ab", True),
}


class Run:
    """One transaction over fresh stores."""

    def __init__(self, folder: Path, names: str, *, decider: bool, flags: int) -> None:
        folder.mkdir()
        self.shop = Shop(folder, names)
        if decider:
            self.shop.add_decider()
        for name in self.shop.stores:
            self.shop.flags[name] = flags
        self.tm = self.shop.open()
        self.tx: Transaction | None = None

    def block(self, interruptions: Interruptions, *, fails: bool, begins: bool = False) -> str:
        """A block that commits, or fails; what its caller heard. Interrupted in its end, or (`begins`) anywhere."""
        try:
            if begins:
                interruptions.__enter__()
            with self.tm.begin() as tx:
                self.tx = tx
                for name in self.shop.stores:
                    tx[name].write("k", 1)
                if not begins:
                    interruptions.__enter__()
                if fails:
                    raise ValueError("the application failed")  # noqa: TRY301 — out of the block
        except KeyboardInterrupt:
            return "interrupted"
        except ValueError:
            return "failed"
        finally:
            interruptions.__exit__(None, None, None)
        return "committed"

    def check(self, heard: str, where: list[str]) -> None:
        """The context can be used again, and recovery has finished everything, alike everywhere."""
        with self.tm.begin() as again:
            for name in self.shop.stores:
                again[name].write("again", 2)
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


def some_of(points: int, seed: int) -> list[int]:
    """The points to try: all of them, or the first and a sample."""
    if ALL or points <= SAMPLE:
        return list(range(1, points + 1))
    return sorted({1, 2, 3, *random.Random(seed).sample(range(1, points + 1), SAMPLE)})


@pytest.mark.parametrize("fails", [False, True], ids=["commits", "fails"])
@pytest.mark.parametrize("flags", [TMUSEASYNC, 0], ids=["overlapped", "one after another"])
@pytest.mark.parametrize("shape", SHAPES)
def test_once(tmp_path: Path, shape: str, flags: int, *, fails: bool) -> None:
    names, decider = SHAPES[shape]
    counted = Interruptions()
    run = Run(tmp_path / "counted", names, decider=decider, flags=flags)
    run.check(run.block(counted, fails=fails), counted.where)
    assert counted.points > 10
    heard = set()
    for at in some_of(counted.points, seed=counted.points):
        interruptions = Interruptions({at})
        run = Run(tmp_path / str(at), names, decider=decider, flags=flags)
        told = run.block(interruptions, fails=fails)
        heard.add(told)
        run.check(told, interruptions.where)
    assert "interrupted" in heard


@pytest.mark.parametrize("shape", SHAPES)
def test_from_its_beginning(tmp_path: Path, shape: str) -> None:
    """In begin, in enlistments and in the work of the reference resource managers, too."""
    names, decider = SHAPES[shape]
    counted = Interruptions()
    run = Run(tmp_path / "counted", names, decider=decider, flags=TMUSEASYNC)
    run.check(run.block(counted, fails=False, begins=True), counted.where)
    for at in some_of(counted.points, seed=counted.points):
        interruptions = Interruptions({at})
        run = Run(tmp_path / str(at), names, decider=decider, flags=TMUSEASYNC)
        run.check(run.block(interruptions, fails=False, begins=True), interruptions.where)


@pytest.mark.parametrize("fails", [False, True], ids=["commits", "fails"])
@pytest.mark.parametrize("shape", SHAPES)
def test_twice(tmp_path: Path, shape: str, *, fails: bool) -> None:
    names, decider = SHAPES[shape]
    counted = Interruptions()
    run = Run(tmp_path / "counted", names, decider=decider, flags=TMUSEASYNC)
    run.check(run.block(counted, fails=fails), counted.where)
    generator = random.Random(counted.points)
    twice = 0
    for number in range(PAIRS):
        first = generator.randint(1, counted.points)
        interruptions = Interruptions({first, first + generator.randint(1, 60)})
        run = Run(tmp_path / str(number), names, decider=decider, flags=TMUSEASYNC)
        told = run.block(interruptions, fails=fails)
        run.check(told, interruptions.where)
        twice += len(interruptions.where) == 2
    assert twice
