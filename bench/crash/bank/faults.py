"""The faults of the bank: those at named points, while the other nodes recover, and the storms, which a seed makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from bench.crash.bank.transfers import Setup

if TYPE_CHECKING:
    from random import Random

    from bench.crash.bank.transfers import Decides

TIMEOUT_S: Final = 4.0
"""Of a transaction."""
Fate: TypeAlias = Literal["killed", "stopped", "overdue", "held", "replaced"]
"""What happens to a process that stands at a point, while all others recover. killed: SIGKILL, started again
afterwards. stopped: SIGSTOP, for longer than a lease at the one that decides, then SIGCONT. overdue: SIGSTOP until the
time of every transaction that it has begun is over, then SIGCONT. held: only the thread at the point waits. replaced:
SIGSTOP until another process has taken over its node, then SIGCONT."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fate at a point."""

    point: str
    fate: Fate

    def __str__(self) -> str:
        return f"{self.fate} {self.point}"


_POINTS: Final[dict[Decides, tuple[str, ...]]] = {
    "file": ("after prepare west", "before force", "after force", "after commit broker", "before note the end"),
    "sql": ("after prepare west", "before force", "after force", "after commit broker", "before note the end"),
    "database": (
        "after prepare west",
        "before decide east",
        "after decide east",
        "after commit broker",
        "before end_decisions east",
    ),
    "token": (
        "after prepare west",
        "before decide broker",
        "after decide broker",
        "after commit west",
        "before end_decisions broker",
    ),
}


def fates(setup: Setup) -> tuple[Fate, ...]:
    """Those that can befall a process. A log in files has one process, as long as that lives."""
    everywhere: tuple[Fate, ...] = ("killed", "stopped", "overdue", "held")
    return (*everywhere, "replaced") if setup.decides == "sql" else everywhere


def points(setup: Setup) -> tuple[str, ...]:
    """Where its transactions can be met."""
    return _POINTS[setup.decides]


SETUPS: Final = (
    Setup("file"),
    Setup("sql"),
    Setup("database"),
    Setup("token"),
    Setup("database", nodes=1, processes=2),
    Setup("token", nodes=1, processes=2),
    Setup("file", batch=50, prefetch=100),
)

NAMED: Final[tuple[tuple[Setup, tuple[Fault, ...]], ...]] = tuple(
    (setup, tuple(Fault(point, fate) for point in points(setup) for fate in fates(setup))) for setup in SETUPS
)


@dataclass(frozen=True, slots=True)
class Gust:
    """After `pause_s`: an action on broker or databases, or the fate of the process `number`, at a point or wherever
    it is, for `absence_s`."""

    pause_s: float
    action: str = ""
    number: int = 0
    fate: Fate = "killed"
    point: str = ""
    absence_s: float = 0.0

    def __str__(self) -> str:
        what = self.action or f"{self.number} {self.fate} {self.point or 'anywhere'} for {self.absence_s:.1f} s"
        return f"+{self.pause_s:.2f} s {what}"


_HARM: Final = (
    ("kill broker", 2),
    ("kill postgres", 1),
    ("cut broker", 2),
    ("cut east", 1),
    ("cut west", 1),
    ("deaf broker", 2),
    ("deaf east", 2),
    ("deaf west", 2),
)


def setup_of(dice: Random) -> Setup:
    """How the nodes of a storm are set up."""
    decides: Decides = dice.choice(("file", "sql", "database", "token"))
    processes = dice.choice((1, 2)) if decides in {"database", "token"} else 1
    nodes = dice.choice((2, 3)) if processes == 1 else dice.choice((1, 2))
    return Setup(decides, nodes, processes, dice.choice((1, 2)), dice.choice((1, 50, 50, 50)), dice.choice((0, 0, 100)))


def storm(dice: Random, setup: Setup, count: int) -> list[Gust]:
    """The faults of a round."""
    harm = [action for action, weight in _HARM for _ in range(weight)]
    gusts = []
    for _ in range(count):
        pause_s = dice.uniform(0.05, 0.5)
        if dice.random() < 0.3:
            gusts.append(Gust(pause_s, action=dice.choice(harm)))
            continue
        point = dice.choice(("", *points(setup), *points(setup)))
        number = dice.randrange(setup.nodes * setup.processes)
        fate = dice.choice(("killed", "killed", *fates(setup)))
        absence_s = dice.uniform(0.2, 3.0) + (TIMEOUT_S if fate == "overdue" else 0.0)
        gusts.append(Gust(pause_s, "", number, fate, point, absence_s))
    return gusts
