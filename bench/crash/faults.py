"""The faults of the campaign: those at named points, one after the other, and the storms, which a seed makes.

An action is a few words:

    kill worker | broker | second | shop        SIGKILL; it is started again afterwards
    cut broker | second | shop                  every connection to it ends
    deaf broker | second | shop                 its next reply is lost, with the connection
    stop broker STEP                            the broker is stopped at its store's next STEP, and killed there
    disk full | slow | broken | refusing        of the decision log;  disk well
    slow broker, fast broker                    its store's disk
    clock worker | broker SECONDS               its clock jumps
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from dtx.store.contract import Step

if TYPE_CHECKING:
    from random import Random

    from tm.resources import Mode


Database: TypeAlias = Literal["postgresql", "mariadb"]


@dataclass(frozen=True, slots=True)
class Setup:
    """How a round's workers work; `database` is what has the rows."""

    mode: Mode = "two-phase"
    second: bool = False
    workers: int = 1
    threads: int = 1
    batch: int = 1
    database: Database = "postgresql"

    def __str__(self) -> str:
        brokers = 2 if self.second else 1
        workers = f"{self.workers}×{self.threads} workers, batches of {self.batch}"
        return f"{self.mode}, {self.database}, {brokers} broker(s), {workers}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens while a worker stands at the `count`-th `point`, and what once it has gone on and reported the
    transaction. With `again` the worker that recovers is killed too, at that point."""

    point: str
    meanwhile: tuple[str, ...] = ()
    afterwards: tuple[str, ...] = ()
    count: int = 1
    again: str = ""

    def __str__(self) -> str:
        actions = ", ".join(self.meanwhile)
        actions += f", then {', '.join(self.afterwards)}" if self.afterwards else ""
        actions += f", and at {self.again} again" if self.again else ""
        times = f" ({self.count})" if self.count > 1 else ""
        return f"{self.point}{times}: {actions}"


def _kills(what: tuple[str, ...], when: tuple[str, ...] = ("before", "after"), count: int = 1) -> tuple[Fault, ...]:
    return tuple(Fault(f"{side} {each}", ("kill worker",), count=count) for each in what for side in when)


def _broker_stops(point: str, broker: str = "broker") -> tuple[Fault, ...]:
    return tuple(Fault(point, (f"stop {broker} {step.value}",)) for step in Step)


def _in_both(decision: str) -> tuple[Fault, ...]:
    """Points that both modes have; `decision` is the one that decides."""
    return (
        Fault("after receive", ("kill worker",)),
        Fault("after work", ("kill worker",)),
        *_kills(("end broker",), ("after",)),
        *_kills(("prepare broker",)),
        *_kills((decision,)),
        *_kills(("commit broker",)),
        *_kills(("rollback broker", "rollback shop"), ("before",)),
        Fault("after rollback broker", ("kill worker",)),
        Fault(f"after {decision}", ("kill worker",), again="before commit broker"),
        *_broker_stops("before end broker"),
        *_broker_stops("before commit broker"),
        Fault("before commit broker", ("kill broker",), ("kill worker",)),
        Fault("after work", ("kill broker",)),
        Fault("after work", ("kill shop",)),
        Fault("before end broker", ("deaf broker",)),
        Fault("before commit broker", ("deaf broker",)),
        Fault("before commit broker", ("cut broker",)),
        Fault(f"before {decision}", ("cut broker", "cut shop")),
        Fault(f"before {decision}", ("kill broker", "kill shop", "kill worker")),
        Fault(f"after {decision}", ("kill broker", "kill shop")),
        Fault(f"after {decision}", ("kill broker", "kill worker")),
        Fault("after work", ("clock worker 3600",)),
        Fault("before end broker", ("clock broker 900",)),
        Fault("before commit broker", ("clock broker 900", "clock worker 3600")),
    )


_TWO_PHASE: Final = (
    *_kills(("prepare shop",)),
    *_kills(("commit shop",)),
    *_kills(("complete broker",)),
    *_kills(("complete broker",), count=2),
    *_kills(("note the end",)),
    Fault("after force", ("kill worker",), again="after commit shop"),
    Fault("before prepare shop", ("kill shop",)),
    Fault("after prepare shop", ("kill shop",)),
    Fault("before commit shop", ("kill shop",)),
    Fault("before commit shop", ("kill shop",), ("kill worker",)),
    Fault("before prepare shop", ("deaf shop",)),
    Fault("before commit shop", ("deaf shop",)),
    Fault("before commit shop", ("cut shop",)),
    Fault("before force", ("disk refusing",), ("kill worker",)),
    Fault("before force", ("disk broken",), ("kill worker",)),
    Fault("before force", ("disk slow",)),
    Fault("after work", ("disk full",)),
)

_DECIDER: Final = (
    *_kills(("end_decisions shop",)),
    Fault("after prepare broker", ("kill worker",), again="after settle shop"),
    Fault("before decide shop", ("kill shop",)),
    Fault("before decide shop", ("kill shop",), ("kill worker",)),
    Fault("after decide shop", ("kill shop",)),
    Fault("before decide shop", ("deaf shop",)),
    Fault("before decide shop", ("cut shop",)),
)

_TWO_BROKERS: Final = (
    *_kills(("prepare second", "commit second"), ("after",)),
    *_broker_stops("before commit second", "second"),
    Fault("before commit second", ("deaf second",)),
    Fault("before commit broker", ("kill broker",), ("kill worker",)),
)

SHARED: Final = (
    *_kills(("receive", "work"), ("after",), count=20),
    *_kills(("end broker",), ("after",), count=5),
    *_kills(("prepare broker", "prepare shop", "force", "commit broker", "commit shop"), count=5),
    *_kills(("rollback broker",), ("before",), count=3),
    Fault("after work", ("kill broker",), count=20),
    Fault("before commit broker", ("kill broker",), ("kill worker",), count=5),
    Fault("after force", ("kill worker",), count=5, again="before commit broker"),
)
"""In the midst of shares: the transactions of a new worker have 1, 2, 4, 8, 16 messages."""

NAMED: Final[tuple[tuple[Setup, tuple[Fault, ...]], ...]] = (
    (Setup("two-phase"), _in_both("force") + _TWO_PHASE),
    (Setup("decider"), _in_both("decide shop") + _DECIDER),
    (Setup("two-phase", database="mariadb"), _in_both("force") + _TWO_PHASE),
    (Setup("two-phase", second=True, batch=5), (*_TWO_BROKERS, *_kills(("force",)))),
    (Setup("decider", second=True, batch=5), (*_TWO_BROKERS, *_kills(("decide shop",)))),
    (Setup("two-phase", batch=50), SHARED),
)
"""Every named point, by the setup that it is tried in. Where MariaDB is not installed, its setup is left out."""


@dataclass(frozen=True, slots=True)
class Gust:
    """Some actions at once, after a while."""

    pause_s: float
    actions: tuple[str, ...]


_STORMY: Final = (
    ("kill worker", 6),
    ("kill broker", 4),
    ("kill shop", 3),
    ("kill second", 2),
    ("cut broker", 3),
    ("cut shop", 3),
    ("cut second", 1),
    ("deaf broker", 3),
    ("deaf shop", 3),
    ("deaf second", 1),
    ("disk slow", 1),
    ("disk full", 1),
    ("disk refusing", 1),
    ("disk broken", 1),
    ("disk well", 3),
    ("slow broker", 1),
    ("fast broker", 2),
    ("clock worker 3600", 1),
    ("clock broker 900", 1),
)


def setup_of(dice: Random, *, mariadb: bool) -> Setup:
    """How the workers of a storm work, in every fourth one with MariaDB, where that is installed."""
    mode: Mode = dice.choice(("two-phase", "decider"))
    setup = Setup(mode, dice.random() < 0.5, dice.choice((1, 2)), dice.choice((1, 4)), dice.choice((1, 1, 10)))
    in_mariadb = dice.random() < 0.25
    return replace(setup, mode="two-phase", database="mariadb") if in_mariadb and mariadb else setup


def storm(dice: Random, setup: Setup, gusts: int) -> list[Gust]:
    """The faults of one round, at random times, some of them several at once."""
    names = [name for name, weight in _STORMY for _ in range(weight) if setup.second or "second" not in name]
    if setup.mode == "decider":
        names = [name for name in names if not name.startswith("disk")]
    made = []
    for _ in range(gusts):
        several = dice.choice((1, 1, 1, 2, 3))
        made.append(Gust(dice.uniform(0.02, 0.6), tuple(dict.fromkeys(dice.choice(names) for _ in range(several)))))
    return made
