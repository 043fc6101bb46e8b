"""This module runs a pipeline in a world of models: Spark as far as the core sees it, executors, two brokers, a
database, and a book.

The query reads from both brokers, by a source for each or by one with a shard at each, or from one broker. It writes to
one of them and to the database. A source with two shards waits for a broker that is away, or skips it. Every port call
of every actor is a step; the schedule draws the actor that makes the next one. Drivers die before and after any of
their calls. Attempts fail, come late and run twice. Tasks of one source begin before another source is planned. Replies
are lost, brokers and the database are unreachable for a while, or only their commits have no answer, a commit raises
and is aborted, and other drivers take the pipeline. Checkpoints are restored from an earlier copy, or deleted and
created again, with the option `adopt` and without it. Then the faults stop, the checkpoint runs to its end, and the
checker looks. Among other things it compares the order in which the places have committed batches with the order of
their decisions.

In some worlds rows are written by key, so that tasks stage them and the driver upserts, under a branch or with its
decision; or they are shuffled to more
tasks than a resource has connections; and some inputs are unreadable, or are poison: the user's code fails on them. In
others the query reads a file as well: how far it has come there stands in the checkpoint only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Generator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from tests.simulation.pipeline.book import UNCHECKED, Book
from tests.simulation.pipeline.places import NOT_JUDGED, Place
from tests.simulation.pipeline.ports import DriverCall, SimulatedPort, TaskCall, driver_ports
from tm.log import Branch, Decision, DecisionRefused, LogError, LogStopped
from tm.log.sql.gtrids import NodeTakenOver
from tm.two_phase.return_codes import Verb
from xa import Code, XaError, Xid, log_prefix, xa_error
from xabridge.pipeline.core.errors import BatchRefused, PipelineError
from xabridge.pipeline.core.protocol import batch_decision, ownership, partition_read, recovery
from xabridge.pipeline.core.protocol.epoch_plan import EpochPlanner, QuerySource
from xabridge.pipeline.core.shards import Shard
from xabridge.pipeline.core.task.staged_rows import StagedRows
from xabridge.pipeline.core.values import (
    OUTAGE_S,
    Batch,
    Query,
    SinkPlan,
    SinkReport,
    Source,
    SourcePartition,
    TableTarget,
)
from xabridge.pipeline.core.xids import Incarnation, excuse_xid, is_source, sink_xid, source_epoch, upsert_xid

Steps = Generator[Any, Any, Any]
Algorithm = Callable[..., Coroutine[Any, Any, Any]]

INPUTS = 16
PARTITIONS = 2
SHARE = 1
BUDGET = 1_000
"""Steps with faults."""
DEATHS = (0.01, 0.003, 0.001)
"""How often somebody dies before a step, and after it, in one schedule and another: a batch takes a hundred steps."""
RESTARTS = 60
IN_VAIN = 10
"""After so many restarts that have changed nothing, none will: a poison message among all inputs is found by six."""
LIMIT = 60_000
"""Steps in all; what is not done by then never will be."""
BROKERS = ("broker", "second")
"""What the query reads: a source at each."""
SINKS = ("broker", "shop")
PLACES = ("broker", "second", "shop")
LINES = tuple(f"line-{number}" for number in range(9))
"""What is in a file that the query reads besides, in worlds where it does."""
LINES_OF_A_BATCH = 2
WRITERS = 5
"""Tasks that rows are shuffled to."""
KEYED = TableTarget("shop", "rows", ("id",))


class Failed(Exception):
    """The attempt failed."""


@dataclass(frozen=True)
class Mutant:
    """A name, and the algorithms that are tested: a mutant has something else in the place of one. `seed` is a schedule
    that shows it soon."""

    name: str
    check: Callable[..., None] = ownership.check
    bind: Algorithm = ownership.bind
    logged: Algorithm = EpochPlanner.logged
    latest: Algorithm = EpochPlanner.latest
    plan: Algorithm = EpochPlanner.plan
    plan_sink: Algorithm = EpochPlanner.plan_sink
    commit: Algorithm = batch_decision.commit
    abort: Algorithm = batch_decision.abort
    take: Algorithm = partition_read.take
    judge: Callable[..., partition_read.WithheldMessages] = partition_read.judge
    sink_xid: Callable[..., Xid] = sink_xid
    own: Callable[..., Incarnation] = Incarnation
    seed: int = 0


RIGHT: Final = Mutant("none")


@dataclass(frozen=True)
class Do:
    """A step of Spark or of a task that is no call of a port: the world calls this."""

    what: str
    call: Callable[[], Any]


Offsets = tuple[tuple[int, int], ...]
"""What a batch reads: start and end of each source."""


@dataclass
class Checkpoint:
    """What Spark keeps: the offsets of each batch, which are done, and what they had read: the query's state. A new one
    may follow another: `adopt`. `before`: what was decided before its query had the pipeline."""

    query: str
    adopt: str = ""
    offsets: dict[int, Offsets] = field(default_factory=dict)
    done: dict[int, list[int]] = field(default_factory=dict)
    before: frozenset[int] = frozenset()
    lines: int = 0
    """Behind which line of the file it begins: somebody has looked at what was written."""
    given_up: bool = False
    """Another one was about to follow it."""


@dataclass
class Actor:
    """Somebody who makes steps. `incarnation`: of a driver."""

    number: int
    name: str
    steps: Steps
    answer: Any = None
    error: BaseException | None = None
    waits: Callable[[], bool] | None = None


@dataclass
class Task:
    """A task of a job: its attempts, and what came of the first that went well."""

    index: int
    make: Callable[[int, int], Steps]
    report: tuple[SinkReport, list[int]] | None = None
    failures: int = 0
    running: int = 0


def _octets(taken: list[int] | XaError) -> list[bytes] | XaError:
    return taken if isinstance(taken, XaError) else [b"%d" % number for number in taken]


def _check_all(reports: list[SinkReport], tasks: list[Task]) -> None:
    if len(reports) < len(tasks):
        raise Failed("the job")


ROOMS: Final = (1, 2, 99)


class World:
    """One schedule."""

    def __init__(self, seed: int, mutant: Mutant = RIGHT) -> None:
        self.random = Random(seed)
        self.deaths = self.random.choice(DEATHS)
        self.mutant = mutant
        self.book = Book()
        self.places = {name: Place(name, fences=name in BROKERS) for name in PLACES}
        self.checkpoint = Checkpoint("q0")
        self.snapshots: list[Checkpoint] = []
        """Of the checkpoint, for those who keep backups."""
        self.queries = 1
        self.actors: dict[int, Actor] = {}
        self.trace: list[str] = []
        self.told: dict[Xid, list[list[int]]] = {}
        """What each attempt at a source partition yielded."""
        self.wrong: list[str] = []
        self.numbers = 0
        self.attempts = 0
        self.faults = True
        self.steps = 0
        self.nodata: set[str] = set()
        self.tokens: set[str] = set()
        """What batches without data have written, and may have written."""
        self.settled: set[bytes] = set()

        self.unfenced: set[bytes] = set()
        """Global transactions whose commit or abort came to its end, and whose fence may be missing all the same."""
        self.dying: list[int] = []
        self.away: str | None = None
        self.room = self.random.choice(ROOMS)
        """How many branches a place surely completes of those that are asked of it at a time."""
        self.commits = Random(f"{seed} stalls")
        self.stalls = self.commits.random() < 0.4
        """Whether places commit nothing for a while, whatever else they do."""
        self.stalled: dict[str, int] = {}
        """Up to which step."""
        self.queued = 0
        self.keyed = self.random.random() < 0.5
        self.deciding = self.keyed and Random(f"{seed} decides").random() < 0.4
        """Whether the shop's rows are written with the decision."""
        self.shuffled = self.random.random() < 0.3
        self.brokers = self.random.choice((BROKERS, BROKERS[:1]))
        """What this query reads."""
        self.sources = self._sources()
        chosen = self.random.sample(range(INPUTS), 2) if self.random.random() < 0.4 else []
        self.file = LINES if Random(f"{seed} file").random() < 0.25 else ()
        if self.file:  # no message is found guilty of a failure that the lines may have caused
            chosen = []
        self.unreadable = set(chosen[1:])
        self.poison = set(chosen[:1])

    def _sources(self) -> tuple[Source, ...]:
        """One source for each broker, or one for both."""
        shards = [Shard(broker, (self.random.choice(("orders", "or*")),)) for broker in self.brokers]
        by_queue, skips = self.random.random() < 0.5, self.random.random() < 0.5
        options: dict[str, Any] = {"partitions": PARTITIONS, "by_queue": by_queue, "skips": skips}
        if self.random.random() < 0.5:
            return (Source(tuple(shards), **options),)
        return tuple(Source((shard,), **options) for shard in shards)

    # --- running --------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """The schedule, to its end."""
        self._put(INPUTS // 2)
        driver = self._drive(self.checkpoint)
        while self.steps < BUDGET:
            self._step()
            if driver not in self.actors:
                driver = self._drive(self._checkpoint())
            elif self.random.random() < 0.002:
                self._drive(self._checkpoint())  # by mistake, while another one runs
            if self.random.random() < 0.02:
                self._put(2)
        self._finish()

    def _checkpoint(self) -> Checkpoint:
        """The one that somebody starts the query with: the right one, an old one, or a new one."""
        if self.checkpoint.query.startswith(ownership.GIVEN_UP):
            return self._new(adopts=True)
        drawn = self.random.random()
        if drawn < 0.1 and self.snapshots:
            return deepcopy(self.random.choice(self.snapshots))
        return self._new(adopts=drawn < 0.15) if drawn < 0.2 else self.checkpoint

    def _new(self, *, adopts: bool) -> Checkpoint:
        self.queries += 1
        adopted = self.checkpoint.query if adopts else ""
        return Checkpoint(f"q{self.queries}", adopted, lines=self._written_lines(adopted))

    def _written_lines(self, adopted: str) -> int:
        """Where who has given a pipeline up, and starts another one, has the file begin: behind what was written. (The
        other pipeline has the name of this one here.)"""
        written = self.places["shop"].output if adopted.startswith(ownership.GIVEN_UP) else []
        return sum(row in self.file for row in written)

    def _finish(self) -> None:
        """Faults end. Each checkpoint is run until nothing is left to do; then those who are late have their say."""
        self._put(INPUTS)
        self.faults, self.away = False, None
        for number in [number for number, actor in self.actors.items() if actor.name.startswith("driver")]:
            self._die(number)
        for actor in self.dying:
            self._forget(actor)
        old = [deepcopy(checkpoint) for checkpoint in self.snapshots]
        for last in range(3):
            if last and old:
                self._run_to_its_end(old.pop(self.random.randrange(len(old))))
            is_lost = self.checkpoint.given_up or self.checkpoint.query.startswith(ownership.GIVEN_UP)
            self._run_to_its_end(self._new(adopts=True) if is_lost else self.checkpoint)

        while self.actors and self.steps < LIMIT:
            self._step()
        for broker in (self.places[name] for name in BROKERS):
            broker.expire()
        self._run_to_its_end(self.checkpoint)
        while self.actors and self.steps < LIMIT:
            self._step()
        if self.actors:
            self.wrong.append("it never comes to an end")
        self._sweep()

    def _run_to_its_end(self, checkpoint: Checkpoint) -> None:
        """Until nothing is left to do but poison that nothing is proven of, and the query fails on that."""
        changed, in_vain = self._effects(), 0
        for _ in range(RESTARTS if self.poison and not self.faults else 1):
            before = len(self.trace)
            driver = self._drive(checkpoint)
            while driver in self.actors and self.steps < LIMIT:
                self._step()
            if not any(f"driver-{driver} ends: Failed" in line for line in self.trace[before:]):
                return
            effects = self._effects()
            changed, in_vain = effects, in_vain + 1 if effects == changed else 0
            if in_vain == IN_VAIN:
                return
            checkpoint = self.checkpoint

    def _effects(self) -> list[Any]:
        """What batches have come to."""
        places = self.places.values()
        return [(tuple(place.output), tuple(place.dead), place.counts.total()) for place in places]

    def _sweep(self) -> None:
        """The next plan."""
        own = self.mutant.own("p", self.book.log_id, self.book.take("last"))
        self._actor("sweep", self._core(self.mutant.plan_sink, own.incarnation, "", planner=self._planner(own, PLACES)))
        while self.actors and self.steps < LIMIT:
            self._step()

    def _put(self, count: int) -> None:
        for _ in range(count):
            if self.queued < INPUTS:
                self.places[self.random.choice(self.brokers)].queue.append(self.queued)
                self.queued += 1

    def _actor(self, name: str, steps: Steps) -> int:
        self.numbers += 1
        self.actors[self.numbers] = Actor(self.numbers, f"{name}-{self.numbers}", steps)
        return self.numbers

    def _drive(self, checkpoint: Checkpoint) -> int:
        number = self.numbers + 1
        return self._actor("driver", self._spark(f"driver-{number}", checkpoint))

    def _step(self) -> None:
        self.steps += 1
        ready = [actor for actor in self.actors.values() if actor.waits is None or actor.waits()]
        if self.dying and self.random.random() < 0.1:
            self._forget(self.dying.pop(0))
        if self.faults and self.random.random() < 0.01:
            self.away = self.random.choice((None, None, *PLACES))
        if not ready:
            if self.dying:
                self._forget(self.dying.pop(0))
            return

        actor = self.random.choice(ready)
        actor.waits = None
        error, actor.error = actor.error, None
        try:
            step = actor.steps.throw(error) if error is not None else actor.steps.send(actor.answer)
        except (StopIteration, Failed, PipelineError, LogError) as end:
            why = "" if isinstance(end, StopIteration) else f"{type(end).__name__} {end}"
            self.trace.append(f"{actor.name} ends: {why}")
            self._die(actor.number)
            return
        self.trace.append(f"{actor.name}: {step.what if isinstance(step, Do) else step}")
        if self.faults and self.random.random() < self.deaths:
            self._die(actor.number)
            return

        try:
            actor.answer = self._perform(actor, step)
        except (LogError, PipelineError, Failed) as raised:
            actor.error = raised
        if self.faults and self.random.random() < self.deaths:
            self._die(actor.number)

    def _die(self, number: int) -> None:
        """The actor's process ends. Its connections are dropped at once, or when the places notice."""
        actor = self.actors.pop(number)
        self.trace.append(f"{actor.name} is gone")
        if self.random.random() < 0.5 and self.faults:
            self.dying.append(number)
        else:
            self._forget(number)

    def _forget(self, number: int) -> None:
        for place in self.places.values():
            place.drop(number)

    # --- Spark ----------------------------------------------------------------------------------------------------
    def _spark(self, driver: str, checkpoint: Checkpoint) -> Steps:
        incarnation = yield from self._bind(driver, checkpoint)
        own = self.mutant.own("p", self.book.log_id, incarnation)
        yield from self._core(recovery.resolve, incarnation, own, BROKERS, None)

        while True:
            number = max(checkpoint.offsets, default=-1)
            if number not in checkpoint.done and number >= 0:
                offsets = checkpoint.offsets[number]
            else:
                starts = [end for _, end in checkpoint.offsets[number]] if number >= 0 else [0] * len(self.sources)
                ends: list[int] = []
                planner = self._planner(own, BROKERS)
                for place, (source, start) in enumerate(zip(self.sources, starts, strict=False)):
                    yield from self._core(self.mutant.logged, incarnation, start, planner=planner)
                    reader, away = QuerySource(source, checkpoint.query, place), self._known_away(source)
                    found = self._core(self.mutant.latest, incarnation, reader, start, away, planner=planner)
                    ends.append((yield from found)[0])
                number += 1
                if self.file:
                    starts = starts if len(starts) > len(ends) else [*starts, checkpoint.lines]
                    ends.append(min(starts[-1] + LINES_OF_A_BATCH, len(self.file)))
                offsets = tuple(zip(starts, ends, strict=True))
                if starts == ends and not self._nodata(checkpoint, number):
                    return
                yield Do("offsets", partial(self._planned, checkpoint, number, offsets))
            yield from self._batch(driver, checkpoint, number, offsets, incarnation)

    def _known_away(self, source: Source) -> dict[str, str]:
        """What the process remembers as away, rightly or not."""
        forgets = not source.skips or not self.faults or self.random.random() < 0.8
        return {} if forgets else {self.random.choice(source.resources): "it was away"}

    def _bind(self, driver: str, checkpoint: Checkpoint) -> Steps:
        """Does what `xabridge.pipeline.core.driver.query_binding.bind` does, with one effect for each of its parts."""
        is_another = checkpoint.adopt.startswith(ownership.GIVEN_UP)
        planned, foreign = max(checkpoint.offsets, default=-1), () if is_another or not self.file else ("file",)
        query = Query(checkpoint.query, driver, planned, checkpoint.adopt, foreign)
        known = yield Do("look", self.book.known)
        self.mutant.check("p", query, known)
        incarnation: int = yield Do("take", lambda: self.book.take(driver))
        own = self.mutant.own("p", self.book.log_id, incarnation)
        if checkpoint.adopt == self.checkpoint.query:
            self.checkpoint.given_up = True
        yield from self._core(self.mutant.bind, incarnation, own, query, self.brokers, PLACES)
        return incarnation

    def _bound(self, query: str) -> None:
        """The pipeline is the query's. Of a new one, what was decided before is not in its state."""
        if query != self.checkpoint.query:
            decided = frozenset(row for xid, told in self.told.items() if self._decision(xid) for row in told[0])
            adopted = self.checkpoint.query
            if query.startswith(ownership.GIVEN_UP):
                held = {xid for name in BROKERS for xid in self.places[name].prepared if is_source(xid)}
                if left := [xid for xid in held if xid.gtrid not in self.unfenced]:
                    self.wrong.append(f"given up, and messages are left with {left}")
            self.checkpoint = Checkpoint(query, adopted, before=decided, lines=self._written_lines(adopted))
            self.snapshots.clear()

    def _decision(self, xid: Xid) -> Decision | None:
        entry = self.book.entry(xid.gtrid)
        return None if entry is None else entry.decision

    def _planned(self, checkpoint: Checkpoint, number: int, offsets: Offsets) -> None:
        """Spark's log of offsets: nobody overwrites what another has written. Whoever goes on from an old checkpoint
        has the right one from now on; unless he was not refused in time."""
        if number in checkpoint.offsets:
            raise Failed("concurrent stream log update")
        checkpoint.offsets[number] = offsets
        self._goes_on(checkpoint)

    def _done(self, checkpoint: Checkpoint, number: int, rows: list[int]) -> None:
        checkpoint.done[number] = rows
        self._goes_on(checkpoint)

    def _goes_on(self, checkpoint: Checkpoint) -> None:
        if checkpoint.query == self.checkpoint.query:
            checkpoint.before, checkpoint.given_up = self.checkpoint.before, self.checkpoint.given_up
            self.checkpoint = checkpoint
            self.snapshots = [*self.snapshots[-5:], deepcopy(checkpoint)]

    def _nodata(self, checkpoint: Checkpoint, number: int) -> bool:
        """Whether a batch without data is to be run: not behind another one."""
        last = checkpoint.offsets.get(number - 1)
        return last is not None and any(start != end for start, end in last) and self.random.random() < 0.7

    def _batch(self, driver: str, checkpoint: Checkpoint, number: int, offsets: Offsets, incarnation: int) -> Steps:
        own = self.mutant.own("p", self.book.log_id, incarnation)
        parts: list[SourcePartition] = []
        for place, (source, (start, end)) in enumerate(zip(self.sources, offsets, strict=False)):
            if start == end:
                continue
            planner, reader = self._planner(own, BROKERS), QuerySource(source, checkpoint.query, place)
            yield from self._core(self.mutant.logged, incarnation, start, planner=planner)
            wanted = (reader, start, end, 2 * PARTITIONS, self._known_away(source))
            planned = yield from self._core(self.mutant.plan, incarnation, *wanted, planner=planner)
            known = yield Do("known", lambda: self._book(DriverCall(incarnation, "known", ())))
            last = known.decided.get(checkpoint.query)
            decided = -1 if last is None else last.batch - planned.again
            count = len(planned.parts)
            for index, (xid, shard) in enumerate(planned.parts):
                share = 0 if planned.again else planned.rows // count + (index < planned.rows % count)
                part = SourcePartition(
                    "p", end, index, xid, shard.resource, "", shard.queues, share, checkpoint.query, decided,
                    planned.aside,
                )  # fmt: skip
                part.check(checkpoint.query, number)
                parts.append(part)
                if self.random.random() < 0.2:  # a stage that runs before the others are planned
                    self._actor("early", self._read(part))

        joined: int = yield Do("join", lambda: self.book.join(driver))
        sink = self.mutant.own("p", self.book.log_id, joined)
        planner = self._planner(sink, PLACES)
        to_write = yield from self._core(self.mutant.plan_sink, joined, checkpoint.query, planner=planner)
        gtrid = to_write.gtrid
        plan = SinkPlan(
            "p", gtrid, to_write.epoch, joined, (), to_write.decided, checkpoint.query,
            deciders=(("shop", ""),) if self.deciding else (), skipped=to_write.skipped, unfinished=to_write.unfinished,
        )  # fmt: skip
        if plan.skipped:  # a broker at which nobody works for it is not fenced
            self.unfenced.add(gtrid)
        lines = list(self.file[slice(*offsets[-1])]) if self.file else []
        token = [] if parts or lines else [f"nodata-{checkpoint.query}-{number}"]
        self.tokens.update(token)
        tasks = [self._task(index, part, plan, []) for index, part in enumerate(parts)]
        if lines or not parts:
            tasks.append(self._task(len(parts), None, plan, lines or token))
        rows: list[int] = []
        if self.shuffled and parts:
            del tasks[len(parts) :]  # lines are not taken, so that they are read by who writes them
            yield from self._job(tasks)
            rows = sorted(row for task in tasks if task.report is not None for row in task.report[1])
            if all(task.report is not None for task in tasks):
                shares = [[*map(str, rows), *lines][index::WRITERS] for index in range(WRITERS)]
                tasks = [self._task(index, None, plan, share) for index, share in enumerate(shares)]

        yield from self._job(tasks)
        reports = [task.report[0] for task in tasks if task.report is not None]
        rows = rows or sorted(row for task in tasks if task.report is not None for row in task.report[1])
        batch = Batch(checkpoint.query, number)
        try:
            _check_all(reports, tasks)
            yield Do("join", lambda: self.book.join(driver, joined))
            yield from self._core(self.mutant.commit, joined, sink, plan, batch, reports, PLACES, raises=True)
        except (Failed, PipelineError, LogError):
            yield Do("join", lambda: self.book.join(driver, joined))
            written = all(task.report is not None for task in tasks)
            rolled_back = yield from self._core(self.mutant.abort, joined, plan, PLACES, written=written)
            if not rolled_back:  # it is decided, by a commit that was broken off, perhaps before its fence
                self.unfenced.add(gtrid)
            self.settled.add(gtrid)
            raise

        self.settled.add(gtrid)
        self.nodata.update(token)
        yield Do("commits", partial(self._done, checkpoint, number, rows))

    @staticmethod
    def _planner(own: Incarnation, resources: Collection[str]) -> EpochPlanner:
        return EpochPlanner(driver_ports(own.incarnation), own, resources, OUTAGE_S)

    def _core(
        self,
        algorithm: Algorithm,
        incarnation: int,
        *arguments: Any,
        planner: EpochPlanner | None = None,
        raises: bool = False,
        **named: Any,
    ) -> Steps:
        """An algorithm of the driver, or a method of its planner, which suspends at each call of a port. What the book
        raises is raised where the algorithm called. With `raises` it may be broken off, as by a process that dies where
        Spark's lives on."""
        steps = algorithm(planner or driver_ports(incarnation), *arguments, **named)
        answer: Any = None
        error: LogError | None = None
        while True:
            try:
                call = steps.throw(error) if error is not None else steps.send(answer)
            except StopIteration as end:
                return end.value
            error = None
            if raises and self.faults and self.random.random() < 0.01:
                raise Failed("commit was broken off")

            try:
                answer = yield call
            except LogError as raised:
                error = raised
                self.unfenced |= {self.book.current} if self.book.current is not None else set()
            if raises and self.faults and self.random.random() < 0.01:
                raise Failed("commit was broken off")

    def _job(self, tasks: list[Task]) -> Steps:
        for task in tasks:
            self._attempt(task)
        while any(task.report is None for task in tasks):
            for task in tasks:
                if task.report is None and task.running == 0:
                    if task.failures > 3:
                        return
                    self._attempt(task)
                elif task.report is None and self.random.random() < 0.1 and task.running < 2:
                    self._attempt(task)  # a copy
            yield Do("wait", lambda: None)

    # --- executors ------------------------------------------------------------------------------------------------
    def _task(self, index: int, part: SourcePartition | None, plan: SinkPlan, rows: list[str]) -> Task:
        def make(actor: int, attempt: int) -> Steps:
            return self._work(actor, part, plan, rows, index, attempt)

        return Task(index, make)

    def _attempt(self, task: Task) -> None:
        self.attempts += 1
        number, attempt = self.numbers + 1, self.attempts
        task.running += 1

        def run() -> Steps:
            try:
                report, rows = yield from task.make(number, attempt)
                if task.report is None:
                    task.report = report, rows
            except (Failed, PipelineError):
                task.failures += 1
                raise
            finally:
                task.running -= 1

        self._actor(f"task-{task.index}", run())

    def _work(
        self, actor: int, part: SourcePartition | None, plan: SinkPlan, rows: list[str], index: int, attempt: int
    ) -> Steps:
        read: list[int] = []
        if part is not None:
            try:
                read = yield from self._read(part)
            except PipelineError:
                yield from self._excused((part.resource,), plan.gtrid, actor, attempt)
                raise
            if self.shuffled:
                return SinkReport(index, attempt, plan.gtrid, ()), read
            rows = [str(row) for row in read]
        if plan.decided or not rows:
            return SinkReport(index, attempt, plan.gtrid, ()), read
        if not self.poison.isdisjoint(int(row) for row in rows if row.isdecimal()):
            raise Failed("the user's code")
        excusing = tuple(name for name in BROKERS if name not in plan.skipped)
        mine = self.mutant.sink_xid(plan.gtrid, index, attempt, b"%d" % attempt)
        staged: tuple[Any, ...] = ()
        branches = tuple(Branch(name, mine) for name in (SINKS[:1] if self.keyed else SINKS))

        if self.keyed:
            answer = yield Do("stage", partial(self._stage, plan.gtrid, attempt, rows))
            if isinstance(answer, XaError):
                yield from self._excused(excusing, plan.gtrid, actor, attempt)
                raise Failed(answer.message)
            staged = (StagedRows(KEYED, ("id",), f"{attempt}", index, len(rows)),)

        verbs: list[Callable[[Place], Any]] = [
            lambda place: place.start(mine, actor),
            lambda place: place.post(mine, actor, rows),
            lambda place: place.end(mine, actor),
            lambda place: self._prepare(place, mine),
        ]
        for verb in verbs:
            for branch in branches:
                answer = yield Do("sink", partial(verb, self.places[branch.resource]))
                if isinstance(answer, XaError):
                    for other in branches:
                        yield Do("undo", partial(self.places[other.resource].roll_back, mine, actor))
                    yield from self._excused(excusing, plan.gtrid, actor, attempt)
                    raise Failed(answer.message)
        return SinkReport(index, attempt, plan.gtrid, branches, staged=staged), read

    def _stage(self, gtrid: bytes, attempt: int, rows: list[str]) -> Any:
        return self._reached("shop", lambda: self.places["shop"].staged.__setitem__((gtrid, f"{attempt}"), rows))

    def _excused(self, brokers: tuple[str, ...], gtrid: bytes, actor: int, attempt: int) -> Steps:
        """The attempt says that no message is to blame, at the first of these brokers where it can."""
        xid = excuse_xid(gtrid, b"%d" % attempt)
        for name in brokers:
            broker = self.places[name]
            verbs: list[Callable[[], Any]] = [
                partial(broker.start, xid, actor),
                partial(broker.end, xid, actor),
                partial(broker.prepare, xid),
            ]
            answer: Any = None
            for verb in verbs:
                answer = yield Do("excuse", partial(self._reached, name, verb))
                if isinstance(answer, XaError):
                    break
            if not isinstance(answer, XaError):
                return

    def _read(self, part: SourcePartition) -> Steps:
        port = SimulatedPort(partial(TaskCall, part.resource), judge=partial(self._judged, part.aside))
        taken = yield from self.mutant.take(port, part.xid, part.queues, part.share).__await__()
        place = self.places[part.resource]
        if taken is None:
            read = yield Do("browse", lambda: self._browse(place, part.xid))
        else:
            read = [int(octets) for _, some in taken for octets in some]
        if part.xid in place.prepared:
            self.told.setdefault(part.xid, []).append(read)
        return read

    async def _judged(self, aside: int, taken: partition_read.TakenMessages) -> partition_read.WithheldMessages:
        """What the task makes of what it took."""
        numbers = [int(octets) for _, some in taken for octets in some]
        bad = [at for at, number in enumerate(numbers) if number in self.unreadable and at >= aside]
        return self.mutant.judge(aside, bad, len(numbers), max(len(numbers) - aside, 0) - len(bad))

    def _browse(self, place: Place, xid: Xid) -> list[int]:
        branch = place.prepared.get(xid)
        if branch is None:
            raise BatchRefused("gone")
        given_back = branch.judged.failed | branch.judged.released
        told = [number for at, number in enumerate(branch.taken) if at not in given_back]
        if not self.unreadable.isdisjoint(told):
            raise BatchRefused("adopted, and it was not judged what it took")
        return told

    # --- port calls -----------------------------------------------------------------------------------------------
    def _perform(self, actor: Actor, step: Do | DriverCall | TaskCall) -> Any:
        if isinstance(step, Do):
            return step.call()
        if isinstance(step, DriverCall):
            return self._driver(step)
        return self._executor(actor, self.places[step.place], step)

    def _lost(self) -> bool:
        return self.faults and self.random.random() < 0.02

    def _reached(self, name: str, call: Callable[[], Any]) -> Any:
        """What a place answers; XAER_RMFAIL where it is away, or the reply is lost."""
        if self.away == name:
            return xa_error(Code.XAER_RMFAIL, f"{name} is away")
        answer = call()
        return xa_error(Code.XAER_RMFAIL, "the reply is lost") if self._lost() else answer

    def _executor(self, actor: Actor, broker: Place, call: TaskCall) -> Any:
        number = actor.number
        ask = partial(self._or_gone, broker, number)

        match call.name, call.arguments:
            case "start", (xid,):
                return ask(lambda: broker.start(xid, number))
            case "take", (_, count):
                return ask(lambda: _octets(broker.take(number, count)))
            case "prepare", (xid, judged):
                ended = ask(lambda: broker.end(xid, number))
                return ended if isinstance(ended, XaError) else ask(lambda: self._prepare(broker, xid, judged))
            case "hold", (xid,):
                return ask(lambda: broker.hold(xid))
            case "adopt", (xid,):
                return ask(lambda: self._prepare(broker, xid))
            case "pause", _:
                return None
            case "roll_back", (xid,):  # a mutant's
                return ask(lambda: broker.roll_back(xid))
        raise AssertionError(call)

    def _prepare(self, place: Place, xid: Xid, judged: partition_read.WithheldMessages = NOT_JUDGED) -> Code | XaError:
        """Nothing is prepared any more behind a fence."""
        answer = place.prepare(xid, judged)
        if place.has_fences and not isinstance(answer, XaError) and xid.gtrid in self.settled - self.unfenced:
            self.wrong.append(f"prepared at {place.name}, behind the fence: {xid}")
        return answer

    def _or_gone(self, broker: Place, number: int, call: Callable[[], Any]) -> Any:
        """Who hears XAER_RMFAIL has lost its connection, and what it was at."""
        answer = self._reached(broker.name, call)
        if isinstance(answer, XaError) and answer.code is Code.XAER_RMFAIL:
            broker.drop(number)
        return answer

    def _driver(self, call: DriverCall) -> Any:
        match call.name, call.arguments:
            case "ask", (verb, branches):
                asked: Counter[str] = Counter()
                return [self._call(verb, branch, asked) for branch in branches]
            case "write_staged", (gtrid, staged):
                return self._upsert(gtrid, staged)
            case "message_counts", (resource, gtrid):
                held = self.places[resource].prepared
                return self._reached(
                    resource, lambda: {xid: len(one.taken) for xid, one in held.items() if xid.gtrid == gtrid}
                )
            case "prepared", (resource,):
                prefix = log_prefix("p", self.book.log_id)
                found = self.places[resource].prepared
                return self._reached(resource, lambda: frozenset(xid for xid in found if xid.gtrid.startswith(prefix)))
            case "fence", (resource, gtrid):
                answer = self._reached(resource, lambda: self.places[resource].fence(gtrid))
                if isinstance(answer, XaError):
                    self.unfenced.add(gtrid)
                return answer
            case (("has_messages" | "queues"), (resource, _)):
                return self._reached(resource, partial(self._looked, call.name, self.places[resource]))
            case "pause", _:
                return None
            case "note", (heuristic,):
                self.wrong.append(f"{heuristic.branch} is said to be completed on its own, and nobody does that")
                return None
            case "end", (decision,):
                if self.random.random() < 0.7 or not self.faults:  # lazy
                    self.book.end(decision.gtrid)
                return None

        return self._written(call)

    @staticmethod
    def _looked(what: str, place: Place) -> Any:
        return bool(place.queue) if what == "has_messages" else {"orders": len(place.queue)}

    def _upsert(self, gtrid: bytes, staged: Any) -> Any:
        """The driver's branch at the shop, and the rows of these attempts."""
        place, xid = self.places["shop"], upsert_xid(gtrid, b"%d" % self.steps)
        rows = [row for one in staged for row in place.staged.get((gtrid, one.attempt), ["gone"])]

        def prepare() -> Code | XaError:
            place.start(xid, -self.steps)
            place.post(xid, -self.steps, rows)
            place.end(xid, -self.steps)
            return place.prepare(xid)

        answer = self._reached("shop", prepare)
        if isinstance(answer, XaError):
            if not self._lost():  # its process dies where it could not roll back
                place.roll_back(xid)
            return BatchRefused(answer.message, outage=True)
        return (Branch("shop", xid),)

    def _force_with_rows(self, incarnation: int, decision: Decision, staged: Any) -> Any:
        """One transaction of the book and the shop, which are one database here."""
        place = self.places["shop"]
        rows = [row for one in staged for row in place.staged.get((decision.gtrid, one.attempt), ["gone"])]
        if self._lost():  # before its commit
            return BatchRefused("the connection is lost", outage=True)
        before = decision.gtrid in self.book.decided
        answer = self._written(DriverCall(incarnation, "force", (decision,)))
        if not before and decision.gtrid in self.book.decided:
            place.output += rows
        return answer

    def _call(self, verb: Verb, branch: Branch, asked: Counter[str]) -> Any:
        place = self.places[branch.resource]
        asked[branch.resource] += 1
        if self.faults and asked[branch.resource] > self.room and self.random.random() < 0.5:
            return xa_error(Code.XA_RETRY, "no connection became free in time")
        if verb is Verb.ROLLBACK:
            return self._reached(branch.resource, lambda: place.roll_back(branch.xid))
        assert verb is Verb.COMMIT_AGAIN, verb
        if self.faults and self._has_stalled(branch.resource):
            return xa_error(Code.XAER_RMFAIL, "the commit has no answer")
        return self._reached(branch.resource, lambda: place.commit(branch.xid))

    def _has_stalled(self, name: str) -> bool:
        if self.stalls and self.commits.random() < 0.1:
            self.stalled[name] = self.steps + self.commits.choice((10, 50, 200))
        return self.steps < self.stalled.get(name, 0)

    def _written(self, call: DriverCall) -> Any:
        """The book; in doubt, it has it or not."""
        if call.name == "force_with_rows":
            return self._force_with_rows(call.incarnation, *call.arguments)
        doubt = self._lost()
        if doubt and self.random.random() < 0.5:
            return self._in_doubt(call)
        try:
            answer = self._book(call)
        except NodeTakenOver as error:
            if call.name == "force":
                return error
            raise
        except DecisionRefused as error:
            return error
        return self._in_doubt(call) if doubt else answer

    @staticmethod
    def _in_doubt(call: DriverCall) -> LogStopped:
        error = LogStopped("the database can't be reached")
        if call.name == "force":
            return error
        raise error

    def _book(self, call: DriverCall) -> Any:
        """What the book answers: its operations have the names of the ports' methods."""
        if call.name == "isolation":
            return self.book.isolation
        operation = getattr(self.book, call.name)
        if call.name not in UNCHECKED:
            self.book.check(call.incarnation)
        answer = operation(*call.arguments)
        if call.name == "bind_query":
            self._bound(call.arguments[0])
        return answer

    # --- the checker ----------------------------------------------------------------------------------------------
    def violations(self) -> list[str]:
        """What is not as it has to be."""
        wrong = list(self.wrong)
        for xid, told in self.told.items():
            if self._decision(xid) and told != [told[0]] * len(told):
                wrong.append(f"{xid} is decided, and told {told}")

        wrong += self._miscounted() + self._out_of_order() + self._overtaken()
        suspect = self.poison | self.unreadable
        inputs = Counter({str(number): 1 for number in range(INPUTS) if number not in suspect})
        written = {row for place in self.places.values() for row in place.output}
        tokens = Counter(dict.fromkeys(self.nodata | (self.tokens & written), 1))
        for name, place in self.places.items():
            expected = inputs + tokens + Counter(self.file) if name in SINKS else Counter[str]()
            found = Counter(place.output)
            if found != expected:
                wrong.append(f"{name}: missing {expected - found}, too many {found - expected}")
            if place.prepared or place.active or place.ended:
                wrong.append(f"{name}: left {list(place.prepared)} {list(place.active)} {list(place.ended)}")
        state = Counter(str(row) for rows in self.checkpoint.done.values() for row in rows)
        expected = inputs - Counter({str(row): 1 for row in self.checkpoint.before})
        if state != expected:
            wrong.append(f"state: missing {expected - state}, too many {state - expected}")
        return wrong

    def _miscounted(self) -> list[str]:
        """Of what works nothing is counted, and nothing is dead or left; what can't be read is dead in the end."""
        brokers, suspect = [self.places[name] for name in self.brokers], self.poison | self.unreadable
        dead = {number for broker in brokers for number in broker.dead}
        wrong = []
        if not self.unreadable <= dead:
            wrong.append(f"can't be read, and is not dead: {self.unreadable - dead}")
        if counted := [number for broker in brokers for number in broker.counts if number not in suspect]:
            wrong.append(f"counted: {counted}")
        if dead - suspect:
            wrong.append(f"dead: {dead - suspect}")
        if left := {number for broker in brokers for number in broker.queue} - self.poison:
            wrong.append(f"still queued: {left}")
        return wrong

    def _overtaken(self) -> list[str]:
        """At each place the batches become visible in the order of their decisions: what their sinks have written, and
        what their sources have taken."""
        wrong = []
        order = {gtrid: number for number, gtrid in enumerate(self.book.decided)}
        for name, place in self.places.items():
            for what, of_source in (("sources", True), ("sinks", False)):
                seen = [order.get(xid.gtrid, -1) for xid in place.committed if is_source(xid) == of_source]
                if seen != sorted(seen):
                    wrong.append(f"{name}: decided batches overtake each other: {what} {seen}")
        return wrong

    def _out_of_order(self) -> list[str]:
        """Where a queue is one partition, decided epochs have its messages in order; but for suspects, which come back
        behind others."""
        if self.poison or self.unreadable or not self.sources[0].by_queue:
            return []
        read: dict[str, list[tuple[int, list[int]]]] = {}
        for xid, told in self.told.items():
            decision = self._decision(xid)
            for branch in decision.branches if decision else ():
                if branch.xid == xid:
                    read.setdefault(branch.resource, []).append((source_epoch(xid), told[0]))
        wrong = []
        for resource, epochs in read.items():
            numbers = [number for _, some in sorted(epochs) for number in some]
            if numbers != sorted(numbers):
                wrong.append(f"{resource}: read out of order: {numbers}")
        return wrong
