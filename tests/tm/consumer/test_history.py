"""These tests check which failures are final, which are conflicts, and what is known of a message that was put off."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from psycopg import errors
from sqlalchemy.exc import DBAPIError

from rm_amqp import Message
from tm import ConfigurationError, ConsumerSettings, OutcomeUnknown, RolledBack
from tm.consumer.failures import Failures
from tm.consumer.history import CONFLICTS, is_conflict, is_final
from xa import Code, xa_error


def raised(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


CONFLICT = DBAPIError.instance("SELECT 1", {}, errors.SerializationFailure(), errors.Error)
DEADLOCK = errors.DeadlockDetected()
LOST = errors.AdminShutdown()
TWICE = errors.UniqueViolation()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CONFLICT, True),
        (DEADLOCK, True),
        (raised(RuntimeError("mine"), CONFLICT), True),
        (xa_error(Code.XA_RBDEADLOCK, "prepare: no"), True),
        (TWICE, False),
        (LOST, False),
        (RolledBack("no"), False),
        (sqlite3.OperationalError("no such table"), False),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_conflict(error: Exception, expected: bool) -> None:
    assert is_conflict(error) is expected


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
        ({"retry_on": TimeoutError}, RolledBack("refused"), False),
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


def test_conflicts_are_counted_up_to_a_bound() -> None:
    failures = Failures()
    for number in range(CONFLICTS + 3):
        failure = failures.note(Message("a", delivery_count=number), CONFLICT, conflict=True)
        assert (failure.conflicts, failure.is_conflict) == (number + 1, True)
    assert not failures.note(Message("a", delivery_count=1), ValueError()).is_conflict


def test_settings_are_suggested() -> None:
    with pytest.raises(ConfigurationError, match="retry_of: there is no such setting; did you mean retry_on"):
        ConsumerSettings.of("q", retry_of=ValueError)  # type: ignore[call-arg]
