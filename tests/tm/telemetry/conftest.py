"""This fixture gives the tests of telemetry exporters in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.tm.telemetry.test_telemetry import Exported

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def exported() -> Iterator[Exported]:
    exported = Exported()
    yield exported
    exported.close()
