"""These tests kill a process that writes a FileLog with kill -9, at a random moment, again and again on the same log.

XABRIDGE_KILL_ROUNDS says how often (in a long run: 1000), XABRIDGE_SEED with which seed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.tm.log.killed import THREADS
from tests.tm.log.samples import decision
from tm.log import FileLog, read_log
from xa import Gtrid

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS = int(os.environ.get("XABRIDGE_KILL_ROUNDS", "4"))
SEED = int(os.environ.get("XABRIDGE_SEED", "20"))
SEGMENT_SIZE = 16384


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_what_was_decided_is_there_after_kill_9(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    decided: set[int] = set()
    ended: set[int] = set()
    for turn in range(ROUNDS):
        facts = run_until_killed(tmp_path / "log", rng.randrange(1, 2000), rng.randrange(1 << 30))
        decided.update(number for fact, number in facts if fact == "decided")
        ended.update(number for fact, number in facts if fact == "ending")
        looked = {Gtrid.decode(made.gtrid).sequence for made in read_log(tmp_path / "log").decisions}
        log = FileLog(tmp_path / "log", "orders-1", segment_size=SEGMENT_SIZE)
        told = {Gtrid.decode(made.gtrid).sequence: made for made in log.decisions()}
        assert looked == told.keys()
        assert decided - ended <= told.keys(), f"seed {SEED}, round {turn}: decisions were lost"
        assert len(told.keys() - decided) <= THREADS, f"seed {SEED}, round {turn}: decisions that nobody took"
        assert all(made == decision(sequence, 1 + sequence % 3) for sequence, made in told.items())
        decided.update(told)
        ended -= told.keys()
        log.close()
        assert sum(path.stat().st_size for path in (tmp_path / "log").iterdir()) < 64 * SEGMENT_SIZE
    assert len(decided) > ROUNDS


def run_until_killed(folder: Path, facts: int, seed: int) -> list[tuple[str, int]]:
    """Runs the process until it has told so many facts, kills it, and returns all that it told."""
    command = [sys.executable, "-m", "tests.tm.log.killed", str(folder), str(SEGMENT_SIZE), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(facts)]
        process.kill()
        lines += process.stdout.readlines()
    assert all(line.endswith("\n") for line in lines), "it ended by itself"
    return [(fact, int(number)) for fact, number in (line.split() for line in lines)]
