"""BoundedConnection: py-amqp's connection, for brokers that are slow, or lie.

py-amqp bounds each read from the socket, and not the wait for an answer: a broker that sends an octet now and then
keeps it for ever. It reads a frame of any length, collects a returned message of any length, and what is no AMQP 0-9-1
ends in any kind of exception. Here every wait has a deadline, `until`, a frame has at most MAX_FRAME octets, and what
can't be understood is an OSError. In a wait come at most MAX_ANSWER octets more than were sent in it: the broker
returns messages that no queue takes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import amqp
from amqp.exceptions import UnexpectedFrame
from amqp.transport import TCPTransport

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

MAX_FRAME: Final = 1 << 20
"""Octets of a frame. 131,072 are agreed on."""
MAX_ANSWER: Final = 16 << 20
"""Octets of confirmations and the like."""
_UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, struct.error)
"""What py-amqp raises for octets that are no AMQP 0-9-1."""


class BoundedConnection(amqp.Connection):  # type: ignore[misc]  # py-amqp has no types
    """A connection whose waits end at `until`, by `clock`."""

    def __init__(self, host: str, *arguments: Any, clock: Callable[[], float], until: float, **options: Any) -> None:
        self._clock = clock
        self.wait_until(until)
        super().__init__(host, *arguments, **options)

    def wait_until(self, until: float) -> None:
        """The waits from now on end then."""
        self.until = until
        self._may_come = MAX_ANSWER

    def count(self, received: int, sent: int) -> None:
        """OSError: the broker sends more than it can have to say."""
        self._may_come += sent - received
        if self._may_come < 0:
            raise OSError("the broker sends more than such an answer can have")

    def left_s(self) -> float:
        """How long may be waited yet; TimeoutError: no longer."""
        left_s = self.until - self._clock()
        if left_s <= 0:
            raise TimeoutError("did not answer in time")
        return left_s

    def Transport(  # noqa: N802 — py-amqp's name
        self, host: str, connect_timeout: float, ssl: Any = None, *_: Any, **__: Any
    ) -> _Transport:
        return _Transport(host, connect_timeout, ssl, self)

    def blocking_read(self, timeout: float | None = None) -> Any:
        try:
            return super().blocking_read(timeout)
        except _UNREADABLE as error:
            raise OSError(f"what the broker sent can't be understood: {type(error).__name__}: {error}") from error


class _Transport(TCPTransport):  # type: ignore[misc]
    """A socket, with TLS or without."""

    def __init__(
        self, host: str, connect_timeout: float, tls: ssl.SSLContext | None, bounds: BoundedConnection
    ) -> None:
        super().__init__(host, connect_timeout=connect_timeout)
        self.sock: Any = None
        self._tls = tls
        self._bounds = bounds

    def _setup_transport(self) -> None:
        if self._tls is not None:
            self.sock.settimeout(self._bounds.left_s())
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
        super()._setup_transport()
        self._quick_recv = self._receive
        self._write = self._send

    def _receive(self, most: int) -> bytes:
        left_s, before = self._bounds.left_s(), self.sock.gettimeout()
        if before is None or before > left_s:
            self.sock.settimeout(left_s)
        try:
            octets: bytes = self.sock.recv(min(most, MAX_FRAME))
        finally:
            self.sock.settimeout(before)
        self._bounds.count(len(octets), 0)
        return octets

    def _send(self, octets: bytes) -> None:
        before = self.sock.gettimeout()
        self.sock.settimeout(self._bounds.left_s())
        self._bounds.count(0, len(octets))
        try:
            self.sock.sendall(octets)
        finally:
            self.sock.settimeout(before)

    def _read(self, n: int, *arguments: Any, **options: Any) -> bytes:
        if n > MAX_FRAME:
            raise OSError(f"the broker announces a frame of {n} octets")
        octets: bytes = super()._read(n, *arguments, **options)
        return octets

    def read_frame(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().read_frame(*arguments, **options)
        except UnexpectedFrame as error:
            raise OSError(f"what the broker sent can't be understood: {error}") from error
