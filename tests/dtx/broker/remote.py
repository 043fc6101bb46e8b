"""This module connects a `Peer` over a socket to a broker in a process of its own, which may die at any moment."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, cast

from proton import Delivery, Endpoint

from dtx.amqp.sasl.mechanisms import Identity
from tests.dtx.broker.peer import Peer, World
from xabridge.testing.process_lifetime import marked_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dtx.protocol.replies import Reply
    from dtx.store.contract import Step

WAIT_S: Final = 10.0


class BrokerGoneError(Exception):
    """The broker closed the socket."""


class Wire:
    """The socket, in the place of a broker's side in memory."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def received(self, octets: bytes) -> None:
        """Sends."""
        try:
            self._socket.sendall(octets)
        except (BrokenPipeError, ConnectionResetError):
            raise BrokerGoneError from None

    def output(self) -> bytes:
        """What has come, without waiting."""
        try:
            octets = self._socket.recv(65_536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        except ConnectionResetError:
            raise BrokerGoneError from None
        if not octets:
            raise BrokerGoneError
        return octets

    def wait(self) -> None:
        """Until something has come."""
        ready, _, _ = select.select([self._socket], [], [], WAIT_S)
        assert ready, "the broker says nothing"

    def lost(self) -> None:
        """Closes the socket."""
        self._socket.close()


class Remote:
    """Stands for the world of a peer: `pump` waits for every answer that is owed."""

    def __init__(self, port: int) -> None:
        self.wire = Wire(port)
        self.peer: RemotePeer | None = None

    def accept(self, identity: Identity) -> Wire:
        del identity
        return self.wire

    def pump(self) -> None:
        if self.peer is not None:
            self.peer.until(self.peer.answered)


class RemotePeer(Peer):
    """A client of a broker process."""

    def __init__(self, port: int) -> None:
        remote = Remote(port)
        super().__init__(cast("World", remote), Identity(""))
        self.wire = remote.wire
        self.owed: list[Delivery] = []
        remote.peer = self
        remote.pump()

    def until(self, reached: Callable[[], object]) -> None:
        """Talks until `reached` is true."""
        self.exchange()
        while not reached():
            self.wire.wait()
            self.exchange()

    def answered(self) -> bool:
        """Whether the broker answered everything that was asked."""
        endpoints: list[Any] = [self.connection]
        link = self.connection.link_head(Endpoint.LOCAL_ACTIVE)
        while link is not None:
            endpoints.append(link)
            link = link.next(Endpoint.LOCAL_ACTIVE)
        self.owed = [delivery for delivery in self.owed if not int(delivery.remote_state) and not delivery.settled]
        return not self.owed and not any(one.state & Endpoint.REMOTE_UNINIT for one in endpoints)

    def send_octets(self, *args: Any, **how: Any) -> Delivery:
        delivery = super().send_octets(*args, **how)
        if not how.get("settled"):
            self.owed.append(delivery)
        return delivery

    def answer(self) -> Reply:
        """Waits for the reply, and takes it."""
        replies: Any = self._replies
        self.until(lambda: replies.current is not None and replies.current.readable)
        return super().answer()

    def contents(self, address: str) -> list[Any]:
        """The bodies of the messages that can be had from a queue; they stay there."""
        link = self.receiver(address, 0, browse=True)
        found: list[Any] = []
        link.drain(10_000)
        self.until(lambda: link.credit == link.queued)
        while (taken := self.take(link)) is not None:
            found.append(taken[1].body)
        link.close()
        self.exchange()
        return found


class ForkServer:
    """Starts brokers, one at a time, each in a process of its own."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.dtx.broker.broker_child"],
            cwd=root,
            env=marked_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, forces: str, folder: Path) -> tuple[int, int]:
        """Pid and port of a new broker."""
        assert self._process.stdin is not None
        print(forces, folder, file=self._process.stdin, flush=True)
        said = self._said()
        assert len(said) == 2, (folder / "broker.err").read_text()
        return said[0], said[1]

    def ended(self) -> int:
        """Waits for the end of the broker; its exit code."""
        (code,) = self._said()
        return code

    def close(self) -> None:
        """Ends."""
        self._process.communicate()

    def _said(self) -> list[int]:
        assert self._process.stdout is not None
        return list(map(int, self._process.stdout.readline().split()))


class BrokerChild:
    """The broker process, over one folder. `forces` says on which thread its store forces what is small."""

    def __init__(self, folder: Path, server: ForkServer, forces: str = "loop") -> None:
        self._folder = folder
        self._forces = forces
        self._server = server
        self._pid = 0
        self._peers: list[RemotePeer] = []

    def start(self) -> RemotePeer:
        """Starts it; a client of it."""
        (self._folder / "die").unlink(missing_ok=True)
        self._pid, port = self._server.start(self._forces, self._folder)
        self._peers.append(RemotePeer(port))
        return self._peers[-1]

    def die_at(self, step: Step, count: int = 1) -> None:
        """It kills itself the count-th time that its store passes this step from now on."""
        order = self._folder / "die.new"
        order.write_text(f"{step.name} {count}")
        order.rename(self._folder / "die")

    def died(self) -> int:
        """Waits for its end; the exit code."""
        code, self._pid = self._server.ended(), 0
        for peer in self._peers:
            peer.wire.lost()
        self._peers.clear()
        return code

    def kill(self) -> None:
        """kill -9, if it runs."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            self.died()
