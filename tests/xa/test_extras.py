"""These tests look at the command that installs an extra: it has to work where xabridge was installed from."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xa import extras
from xa.extras import install_command


def installed_from(monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None) -> None:
    noted = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(extras, "distribution", lambda _: SimpleNamespace(read_text=lambda _: noted))


def test_it_names_what_xabridge_was_installed_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    there = tmp_path / "a clone"
    there.mkdir()
    wheel = there / "xabridge-0.2.0-py3-none-any.whl"
    wheel.touch()

    git = "https://git.example/xabridge.git"
    cases: list[tuple[dict[str, Any] | None, str]] = [
        (None, "pip install 'xabridge[otel,demo]'"),
        ({"url": there.as_uri(), "dir_info": {}}, f"pip install '{there}[otel,demo]'"),
        ({"url": there.as_uri(), "dir_info": {"editable": True}}, f"pip install -e '{there}[otel,demo]'"),
        ({"url": wheel.as_uri(), "archive_info": {}}, f"pip install '{wheel}[otel,demo]'"),
        ({"url": f"{wheel.as_uri()}.gone", "archive_info": {}}, "pip install '.[otel,demo]' in a clone of xabridge"),
        ({"url": git, "vcs_info": {"vcs": "git"}}, f"pip install 'xabridge[otel,demo] @ git+{git}'"),
        ({"url": f"{git}.whl", "archive_info": {}}, f"pip install 'xabridge[otel,demo] @ {git}.whl'"),
    ]

    for origin, command in cases:
        installed_from(monkeypatch, origin)
        assert install_command("otel", "demo") == command


def test_where_no_distribution_is_noted_the_name_is_all_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", none)
    assert install_command("otel") == "pip install 'xabridge[otel]'"
