"""These tests check what a pipeline reports about its state to users."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from rm_amqp import Message
from tm.log import LogMissing
from tm.log.sql.database import Database
from xabridge.pipeline.core import Attempt, Batch, Offset
from xabridge.pipeline.core.ledger import sql_ledger
from xabridge.pipeline.core.ledger.opener import LedgerOpener
from xabridge.pipeline.core.ledger.status import look, prefixes
from xabridge.pipeline.core.process_ids import process_id
from xabridge.pipeline.core.resources import Resources
from xabridge.pipeline.core.xids import Incarnation
from xabridge.pipeline.status_command import orphans

if TYPE_CHECKING:
    from tests.xabridge.pipeline.core.environment import CoreEnvironment
    from tm.resources import Resource


def test_status_shows_epochs_branches_and_what_can_not_be_reached(env: CoreEnvironment) -> None:
    with pytest.raises(LogMissing):
        prefixes(env.log)
    env.put(["1", "2"])
    reader, end, (partition,) = env.began(partitions=1)
    writer = env.writer()
    plan = writer.plan()
    report = env.write(plan, env.rows(partition), Attempt(0, 0))
    resources = (*env.settings.resources, ("gone", "amqp://127.0.0.1:1/?connect_timeout=1&timeout=1"))
    (shown,) = look(env.log, resources, "orders", opened=env.resources)
    assert list(prefixes(env.log)) == ["orders"]
    assert (shown.driver, shown.incarnation) == ("driver-1", plan.incarnation)
    assert (shown.query, shown.sources) == ("q", (("broker: orders", process_id()),))
    assert [(epoch.epoch, epoch.state, epoch.branches) for epoch in shown.epochs] == [(1, "active", 0)]
    assert shown.epochs[0].phases == {}
    assert [len(shown.prepared[name] or ()) for name in ("broker", "shop")] == [2, 1]
    assert shown.prepared["gone"] is None
    assert "refused" in shown.unreachable["gone"]
    writer.commit(plan, Batch("q", 0), [report])
    reader.logged(end)
    reader.close()
    (shown,) = look(env.log, env.settings.resources, opened=env.resources)
    assert [(epoch.epoch, epoch.state, epoch.branches, epoch.logged) for epoch in shown.epochs] == [
        (1, "done", 3, True)
    ]
    assert shown.prepared == {"broker": (), "shop": ()}
    with pytest.raises(LogMissing):
        look(env.log, (), "other")


def test_the_phases_of_a_batch(env: CoreEnvironment) -> None:
    env.put(["1", "2"])
    began_at = time.time()
    reader = env.reader(partitions=1)
    end, _ = env.batch(reader, Offset(), 0)
    (decided,) = look(env.log, ())[0].epochs
    assert list(decided.phases) == ["work"]
    reader.logged(end)
    (done,) = look(env.log, ())[0].epochs
    assert done.phases["work"] == decided.phases["work"], "the end of the decision does not hide when it was made"
    assert list(done.phases) == ["work", "log", "finish"]
    assert 0 < sum(done.phases.values()) <= time.time() - began_at + 0.1
    assert done.planned_at == pytest.approx(began_at, abs=5)
    reader.logged(end)
    assert look(env.log, ())[0].epochs == (done,), "told again, and noted once"


def test_a_batch_that_begins_while_somebody_looks_is_no_orphan(env: CoreEnvironment) -> None:
    env.put(["1", "2"])
    reader = env.reader(partitions=1)
    end, _ = env.batch(reader, Offset(), 0)

    class Meanwhile(Resources):
        """A batch ends and another one begins when the resources are asked."""

        def get(self, name: str, url: str) -> Resource:
            if name == "shop":
                reader.logged(end)
                env.write(env.writer().plan(), ["3"])
            return super().get(name, url)

    opened = Meanwhile()
    (shown,) = look(env.log, env.settings.resources, opened=opened)
    opened.close()
    assert [len(shown.prepared[name] or ()) for name in ("broker", "shop")] == [0, 1], "the old ones are finished"
    assert orphans(shown) == {}


def test_epochs_that_wait_are_there_however_old(env: CoreEnvironment) -> None:
    """The last ones, and what a driver has left behind many batches ago."""
    env.put(["1"])
    reader = env.reader(partitions=1)
    env.batch(reader, Offset(), 0)
    reader.close()
    ledger = LedgerOpener(env.log, "orders", sleep=time.sleep).join("driver-1")
    own = Incarnation("orders", ledger.log.log_id, ledger.log.epoch)
    for number in range(2, 7):
        ledger.log.begin(own.gtrid(number, 1))
        ledger.log.abort(own.gtrid(number, 1))
    ledger.close()
    (shown,) = look(env.log, env.settings.resources, last=2, opened=env.resources)
    assert [epoch.state for epoch in shown.epochs] == ["aborted", "aborted", "committed"]
    assert len(shown.prepared["broker"] or ()) == 1
    assert orphans(shown) == {}


def test_status_shows_what_the_last_batches_did_and_what_waited(env: CoreEnvironment) -> None:
    reader = env.reader(partitions=2, rows=2)
    start = Offset()
    for number in range(2):
        env.put([f"{number}{digit}" for digit in "abc"])
        start, _ = env.batch(reader, start, number)
    shown = look(env.log, env.settings.resources, opened=env.resources)[0]
    assert [(one.epoch, one.batch, one.query) for one in shown.results] == [(2, 1, "q"), (1, 0, "q")]
    newest = shown.results[0]
    assert (newest.taken, newest.rows, newest.messages, newest.branches) == (2, 2, 2, 6)
    assert (newest.swept, newest.unfinished) == (0, 0)
    assert newest.octets > 2 * len("1a"), "rows and messages"
    assert min(newest.prepare_s, newest.decide_s, newest.finish_s) > 0
    assert [(lag.epoch, lag.source, lag.waiting) for lag in shown.lags] == [
        (2, "broker: orders", 4), (1, "broker: orders", 3),
    ]  # fmt: skip
    assert [lag.oldest_s for lag in shown.lags] == [None, None], "the sender has not set the creation time"


def test_the_age_of_the_oldest_message_is_by_its_creation_time(env: CoreEnvironment) -> None:
    made_at = time.time() - 60
    env.send([Message("old", creation_time=made_at), Message("new", creation_time=made_at + 30)])
    reader = env.reader(partitions=1)
    env.batch(reader, Offset(), 0)
    (lag,) = look(env.log, env.settings.resources, opened=env.resources)[0].lags
    assert lag.oldest_s is not None
    assert lag.oldest_s == pytest.approx(60, abs=20)


def test_only_the_last_results_are_kept_and_a_job_has_one_too(
    env: CoreEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_ledger, "KEEP_RESULTS", 2)
    for number in range(4):
        env.put([str(number)])
        job = env.reader(streaming=False, partitions=1)
        plan_of_source = job.plan_job()
        writer = env.writer()
        plan = writer.plan(streaming=False)
        report = env.write(plan, env.rows(plan_of_source[0]), Attempt(0, 0))
        writer.commit(plan, None, [report])
        job.close()
    shown = look(env.log, env.settings.resources, opened=env.resources)[0]
    assert [(one.epoch, one.batch, one.taken) for one in shown.results] == [(4, None, 1), (3, None, 1)]


def test_an_earlier_ledger_has_no_results_until_a_query_starts(env: CoreEnvironment) -> None:
    env.put(["1"])
    env.batch(env.reader(partitions=1), Offset(), 0)
    with Database(env.log).engine.begin() as connection:
        connection.execute(text("DROP TABLE xabridge_pipeline_result"))
        for column in ("waiting", "oldest_at"):
            connection.execute(text(f"ALTER TABLE xabridge_pipeline_epoch DROP COLUMN {column}"))
    shown = look(env.log, env.settings.resources, opened=env.resources)[0]
    assert (shown.results, shown.lags) == ((), ())
    env.put(["2"])
    env.batch(env.reader("driver-2", partitions=1), Offset(1), 1, driver="driver-2")
    shown = look(env.log, env.settings.resources, opened=env.resources)[0]
    assert [one.epoch for one in shown.results] == [2]
    assert [lag.epoch for lag in shown.lags] == [2]
