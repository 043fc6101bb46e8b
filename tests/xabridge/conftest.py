"""These fixtures are what several parts of `xabridge` are tested with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rm_amqp.embedded import EmbeddedBroker
from tests.xabridge.cli.field import Field


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker of this test's."""
    made = EmbeddedBroker(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def node_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Field]:
    """A node whose log and resource managers commands in this process, and others, find."""
    made = Field(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "plugin")
    yield made
    made.close()
