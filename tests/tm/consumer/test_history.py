"""These tests check whose fault a failure is, which failures are final, and what is remembered of messages."""

from __future__ import annotations

import sqlite3
from typing import Any

import pymysql
import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from rm_amqp import Message
from tm import (
    ConfigurationError,
    ConsumerSettings,
    HeuristicHazard,
    ManagerUnusable,
    OutcomeUnknown,
    ProtocolMisuse,
    RolledBack,
)
from tm.consumer.failures import Failures
from tm.consumer.history import Fault, fault_of, is_broken, is_final
from tm.outcome import Outcome, Reason, Verdict
from xa import Code, xa_error


def raised(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


CONFLICT = DBAPIError.instance("SELECT 1", {}, errors.SerializationFailure(), errors.Error)
DEADLOCK = errors.DeadlockDetected()
LOST = errors.AdminShutdown()
TWICE = errors.UniqueViolation()


def refused(*said: Any) -> RolledBack:
    """What a commit raises that was refused for these reasons."""
    error = RolledBack("no")
    reasons = tuple(Reason(None, one) for one in said)
    error.outcome = Outcome(b"x", Verdict.ROLLED_BACK, False, reasons=reasons)
    return error


def during(error: Exception, handled: Exception) -> Exception:
    error.__context__ = handled
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CONFLICT, Fault.CONFLICT),
        (DEADLOCK, Fault.CONFLICT),
        (raised(RuntimeError("mine"), CONFLICT), Fault.CONFLICT),
        (during(RuntimeError("mine"), CONFLICT), Fault.CONFLICT),
        (xa_error(Code.XA_RBDEADLOCK, "prepare: no"), Fault.CONFLICT),
        (refused(Code.XA_RBDEADLOCK), Fault.CONFLICT),
        (refused(raised(xa_error(Code.XA_RBROLLBACK, "prepare: no"), DEADLOCK)), Fault.CONFLICT),
        (refused("the application asked for it", Code.XA_RBTRANSIENT), Fault.CONFLICT),
        (pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"), Fault.CONFLICT),
        (pymysql.err.OperationalError(1213, "Deadlock found"), Fault.CONFLICT),
        (pymysql.err.OperationalError(1020, "Record has changed"), Fault.CONFLICT),
        (LOST, Fault.OUTAGE),
        (errors.OperationalError("the server closed the connection unexpectedly"), Fault.OUTAGE),
        (pymysql.err.OperationalError(2013, "Lost connection"), Fault.OUTAGE),
        (xa_error(Code.XAER_RMFAIL, "away"), Fault.OUTAGE),
        (raised(RolledBack("can't go on"), xa_error(Code.XAER_RMFAIL, "away")), Fault.OUTAGE),
        (refused(Code.XAER_RMFAIL), Fault.OUTAGE),
        (refused(xa_error(Code.XAER_RMFAIL, "away")), Fault.OUTAGE),
        (OutcomeUnknown("?"), Fault.OUTAGE),
        (ManagerUnusable("the log is gone"), Fault.OUTAGE),
        (refused(TimeoutError("it took longer than its 60 s")), Fault.UNTOLD),
        (refused(Code.XA_RBROLLBACK), Fault.UNTOLD),
        (xa_error(Code.XA_RBTIMEOUT, "the broker's time"), Fault.UNTOLD),
        (xa_error(Code.XA_RBROLLBACK, "work: the branch has been rolled back"), Fault.UNTOLD),
        (errors.InFailedSqlTransaction(), Fault.UNTOLD),
        (HeuristicHazard("who knows"), Fault.UNTOLD),
        (refused(Code.XA_RBINTEGRITY), Fault.MESSAGE),
        (refused("the application asked for it"), Fault.MESSAGE),
        (ProtocolMisuse("no commit in a handler"), Fault.MESSAGE),
        (TWICE, Fault.MESSAGE),
        (errors.QueryCanceled(), Fault.MESSAGE),
        (TimeoutError("another service"), Fault.MESSAGE),
        (RolledBack("no"), Fault.MESSAGE),
        (sqlite3.OperationalError("no such table"), Fault.MESSAGE),
    ],
    ids=lambda one: type(one).__name__,
)
def test_whose_fault_it_is(error: Exception, expected: Fault) -> None:
    assert fault_of(error) is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.OperationalError("the server closed the connection unexpectedly"), True),
        (pymysql.err.OperationalError(1153, "Got a packet bigger than 'max_allowed_packet' bytes"), True),
        (raised(KeyError(), pymysql.err.OperationalError(2013, "Lost connection")), True),
        (errors.AdminShutdown(), False),
        (errors.DiskFull(), False),
        (xa_error(Code.XAER_RMFAIL, "away"), False),
        (ConnectionRefusedError(), False),
        (sqlite3.OperationalError("disk I/O error"), False),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_breaks_a_connection(error: Exception, expected: bool) -> None:
    assert is_broken(error) is expected


@pytest.mark.parametrize(
    ("settings", "error", "expected"),
    [
        ({}, ValueError(), False),
        ({"dead_on": ValueError}, ValueError(), True),
        ({"dead_on": ValueError}, UnicodeError(), True),
        ({"dead_on": (ValueError,)}, TypeError(), False),
        ({"retry_on": TimeoutError}, TimeoutError(), False),
        ({"retry_on": TimeoutError}, ValueError(), True),
        ({"retry_on": OSError, "dead_on": TimeoutError}, TimeoutError(), True),
        ({"retry_on": TimeoutError}, refused(Code.XA_RBROLLBACK), False),
        ({"retry_on": TimeoutError}, OutcomeUnknown("?"), False),
        ({"retry_on": TimeoutError}, xa_error(Code.XAER_RMFAIL, "away"), False),
        ({"retry_on": TimeoutError}, raised(KeyError(), xa_error(Code.XAER_RMFAIL, "away")), False),
        ({"retry_on": TimeoutError}, CONFLICT, False),
        ({"retry_on": TimeoutError}, LOST, False),
        ({"retry_on": TimeoutError}, TWICE, True),
    ],
)
def test_what_is_final(settings: Any, error: Exception, expected: bool) -> None:
    assert is_final(error, ConsumerSettings("q", **settings)) is expected


def test_a_failure_that_is_final_is_final_for_this_content_only() -> None:
    failures = Failures()
    failures.note(Message("a", id="1"), ValueError(), final=True)
    assert failures.is_final(Message("a", id="1"))
    assert not failures.is_final(Message("another", id="1"))
    failures.note(Message("a", id="1", delivery_count=1), RuntimeError("its dead letter could not be sent"))
    assert failures.is_final(Message("a", id="1"))
    failures.forget(Message("a", id="1"))
    assert not failures.is_final(Message("a", id="1"))


def test_settings_are_suggested() -> None:
    with pytest.raises(ConfigurationError, match="retry_of: there is no such setting; did you mean retry_on"):
        ConsumerSettings.of("q", retry_of=ValueError)  # type: ignore[call-arg]
