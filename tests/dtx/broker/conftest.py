"""A broker in memory with a peer and its control link, and brokers in processes of their own, which tests kill."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dtx.broker.peer import Coordinator, Peer, World
from tests.dtx.broker.remote import BrokerChild


@pytest.fixture
def world() -> World:
    """A broker in memory, with the usual settings."""
    return World()


@pytest.fixture
def peer(world: World) -> Peer:
    """A peer of it."""
    return world.connect()


@pytest.fixture
def control(peer: Peer) -> Coordinator:
    """The control link of this peer."""
    return peer.coordinator()


@pytest.fixture
def child(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerChild]:
    """A broker process, whose store forces on the event loop, or in its thread, as the parameter says."""
    child = BrokerChild(tmp_path, getattr(request, "param", "loop"))
    yield child
    child.kill()
