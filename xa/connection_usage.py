"""ConnectionUsage: an optional capability of a resource manager that keeps a pool of connections, for metrics.

An instance offers it if and only if it has the method.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Connections(NamedTuple):
    """A pool at one moment: connections that are `idle` and `used`, how many transactions may use at a time, and how
    many callers are `waiting` for one."""

    idle: int
    used: int
    most: int
    waiting: int


class ConnectionUsage(Protocol):
    """A resource manager that offers it."""

    def connections(self) -> Connections | None:
        """How its pool is now; None while it is not open. It asks nobody, and never raises."""
        ...
