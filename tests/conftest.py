"""This module holds the fixtures and hooks that every test may use."""

from __future__ import annotations

import gc
import logging
import math
import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadGroupScheduling

from tests.broker_j import GROUP, BrokerJ, jars
from tests.memory_disk import new_folder
from tests.postgres import Postgres
from tools import compilation
from xabridge.testing.mariadb import MariaDB
from xabridge.testing.mariadb import installed as mariadb_installed
from xabridge.testing.process_lifetime import marked_environment

NEEDS_SERVERS = Path(__file__).parent / "rm_db"
ALL_SLOW = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("any machine")  # what a property costs is not what it says

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs and their children are deaf to it
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.disable()  # what is collected here is kept until the end: `pytest_collection_finish` goes on


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A folder or a module of which all is slow is not read for `make check`: reading one loads what it tests."""
    if config.option.markexpr != "not slow":
        return None
    return collection_path == NEEDS_SERVERS or _is_slow(collection_path) or None


def _is_slow(path: Path) -> bool:
    """Whether a module of tests says at its beginning that each of them is slow."""
    return path.name.startswith("test_") and path.suffix == ".py" and ALL_SLOW.search(path.read_text()) is not None


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there is no such hook
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler of --dist loadgroup, which forgets a group when all of it has run. Otherwise it counts after each
    test what is left of every group that a process was ever given, and a test without a group is one: with 6,000 tests
    that takes 16 s of processor time."""
    if config.option.dist != "loadgroup":
        return None
    scheduler: Any = LoadGroupScheduling(config, log)
    complete = scheduler.mark_test_complete

    def mark_test_complete(node: Any, item_index: int, duration: float = 0) -> None:
        complete(node, item_index, duration)
        given = scheduler.assigned_work[node]
        group = scheduler._split_scope(scheduler.registered_collections[node][item_index])
        if all(given[group].values()):
            del given[group]

    scheduler.mark_test_complete = mark_test_complete
    return scheduler


def pytest_collection_finish() -> None:
    """The garbage collector leaves alone what was collected: 12,000 items cost a fifth of all tests' processor time if
    each full collection looks at them."""
    gc.collect()
    gc.freeze()
    gc.collect()  # from here on full collections are as frequent as with a heap that is empty
    gc.enable()
    _share_certificates()


def _share_certificates() -> None:
    """Proton reads the system's certificates for each container, with TLS or without, which takes 0.1 s of processor
    time. Here all containers have those of the first one."""
    reactor: Any = sys.modules.get("proton._reactor")
    if reactor is not None:
        reactor.SSLConfig = cache(reactor.SSLConfig)


def pytest_runtest_teardown() -> None:
    """Tests interrupt the main thread at any moment, also inside of `logging`, where `Handler.handle` has acquired the
    handler's lock and is not in its `try` yet (until Python 3.12). The main thread would keep the lock of pytest's own
    handlers, and every other thread that logs would wait for it in all later tests."""
    for handler in logging.getLogger().handlers:
        lock: Any = handler.lock
        while lock is not None and lock._is_owned():
            lock.release()


def pytest_runtest_setup() -> None:
    """Our loggers are as in a new process: a command that ran in this one has set them up for itself."""
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "xabridge":
            logger.setLevel(logging.NOTSET)
            logger.propagate = True


def pytest_configure() -> None:
    """What tests start ends with this process. Refuses to test compiled modules that are not what the sources say:
    Python imports them in place of these."""
    os.environ.update(marked_environment())
    stale = compilation.stale()
    if stale:
        raise pytest.UsageError(f"older than their sources: {', '.join(stale)}; run `make compiled` or `make pure`")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a database server is slow: it says so by a fixture, a parameter, or the folder it stands in. What is
    marked "pure" is skipped where the modules are compiled. What is marked "long" is left out unless XABRIDGE_LONG asks
    for it."""
    if os.environ.get("XABRIDGE_LONG") != "all":
        left_out = [item for item in items if item.get_closest_marker("long")]
        if left_out:
            left_out[0].config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker("long")]

    compiled = compilation.is_compiled()
    for item in items:
        if compiled and item.get_closest_marker("pure"):
            item.add_marker(
                pytest.mark.skip(reason="compiled modules have no frames, and nothing in them can be replaced")
            )

        named = getattr(getattr(item, "callspec", None), "id", "")
        if (
            "postgres_server" in getattr(item, "fixturenames", ())
            or "postgres" in named
            or item.path.is_relative_to(NEEDS_SERVERS)
        ):
            item.add_marker(pytest.mark.slow)
        if "mariadb_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
        if "broker_j_server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
            if item.get_closest_marker("timeout") is None:  # its start takes long on a machine that is busy
                item.add_marker(pytest.mark.timeout(600))
        if (group := _group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_first, reverse=True)


def _first(item: pytest.Item) -> tuple[bool, float, bool]:
    """What is begun first is the greatest: Spark's group, which is the longest; what may take long; and groups, because
    single tests are what all processes can share when the end comes."""
    return _needs_spark(item), _patience_s(item), _group(item) is not None


def _needs_spark(item: pytest.Item) -> bool:
    return _group(item) == SPARK


SPARK = "spark"
SHARED = {"spark": SPARK, "surviving": SPARK, "broker_j_server": GROUP, "go_amqp": "go-amqp", "jms": "qpid-jms"}
"""A fixture of the session's that takes long to start or to build → the xdist group of the tests that use it."""


def _group(item: pytest.Item) -> str | None:
    """Which tests have to run in one process, because what they share takes long to start: a fixture of `SHARED`, or
    one of their module."""
    for fixture in getattr(item, "fixturenames", ()):
        if fixture in SHARED:
            return SHARED[fixture]
    fixtures = getattr(item, "_fixtureinfo", None)
    if fixtures is None:
        return None
    scopes = {used.scope for used in (every[-1] for every in fixtures.name2fixturedefs.values())}
    return f"{item.path.parent.name}/{item.path.stem}" if "module" in scopes else None


def _patience_s(item: pytest.Item) -> float:
    """How long a test may take. The longest are begun first: none is left to one process when the others are done."""
    timeout = item.get_closest_marker("timeout")
    if timeout is not None:
        return float(timeout.args[0]) or math.inf
    return 1.0 if item.get_closest_marker("slow") else 0.0


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """The session's PostgreSQL, which may be stopped. Use `postgres`, unless you start it yourself."""
    server = Postgres({"max_wal_size": "128MB"})  # it is killed often: there is little to recover then
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def broker_j_server() -> Iterator[BrokerJ]:
    """The session's Qpid Broker-J, which may be stopped. Use `broker_j`, unless you start it yourself."""
    server = BrokerJ(jars(), new_folder("broker-j"))
    yield server
    server.kill()


@pytest.fixture
def broker_j(broker_j_server: BrokerJ) -> BrokerJ:
    """A Qpid Broker-J that runs, the same for the whole session. A test that stops it need not start it again."""
    broker_j_server.start()
    return broker_j_server


@pytest.fixture
def postgres(postgres_server: Postgres) -> Postgres:
    """A PostgreSQL that runs, the same for the whole session. A test that stops it need not start it again."""
    postgres_server.start()
    return postgres_server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDB]:
    """The session's MariaDB, which may be stopped. Use `mariadb`, unless you start it yourself."""
    if not mariadb_installed():
        pytest.skip("MariaDB is not installed: .ci/run installs it")
    server = MariaDB(folder=new_folder("mariadb") / "server")
    yield server
    server.remove()


@pytest.fixture
def mariadb(mariadb_server: MariaDB) -> MariaDB:
    """A MariaDB that runs."""
    mariadb_server.start()
    return mariadb_server
