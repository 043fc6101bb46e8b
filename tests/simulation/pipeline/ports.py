"""These ports suspend at each call: the world performs the call, or stops there."""

from __future__ import annotations

import types
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

from xabridge.pipeline.core.protocol.ports import Ports


@dataclass(frozen=True)
class DriverCall:
    """A call of a port by an algorithm of the driver, in this incarnation."""

    incarnation: int
    name: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class TaskCall:
    """A call of a port by a task, at the broker that it reads."""

    place: str
    name: str
    arguments: tuple[Any, ...]


@types.coroutine
def suspend(call: Any) -> Generator[Any, Any, Any]:
    """Hands the call over to whoever drives the coroutine; the answer is what it is resumed with."""
    return (yield call)


class SimulatedPort:
    """A port with any methods: `make` makes the call that is handed over. Methods in `local` are no steps."""

    def __init__(self, make: Callable[[str, tuple[Any, ...]], Any], **local: Callable[..., Any]) -> None:
        self._make = make
        self._local = local

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in self._local:
            return self._local[name]

        async def method(*arguments: Any) -> Any:
            return await suspend(self._make(name, arguments))

        return method


def driver_ports(incarnation: int) -> Ports:
    """The ports of a driver in this incarnation."""
    port: Any = SimulatedPort(partial(DriverCall, incarnation))
    return Ports(port, port, port, port.pause)
