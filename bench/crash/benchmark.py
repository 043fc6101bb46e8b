"""`xabridge bench crash`: real workers, brokers and a PostgreSQL under load, killed, cut off and starved from a seed.

rounds, faults, transactions   of the campaign: every named point once per mode, then storms
lost, duplicated, split        orders and transactions whose queue entry, row and invoice do not agree
left_in_doubt                  prepared branches that recovery left behind
violations                     each of these in words, with the fault or the seed that shows it again

XABRIDGE_SEED and XABRIDGE_ROUNDS set the seed and how many storms there are.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.crash.campaign import Campaign
from bench.crash.faults import NAMED
from bench.crash.stage import Stage

SUMMARY: Final = "consume, write and produce while everything is killed: is every order handled exactly once?"


def measure(*, quick: bool) -> dict[str, Any]:
    """As `bench.command.Benchmark` says."""
    seed = int(os.environ.get("XABRIDGE_SEED", "1"))
    rounds = int(os.environ.get("XABRIDGE_ROUNDS", "3" if quick else "40"))
    with tempfile.TemporaryDirectory(prefix="xabridge-crash-") as folder, Stage(Path(folder)) as stage:
        campaign = Campaign(stage)
        if not quick:
            campaign.named(NAMED)
        campaign.storms(seed, rounds)
    for violation in campaign.tally.violations:
        print(f"  VIOLATION {violation}", file=sys.stderr)
    return {"seed": seed, **campaign.figures()}
