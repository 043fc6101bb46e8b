"""These tests kill the live one of two Artemis servers with replication, at a point of the two phases of a transaction
that moves a message there. The client goes on at the backup: the message is at one of the brokers, once, and the
outcome that the application was told is true.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from rm_openwire import OpenWireResource
from tests.rm_openwire.client import RMID, Client, new_name
from tests.rm_openwire.java_brokers import JavaBroker, replicated_pair
from tests.rm_openwire.test_killed import EVERY, Trap, check, move, put, settle
from tests.simulation.seeds import EVERY_POINT
from tm import TransactionManager
from xa import XaError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("openwire"), pytest.mark.timeout(300)]
POINTS = EVERY if EVERY_POINT else ["after prepare"]


@pytest.mark.parametrize("point", POINTS)
def test_the_live_server_is_killed(
    point: str,
    brokers: Callable[[str], JavaBroker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = brokers("classic")
    primary, backup = replicated_pair(tmp_path)
    try:
        queue = new_name()
        put(source, queue, point)
        both = f"openwire://{primary.address},{backup.address}/?timeout=20&connect_timeout=5"
        urls = {"source": f"{source.url}?timeout=20", "target": both}
        with TransactionManager("node", f"file://{tmp_path}/log", urls) as manager:
            trap = Trap(point, primary.port, primary.kill)
            with trap.set(monkeypatch):
                told = move(manager, queue)
            assert trap.struck
            await_live(both)
            clients = [Client(source.url), Client(backup.url)]
            settle(manager, clients)
            check(clients, queue, told, point)
            put(backup, queue, "the next one")
            for client in clients:
                client.rm.drop()
    finally:
        primary.kill()
        backup.kill()


def await_live(url: str) -> None:
    """The backup has taken over."""
    give_up = time.monotonic() + 60
    rm = OpenWireResource()
    while True:
        try:
            rm.open(url, RMID)
        except XaError:
            assert time.monotonic() < give_up, "the backup did not take over"
            time.sleep(0.2)
        else:
            rm.drop()
            return
