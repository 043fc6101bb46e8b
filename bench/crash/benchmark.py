"""`xabridge bench crash`: real workers, brokers and a PostgreSQL under load, killed, cut off and starved from a seed.

rounds, faults, transactions   of the campaign: every named point once per mode, then storms
lost, duplicated, split        orders and transactions whose queue entry, row and invoice do not agree
left_in_doubt                  prepared branches that recovery left behind
violations                     each of these in words, with the fault or the seed that shows it again

--rounds sets how many storms there are, --seed which. Broken off (Ctrl+C), it tells of the rounds that were over.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.crash.campaign import Campaign
from bench.crash.faults import NAMED
from bench.crash.stage import Stage

SUMMARY: Final = "consume, write and produce while everything is killed: is every order handled exactly once?"


ROUNDS: Final = 40
QUICK: Final = 3


def measure(*, quick: bool, rounds: int | None = None, seed: int | None = None) -> dict[str, Any]:
    """As `bench.command.Seeded` says."""
    seed = 1 if seed is None else seed
    if rounds is None:
        rounds = QUICK if quick else ROUNDS
    with tempfile.TemporaryDirectory(prefix="xabridge-crash-") as folder, Stage(Path(folder)) as stage:
        campaign = Campaign(stage)
        try:
            if not quick:
                campaign.named(NAMED)
            campaign.storms(seed, rounds)
        except KeyboardInterrupt:
            print("  broken off; the figures are those of the rounds that were over", file=sys.stderr)
    return {"seed": seed, **campaign.figures()}
