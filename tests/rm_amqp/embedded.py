"""This module runs the embedded broker in a thread of the test, with its store on disk, and answers the tests'
questions about it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dtx.broker.broker import Broker
from dtx.broker.config import Address, BrokerConfig
from rm_amqp.connection.endpoint import Endpoint
from xa import Xid
from xabridge.testing.ports import free_port

T = TypeVar("T")
PATIENCE_S = 30


class EmbeddedBroker:
    """One broker. It can be stopped, and started again with what it has stored."""

    def __init__(self, folder: Path, *, tls: bool = False, **config: Any) -> None:
        self.port = free_port()
        listen: dict[str, Any] = {"listen_tls" if tls else "listen": (Address("127.0.0.1", self.port),)}
        self._config = BrokerConfig(store=f"sqlite:///{folder / 'broker.db'}", **listen, **config)
        self.broker: Broker
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self.start()

    @property
    def address(self) -> str:
        """host:port."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        started = threading.Event()
        errors: list[BaseException] = []

        async def serve() -> None:
            try:
                self._loop = asyncio.get_running_loop()
                self.broker = Broker(self._config)
                await self.broker.start()
            except BaseException as error:
                errors.append(error)
                raise
            finally:
                started.set()
            await self.broker.run()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="broker", daemon=True)
        self._thread.start()
        assert started.wait(PATIENCE_S)
        if errors:
            raise errors[0]

    def stop(self) -> None:
        """Stops it; every connection is closed when this returns."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self.broker.stop)
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive()
            self._thread = None

    kill = stop

    def inside(self, call: Callable[[Broker], T]) -> T:
        """What `call` returns, in the broker's thread."""

        async def run() -> T:
            result = call(self.broker)
            self.broker.container.resource.settle()
            self.broker.flush()
            return result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    # -- what tests do to it
    def cut(self, container: str) -> None:
        """Drops the connections of a client, and returns when the broker has let go of what they held."""
        self._cut(lambda name: name.startswith(container))

    def cut_connection(self, endpoint: Endpoint) -> None:
        """The same with one connection."""
        self._cut(lambda name: name == endpoint.container)

    def _cut(self, chosen: Callable[[str], bool]) -> None:
        def abort(broker: Broker) -> list[Any]:
            peers = [peer for one, peer in broker.peers.items() if chosen(one.peer_container)]
            for peer in peers:
                peer.abort()
            return peers

        peers = self.inside(abort)
        while self.inside(lambda broker: any(peer in broker.open_peers for peer in peers)):
            pass

    def expire(self, xid: Xid) -> None:
        """The branch's time passes."""

        def pass_time(broker: Broker) -> None:
            branch = broker.container.registry.find(xid)
            branch.deadline = 0.0
            broker.container.registry._expire(branch)

        self.inside(pass_time)

    def complete(self, xid: Xid, *, commit: bool) -> None:
        """An operator decides a prepared branch."""
        done: asyncio.Future[Any] | None = None

        async def run() -> None:
            nonlocal done
            done = asyncio.get_running_loop().create_future()
            branch = self.broker.container.registry.find(xid)
            self.broker.container.two_phase.complete(branch, done.set_result, commit=commit)
            self.broker.container.resource.settle()
            self.broker.flush()  # else it is written when the broker's second has passed
            await done

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    def left(self) -> list[str]:
        """What is left of branches, transactions and locks."""

        def look(broker: Broker) -> list[str]:
            left = [f"{branch.xid}: {branch.state.value}" for branch in broker.container.registry]
            for connection in broker.container.connections.values():
                left += [f"txn-id {txn_id!r}" for txn_id in connection.txns.live]
            for queue in broker.container.resource.queues.values():
                if queue.counters.held or queue.counters.pending:
                    left.append(f"{queue.name}: {queue.counters.held} held, {queue.counters.pending} pending")
            return left

        return self.inside(look)
