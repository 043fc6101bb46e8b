"""This pytest plugin is for a project that runs the contract suite. In the project's conftest.py:

    pytest_plugins = ["xabridge.testing.contract.plugin"]

Asserts of the suite then explain themselves, and the marker that it uses is known to pytest. Tests of the suite that
may hang carry `timeout`, which takes effect where the plugin pytest-timeout is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "timeout(seconds): how long a test may take, for the plugin pytest-timeout")
