"""These tests kill a process with kill -9 at every named step of the SQL store: what was forced must be there, what was
not forced must not, and no batch may be there in part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dtx.store.contract import Step
from dtx.store.memory import Disk
from tests.crash.forked import ForkedProcess
from tests.dtx.store.crashing import WORK
from tests.dtx.store.stores import Place, state

PATIENCE_S = 60.0
FAST = {(Step.BEFORE_WRITE, 2), (Step.WRITTEN, 2), (Step.WRITTEN, 3), (Step.FORCED, 3)}
"""The steps and forces of `make check`: a branch is half prepared, prepared, or half committed."""


def _kills() -> Iterator[Any]:
    """PostgreSQL is never written to on the loop. Every step and force is tried in SQLite, on the loop; elsewhere where
    tests are long."""
    for kind, thread in (("sqlite", "loop"), ("sqlite", "thread"), ("postgres", "thread")):
        for step in Step:
            for force in range(1, len(WORK) + 1):
                others = (pytest.mark.slow,) if thread == "loop" else (pytest.mark.slow, pytest.mark.long)
                marks = () if (step, force) in FAST else others
                yield pytest.param(kind, thread, step, force, marks=marks)


@pytest.mark.parametrize(("sql_place", "thread", "step", "force"), list(_kills()), indirect=["sql_place"])
def test_a_kill_leaves_what_was_forced_and_nothing_else(sql_place: Place, thread: str, step: Step, force: int) -> None:
    process = ForkedProcess("tests.dtx.store.crashing", str(sql_place.where), step.name, str(force), thread)
    said = [line.split() for line in process.lines()]
    assert process.wait(PATIENCE_S) == -9
    process.close()
    first = int(said[0][1])
    kept = [name for word, name in said[1:] if word == "kept"]
    assert kept == [make.__name__ for make in WORK[: force - 1]], "answered before it was forced"

    if (step, force) != (Step.FORCED, len(WORK)):  # where it waits until the lease runs out
        sql_place.let_lease_run_out()
    durable = force if step is Step.FORCED else force - 1
    reference = Place(Disk())
    simple = reference.open()
    for make in WORK[:durable]:
        simple.keep(make(first))
    restored, expected = sql_place.open(), reference.open()
    assert state(restored.restored) == state(expected.restored)
    payloads = range(first + 1, first + 7)
    assert restored.fetch(*payloads) == expected.fetch(*payloads)
    assert restored.first > first

    for make in WORK[durable:]:  # and the work goes on from there
        restored.keep(make(first))
        expected.keep(make(first))
    again, expected = sql_place.open(), reference.open()
    assert state(again.restored) == state(expected.restored)
    assert again.fetch(*payloads) == expected.fetch(*payloads)
