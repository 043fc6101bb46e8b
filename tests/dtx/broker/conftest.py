"""Brokers in processes of their own, which tests kill."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.dtx.broker.remote import BrokerChild, ForkServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def fork_server(pytestconfig: pytest.Config) -> Iterator[ForkServer]:
    server = ForkServer(pytestconfig.rootpath)
    yield server
    server.close()


@pytest.fixture
def child(tmp_path: Path, fork_server: ForkServer, request: pytest.FixtureRequest) -> Iterator[BrokerChild]:
    """A broker process, whose store forces on the event loop, or in its thread, as the parameter says."""
    child = BrokerChild(tmp_path, fork_server, getattr(request, "param", "loop"))
    yield child
    child.kill()
