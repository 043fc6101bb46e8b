"""These tests run the bank: several nodes move money between two databases and a queue, and the test kills and stops
them while the others recover. The auditor uses clients that are not ours.

XABRIDGE_ROUNDS sets how many storms there are, XABRIDGE_SEED which, XABRIDGE_POINTS=all has every named point;
`xabridge bench crash --part bank` runs more of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bench.crash.bank.audit import Books, Entry, Sent, compare
from bench.crash.bank.campaign import PER_POINT, BankCampaign
from bench.crash.bank.faults import NAMED, SETUPS, Fate, Fault, points, setup_of, storm
from bench.crash.bank.site import WORKER, Site
from bench.crash.bank.transfers import ACCOUNTS, OPENING, PLACES, Account, Setup, Transfer, some_transfers
from tests.memory_disk import new_folder
from tests.simulation.seeds import EVERY_POINT, ROUNDS, SEED

ROOT = Path(__file__).parents[2]
TRIES = (1, 2) if EVERY_POINT else (1,)
"""The seeds of the transfers. Not every transaction that comes to a point has a branch that can be split from the
others: a mutant is tried with more of them."""


def decisive(setup: Setup) -> tuple[Fault, ...]:
    """The points where the nodes can get into each other's way most easily."""
    point = f"after decide {setup.decider}" if setup.decider else "after force"
    fates: tuple[Any, ...] = ("killed", "stopped") if setup.decides != "sql" else ("killed", "replaced")
    if setup.decides == "file" or (setup.decides == "token" and setup.processes > 1):
        fates = (*fates, "overdue")
    return tuple(Fault(point, fate) for fate in fates)


PLAN = NAMED if EVERY_POINT else tuple((setup, decisive(setup)) for setup in SETUPS)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with chdir(ROOT), Site(new_folder("bank")) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("setup", "faults"), PLAN, ids=lambda value: str(value) if not isinstance(value, tuple) else ""
)
def test_named_points(site: Site, setup: Setup, faults: tuple[Fault, ...]) -> None:
    campaign = BankCampaign(site)
    for seed in TRIES:
        campaign.named([(setup, faults)], seed)
    assert campaign.tally.violations == []
    assert campaign.tally.rounds == len(TRIES) * len(faults)
    assert campaign.tally.transfers == PER_POINT * campaign.tally.rounds, "every transfer was done"


@pytest.mark.slow
@pytest.mark.long  # each kind of fault at a point where nodes meet: the test above; a storm: test_campaign.py
@pytest.mark.timeout(0)
def test_storms(site: Site) -> None:
    campaign = BankCampaign(site)
    campaign.storms(SEED, ROUNDS)
    assert campaign.tally.violations == [], f"seed {SEED}"
    assert campaign.tally.rounds == ROUNDS


CAUGHT: list[tuple[str, set[str], Setup, str, Fate]] = [
    ("EndsDecisionsOfOthers", {"split", "lost", "duplicated"}, Setup("database"), "after decide east", "killed"),
    ("EndsDecisionsOfOthers", {"split", "lost", "duplicated"}, Setup("token"), "after decide broker", "killed"),
    ("PresumesForOthers", {"split"}, Setup("file"), "after force", "killed"),
    ("PresumesForOthers", {"split"}, Setup("sql"), "after force", "killed"),
    ("IgnoresLeases", {"misled"}, Setup("database", nodes=1, processes=2), "after decide east", "held"),
    ("IgnoresLeases", {"misled"}, Setup("token", nodes=1, processes=2), "after decide broker", "held"),
    ("SettlesByLooking", {"split", "lost"}, Setup("database", nodes=1, processes=2), "before decide east", "stopped"),
    ("SettlesByLooking", {"split", "lost"}, Setup("token", nodes=1, processes=2), "before decide broker", "stopped"),
    ("GoesOnWhenRefused", {"lost", "misled"}, Setup("sql"), "before force", "replaced"),
]
SHORT = {("PresumesForOthers", "file"), ("SettlesByLooking", "database")}
"""One mutant of recovery and one of the decision. The others in the long form: the simulation catches their kind."""


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("mutant", "kinds", "setup", "point", "fate"),
    [
        pytest.param(*case, id="-".join(which), marks=[] if which in SHORT else [pytest.mark.long])
        for case in CAUGHT
        for which in [(case[0], case[2].decides)]
    ],
)
def test_a_mutant_is_caught(site: Site, mutant: str, kinds: set[str], setup: Setup, point: str, fate: Fate) -> None:
    site.worker, site.more = "tests.crash.bank_mutants", {"mutant": mutant}
    campaign = BankCampaign(site)
    try:
        for seed in range(6):  # not every transaction has branches at more than one
            campaign.named([(setup, (Fault(point, fate),))], seed)
            if campaign.tally.violations:
                break
    finally:
        site.dismiss()
        site.worker, site.more = WORKER, {}
    assert any(campaign.tally.by_kind[kind] for kind in kinds), campaign.tally


# --- the auditor ------------------------------------------------------------------------------------------------

EAST, WEST = Account("east", 1), Account("west", 2)
DIRECT = Transfer(7, EAST, WEST, 10, posted=False)
POSTED = Transfer(7, EAST, WEST, 10, posted=True)


def books(*what: Entry | Sent, orders: tuple[int, ...] = (), **more: Any) -> Books:
    """Books in which every balance is that of its entries; an amount that is sent is on its way."""
    entries = tuple(each for each in what if isinstance(each, Entry))
    due: dict[tuple[str, int], int] = {}
    for entry in entries:
        due[entry.place, entry.account] = due.get((entry.place, entry.account), 0) + entry.amount
    balances = {
        (place, number): OPENING + due.get((place, number), 0) for place in PLACES for number in range(ACCOUNTS)
    }
    sent = [each for each in what if isinstance(each, Sent)]
    on_way, receipts = (tuple(each for each in sent if bool(each.amount) is way) for way in (True, False))
    return Books(balances, due, entries, orders, on_way, receipts, **more)


DEBIT, CREDIT, RECEIPT = Entry(7, "east", 1, -10, "a"), Entry(7, "west", 2, 10, "a"), Sent(7, "a")
LATER, THEN = Entry(7, "west", 2, 10, "b"), Sent(7, "b")
ON_WAY = Sent(7, "a", 10)


@pytest.mark.parametrize(
    ("transfer", "what"),
    [
        (DIRECT, books(orders=(7,))),
        (DIRECT, books(DEBIT, CREDIT, RECEIPT)),
        (POSTED, books(orders=(7,))),
        (POSTED, books(DEBIT, ON_WAY)),
        (POSTED, books(DEBIT, LATER, THEN)),
    ],
)
def test_what_the_auditor_finds_right(transfer: Transfer, what: Books) -> None:
    told = {entry.attempt: "committed" for entry in what.entries} | {"c": "rolled back", "d": "not known yet"}
    assert compare([transfer], what, told).details == []


@pytest.mark.parametrize(
    ("kind", "transfer", "what", "told"),
    [
        ("money", DIRECT, books(DEBIT, RECEIPT), {}),
        ("money", DIRECT, replace(books(orders=(7,)), due={("east", 3): 5}), {}),
        ("lost", DIRECT, books(), {}),
        ("lost", DIRECT, books(CREDIT, RECEIPT), {}),
        ("lost", DIRECT, books(orders=(7,)), {"a": "committed"}),
        ("duplicated", DIRECT, books(orders=(7, 7)), {}),
        ("duplicated", DIRECT, books(DEBIT, CREDIT, RECEIPT, orders=(7,)), {}),
        ("duplicated", DIRECT, books(DEBIT, CREDIT, RECEIPT, DEBIT, CREDIT), {}),
        ("duplicated", POSTED, books(DEBIT, ON_WAY, LATER, THEN), {}),
        ("duplicated", DIRECT, books(DEBIT, CREDIT, RECEIPT), {"a": "rolled back"}),
        ("split", DIRECT, books(DEBIT), {}),
        ("split", POSTED, books(DEBIT), {}),
        ("split", DIRECT, books(CREDIT, RECEIPT, orders=(7,)), {}),
        ("split", DIRECT, books(DEBIT, LATER, THEN), {}),
        ("split", DIRECT, books(DEBIT, CREDIT), {}),
        ("split", POSTED, books(DEBIT, LATER, RECEIPT), {}),
        ("split", POSTED, books(DEBIT, Sent(7, "b", 10)), {}),
        ("misled", DIRECT, books(DEBIT, CREDIT, RECEIPT), {"a": "possibly in part committed, in part rolled back"}),
        ("left", DIRECT, books(orders=(7,), in_doubt=("east gid",)), {}),
        ("left", DIRECT, books(orders=(7,), decisions=("gtrid",)), {}),
    ],
)
def test_what_the_auditor_sees(kind: str, transfer: Transfer, what: Books, told: dict[str, str]) -> None:
    audit = compare([transfer], what, told)
    assert getattr(audit, kind) > 0, audit
    assert not audit.right


def test_the_auditor_sees_a_group_out_of_order() -> None:
    """Of the first three, two are from one account with an odd number; the last has an even one, and no order."""
    accounts = (EAST, EAST, Account("west", 3), Account("east", 4), Account("east", 4))
    transfers = [Transfer(number, source, WEST, 1, posted=True) for number, source in enumerate(accounts)]
    debits = [Entry(one.number, one.source.place, one.source.number, -1, "a") for one in transfers]
    orders = (0, 2, 3)
    right = [debits[number] for number in (2, 4, 0, 1, 3)]
    assert compare(transfers, books(*right, *(Sent(number, "a", 1) for number in range(5))), {}).details == []
    for what, waiting in ((debits[1:2] + debits[:1], ()), (debits[1:2], orders)):
        found = compare(transfers[:2] if not waiting else transfers, books(*what, orders=waiting), {})
        assert found.disordered == 1, found


def test_what_shares_a_transaction_is_counted() -> None:
    transfers = [Transfer(number, Account("east", 2), WEST, 1, posted=True) for number in range(4)]
    by = ("a", "b", "b", "c")
    debits = [Entry(number, "east", 2, -1, attempt) for number, attempt in enumerate(by)]
    assert compare(transfers, books(*debits), {}).shared == 2


def test_a_transfer_is_its_message() -> None:
    made = some_transfers(Random(1), 5, 50)
    assert [Transfer.of(transfer.body()) for transfer in made] == made
    assert [transfer.number for transfer in made] == list(range(5, 55))
    assert {transfer.posted for transfer in made} == {True, False}
    assert all(transfer.source != transfer.target for transfer in made)


def test_storms_come_from_their_seed_and_reach_every_setup_and_fate() -> None:
    gusts, setups = [], set()
    for number in range(200):
        setup = setup_of(Random(number))
        made = storm(Random(number), setup, 6)
        assert made == storm(Random(number), setup, 6)
        gusts += made
        setups.add((setup.decides, setup.processes > 1))
        assert {gust.point for gust in made} <= {"", *points(setup)}
    assert setups == {
        ("file", False), ("sql", False), ("database", False), ("database", True), ("token", False), ("token", True),
    }  # fmt: skip
    assert {gust.fate for gust in gusts} == {"killed", "stopped", "overdue", "held", "replaced"}
