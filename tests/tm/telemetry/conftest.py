"""This fixture gives the tests of telemetry exporters in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tm.telemetry.test_telemetry import Exported


@pytest.fixture
def exported() -> Iterator[Exported]:
    exported = Exported()
    yield exported
    exported.close()
