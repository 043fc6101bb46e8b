"""These tests cover the table from SQLSTATE to code."""

from __future__ import annotations

import pytest

from rm_db.sqlstate import COMMIT_PREPARED, ROLLBACK_PREPARED, ROLLED_BACK, is_lost, lookup
from xa import ROLLBACK_CODES, Code


@pytest.mark.parametrize(
    ("sqlstate", "code"),
    [
        ("23503", Code.XA_RBINTEGRITY),
        ("23505", Code.XA_RBINTEGRITY),
        ("44000", Code.XA_RBINTEGRITY),
        ("40001", Code.XA_RBTRANSIENT),
        ("40002", Code.XA_RBINTEGRITY),
        ("40P01", Code.XA_RBDEADLOCK),
        ("55P03", Code.XA_RBTRANSIENT),
        ("57014", Code.XA_RBTIMEOUT),
        ("25P03", Code.XA_RBTIMEOUT),
        ("25P02", Code.XA_RBROLLBACK),
        ("42710", Code.XA_RBPROTO),
        ("53200", Code.XA_RBTRANSIENT),
        ("57P01", Code.XA_RBCOMMFAIL),
        ("08006", Code.XA_RBCOMMFAIL),
        ("42P01", Code.XA_RBOTHER),
        ("P0001", Code.XA_RBOTHER),
        ("", Code.XA_RBOTHER),
    ],
)
def test_why_work_was_rolled_back(sqlstate: str, code: Code) -> None:
    assert lookup(ROLLED_BACK, sqlstate) is code


def test_every_reason_is_a_rollback_code() -> None:
    assert set(ROLLED_BACK.values()) <= ROLLBACK_CODES


@pytest.mark.parametrize("sqlstate", ["42501", "55006", "57014", "58030", "XX000", "25006", ""])
def test_what_is_prepared_stays_prepared(sqlstate: str) -> None:
    """No error of the second phase is taken for an outcome."""
    assert lookup(COMMIT_PREPARED, sqlstate) is Code.XA_RETRY
    assert lookup(ROLLBACK_PREPARED, sqlstate) is Code.XA_RETRY


def test_a_gid_of_another_database() -> None:
    """It is no outcome: no later try helps a commit, whose decision the manager keeps (`tm.two_phase.return_codes`)."""
    assert lookup(COMMIT_PREPARED, "0A000") is Code.XAER_INVAL
    assert lookup(ROLLBACK_PREPARED, "0A000") is Code.XA_RETRY


def test_an_unknown_gid() -> None:
    assert lookup(COMMIT_PREPARED, "42704") is Code.XAER_NOTA
    assert lookup(ROLLBACK_PREPARED, "42704") is Code.XAER_NOTA


@pytest.mark.parametrize(
    ("sqlstate", "lost"), [(None, True), ("57P01", True), ("08003", True), ("57014", False), ("40001", False)]
)
def test_what_a_lost_connection_says(sqlstate: str | None, lost: bool) -> None:
    assert is_lost(sqlstate) is lost
