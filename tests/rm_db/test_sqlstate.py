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


@pytest.mark.parametrize(
    ("sqlstate", "commit", "rollback"),
    [
        *(
            (state, Code.XA_RETRY, Code.XA_RETRY)
            for state in ("42501", "55006", "57014", "58030", "XX000", "25006", "")
        ),
        ("0A000", Code.XAER_INVAL, Code.XA_RETRY),
        ("42704", Code.XAER_NOTA, Code.XAER_NOTA),
    ],
)
def test_what_is_prepared_stays_prepared(sqlstate: str, commit: Code, rollback: Code) -> None:
    """No error of the second phase is taken for an outcome, but that there is no such gid. Where it is of another
    database no later try helps a commit, whose decision the manager keeps (`tm.two_phase.return_codes`)."""
    assert lookup(COMMIT_PREPARED, sqlstate) is commit
    assert lookup(ROLLBACK_PREPARED, sqlstate) is rollback


@pytest.mark.parametrize(
    ("sqlstate", "lost"), [(None, True), ("57P01", True), ("08003", True), ("57014", False), ("40001", False)]
)
def test_what_a_lost_connection_says(sqlstate: str | None, lost: bool) -> None:
    assert is_lost(sqlstate) is lost
