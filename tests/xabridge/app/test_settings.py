"""These tests give each setting of an App, a consumer, a schedule and a transactional function a wrong value: the error
names the setting, says what is expected, and suggests what was meant.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.xabridge.app.shop import NOWHERE
from tm.consumer import settings as consumer_settings
from tm.propagation import call as transactional_settings
from xabridge import App, ConfigurationError, Propagation, ProtocolMisuse, Transaction, TransactionManager
from xabridge.app import app as app_settings
from xabridge.app import schedule as schedule_settings
from xabridge.testing import TestApp
from xabridge.testing.contract.client import case


def handle(number: int) -> None:
    """A handler."""


def make_app(**given: Any) -> None:
    App(given.pop("configuration", NOWHERE), **given)


def consume(**given: Any) -> None:
    App(NOWHERE).consumer(given.pop("queue", "orders"), **given)(handle)


def schedule(**given: Any) -> None:
    App(NOWHERE).schedule(given.pop("expression", "* * * * *"), **given)


def be_transactional(**given: Any) -> None:
    App(NOWHERE).transactional(**given)(handle)


SECONDS = "expected seconds above 0, a number"
CASES: list[tuple[Callable[..., None], str, Any, str]] = [
    (make_app, "configuration", 5, "App: configuration is 5: expected the path of a file, or a Configuration"),
    (make_app, "configuration", b"a.toml", "did you mean configuration='a.toml'?"),
    (make_app, "configuration", {"node": "n"}, "expected the path of a file, or a Configuration"),
    (make_app, "codecs", [("text/plain", int)], "App: codecs is [('text/plain', <class 'int'>)]: expected a dict of"),
    (make_app, "codecs", {"text/plain": "utf-8"}, "expected a dict of codecs by their content types"),
    (
        make_app,
        "transaction",
        Transaction,
        "App: transaction is Transaction: expected a subclass of Tx",
    ),
    (make_app, "codec", {}, "App: codec: there is no such setting; did you mean codecs?"),
    (consume, "queue", 5, 'a consumer: queue is 5: expected the name of a queue, as in consumer("orders"), a str'),
    (consume, "queue", "", "a consumer: queue is '': expected the name of a queue"),
    (consume, "queue", handle, 'expected the name of a queue, as in consumer("orders")'),
    (consume, "workrs", 4, "consumer of orders: workrs: there is no such setting; did you mean workers?"),
    (consume, "x", 4, "consumer of orders: x: there is no such setting; there are resource, workers, batch"),
    (consume, "resource", None, "consumer of orders: resource is None: expected the name of a resource, a str"),
    (consume, "workers", "4", "workers is '4': expected 1 to 1000, a whole number; did you mean workers=4?"),
    (consume, "workers", 2.0, "workers is 2.0: expected 1 to 1000, a whole number; did you mean workers=2?"),
    (consume, "workers", 2.5, "workers is 2.5: expected 1 to 1000, a whole number"),
    (consume, "batch", None, "batch is None: expected 1 to 500, a whole number"),
    (consume, "share_s", 0, f"share_s is 0: {SECONDS}"),
    (consume, "takes", "batches", "takes is 'batches': expected 'message' or 'batch'; did you mean takes='batch'?"),
    (consume, "takes", ["batch"], "takes is ['batch']: expected 'message' or 'batch'"),
    (consume, "max_deliveries", [], "max_deliveries is []: expected 1 to 1000000, a whole number"),
    (consume, "retry_first_s", "x", f"retry_first_s is 'x': {SECONDS}"),
    (consume, "retry_first_s", True, f"retry_first_s is True: {SECONDS}"),
    (consume, "retry_most_s", None, f"retry_most_s is None: {SECONDS}"),
    (consume, "idle_s", Decimal("0.5"), f"idle_s is Decimal('0.5'): {SECONDS}; did you mean idle_s=0.5?"),
    (consume, "timeout_s", float("nan"), f"timeout_s is nan: {SECONDS}, or None"),
    (consume, "shutdown_s", "30", f"shutdown_s is '30': {SECONDS}; did you mean shutdown_s=30?"),
    (consume, "dead_letter", 5, "dead_letter is 5: expected the name of a queue, a str, or None"),
    (consume, "dead_letter", "orders", "dead_letter is the queue itself: name another one"),
    (consume, "retry_on", "x", "retry_on is 'x': expected classes of exceptions"),
    (consume, "retry_on", [OSError], "expected classes of exceptions; did you mean retry_on=(OSError,)?"),
    (consume, "dead_on", ValueError(), "expected classes of exceptions; did you mean dead_on=ValueError?"),
    (
        consume,
        "retry_jitter",
        "0.5",
        "expected 0 to 1, a number; did you mean retry_jitter=0.5?",
    ),
    (consume, "retry_waits", "brokr", "expected 'worker' or 'broker'; did you mean retry_waits='broker'?"),
    (consume, "retry_waits", None, "retry_waits is None: expected 'worker' or 'broker'"),
    (consume, "subscription", 7, "subscription is 7: expected the name of a subscription"),
    (consume, "subscription", "billing", "orders is no topic, and has no subscription"),
    (consume, "retry_for_s", "x", f"retry_for_s is 'x': {SECONDS}, or None"),
    (consume, "retry_for_s", timedelta(minutes=5), "did you mean retry_for_s=300.0?"),
    (schedule, "expression", 5, "schedule: expression is 5: expected a cron expression, as in schedule("),
    (schedule, "expression", handle, "schedule: expression is <function handle"),
    (schedule, "timezone", "Europe/Berln", 'expected the name of a time zone, as "Europe/Berlin", a str; did you mean'),
    (schedule, "timezone", "Europe/Berln", "timezone='Europe/Berlin'?"),
    (schedule, "timezone", ZoneInfo("Europe/Berlin"), "did you mean timezone='Europe/Berlin'?"),
    (schedule, "timezone", UTC, "did you mean timezone='UTC'?"),
    (schedule, "timezone", None, "schedule '* * * * *': timezone is None: expected the name of a time zone"),
    (schedule, "resource", 5, "resource is 5: expected the name of a database among the resources, a str, or None"),
    (schedule, "time_zone", "UTC", "time_zone: there is no such setting; did you mean timezone?"),
    (be_transactional, "propagation", "requires_new", "did you mean propagation=Propagation.REQUIRES_NEW?"),
    (be_transactional, "propagation", None, "propagation is None: expected Propagation.REQUIRED or"),
    (be_transactional, "rollback_on", [ValueError], "did you mean rollback_on=(ValueError,)?"),
    (
        be_transactional,
        "timeout_s",
        "5",
        f"transactional: timeout_s is '5': {SECONDS}, or None; did you mean",
    ),
    (be_transactional, "retries", "many", "retries is 'many': expected 0 to 1000000, a whole number"),
    (be_transactional, "retry", 3, "transactional: retry: there is no such setting; did you mean retries?"),
]


def test_a_wrong_setting_is_told() -> None:
    """There is a case for every setting."""
    for declare, name, value, told in CASES:
        with case(name, value), pytest.raises(ConfigurationError) as refused:
            declare(**{name: value})
        assert told in str(refused.value)
    tables: dict[Callable[..., None], dict[str, Any]] = {
        make_app: app_settings.OPTIONS,
        consume: {"queue": None, **consumer_settings.OPTIONS},
        schedule: {"expression": None, **schedule_settings.OPTIONS},
        be_transactional: transactional_settings.OPTIONS,
    }
    tried = {(declare, name) for declare, name, *_ in CASES}
    assert [name for declare, table in tables.items() for name in table if (declare, name) not in tried] == []


def test_what_fits_is_taken() -> None:
    make_app(configuration=Path("xabridge.toml"), codecs=None)
    consume(timeout_s=None, retry_for_s=None, retry_on=OSError, dead_on=(), dead_letter="", retry_jitter=1, idle_s=1)
    schedule(timezone="Europe/Berlin", resource="shop")
    be_transactional(rollback_on=(ValueError,), timeout_s=None, retries=0, propagation=Propagation.MANDATORY)


def test_a_decorator_without_its_brackets_or_its_function_is_told() -> None:
    for decorate in ("consumer", "schedule"):
        with pytest.raises(ConfigurationError, match=rf"as in {decorate}\("):
            getattr(App(NOWHERE), decorate)(handle)
    for decorator in (App(NOWHERE).consumer("orders"), App(NOWHERE).schedule("* * * * *"), App(NOWHERE).transactional):
        wrong: Any = decorator
        with pytest.raises(ConfigurationError, match="7 is no function: write the decorator above one"):
            wrong(7)


def test_the_times_of_a_manager_are_told(tmp_path: Path) -> None:
    for name in ("timeout_s", "recovery_interval_s"):
        with pytest.raises(ConfigurationError, match=rf"{name} is '5': {SECONDS}; did you mean {name}=5\?"):
            TransactionManager("n", f"file://{tmp_path}/log", {}, **{name: "5"})  # type: ignore[arg-type]
    app = App(NOWHERE)
    with TestApp(app), pytest.raises(ProtocolMisuse, match=r"timeout_s is '5': .*did you mean timeout_s=5"):
        app.begin("5")  # type: ignore[arg-type]
