"""These tests cover xa_open of PostgreSQL: what it probes, and its messages when it can't use the server."""

from __future__ import annotations

import logging
from typing import Final

import pytest

from rm_db import DecidingDatabase, PostgresResource
from tests.postgres import Postgres
from tests.rm_db.harness import PostgresHarness
from xa import TMONEPHASE, Code, ResourceError, ResourceUnavailable, XaError
from xabridge.testing.contract.client import RMID, Client, new_key, refused

MANAGERS: Final = (PostgresResource, DecidingDatabase)


def failure(url: str, manager: type[PostgresResource | DecidingDatabase] = PostgresResource) -> XaError:
    """What open says; the instance is not open afterwards, and holds no connection."""
    rm = manager()
    with pytest.raises(XaError) as raised:
        rm.open(url, RMID)
    with refused(Code.XAER_PROTO):
        rm.recover(RMID)
    return raised.value


def test_prepared_transactions_are_switched_off(postgres_unprepared: Postgres) -> None:
    """The default of PostgreSQL. The mend is in the message: the setting, or the other mode."""
    error = failure(postgres_unprepared.url)
    assert isinstance(error, ResourceError)
    assert "max_prepared_transactions is 0" in error.message
    assert "restart PostgreSQL" in error.message
    assert 'mode = "decider"' in error.message


def test_too_few_prepared_transactions_are_told(harness: PostgresHarness, caplog: pytest.LogCaptureFixture) -> None:
    harness.open_string += "?xa_pool_size=1000"
    with caplog.at_level(logging.WARNING, "xabridge.rm_db"):
        Client(harness).rm.close("", RMID)
    assert "less than the 1000 transactions" in caplog.text


def test_a_role_that_may_not_write(harness: PostgresHarness) -> None:
    harness.admin("CREATE ROLE reader LOGIN")
    harness.admin("ALTER ROLE reader SET default_transaction_read_only = on")
    for manager in MANAGERS:
        error = failure(harness.url.replace("postgres@", "reader@"), manager)
        assert isinstance(error, ResourceError)
        assert "ALTER ROLE reader RESET default_transaction_read_only" in error.message
    harness.admin("DROP ROLE reader")


def test_a_standby_is_refused(postgres: Postgres) -> None:
    """It takes no writes, since it waits for those of a primary."""
    signal = postgres.data / "standby.signal"
    postgres.stop()
    signal.touch()
    postgres.start()
    try:
        for manager in MANAGERS:
            error = failure(postgres.url, manager)
            assert isinstance(error, ResourceError)
            assert "the server is a standby and takes no writes: name the primary" in error.message
    finally:
        postgres.stop()
        signal.unlink()


def test_a_version_that_is_too_old_is_refused(harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rm_db.postgres.database.MIN_VERSION", 99_00_00)
    for manager in MANAGERS:
        error = failure(harness.url, manager)
        assert isinstance(error, ResourceError)
        assert "is too old, 99 is needed" in error.message


def test_what_the_server_refuses_and_nobody_is_there(postgres: Postgres) -> None:
    for manager in MANAGERS:
        for right, wrong, told in (("/postgres", "/nowhere", "nowhere"), ("postgres@", "nobody_at_all@", "nobody_at")):
            error = failure(postgres.url.replace(right, wrong), manager)
            assert isinstance(error, ResourceError), error
            assert told in error.message
        error = failure("postgresql://me:secret%20word@127.0.0.1:1/postgres", manager)
        assert isinstance(error, ResourceUnavailable), error
        assert "secret" not in str(error)


@pytest.mark.parametrize("url", ["mysql://h/d", "postgresql:h/d", "postgresql://h/d?nonsense=1", "sqlite:///x"])
def test_what_is_no_open_string_for_it(url: str) -> None:
    assert failure(url).code is Code.XAER_INVAL


def test_another_open_string_needs_a_close(client: Client, harness: PostgresHarness) -> None:
    with refused(Code.XAER_INVAL):
        client.rm.open(harness.open_string + "?xa_pool_size=3", RMID)
    client.rm.close("", RMID)
    client.rm.open(harness.open_string + "?xa_pool_size=3", RMID)


def test_the_server_is_told_who_is_there(client: Client, harness: PostgresHarness) -> None:
    xid = client.begun(new_key())
    assert harness.admin("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'xabridge'")[0][0] >= 1
    client.end(xid)
    client.commit(xid, TMONEPHASE)


def test_fsync_that_is_off_is_told(caplog: pytest.LogCaptureFixture, harness: PostgresHarness) -> None:
    rm = PostgresResource()
    harness.set_server("fsync", "off")
    try:
        with caplog.at_level(logging.WARNING, "xabridge.rm_db"):
            rm.open(harness.url, RMID)
    finally:
        harness.set_server("fsync", "on")
    rm.close("", RMID)
    assert "fsync is off" in caplog.text
