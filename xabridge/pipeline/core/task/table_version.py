"""The version of a table that a pipeline makes beside the user's own: the default of its column `version`. So a table
without rows has one, too.
"""

from __future__ import annotations

import re
from typing import Final

from xa.format_version import version_refusal
from xabridge.pipeline.core.errors import PipelineError

VERSION: Final = 2
COLUMN: Final = f"version smallint NOT NULL DEFAULT {VERSION}"


def refuse_other_version(table: str, default: object) -> None:
    """PipelineError: another version has made the table. `default`: what the database says of that column; None: there
    is no such column."""
    found = re.search(r"\d+", str(default)) if default is not None else None
    refusal = version_refusal(f"the table {table}", int(found[0]) if found else None, VERSION)
    if refusal is not None:
        raise PipelineError(refusal)
