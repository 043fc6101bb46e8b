"""These fixtures give a test a node with reference resource managers that any command reaches."""

from __future__ import annotations

import io
from collections.abc import Callable
from importlib import import_module

import pytest

from tests.cli import installed
from tests.xabridge.cli.field import Field, Said, Typed
from xabridge.cli import main


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("xabridge.cli.main", "xabridge.operations.scan"):
        monkeypatch.setattr(import_module(module), "entry_points", installed)


@pytest.fixture
def field(node_field: Field) -> Field:
    """The node."""
    return node_field


@pytest.fixture
def xabridge(field: Field, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Runs a command in this process, with the node's configuration. `typed` is typed when it asks; not at a terminal
    without it."""

    def run(*arguments: str, typed: str | None = None, meanwhile: Callable[[], None] = lambda: None) -> Said:
        monkeypatch.setattr("sys.stdin", io.StringIO("yes\n") if typed is None else Typed(typed, meanwhile))
        capsys.readouterr()
        code = main([*arguments, "--config", str(field.config)])
        out, err = capsys.readouterr()
        return Said(code, out.replace(str(field.folder), "/field"), err.replace(str(field.folder), "/field"))

    return run
