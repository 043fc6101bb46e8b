"""A campaign of consumers under one law: a message whose handler never raises is handled exactly once, and never a dead
letter; one whose handler always raises is a dead letter, with a reason of its own, and nothing of it is committed.

A storm: 1. the seed draws a setup and the weather; 2. messages are placed, some of them poison, while consumers work;
3. what the weather brings happens, and is repaired; 4. everybody works until each message is handled or dead, rests and
recovers; 5. the audit counts for each message how often its handler ran to a commit, and what became a dead letter.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal

import psycopg
from proton import ConnectionException, Message

from bench.crash.child import PATIENCE_S, ChildGone, Stuck
from bench.crash.consumers.worker import CANCELS, COMMITS, COUNTERS, GOOD, RAISES, TABLES
from bench.crash.ledger import Broker
from bench.crash.proxy import HOST
from bench.crash.stage import HELD_S, Stage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

WORKER: Final = "bench.crash.consumers.worker"
PER_STORM: Final = 120
GUSTS: Final = 3
"""Kills of one process, so few that no message is taken for the cause."""
LOOK_S: Final = 0.1
BRANCH_S: Final = 10
"""A transaction of a batch that waits for others takes longer than those of the other campaigns."""
STORM_S: Final = 150.0
"""A storm that has not ended by then is stuck, whatever goes on in it."""
STANDSTILL_S: Final = 25.0
"""Nothing happens for so long: it is stuck. Longer than a transaction may take, which a killed process may hold."""
Weather = Literal["calm", "conflicts", "outage", "cuts", "kills"]
Store = Literal["postgresql", "sqlite"]
Style = Literal["threads", "asyncio"]
WEATHERS: Final[tuple[Weather, ...]] = ("calm", "conflicts", "outage", "cuts", "kills")
WITHOUT_SERVER: Final[tuple[Weather, ...]] = ("calm", "kills")
STORES: Final[tuple[Store, ...]] = ("postgresql", "postgresql", "postgresql", "sqlite")
STYLES: Final[tuple[Style, ...]] = ("threads", "asyncio")
KINDS: Final = ("lost", "duplicated", "dead", "spared", "reason", "stuck")
"""What an audit can find. `lost`: a good message that is nowhere; `duplicated`: handled more than once, or handled and
a dead letter; `dead`: a good message that is a dead letter; `spared`: poison that was committed, or is no dead letter;
`reason`: a dead letter with another message's reason; `stuck`: a message that is not handled."""


@dataclass(frozen=True, slots=True)
class ConsumerSetup:
    """The settings of a storm. `poison`: so many of a hundred."""

    weather: Weather = "calm"
    poison: int = 10
    waits: Literal["worker", "broker"] = "worker"
    limit: int = 5
    batch: int = 1
    workers: int = 1
    """Processes."""
    threads: int = 4
    style: Style = "threads"
    store: Store = "postgresql"
    kinds: tuple[str, ...] = (RAISES,)
    """What poison does."""

    mode = "two-phase"
    database = "postgresql"
    second = False

    def __str__(self) -> str:
        return (
            f"{self.weather}, {self.poison} % poison ({'/'.join(self.kinds)}), waits={self.waits}, limit={self.limit}, "
            f"batch={self.batch}, {self.workers} processes × {self.threads} {self.style}, {self.store}"
        )


def setup_of(dice: Random, weather: Weather | None = None) -> ConsumerSetup:
    """A setup."""
    store = dice.choice(STORES)
    style: Style = dice.choice(STYLES) if store == "postgresql" else "threads"
    kinds = dice.choice(
        ((RAISES,), (RAISES,), (RAISES, COMMITS), (RAISES, CANCELS) if style == "asyncio" else (COMMITS,))
    )

    drawn = dice.choice(WEATHERS)
    return ConsumerSetup(
        weather=(weather or drawn) if store == "postgresql" else dice.choice(WITHOUT_SERVER),
        poison=dice.choice((1, 10, 50)),
        waits=dice.choice(("worker", "broker")),
        limit=dice.randint(1, 10),
        batch=dice.choice((1, 20)),
        workers=dice.choice((1, 2, 3)) if store == "postgresql" else 1,
        threads=dice.choice((1, 5, 8)),
        style=style,
        store=store,
        kinds=kinds,
    )


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter; `reason` is None where there is no annotation of a consumer."""

    number: int
    reason: str | None
    deliveries: object


@dataclass(slots=True)
class ConsumerAudit:
    """What was found, by kind, and each in words."""

    handled: int = 0
    dead: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether the law was kept."""
        return not self.details


def compare(
    placed: Mapping[int, str],
    waiting: Iterable[int],
    rows: Iterable[int],
    letters: Iterable[Letter],
    history: Mapping[int, list[str]],
) -> ConsumerAudit:
    """The audit of what is there. `placed`: number → kind."""
    audit = ConsumerAudit()
    in_queue, handled = Counter(waiting), Counter(rows)
    dead: defaultdict[int, list[Letter]] = defaultdict(list)
    for letter in letters:
        dead[letter.number].append(letter)
    audit.handled, audit.dead = handled.total(), sum(map(len, dead.values()))

    def note(kind: str, number: int, what: str) -> None:
        audit.by_kind[kind] += 1
        events = "; ".join(history.get(number, ["its handler never began"])[-12:])
        letters_of = "; ".join(f"{one.reason!r} after {one.deliveries} deliveries" for one in dead[number])
        audit.details.append(
            f"{kind}: message {number} ({placed[number]}) {what}: [{events}] dead letters: [{letters_of}]"
        )

    for number, kind in placed.items():
        if in_queue[number]:
            note("stuck", number, "is in its queue still")
        elif kind == GOOD:
            if handled[number] > 1 or (handled[number] and dead[number]):
                note("duplicated", number, f"was committed {handled[number]} times")
            elif dead[number]:
                note("dead", number, "is a dead letter")
            elif not handled[number]:
                note("lost", number, "is nowhere")
        elif handled[number] or len(dead[number]) != 1:
            note("spared", number, f"was committed {handled[number]} times")
        elif _is_anothers(dead[number][0]):
            note("reason", number, "has a reason that is not its own")
    return audit


def _is_anothers(letter: Letter) -> bool:
    """Whether the reason names another message."""
    reason = letter.reason or ""
    return reason.startswith("Poison") and reason != f"Poison: number {letter.number} is poison"


class ConsumerStage(Stage):
    """The processes of this campaign: the broker has its own limit of deliveries, and what processes tell is kept by
    message."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, with_mariadb=False, deliveries=10)
        self.worker = WORKER
        self.history: defaultdict[int, list[str]] = defaultdict(list)
        self._setup = ConsumerSetup()
        self._began = 0.0

    def begin_round(self) -> None:
        with self._lock:
            self.history = defaultdict(list)
        self._began = time.monotonic()

    def note(self, number: int, what: str) -> None:
        """Something that happened to a message."""
        with self._lock:
            self.history[number].append(f"{time.monotonic() - self._began:.2f} s {what}")

    def _hear(self, event: dict[str, Any]) -> None:
        self.note(int(event["number"]), str(event["what"]))

    def _station(self, setup: Any, number: int, failing: int) -> dict[str, Any]:
        station = super()._station(setup, number, failing)
        if setup.store == "sqlite":
            station |= {"mode": "decider", "database": f"sqlite:///{self._folder}/shop.db", "log": ""}
        elif setup.weather == "conflicts":
            station["database"] += "?options=-c%20default_transaction_isolation%3Dserializable"
        station["broker"] = station["broker"].replace(f"branch_timeout={HELD_S}", f"branch_timeout={BRANCH_S}")
        return {
            **station,
            "node": f"consumers-{setup.store}-{number}",
            "limit": setup.limit,
            "waits": setup.waits,
            "style": setup.style,
            "conflicts": setup.weather == "conflicts",
        }

    def broker_url(self) -> str:
        """Where the ledger reaches the broker."""
        return f"amqp://{HOST}:{self._ports['broker']}"

    def prepare(self) -> None:
        """Makes the tables of both databases, and the counters."""
        counters = [(number,) for number in range(COUNTERS)]
        with psycopg.connect(self._databases["postgresql"], autocommit=True) as connection:
            for statement in TABLES:
                connection.execute(statement.encode())
            connection.cursor().executemany("INSERT INTO counters VALUES (%s, 0) ON CONFLICT DO NOTHING", counters)
        with closing(sqlite3.connect(self._folder / "shop.db")) as file, file:
            for statement in TABLES:
                file.execute(statement)

    def rows(self, queue: str, store: str) -> list[int]:
        """The messages that were handled, each as often as it was."""
        asked = "SELECT number FROM handled WHERE queue = "
        if store == "sqlite":
            with closing(sqlite3.connect(self._folder / "shop.db", timeout=30.0)) as file:
                return [number for (number,) in file.execute(asked + "?", (queue,))]
        with psycopg.connect(self._databases["postgresql"], autocommit=True) as connection:
            return [number for (number,) in connection.execute((asked + "%s").encode(), (queue,))]


@dataclass(slots=True)
class ConsumerTally:
    """What a campaign came to."""

    rounds: int = 0
    messages: int = 0
    handled: int = 0
    dead: int = 0
    by_weather: Counter[str] = field(default_factory=Counter)
    by_kind: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class ConsumerCampaign:
    """Storms on a stage."""

    def __init__(self, stage: ConsumerStage, count: int = PER_STORM) -> None:
        self._stage = stage
        self._count = count
        stage.prepare()
        self._broker = Broker(stage.broker_url())
        self.tally = ConsumerTally()

    def storms(self, seed: int, rounds: int, first: int = 0) -> None:
        """So many, as the seed says; the weathers take turns."""
        for number in range(first, first + rounds):
            dice = Random(f"{seed} consumers {number}")  # noqa: S311 — no secret
            self.storm(setup_of(dice, WEATHERS[number % len(WEATHERS)]), dice, f"seed {seed}, consumers {number}")

    def storm(self, setup: ConsumerSetup, dice: Random, name: str) -> ConsumerAudit:
        """One round."""
        stage, began = self._stage, time.monotonic()
        stage.begin_round()
        stage.man(setup)  # type: ignore[arg-type]  # it has what a stage looks at
        number = next(stage.rounds)
        queue, rows = f"orders-{number}", f"handled-{number}"
        placed: dict[int, str] = {}
        try:
            self._start(queue, rows)
            self._weather(setup, dice, queue, rows, placed)
            self._drain(setup, queue, rows, placed)
        except (Stuck, ChildGone, ConnectionException) as error:
            stage.revive()
            print(f"  {name}: {error}", file=sys.stderr)
        audit = self._audit(setup, queue, rows, placed)

        self.tally.rounds += 1
        self.tally.messages += len(placed)
        self.tally.handled += audit.handled
        self.tally.dead += audit.dead
        self.tally.by_weather[setup.weather] += 1
        self.tally.by_kind += audit.by_kind
        for detail in audit.details[:20]:
            print(f"  VIOLATION {name}: {setup}: {detail}", file=sys.stderr)
        self.tally.violations += [f"{name}: {setup}: {detail}" for detail in audit.details]
        print(
            f"  {name}: {setup}: {len(placed)} messages, {dict(audit.by_kind)}: {time.monotonic() - began:.1f} s",
            file=sys.stderr,
        )
        return audit

    def _start(self, queue: str, rows: str) -> None:
        for worker in self._stage.workers:
            worker.tell("work", queue, rows)
        for worker in self._stage.workers:
            worker.wait("working")

    def _place(self, setup: ConsumerSetup, dice: Random, queue: str, placed: dict[int, str], count: int) -> None:
        numbers = [next(self._stage.numbers) for _ in range(count)]
        kinds = {number: dice.choice(setup.kinds) if dice.randrange(100) < setup.poison else GOOD for number in numbers}
        if not any(kind != GOOD for kind in kinds.values()):
            kinds[dice.choice(numbers)] = dice.choice(setup.kinds)
        there = self._broker.place(
            queue, numbers, lambda one: Message({"number": one, "kind": kinds[one]}, durable=True)
        )
        placed |= {number: kinds[number] for number in there}

    def _weather(self, setup: ConsumerSetup, dice: Random, queue: str, rows: str, placed: dict[int, str]) -> None:
        stage, wake = self._stage, threading.Event()
        if setup.weather == "outage":  # idle workers, and a database that goes away before anything comes
            stage.postgres.stop(immediate=dice.random() < 0.5)
            self._place(setup, dice, queue, placed, max(self._count // 10, 1))
            wake.wait(dice.uniform(2.0, 5.0))
            stage.revive()
        self._place(setup, dice, queue, placed, self._count)
        if setup.weather == "outage":
            wake.wait(dice.uniform(0.1, 0.5))
            stage.postgres.stop(immediate=True)
            wake.wait(dice.uniform(0.5, 3.0))
            stage.revive()

        for _ in range(GUSTS if setup.weather in {"cuts", "kills"} else 0):
            wake.wait(dice.uniform(0.05, 0.4))
            if setup.weather == "cuts":
                stage.act(f"cut {dice.choice(('broker', 'shop'))}")
                continue
            stage.act(dice.choice(("kill worker", "kill worker", "kill broker")), dice.randrange(setup.workers))
            self._repair(queue, rows)

    def _repair(self, queue: str, rows: str) -> None:
        self._stage.revive()
        for worker in self._stage.workers:
            if not worker.running:
                worker.kill()
                worker.launch()
                worker.tell("work", queue, rows)

    def _drain(self, setup: ConsumerSetup, queue: str, rows: str, placed: Mapping[int, str]) -> None:
        """Waits until every message is handled or dead, or nothing has happened for long."""
        stage, wake = self._stage, threading.Event()
        before, deadline, latest = -1, 0.0, time.monotonic() + STORM_S
        while (left := self._broker.waiting(queue)) or self._unfinished(setup, queue, rows, placed):
            with stage._lock:  # noqa: SLF001 — of a class beside this one
                said = sum(map(len, stage.history.values()))
            if left + said != before:
                before, deadline = left + said, time.monotonic() + STANDSTILL_S
            if time.monotonic() > min(deadline, latest):
                return
            wake.wait(LOOK_S)

    def _unfinished(self, setup: ConsumerSetup, queue: str, rows: str, placed: Mapping[int, str]) -> bool:
        """Whether branches have yet to be completed: what left the queue is neither a row nor a dead letter."""
        done = len(set(self._stage.rows(rows, setup.store))) + self._broker.waiting(f"{queue}.dead")
        return done < len(placed)

    def _audit(self, setup: ConsumerSetup, queue: str, rows: str, placed: Mapping[int, str]) -> ConsumerAudit:
        """Everybody rests, having recovered; then the audit."""
        stage = self._stage
        stage.revive()
        for worker in stage.workers:
            try:
                worker.tell("rest")
                worker.wait("rested", patience_s=PATIENCE_S)
            except (ChildGone, Stuck) as error:
                print(f"  {setup}: {error}", file=sys.stderr)
                worker.kill()

        stage.man(setup)  # type: ignore[arg-type]  # as above; who was killed recovers
        waiting = [body["number"] for body in self._broker.browse(queue)]
        letters = [
            Letter(body["number"], annotations.get("x-opt-dead-reason"), annotations.get("x-opt-dead-deliveries"))
            for body, annotations in self._broker.letters(f"{queue}.dead")
        ]
        return compare(placed, waiting, stage.rows(rows, setup.store), letters, stage.history)

    def figures(self) -> dict[str, Any]:
        """For the report."""
        tally = self.tally
        return {
            "rounds": tally.rounds,
            "messages": tally.messages,
            "handled": tally.handled,
            "dead_letters": tally.dead,
            "by_weather": dict(sorted(tally.by_weather.items())),
            **{kind: tally.by_kind[kind] for kind in KINDS},
            "violations": tally.violations,
        }
