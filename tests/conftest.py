"""This module holds the fixtures and hooks that every test may use."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("any machine")  # what a property costs is not what it says

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background jobs and their children are deaf to it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_teardown() -> None:
    """Tests interrupt the main thread at any moment, also inside of `logging`, where `Handler.handle` has acquired the
    handler's lock and is not in its `try` yet (until Python 3.12). The main thread would keep the lock of pytest's own
    handlers, and every other thread that logs would wait for it in all later tests."""
    for handler in logging.getLogger().handlers:
        lock: Any = handler.lock
        while lock is not None and lock._is_owned():
            lock.release()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a database server is slow: it says so by a fixture, a parameter, or the folder it stands in."""
    for item in items:
        named = getattr(getattr(item, "callspec", None), "id", "")
        if (
            "postgres_server" in getattr(item, "fixturenames", ())
            or "postgres" in named
            or item.path.parent.name == "rm_db"
        ):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """The session's PostgreSQL, which may be stopped. Use `postgres`, unless you start it yourself."""
    server = Postgres({"max_wal_size": "128MB"})  # it is killed often: there is little to recover then
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres(postgres_server: Postgres) -> Postgres:
    """A PostgreSQL that runs, the same for the whole session. A test that stops it need not start it again."""
    postgres_server.start()
    return postgres_server
