"""These tests check the drawing of the packages: docs/architecture.md must show what the imports in the code are."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.packages import drawing, imports, replaced, sizes

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # it reads every module
def test_architecture_shows_the_imports_of_today() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert page == replaced(page, drawing(ROOT)), "make docs"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three packages, one above the other."""
    for name, text in {
        "tm/__init__.py": "import xa\n",
        "tm/log/__init__.py": "from xa.xid import Xid\n",
        "xa/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tm\n",
        "xabridge/__init__.py": "import os\n\n\ndef late() -> None:\n    import tm\n    import xa\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_an_arrow_is_an_import_that_runs(project: Path) -> None:
    assert imports(project) == {"xabridge": {"tm", "xa"}, "tm": {"xa"}, "xa": set()}
    drawn = drawing(project)
    assert "xabridge --> tm" in drawn
    assert "tm --> xa" in drawn
    assert "xabridge --> xa" not in drawn  # follows from the two
    assert "xa --> tm" not in drawn  # for type checkers only
    assert "<b>tm</b><br>log" in drawn
    assert "| `tm/` | 2 | 2 |" in sizes(project)
