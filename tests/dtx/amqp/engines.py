"""One side of a connection by proton's engine, without sockets, so that a test can handle its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from proton import Collector, Connection, Transport


class Engine:
    """One side."""

    def __init__(self, *, server: bool, max_frame_size: int = 0) -> None:
        self.connection = Connection()
        self.connection.container = "server" if server else "client"
        self.transport = Transport(Transport.SERVER if server else None)
        if max_frame_size:
            self.transport.max_frame_size = max_frame_size
        self.collector = Collector()
        self.connection.collect(self.collector)
        self.transport.bind(self.connection)

    def output(self) -> bytes:
        """What this side sends now."""
        pending = self.transport.pending()
        if pending <= 0:
            return b""
        data = self.transport.peek(pending) or b""
        self.transport.pop(len(data))
        return data

    def push(self, data: bytes) -> None:
        """What the other side sent."""
        while data:
            room = self.transport.capacity()
            assert room > 0, self.transport.condition
            self.transport.push(data[:room])
            data = data[room:]

    def events(self) -> Iterator[tuple[Any, Any]]:
        """What happened."""
        while (event := self.collector.peek()) is not None:
            yield event.type, event.context
            self.collector.pop()
