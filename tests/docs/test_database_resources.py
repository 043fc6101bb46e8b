"""These tests check that the parameters and numbers in docs/database-resources.md are those of the code. The blocks of
the page are executed with those of the other pages.
"""

from __future__ import annotations

import re
from pathlib import Path

from rm_db.address import _DEFAULTS
from rm_db.connections.pool import RESERVE
from rm_db.decider.decision_table import END_BATCH

PAGE = (Path(__file__).parents[2] / "docs" / "database-resources.md").read_text(encoding="utf-8")


def test_the_parameters_and_numbers_are_those_of_the_code() -> None:
    told = dict(re.findall(r"^\| `(xa_\w+)` \| `?(\w+)`? \|", PAGE, re.MULTILINE))
    assert told == _DEFAULTS
    assert f"have {RESERVE} connections more" in PAGE
    assert f"batches of {END_BATCH}" in PAGE
