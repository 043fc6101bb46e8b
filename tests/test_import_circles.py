"""These tests limit the circles in which our modules import each other, inside of functions included.

At run time there is none. With the imports for type checkers a circle has five modules at most: types that belong
together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grimp

from tests.test_layering import PACKAGES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import pytest

MOST = 5


def circles(*packages: str, types: bool) -> list[set[str]]:
    """The largest sets of modules each of which imports every other one, if by way of others."""
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=not types, cache_dir=None)
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    importing = {module: graph.find_modules_that_directly_import(module) for module in graph.modules}

    found: list[set[str]] = []
    for module in sorted(imported):
        if not any(module in circle for circle in found):
            circle = _reached(module, imported) & _reached(module, importing)
            if len(circle) > 1:
                found.append(circle)
    return found


def _reached(module: str, following: Mapping[str, set[str]]) -> set[str]:
    reached, waiting = set[str](), [module]
    while waiting:
        for other in following[waiting.pop()] - reached:
            reached.add(other)
            waiting.append(other)
    return reached


def test_no_modules_import_each_other_at_run_time() -> None:
    assert circles(*PACKAGES, types=False) == []


def test_few_modules_import_each_other_with_types() -> None:
    assert [circle for circle in circles(*PACKAGES, types=True) if len(circle) > MOST] == []


def test_a_circle_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "planted_circles"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text("def late():\n    from planted_circles import two\n")
    (package / "two.py").write_text("import planted_circles.one\n")
    (package / "three.py").write_text("import planted_circles.four\nimport planted_circles.two\n")
    (package / "four.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from planted_circles import three\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    late = {"planted_circles.one", "planted_circles.two"}
    typed = {"planted_circles.three", "planted_circles.four"}
    assert circles("planted_circles", types=False) == [late]
    assert circles("planted_circles", types=True) == [typed, late]
