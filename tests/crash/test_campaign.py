"""These tests run the crash campaign: workers, brokers and PostgreSQL are processes, and faults hit them at every named
point and at random.

XABRIDGE_ROUNDS sets how many storms there are, XABRIDGE_SEED which; XABRIDGE_POINTS=all has every named point; `python
-m bench crash` runs more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import chdir
from pathlib import Path

import pytest

from bench.crash.campaign import Campaign
from bench.crash.faults import NAMED, SHARED, Fault, Setup
from bench.crash.ledger import Shop, compare
from bench.crash.stage import WORKER, Stage
from tests.memory_disk import new_folder
from tests.simulation.seeds import EVERY_POINT, ROUNDS, SEED

ROOT = Path(__file__).parents[2]
DECISIONS = {"force", "decide shop"}


CONTROL = "before commit broker"
CAUGHT = [
    ("FindsNothing", "left_in_doubt", Setup(), Fault("after prepare shop", ("kill worker",))),
    ("AcknowledgesBeforeCommit", "lost", Setup(second=True, batch=5), Fault("before force", ("kill worker",))),
    ("PresumesWithoutLog", "duplicated", Setup(), Fault(CONTROL, ("kill broker",), ("kill worker",))),
    ("DecisionNotForced", "split", Setup(), Fault("before commit shop", ("kill shop",), ("kill worker",))),
    ("PresumesWithoutDecider", "split", Setup("decider"), Fault("after decide shop", ("kill worker",))),
]


SHORT = {"AcknowledgesBeforeCommit", "PresumesWithoutLog", "DecisionNotForced"}
"""Mutants that lose, double and split; the others in the long form."""


def one_of_each(plan: Sequence[tuple[Setup, Sequence[Fault]]]) -> list[tuple[Setup, tuple[Fault, ...]]]:
    """Each action once: where a mutant is caught, which the right worker has to get over, or in a setup that has it,
    where it comes first there; and the worker killed around the decision in every setup."""
    caught = [(setup, fault) for _, _, setup, fault in CAUGHT]
    having: dict[object, list[tuple[Setup, Fault]]] = {}
    chosen: dict[Setup, list[Fault]] = {setup: [] for setup, _ in plan}
    for setup, faults in plan:
        for fault in faults:
            if fault.point.partition(" ")[2] in DECISIONS and fault.meanwhile == ("kill worker",) and not fault.again:
                chosen[setup].append(fault)
                continue
            actions = tuple(action.replace("second", "broker") for action in fault.meanwhile)
            where = having.setdefault((actions, fault.afterwards, bool(fault.again)), [])
            if (setup, fault) in caught:
                where.insert(0, (setup, fault))
            elif setup not in dict(where):
                where.append((setup, fault))

    for number, where in enumerate(having.values()):
        setup, fault = where[0] if where[0] in caught else where[number % len(where)]
        chosen[setup].append(fault)
    return [(setup, tuple(faults)) for setup, faults in chosen.items()]


PLAN = NAMED if EVERY_POINT else one_of_each(NAMED)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with chdir(ROOT), Stage(new_folder("crash")) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("setup", "faults"), PLAN, ids=lambda value: str(value) if isinstance(value, Setup) else "")
def test_named_points(stage: Stage, setup: Setup, faults: tuple[Fault, ...]) -> None:
    stage.worker, stage.more = WORKER, {}
    campaign = Campaign(stage)
    campaign.named([(setup, faults)])
    assert campaign.tally.violations == []
    assert campaign.tally.rounds == len(faults)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_share_makes_no_dead_letter() -> None:
    """At a broker whose limit is the smallest: an order that it puts away would be lost. (An order that fails by itself
    is put away there, and so there are none.)"""
    faults = [fault for fault in SHARED if "rollback" not in fault.point]
    with chdir(ROOT), Stage(new_folder("crash-shares"), with_mariadb=False, deliveries=1) as stage:
        campaign = Campaign(stage)
        campaign.named([(Setup("two-phase", batch=50), faults if EVERY_POINT else faults[:4])])
        assert campaign.tally.violations == []
        shares = Counter(attempt for _, attempt in Shop(stage._databases["postgresql"]).rows("invoices-1"))
        assert max(shares.values()) > 1


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_storms(stage: Stage) -> None:
    stage.worker, stage.more = WORKER, {}
    campaign = Campaign(stage)
    campaign.storms(SEED, ROUNDS)
    assert campaign.tally.violations == [], f"seed {SEED}"
    assert campaign.tally.orders >= 300 * ROUNDS, "every order was handled"


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("mutant", "kind", "setup", "fault"),
    [pytest.param(*case, id=case[0], marks=[] if case[0] in SHORT else [pytest.mark.long]) for case in CAUGHT],
)
def test_a_mutant_is_caught(stage: Stage, mutant: str, kind: str, setup: Setup, fault: Fault) -> None:
    """What one has left behind is recovered by the next worker."""
    assert fault in dict(PLAN)[setup], "the right worker has to get over it"
    stage.worker, stage.more = "tests.crash.mutants", {"mutant": mutant}
    audit = Campaign(stage).at_point(setup, fault)
    assert getattr(audit, kind) > 0, audit


@pytest.mark.parametrize(
    ("kind", "waiting", "rows", "invoices", "told"),
    [
        ("lost", [], [], [], {}),
        ("lost", [1], [], [], {"a": "committed"}),
        ("duplicated", [1, 1], [], [], {}),
        ("duplicated", [1], [(1, "a")], [(1, "a")], {}),
        ("duplicated", [], [(1, "a"), (1, "b")], [(1, "a")], {}),
        ("duplicated", [], [(1, "a")], [(1, "a"), (1, "a")], {}),
        ("duplicated", [], [(1, "a")], [(1, "a")], {"a": "rolled back"}),
        ("split", [], [(1, "a")], [], {}),
        ("split", [], [], [(1, "a")], {}),
        ("split", [], [(1, "a")], [(1, "b")], {}),
    ],
)
def test_what_the_audit_sees(
    kind: str, waiting: list[int], rows: list[tuple[int, str]], invoices: list[tuple[int, str]], told: dict[str, str]
) -> None:
    audit = compare([1], waiting, rows, invoices, told)
    assert getattr(audit, kind) > 0
    assert not audit.right


def test_what_the_audit_finds_right() -> None:
    audit = compare([1, 2], [2], [(1, "a")], [(1, "a")], {"a": "committed", "b": "rolled back", "c": "not known yet"})
    assert audit.right, audit
    assert (audit.waiting, audit.done) == (1, 1)
