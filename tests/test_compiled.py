"""These tests look at the compiled modules: which ones there are, and that the sources avoid what mypyc translates into
something else.
"""

from __future__ import annotations

import ast
import importlib
import os
from enum import Enum
from functools import cache
from pathlib import Path

from tests.cases import each
from tools.compilation import LIBRARY, ROOT, SUFFIX, is_compiled, sources

COMPILED = is_compiled()
MODULES = sources()


def named(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse((ROOT / path).read_text("utf-8"))))


def test_the_modules_are_compiled_where_that_is_expected() -> None:
    """XABRIDGE_COMPILED=1 is set where compiled modules are to be tested, so that nobody tests the sources instead."""
    expected = os.environ.get("XABRIDGE_COMPILED")
    if expected is not None:
        assert COMPILED is (expected == "1")


def test_all_of_the_list_are_compiled_or_none_is_and_nothing_else() -> None:
    for path in MODULES:
        assert (importlib.import_module(named(path)).__file__ or "").endswith(SUFFIX if COMPILED else ".py")
    packages = [path.parent for path in ROOT.glob("*/py.typed")]
    found = {path.relative_to(ROOT) for package in packages for path in package.rglob("*.so")}
    assert found == ({path.with_suffix(SUFFIX) for path in MODULES} if COMPILED else set())
    assert bool(list(ROOT.glob(f"{LIBRARY}*.so"))) is COMPILED


@each("module", [named(path) for path in MODULES])
def test_a_class_inherits_from_compiled_ones_or_from_what_has_no_fields(module: str) -> None:
    """mypyc takes any other class, `weakref.ref` for example, for one without fields, and puts its own there."""
    compiled = {named(path) for path in MODULES}
    ours = [each for each in vars(importlib.import_module(module)).values() if isinstance(each, type)]
    for found in ours:
        if found.__module__ == module and not issubclass(found, Enum | tuple | BaseException):
            strange = [base for base in found.__bases__ if base.__module__ not in compiled]
            assert all(base.__basicsize__ == object.__basicsize__ for base in strange), (found, strange)


@each("path", MODULES)
def test_a_constant_with_floats_says_its_type(path: Path) -> None:
    """`X: Final = (0.1, 1.0)`, unpacked into another tuple, is a NameError where it is compiled."""
    for node in nodes(path):
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Tuple):
            floats = [each for each in node.value.elts if isinstance(each, ast.Constant) and type(each.value) is float]
            assert not floats or ast.unparse(node.annotation) != "Final", f"{path}:{node.lineno}"


@each("path", MODULES)
def test_no_exception_is_raised_from_another(path: Path) -> None:
    """Compiled code leaves the cause out; only `from None` has no effect but on tracebacks."""
    for node in nodes(path):
        if isinstance(node, ast.Raise) and node.cause is not None:
            assert isinstance(node.cause, ast.Constant), f"{path}:{node.lineno}"


@each("path", MODULES)
def test_an_exception_has_a_name_of_its_own(path: Path) -> None:
    """Where a function catches two classes under one name, compiled code has one variable for both, of the first class:
    the second `except` would raise TypeError."""
    for function in nodes(path):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            caught: dict[str, set[str]] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name and node.type:
                    caught.setdefault(node.name, set()).add(ast.unparse(node.type))
            twice = {name: classes for name, classes in caught.items() if len(classes) > 1}
            assert not twice, f"{path}:{function.lineno}"
