"""These tests kill a process that writes a log of each kind with kill -9, at a random moment, again and again on the
same log.

XABRIDGE_KILL_ROUNDS says how often (in a long run: 1000), XABRIDGE_SEED with which seed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tm.log.killed import SEGMENT_SIZE, THREADS, opened
from tests.tm.log.samples import decision
from tm.log.factory import look_at_log
from xa import Gtrid

ROUNDS = int(os.environ.get("XABRIDGE_KILL_ROUNDS", "4"))
SEED = int(os.environ.get("XABRIDGE_SEED", "20"))


@pytest.mark.slow
@pytest.mark.timeout(60 + 10 * ROUNDS)
def test_what_was_decided_is_there_after_kill_9(log_url: str, node: str, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    decided: set[int] = set()
    ended: set[int] = set()
    rounds, most = (ROUNDS, 2000) if log_url.startswith("file:") else (ROUNDS // 2, 150)

    for turn in range(rounds):
        facts = run_until_killed(log_url, node, turn << 32, rng.randrange(1, most), rng.randrange(1 << 30))
        decided.update(number for fact, number in facts if fact == "decided")
        ended.update(number for fact, number in facts if fact == "ending")
        looked = {Gtrid.decode(made.gtrid).sequence for made in look_at_log(log_url, node).decisions}
        log = opened(log_url, node)
        told = {Gtrid.decode(made.gtrid).sequence: made for made in log.decisions()}
        assert looked == told.keys()
        assert decided - ended <= told.keys(), f"seed {SEED}, round {turn}: decisions were lost"
        assert len(told.keys() - decided) <= THREADS, f"seed {SEED}, round {turn}: decisions that nobody took"
        assert all(made == decision(sequence, 1 + sequence % 3, node) for sequence, made in told.items())
        decided.update(told)
        ended -= told.keys()
        log.close()
        assert sum(path.stat().st_size for path in tmp_path.rglob("segment-*")) < 64 * SEGMENT_SIZE
    assert len(decided) > rounds


def run_until_killed(url: str, node: str, first: int, facts: int, seed: int) -> list[tuple[str, int]]:
    """Runs the process until it has told so many facts, kills it, and returns all that it told."""
    command = [sys.executable, "-m", "tests.tm.log.killed", url, node, str(first), str(seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(facts)]
        process.kill()
        lines += process.stdout.readlines()
    assert all(line.endswith("\n") for line in lines), "it ended by itself"
    return [(fact, int(number)) for fact, number in (line.split() for line in lines)]
