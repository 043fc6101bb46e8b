"""The plugin for pytest: the fixture `xabridge_app`, the application under test, for each test anew.

    [tool.pytest.ini_options]
    xabridge_app = "shop:app"      # the module, and the name of the App in it

pytest loads this module wherever xabridge is installed; what it needs is imported when the fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xabridge.testing import TestApp

NAME = "xabridge_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option of the configuration file."""
    parser.addini(NAME, "the App that the fixture xabridge_app has under test, as module:name")


@pytest.fixture
def xabridge_app(request: pytest.FixtureRequest) -> Iterator[TestApp]:
    """The application of the option xabridge_app, with a broker in the process and SQLite beside it."""
    from xabridge.app.app import find_app  # noqa: PLC0415 — as the docstring says
    from xabridge.testing import TestApp  # noqa: PLC0415

    reference = str(request.config.getini(NAME))
    if not reference:
        pytest.fail('say which App it is: xabridge_app = "module:name" in the settings of pytest', pytrace=False)
    with TestApp(find_app(reference)) as test:
        yield test
