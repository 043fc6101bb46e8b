"""These tests press Ctrl-C while a thread is in a statement of a branch: the statement ends on the server, too, and the
connection is not used again, because nobody knows how much of the statement or of its reply is on its way.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa

from tests.rm_db.harness import MariaHarness
from tests.rm_db.mariadb.test_statements import begin
from xa import Code, XaError
from xabridge.testing.contract.client import Client
from xabridge.testing.mariadb import MariaDB

LONGEST_S = 30


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM interrupts, as SIGINT does."""

    def interrupted(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number, frame)

    before = signal.signal(signal.SIGALRM, interrupted)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def end_and_roll_back(client: Client, xid: Any) -> None:
    """Does what the manager does after an interruption."""
    with suppress(XaError):
        client.end(xid)
    with suppress(XaError):
        client.rollback(xid)


@pytest.mark.usefixtures("alarm")
def test_a_statement_of_which_a_part_was_sent(client: Client, harness: MariaHarness, mariadb: MariaDB) -> None:
    """The server would take what follows for the rest of it."""
    xid, session = begin(client)
    session.execute(sa.text("UPDATE account SET amount = 1 WHERE id = 1"))
    mariadb.freeze()
    thaw = threading.Timer(1.5, mariadb.thaw)
    thaw.start()

    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt):
            session.pymysql.cursor().execute("SELECT length(%s)", ("x" * 15_000_000,))
        began = time.monotonic()
        end_and_roll_back(client, xid)
        assert time.monotonic() - began < LONGEST_S
    finally:
        thaw.join()
    harness.admin("UPDATE account SET amount = 2 WHERE id IN (1, 2)")
    xid, session = begin(client)
    assert session.scalar(sa.text("SELECT amount FROM account WHERE id = 2")) == 2
    client.end(xid)
    client.rollback(xid)


@pytest.mark.usefixtures("alarm")
def test_twice_while_the_server_does_not_answer(client: Client, harness: MariaHarness, mariadb: MariaDB) -> None:
    xid, session = begin(client)
    mariadb.freeze()
    try:
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.3, 0.5)
        with pytest.raises(KeyboardInterrupt):
            session.execute(sa.text("SELECT 1"))
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert time.monotonic() - began < LONGEST_S
    finally:
        mariadb.thaw()
    end_and_roll_back(client, xid)
    assert harness.admin("XA RECOVER") == []


def test_a_reply_that_the_application_can_t_convert(client: Client, harness: MariaHarness) -> None:
    """PyMySQL leaves the rest of the rows where they are, and they must not be taken for later replies."""
    xid, session = begin(client)
    session.execute(sa.text("UPDATE account SET amount = 1 WHERE id = 1"))

    def convert(value: str) -> int:
        if value == "300":
            raise LookupError
        return int(value)

    from pymysql.constants import FIELD_TYPE  # noqa: PLC0415 — beside its use

    session.pymysql.decoders[FIELD_TYPE.LONGLONG] = convert
    with pytest.raises(LookupError):
        session.pymysql.cursor().execute("SELECT seq FROM seq_1_to_100000")
    with pytest.raises(XaError, match="LookupError"):
        client.end(xid)
    client.rollback(xid)
    assert harness.admin("SELECT amount FROM account WHERE id = 1") == [(100,)]


def test_a_statement_that_can_t_be_encoded_was_not_sent(client: Client, harness: MariaHarness) -> None:
    xid, session = begin(client)
    session.execute(sa.text("UPDATE account SET amount = 1 WHERE id = 1"))
    with pytest.raises(UnicodeEncodeError):
        session.pymysql.query("SELECT '\ud800'")
    session.execute(sa.text("UPDATE account SET amount = 1 WHERE id = 2"))
    client.end(xid)
    assert client.prepare(xid) is Code.XA_OK
    client.commit(xid)
    assert harness.admin("SELECT amount FROM account ORDER BY id") == [(1,), (1,)]
