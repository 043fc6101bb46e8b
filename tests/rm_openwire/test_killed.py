"""These tests move a message from ActiveMQ Classic to ActiveMQ Artemis, or the other way round, in one transaction of
the manager. One of the brokers is killed, or its network is cut, at a point of the two phases. When everything is back
and recovery has run, the message is at one of the brokers, once, the outcome that the application was told is true, and
nothing is in doubt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rm_amqp import Message
from rm_openwire import OpenWireResource
from rm_openwire.branch import BranchWork
from rm_openwire.resource import OpenWireDriver
from tests.rm_db.proxy import Proxy
from tests.rm_openwire.client import RMID, Client, new_name
from tests.rm_openwire.java_brokers import JavaBroker, replicated_pair
from tests.simulation.seeds import EVERY_POINT
from tests.waiting import until
from tm import OutcomeUnknown, RolledBack, TransactionManager
from xa import XaError

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("openwire")]

EVERY = [f"{when} {verb}" for verb in ("end", "prepare", "commit") for when in ("before", "after")]
KILLED = {"source": ["after prepare"], "target": ["after prepare", "after commit"]}
CUT = [(point, victim) for point in EVERY for victim in (0, 1)]
SOME_CUT = range(len(CUT)) if EVERY_POINT else (4, 7, 9, 10)
"""Cut before the prepare and the commit, silent after both, once of the source and once of the target each."""
VERBS: dict[str, tuple[type[Any], str]] = {
    "end": (BranchWork, "end"),
    "prepare": (BranchWork, "prepare"),
    "commit": (OpenWireDriver, "commit_prepared"),
}
WAYS = [pytest.param(("classic", "artemis")), pytest.param(("artemis", "classic"), marks=pytest.mark.long)]


class Trap:
    """Calls `strike`, once, at a point of the branch at the broker with a port."""

    def __init__(self, point: str, port: int, strike: Callable[[], object]) -> None:
        self._when, verb = point.split()
        self._made, self._name = VERBS[verb]
        self._port = port
        self._strike = strike
        self.struck = False

    def _is_there(self, target: Any) -> bool:
        if isinstance(target, BranchWork):
            connection = target._connection
            return connection is not None and connection.address.port == self._port
        settings = target._settings
        return settings is not None and settings.addresses[0].port == self._port

    @contextmanager
    def set(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """While this is set."""
        carried_out = getattr(self._made, self._name)

        def trapped(target: Any, *arguments: Any, **named: Any) -> Any:
            here = not self.struck and self._is_there(target)
            if here and self._when == "before":
                self.struck = True
                self._strike()
            answer = carried_out(target, *arguments, **named)
            if here and self._when == "after":
                self.struck = True
                self._strike()
            return answer

        with monkeypatch.context() as patch:
            patch.setattr(self._made, self._name, trapped)
            yield


def move(manager: TransactionManager, queue: str) -> bool | None:
    """Moves a message; whether it was committed, None where that is unknown."""
    try:
        with manager.begin() as tx:
            message = tx["source"].receive(queue, 5)
            tx["target"].send(queue, Message(message.body))
    except RolledBack:
        return False
    except OutcomeUnknown:
        return None
    return True


def put(broker: JavaBroker, queue: str, body: str) -> None:
    """A message that is there."""
    client = Client(broker.url)
    client.put(queue, [body])
    client.rm.drop()


def settle(manager: TransactionManager, clients: list[Client]) -> None:
    """Recovery, until nothing is in doubt."""

    def settled() -> bool:
        manager.recover()
        return not any(client.in_doubt() for client in clients)

    until(settled, lambda: [client.in_doubt() for client in clients])


def check(clients: list[Client], queue: str, told: bool | None, body: str) -> None:
    """The message is at one of the two, and where the application was told."""
    source, target = (client.look(queue) for client in clients)
    give_up = time.monotonic() + 10
    while not source + target and time.monotonic() < give_up:  # Classic gives it back when it notices the loss
        time.sleep(0.2)
        source, target = (client.look(queue) for client in clients)
    assert source + target == [body], (source, target, told)
    if told is not None:
        assert (target == [body]) is told


def check_moved(
    queue: str,
    body: str,
    urls: dict[str, str],
    places: list[str],
    trap: Trap,
    repair: Callable[[], object],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Moves a message while the trap is set, and recovers when what it struck is repaired."""
    with TransactionManager("node", f"file://{folder}/{queue}", urls) as manager:
        with trap.set(monkeypatch):
            told = move(manager, queue)
        assert trap.struck, body
        repair()
        clients = [Client(place) for place in places]
        settle(manager, clients)
        check(clients, queue, told, body)
        for client in clients:
            client.rm.drop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victim", ["source", "target"])
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_either_broker_is_killed_at_each_point(
    brokers: Callable[[str], JavaBroker],
    way: tuple[str, str],
    victim: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = (brokers(kind) for kind in way)
    killed = source if victim == "source" else target
    urls = {"source": f"{source.url}?timeout=20", "target": f"{target.url}?timeout=20"}
    for point in EVERY if EVERY_POINT else KILLED[victim]:
        put(source, queue := new_name(), point)
        trap = Trap(point, killed.port, killed.kill)
        check_moved(queue, point, urls, [source.url, target.url], trap, killed.start, tmp_path, monkeypatch)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_the_network_is_cut_at_each_point(
    brokers: Callable[[str], JavaBroker], way: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut, or first silent, for the source and for the target."""
    source, target = (brokers(kind) for kind in way)
    for number in SOME_CUT:
        point, victim = CUT[number]
        put(source, queue := new_name(), point)
        with Proxy(source.url) as first, Proxy(target.url) as second:
            proxy = (first, second)[victim]
            # Silent: what is asked is carried out, and nobody hears of it.
            is_silent = number % 4 >= 2
            urls = {
                name: f"{one.url}?timeout=2&idle_timeout=1" for name, one in (("source", first), ("target", second))
            }
            port = int(proxy.url.rstrip("/").rpartition(":")[2])
            trap = Trap(point, port, proxy.hold_replies if is_silent else proxy.cut)
            repair = proxy.cut if is_silent else lambda: None
            check_moved(queue, point, urls, [source.url, target.url], trap, repair, tmp_path, monkeypatch)


# --- two servers with replication -------------------------------------------------------------------------------------
@pytest.mark.timeout(300)
@pytest.mark.long  # a broker that is killed comes back in the tests above
@pytest.mark.parametrize("point", EVERY if EVERY_POINT else ["after prepare"])
def test_the_live_server_is_killed(
    point: str, brokers: Callable[[str], JavaBroker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live one of two Artemis servers is killed; the client goes on at the backup."""
    source = brokers("classic")
    primary, backup = replicated_pair(tmp_path)
    try:
        put(source, queue := new_name(), point)
        both = f"openwire://{primary.address},{backup.address}/?timeout=20&connect_timeout=5"
        urls = {"source": f"{source.url}?timeout=20", "target": both}
        trap = Trap(point, primary.port, primary.kill)
        repair = partial(await_live, both)
        check_moved(queue, point, urls, [source.url, backup.url], trap, repair, tmp_path, monkeypatch)
        put(backup, queue, "the next one")
    finally:
        primary.kill()
        backup.kill()


def await_live(url: str) -> None:
    """The backup has taken over."""
    rm = OpenWireResource()

    def opens() -> bool:
        with suppress(XaError):
            rm.open(url, RMID)
            return True
        return False

    until(opens, "the backup did not take over")
    rm.drop()
