# mypy: disable-error-code="func-returns-value"
"""These tests compare the ledger in SQLite and PostgreSQL with the model of it that the simulation uses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest

from tests.postgres import Postgres
from tests.simulation.pipeline.book import Book
from tests.waiting import until
from tm.log import Branch, Decision, DecisionRefused
from tm.log.sql.gtrids import NodeTakenOver
from xa import FORMAT_ID, Xid
from xa.coroutines import drive
from xabridge.pipeline.core.errors import PipelineTaken
from xabridge.pipeline.core.ledger.opener import LedgerOpener
from xabridge.pipeline.core.ledger.rows import EpochRow, PipelineRow, PlannedEpochs
from xabridge.pipeline.core.ledger.sql_ledger import SqlLedger
from xabridge.pipeline.core.process_ids import driver_id, is_alive, process_id
from xabridge.pipeline.core.protocol.isolation import EXCUSED, Isolation
from xabridge.pipeline.core.shards import PlannedRead, Shard
from xabridge.pipeline.core.xids import Incarnation

QUERIES = ("a", "b")
SOURCES = ("broker: orders", "second: orders")
SHARD = Shard("second", ("orders#0", 'a "queue", with é'))
READS = (
    PlannedRead(("broker",), (Shard("broker", ("orders",)), Shard("broker", ("orders",)))),
    PlannedRead(("broker", "second"), (SHARD, Shard("broker", ("orders#1",))), (("third", "refused"), ("fourth", ""))),
    PlannedRead(),
)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database for the log."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'log.db'}"
    made: str = request.getfixturevalue("postgres").create_database()
    return made


def _opener(url: str, name: str = "p") -> LedgerOpener:
    return LedgerOpener(url, name, sleep=lambda _: None)


def test_a_driver_that_was_fenced_off_never_gets_the_others_incarnation(url: str) -> None:
    first = _opener(url).take("driver-1")
    joined = _opener(url).join("driver-1")
    assert joined.log.epoch == first.log.epoch
    second = _opener(url).take("driver-2")
    assert second.log.epoch == first.log.epoch + 1
    for fenced in (first, joined):
        with pytest.raises(NodeTakenOver, match=r"by another driver as incarnation .* Run one driver for a pipeline"):
            drive(fenced.allot())
        with pytest.raises(NodeTakenOver):
            drive(fenced.row())
        with pytest.raises(NodeTakenOver):
            drive(fenced.plan(1, 0, b"g", 1, READS[0]))

    with pytest.raises(PipelineTaken, match="taken by driver driver-2"):
        _opener(url).join("driver-1")
    with pytest.raises(PipelineTaken, match="taken by driver driver-2"):
        _opener(url).join("driver-1", first.log.epoch)
    again = _opener(url).take("driver-1")  # a query that is started again, by somebody
    with pytest.raises(PipelineTaken):
        _opener(url).join("driver-2", second.log.epoch)
    last = _opener(url).join("driver-1")
    assert last.log.epoch == again.log.epoch
    for ledger in (first, joined, second, again, last):
        ledger.close()


def test_a_driver_that_never_had_the_pipeline_takes_it_with_its_first_process(url: str) -> None:
    first = _opener(url).take("driver-1")
    with pytest.raises(PipelineTaken):
        _opener(url).join("driver-2")  # part of a streaming query: that takes it when it starts
    writer = _opener(url).join("driver-2", takes=True)  # a job
    assert writer.log.epoch == first.log.epoch + 1
    assert drive(writer.row()).driver == "driver-2"
    with pytest.raises(PipelineTaken):
        _opener(url).join("driver-3", first.log.epoch, takes=True)  # what was planned by another is not carried on
    other = _opener(url, "another").take("driver-2")
    assert (drive(other.row()).driver, drive(other.allot())) == ("driver-2", 1)
    for ledger in (first, writer, other):
        ledger.close()


def test_it_does_what_its_model_does(url: str) -> None:
    """The same operations, drawn, on both: every answer is the same."""
    random = Random(7)
    ledger, book, driver = _opener(url).take("d0"), Book(), "d0"
    book.take(driver)
    for number in range(60 if url.startswith("sqlite") else 200):
        if random.random() < 0.02:
            ledger.close()
            driver = f"d{random.randrange(3)}"
            ledger = _opener(url).take(driver)
            assert book.take(driver) == ledger.log.epoch
        what, told = _both(ledger, book, random)
        assert told[0] == told[1], (number, what)
    ledger.close()


def _both(ledger: SqlLedger, book: Book, random: Random) -> tuple[str, tuple[Any, Any]]:
    """One operation on the ledger and its log, and on the model."""
    own = Incarnation("p", b"log-id-8", ledger.log.epoch)
    epoch = random.randint(1, max(book.epoch_number, 1))
    known = sorted(book.gtrids)
    gtrid = random.choice(known) if known and random.random() < 0.8 else own.gtrid(epoch, random.randint(1, 3))
    mine = own.gtrid(epoch, random.randint(1, 3))
    decision = Decision(gtrid, (Branch("broker", Xid(FORMAT_ID, gtrid, b"src/0")),))
    query = random.choice(QUERIES)
    place = random.randrange(len(SOURCES))
    planned = sorted(book.epochs)
    isolation = random.choice((Isolation(gtrid, 5, place=1, shard=SHARD), Isolation(gtrid, 1, 2)))
    fenced = book.unfenced()[:2]
    failed = (random.choice((EXCUSED, 7)), 1, random.choice((SHARD, None)))
    operations: dict[str, tuple[Any, ...]] = {
        "allot": (),
        "plan": (epoch, epoch - 1, mine, 1, random.choice(READS), query, place, fenced),
        "plan of another": (epoch, epoch - 1, gtrid, 1, READS[1], query, place),
        "bind_query": (query, "run", SOURCES),
        "claim": (SOURCES[place], query),
        "planned": (gtrid,),
        "later": (query, place, epoch),
        "waiting": (random.choice((query, None)),),
        "unfenced": (),
        "known": (),
        "plan_replay": (gtrid,),
        "end_replay": (),
        "mark_sink": (gtrid,),
        "bind_batch": (query, epoch, gtrid),
        "mark_logged": (planned[:1],),
        "row": (),
        "epoch": (epoch,),
        "unlogged": (epoch,),
        "last_batch": (query,),
        "set_isolation": (isolation,),
        "note_failure": (gtrid, *failed),
    }
    if planned:
        operations["mark_finished"] = (book.epochs[planned[-1]].gtrid, {random.choice(("src:broker", "snk:shop"))})
    of_the_log: dict[str, Any] = {
        "isolation": lambda: (drive(ledger.isolation()), book.isolation),
        "begin": lambda: (_refused(ledger.log.begin, gtrid), _refused(book.begin, gtrid)),
        "decide": lambda: (_refused(ledger.log.decide, decision), _refused(book.force, decision)),
        "abort": lambda: (ledger.log.abort(gtrid), book.abort(gtrid)),
        "end": lambda: (_ended(ledger, gtrid), book.end(gtrid)),
        "entry": lambda: (ledger.log.entry(gtrid), book.entry(gtrid)),
        "decisions": lambda: (_sorted(ledger.log.decisions()), _sorted(book.decisions())),
    }
    what = random.choice(sorted({**operations, **of_the_log}))
    if what in of_the_log:
        return what, of_the_log[what]()

    name, arguments = what.partition(" ")[0], operations[what]
    real: Any = getattr(ledger, name)
    model: Any = getattr(book, name)
    if name == "claim":  # which is no coroutine
        return what, (_refused(real, *arguments), _refused(model, *arguments))
    return what, (_timeless(drive(real(*arguments))), _timeless(model(*arguments)))


def _timeless(answer: Any) -> Any:
    """Without when it was."""
    if isinstance(answer, PlannedEpochs):
        return _timeless(answer.epochs)
    if isinstance(answer, (list, tuple)):
        return [_timeless(one) for one in answer]
    if isinstance(answer, EpochRow):
        return replace(answer, planned_at=0.0)
    return replace(answer, taken_at=0.0) if isinstance(answer, PipelineRow) else answer


def _refused(call: Any, *arguments: Any) -> str:
    try:
        call(*arguments)
    except (DecisionRefused, PipelineTaken):
        return "refused"
    return "done"


def _ended(ledger: SqlLedger, gtrid: bytes) -> None:
    ledger.log.end(gtrid)
    ledger.log.flush()


def _sorted(decisions: Any) -> list[Decision]:
    return sorted(decisions, key=lambda decision: decision.gtrid)


@pytest.mark.parametrize("change", ["allot", "mark_sink", "mark_finished", "mark_logged", "bind_batch", "plan_replay"])
def test_a_change_waits_for_a_process_that_is_taking_the_pipeline(postgres: Postgres, change: str) -> None:
    """It was sent before the other process had committed, and is refused once it has."""
    url = postgres.create_database()
    ledger = _opener(url).take("d")
    gtrid = Incarnation("p", ledger.log.log_id, ledger.log.epoch).gtrid(drive(ledger.allot()), 1)
    drive(ledger.plan(1, 0, gtrid, 1, READS[0], "q"))
    changes: dict[str, Any] = {
        "allot": ledger.allot,
        "mark_sink": lambda: ledger.mark_sink(gtrid),
        "mark_finished": lambda: ledger.mark_finished(gtrid, {"src:broker"}),
        "mark_logged": lambda: ledger.mark_logged((1,)),
        "bind_batch": lambda: ledger.bind_batch("q", 1, gtrid),
        "plan_replay": lambda: ledger.plan_replay(gtrid),
    }
    with psycopg.connect(url) as taking, ThreadPoolExecutor(1) as pool:
        taking.execute("UPDATE xabridge_node SET epoch = epoch + 1")
        sent = pool.submit(lambda: drive(changes[change]()))
        _wait_for_lock(url)
        taking.commit()
        with pytest.raises(NodeTakenOver):
            sent.result(20)

    other = _opener(url).take("e")
    assert (drive(other.row()).epoch, drive(other.row()).again, drive(other.last_batch("q"))) == (1, 0, None)
    (row,) = drive(other.planned(gtrid)).epochs
    assert (row.sunk, row.logged, row.finished) == (False, False, frozenset())
    for one in (ledger, other):
        one.close()


def _wait_for_lock(url: str) -> None:
    """Until a statement there waits for another session."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(url, autocommit=True) as looking:
        until(lambda: looking.execute(asked).fetchone()[0])  # type: ignore[index]


def test_what_is_needed_is_not_purged(url: str) -> None:
    ledger = _opener(url).take("d")
    own = Incarnation("p", ledger.log.log_id, ledger.log.epoch)
    gtrids = []
    for epoch in (1, 2, 3):
        assert drive(ledger.allot()) == epoch
        gtrids.append(own.gtrid(epoch, 1))
        drive(ledger.plan(epoch, epoch - 1, gtrids[-1], 1, READS[0]))
        ledger.log.begin(gtrids[-1])
        drive(ledger.bind_batch("q", epoch, gtrids[-1]))
        ledger.log.decide(Decision(gtrids[-1], ()))
        ledger.log.end(gtrids[-1])

    ledger.log.flush()
    drive(ledger.mark_logged([1, 3]))
    assert ledger.purge(0.0) == 1
    assert [entry.gtrid for entry in ledger.log.entries()] == gtrids[1:]  # 2 is not logged, 3 is the query's last
    ledger.close()


def test_a_process_is_known_by_its_start() -> None:
    here = process_id()
    assert is_alive(here)
    assert is_alive(here.rpartition("/")[0] + "/1") is False
    assert is_alive("elsewhere/1/1") is None
    assert is_alive("") is None
    assert driver_id() == here  # no Java above
