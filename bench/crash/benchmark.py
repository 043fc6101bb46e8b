"""`python -m bench crash` runs real workers, brokers and a PostgreSQL under load, and kills, disconnects and starves
them from a seed.

rounds, faults, transactions   of the campaign with one node: every named point once per mode, then storms
lost, duplicated, split        orders and transactions whose queue entry, row and invoice do not agree
left_in_doubt                  prepared branches that recovery left behind
violations                     each of these in words, with the fault or the seed that shows it again
bank                           the same of several nodes that move money (`bench.crash.bank`): rounds, transfers,
                               transactions, shared (transfers that had company in their transaction), by_fault; and
                               what its auditor found: money, lost, duplicated, split, misled, disordered, left, stuck,
                               violations

consumers                      messages that can't be handled beside others that can (`bench.crash.consumers`): rounds,
                               messages, handled, dead_letters; and what was found: lost, duplicated, dead, spared,
                               reason, stuck, violations

--rounds sets how many storms there are of each, --seed which, --part leaves the other parts out. Interrupted with
Ctrl+C, it reports the rounds that were complete.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.crash.bank import faults as bank_faults
from bench.crash.bank.campaign import BankCampaign
from bench.crash.bank.site import Site
from bench.crash.campaign import Campaign
from bench.crash.consumers.campaign import ConsumerCampaign, ConsumerStage
from bench.crash.faults import NAMED
from bench.crash.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

SUMMARY: Final = "consume, write and produce while everything is killed: is every order handled exactly once?"


ROUNDS: Final = 40
QUICK: Final = 3


def measure(
    *, quick: bool, rounds: int | None = None, seed: int | None = None, part: str | None = None
) -> dict[str, Any]:
    """A `bench.command.Seeded`; `part` is "orders", "bank", "consumers", or None for all."""
    seed = 1 if seed is None else seed
    if rounds is None:
        rounds = QUICK if quick else ROUNDS
    figures: dict[str, Any] = {"seed": seed}
    with tempfile.TemporaryDirectory(prefix="xabridge-crash-") as folder:
        if part in {None, "consumers"}:
            with ConsumerStage(Path(folder) / "consumers") as consumers_stage:
                consumers = ConsumerCampaign(consumers_stage)
                _until_broken_off(lambda: consumers.storms(seed, rounds))
                figures["consumers"] = consumers.figures()

        if part in {None, "orders"}:
            with Stage(Path(folder)) as stage:
                campaign = Campaign(stage)
                _until_broken_off(lambda: _orders(campaign, seed, rounds, quick=quick))
                figures |= campaign.figures()
        if part in {None, "bank"}:
            with Site(Path(folder) / "bank") as site:
                bank = BankCampaign(site)
                _until_broken_off(lambda: _bank(bank, seed, rounds, quick=quick))
                figures["bank"] = bank.figures()
    return figures


def _orders(campaign: Campaign, seed: int, rounds: int, *, quick: bool) -> None:
    if not quick:
        campaign.named(NAMED)
    campaign.storms(seed, rounds)


def _bank(campaign: BankCampaign, seed: int, rounds: int, *, quick: bool) -> None:
    if not quick:
        campaign.named(bank_faults.NAMED)
    campaign.storms(seed, rounds)


def _until_broken_off(rounds: Callable[[], None]) -> None:
    try:
        rounds()
    except KeyboardInterrupt:
        print("  broken off; the figures are those of the rounds that were over", file=sys.stderr)
