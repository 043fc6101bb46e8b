"""Who a process is: named so that no other process ever has the same name, and so that it can be told dead."""

from __future__ import annotations


def process_id(pid: int | None = None) -> str:
    """The name of a process of this host (this one): host, pid and start time, `host/1234/567890`."""
    raise NotImplementedError


def driver_id() -> str:
    """The name of the nearest ancestor that is a Java process, the driver's JVM; without one, this process's."""
    raise NotImplementedError


def is_alive(name: str) -> bool | None:
    """Whether the process lives; None for one of another host, which can't be told."""
    raise NotImplementedError
