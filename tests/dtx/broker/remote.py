"""This module connects a `Peer` over a socket to a broker in a process of its own, which may die at any moment."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

from proton import Delivery, Endpoint

from dtx.amqp.sasl.mechanisms import Identity
from dtx.protocol.replies import Reply
from dtx.store.contract import Step
from tests.crash.forked import ForkedProcess
from tests.dtx.broker.peer import Peer, World

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


class BrokerChild:
    """The broker process, over one folder. `forces` says on which thread its store forces what is small."""

    def __init__(self, folder: Path, forces: str = "loop") -> None:
        self._folder = folder
        self._forces = forces
        self._process: ForkedProcess | None = None
        self._peers: list[RemotePeer] = []

    def start(self) -> RemotePeer:
        """Starts it; a client of it."""
        (self._folder / "die").unlink(missing_ok=True)
        errors = self._folder / "broker.err"
        arguments = (self._forces, str(self._folder))
        self._process = ForkedProcess("tests.dtx.broker.broker_child", *arguments, errors=errors)
        port = next(self._process.lines(), "")
        assert port, errors.read_text()
        self._peers.append(RemotePeer(int(port)))
        return self._peers[-1]

    def die_at(self, step: Step, count: int = 1) -> None:
        """It kills itself the count-th time that its store passes this step from now on."""
        order = self._folder / "die.new"
        order.write_text(f"{step.name} {count}")
        order.rename(self._folder / "die")

    def died(self) -> int:
        """Waits for its end; the exit code."""
        assert self._process is not None
        code = self._process.wait(WAIT_S)
        self._process.close()
        self._process = None
        for peer in self._peers:
            peer.wire.lost()
        self._peers.clear()
        return code

    def kill(self) -> None:
        """kill -9, if it runs."""
        if self._process is not None:
            self._process.kill()
            self.died()
