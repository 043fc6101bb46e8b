"""This process is the mover of `tests.crash.amqp_child` without a log: the broker IN decides by local transactions, and
OUT is prepared.

    python -m tests.crash.decider_child IN OUT NODE POINT [PID …]

IN is host:port, or an open string. Several of these processes may work at the same time, for several nodes or for
one. The last part of NODE is the node's id.

There are more points: "before token" and "after token" (around sending the token with the decision), "before discharge"
and "after discharge" (around sending the discharge), and "answered discharge" (the answer has arrived, and no code has
read it).
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.crash.points import DECIDER_VERBS, VERBS, hooked
from rm_amqp import AmqpResource, DecidingBroker, Environment
from rm_amqp.connection.connection import SocketConnection
from rm_amqp.connection.endpoint import wait_until_open
from rm_amqp.errors import unreachable
from tests.crash.amqp_child import work
from tests.crash.manager_child import Fuse
from tm import ResourceConfig, TransactionManager
from xa.keep_alive import MAINTENANCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.connection.endpoint import Endpoint
    from rm_amqp.settings import Broker, Settings

RECOVERY_INTERVAL_S = 0.3
SIGNS = {"token": b'"decided": [["', "discharge": b"\x00\x53\x32"}


class FusedSocket:
    """A socket with these points. They are of the decision: what else is discharged passes unnoticed."""

    def __init__(self, connected: socket.socket, fuse: Fuse) -> None:
        self._socket = connected
        self._fuse = fuse
        self._decides = self._waits = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def send(self, octets: bytes) -> int:
        passed = []
        if SIGNS["token"] in octets:
            self._decides = True
            passed.append("token")
        if self._decides and SIGNS["discharge"] in octets:
            self._decides, self._waits = False, True
            passed.append("discharge")
        for what in passed:
            self._fuse.hit("before", what)
        sent = self._socket.send(octets)
        for what in passed:
            self._fuse.hit("after", what)
        return sent

    def recv(self, size: int) -> bytes:
        octets = self._socket.recv(size)
        if self._waits and octets:
            self._waits = False
            self._fuse.hit("answered", "discharge")
        return octets


def connecting(fuse: Fuse) -> Callable[[Settings, float, Callable[[Broker], Endpoint]], SocketConnection]:
    """What makes connections with a fuse."""

    def connect(settings: Settings, deadline: float, make_endpoint: Callable[[Broker], Endpoint]) -> SocketConnection:
        broker = settings.brokers[0]
        try:
            plain = socket.create_connection((broker.host, broker.port), 2)
        except OSError as error:
            raise unreachable(broker, str(error)) from None
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected: Any = FusedSocket(plain, fuse)
        connection = SocketConnection(connected, make_endpoint(broker))
        try:
            connection.run(wait_until_open(connection.endpoint, deadline))
        except BaseException:
            connection.drop()
            raise
        MAINTENANCE.add(connection)
        return connection

    return connect


def main() -> None:
    source, target, place, point, *pids = sys.argv[1:]
    recovers = point == "recover"
    fuse = Fuse("- 0" if recovers else point, pids)

    def decider(registrar: Any) -> Any:
        rm = DecidingBroker(registrar, environment=Environment(connect=connecting(fuse)))
        return hooked(lambda when, verb: fuse.hit(when, f"{verb} in"), (*VERBS, *DECIDER_VERBS))(rm)

    def prepared(registrar: Any) -> Any:
        return hooked(lambda when, verb: fuse.hit(when, f"{verb} out"))(AmqpResource(registrar))

    options = "timeout=10&connect_timeout=2"
    url = source if "://" in source else f"decider+amqp://{source}/?{options}&slots=2"
    resources = {
        "in": ResourceConfig(url, "decider", factory=decider),
        "out": ResourceConfig(f"amqp://{target}/?{options}&branch_timeout=2", factory=prepared),
    }
    manager = TransactionManager(
        Path(place).name, None, resources, background=not recovers, recovery_interval_s=RECOVERY_INTERVAL_S
    )
    work(manager, fuse, recovers=recovers)


if __name__ == "__main__":
    main()
