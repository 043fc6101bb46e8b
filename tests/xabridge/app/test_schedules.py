"""These tests run schedules: when they are due, once over several processes that try at the same time, after kills."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import text

from tests.postgres import Postgres
from tests.xabridge.app.shop import NOWHERE, Shop
from tm import Configuration, ResourceConfig, TransactionManager
from xabridge import App, ConfigurationError, Depends, Message, Tx
from xabridge.app.scheduler import Scheduler
from xabridge.testing import Killed, TestApp, TestBroker
from xabridge.testing.reference import ReferenceResource, ReferenceStore

NOON = datetime(2026, 11, 23, 12, 0, 30, tzinfo=UTC)
FIVE = datetime(2026, 11, 23, 12, 5, tzinfo=UTC)


def announcing(*fails: BaseException) -> tuple[App, Any]:
    app, failures = App(NOWHERE), list(fails)

    @app.schedule("*/5 * * * *")
    def announce(tx: Shop, due: datetime) -> None:
        tx.send("announced", due)
        if failures:
            raise failures.pop(0)

    return app, announce


def test_it_runs_when_it_is_due_and_makes_up_for_missed_times_once() -> None:
    """A failure leaves it due; other times count from now on."""
    app, announce = announcing(LookupError("no"))
    with TestApp(app) as test:
        test.run_schedule(announce, NOON)
        test.run_schedule(announce, NOON + timedelta(minutes=4))
        assert test.sent("announced") == []

        with pytest.raises(LookupError):
            test.run_schedule(announce, FIVE)
        test.run_schedule(announce, FIVE)
        test.run_schedule(announce, FIVE + timedelta(seconds=1))
        assert test.sent("announced") == [FIVE]
        test.run_schedule(announce, FIVE + timedelta(minutes=30))
        test.run_schedule(announce, FIVE + timedelta(minutes=30))
        assert test.sent("announced") == [FIVE, FIVE + timedelta(minutes=5)]
        announce.expression = "0 13 * * *"
        test.run_schedule(announce, FIVE + timedelta(minutes=40))
        assert len(test.sent("announced")) == 2
        test.run_schedule(announce, datetime(2026, 11, 23, 13, tzinfo=UTC))
        assert test.sent("announced")[2:] == [datetime(2026, 11, 23, 13, tzinfo=UTC)]


@pytest.mark.parametrize(("at", "by_then"), [("before the decision", 0), ("after the decision", 1)])
def test_a_process_that_is_killed_has_run_it_or_not(at: Any, by_then: int) -> None:
    app, announce = announcing()
    with TestApp(app) as test:
        test.run_schedule(announce, NOON)
        test.kill(at)
        with pytest.raises(Killed):
            test.run_schedule(announce, FIVE)
        assert len(test.sent("announced")) == by_then
        test.run_schedule(announce, FIVE)
        assert test.sent("announced") == [FIVE]


def test_a_time_zone_and_a_coroutine_function() -> None:
    app = App(NOWHERE)
    seen = []

    def client() -> str:
        return "client"

    @app.schedule("30 9 * * *", timezone="Europe/Berlin")
    async def nightly(due: datetime, client: Annotated[str, Depends(client)]) -> None:
        await asyncio.sleep(0)
        seen.append((due, client))

    with TestApp(app) as test:
        test.run_schedule(nightly, NOON)
        test.run_schedule(nightly, NOON + timedelta(days=1))
    assert seen == [(datetime(2026, 11, 24, 9, 30, tzinfo=ZoneInfo("Europe/Berlin")), "client")]


@pytest.mark.slow
def test_once_over_several_nodes_that_try_at_the_same_moment(postgres: Postgres, tmp_path: Path) -> None:
    url = postgres.create_database()
    app, announce = announcing()
    with TestBroker() as broker:
        managers = [
            TransactionManager(
                f"node-{number}",
                f"file://{tmp_path}/log-{number}",
                {"broker": broker.url, "shop": ResourceConfig(url)},
                transaction=app.transaction,
            )
            for number in range(3)
        ]
        moment = NOON
        schedulers = [Scheduler(manager, [announce], lambda: moment.timestamp()) for manager in managers]  # noqa: PLW0108 — it moves
        try:
            for minute in range(0, 60, 5):
                moment = NOON + timedelta(minutes=minute)
                together(schedulers, lambda one: one.run_if_due(announce))

            with managers[0].begin() as tx:
                found = [app.codecs.read(message, datetime) for message in tx["broker"].browse("announced")]
                assert tx["shop"].execute(text("SELECT count(*) FROM xabridge_schedules")).scalar_one() == 1
        finally:
            for manager in managers:
                manager.close()
    assert found == [FIVE + timedelta(minutes=minute) for minute in range(0, 55, 5)]


def together(schedulers: list[Scheduler], run: Callable[[Scheduler], object]) -> None:
    """All at the same moment; one that fails because of another one tries again."""
    barrier = threading.Barrier(len(schedulers))

    def work(scheduler: Scheduler) -> None:
        barrier.wait()
        for attempts_left in reversed(range(5)):
            try:
                run(scheduler)
            except Exception:  # of a conflict
                if not attempts_left:
                    raise
            else:
                return

    with ThreadPoolExecutor(len(schedulers)) as pool:
        list(pool.map(work, schedulers))


@pytest.mark.parametrize(
    ("fails", "error"), [(1, LookupError("no")), (1000, LookupError("no")), (1, asyncio.CancelledError())]
)
def test_the_thread_runs_it_and_one_that_fails_keeps_no_other_one_from_its_times(
    fails: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xabridge.app.scheduler.FIRST_S", 0.01 if fails == 1 else 30.0)
    app, announce = announcing(*[error] * fails)

    @app.schedule("*/5 * * * *")
    def good(tx: Shop, due: datetime) -> None:
        tx.send("good", due)

    with TestApp(app) as test:
        test.run_schedule(announce, NOON)
        test.run_schedule(good, NOON)
        scheduler = Scheduler(test.manager, app.schedules, FIVE.timestamp)
        scheduler.start()
        while not test.sent("good") or (fails == 1 and not test.sent("announced")):
            threading.Event().wait(0.01)
        scheduler.stop()
        assert (test.sent("good"), test.sent("announced")) == ([FIVE], [FIVE] if fails == 1 else [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE xabridge_schedules DROP COLUMN version", r"made by xabridge 0\.1\.0, which is not read any more"),
        ("UPDATE xabridge_schedules SET version = 3", "made by a newer version: its format has version 3"),
    ],
)
def test_the_table_of_another_version_is_refused_by_its_name(change: str, said: str) -> None:
    app, announce = announcing()
    with TestApp(app) as test:
        test.run_schedule(announce, NOON)
        with test.manager.begin() as tx:
            tx["shop"].execute(text(change))
        with pytest.raises(ConfigurationError, match=f"the table xabridge_schedules: {said}"):
            test.run_schedule(announce, FIVE)
        assert test.sent("announced") == []


def plain(tx: Tx) -> None: ...


def a_message(message: Message) -> None: ...


def a_body(due: str) -> None: ...


def test_mistakes_are_told_when_it_is_declared() -> None:
    zone = "timezone is 'Europe/Nowhere': expected the name of a time zone, as .Europe/Berlin., a str$"
    wrong: list[tuple[str, dict[str, Any], Any, str]] = [
        ("every five minutes", {}, plain, "'every five minutes' is no cron expression"),
        ("* * * * *", {"timezone": "Europe/Nowhere"}, plain, zone),
        ("* * * * *", {}, a_message, "it gets the transaction, dependencies, and a datetime"),
        ("* * * * *", {}, a_body, "it gets the transaction, dependencies, and a datetime"),
    ]
    for expression, settings, function, told in wrong:
        with pytest.raises(ConfigurationError, match=told):
            App(NOWHERE).schedule(expression, **settings)(function)
    app = App(Configuration("n", None, {"broker": "amqp://nowhere.invalid"}))

    @app.schedule("* * * * *")
    def announce(tx: Tx) -> None: ...

    with TestApp(app) as test, pytest.raises(ConfigurationError, match="kept in a database, and there is none"):
        test.run_schedule(announce, NOON)


def test_times_are_kept_where_sql_is_carried_out(tmp_path: Path) -> None:
    """Beside a broker, a Delta lake, and a resource manager of somebody else's, whatever its scheme is."""
    ledger = ResourceConfig(f"sqlite:///{tmp_path}/ledger.db", "decider")
    store = ReferenceStore("queue")
    others: dict[str, str | ResourceConfig] = {
        "lake": f"delta://{tmp_path}/lake",
        "queue": ResourceConfig(store.url, factory=partial(ReferenceResource, store)),
    }
    _, announce = announcing()

    for resources, found in (({**others, "ledger": ledger}, "ledger"), (others, None)):
        with (
            TestBroker() as broker,
            TransactionManager(
                "node-1", f"file://{tmp_path}/log", {"broker": broker.url, **resources}, background=False
            ) as manager,
        ):
            if found is None:
                with pytest.raises(ConfigurationError, match="kept in a database, and there is none: say which"):
                    Scheduler(manager, [announce])
            else:
                assert Scheduler(manager, [announce])._resources == {announce.name: found}
