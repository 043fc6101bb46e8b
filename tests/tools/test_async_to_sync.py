"""This test checks that the generated files in the repository are what `tools/async_to_sync.py` generates today."""

from __future__ import annotations

import pytest

from tools.async_to_sync import MODULES, ROOT, convert


@pytest.mark.parametrize(("source", "generated"), MODULES.items())
def test_generated_modules_are_up_to_date(source: str, generated: str) -> None:
    """After a change of the source: python -m tools.async_to_sync."""
    assert (ROOT / generated).read_text("utf-8") == convert(ROOT / source)
