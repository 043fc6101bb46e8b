"""Ports that a mutant bends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

PortsT = TypeVar("PortsT")


class Bent(Generic[PortsT]):
    """Ports that change nothing; each mutant overrides what it bends."""

    def __init__(self, ports: PortsT) -> None:
        self.ports = ports

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ports, name)


def without(**answers: Any) -> Callable[[Any], Any]:
    """Ports whose calls of these names are not made; their answer is always the same."""

    class Without(Bent[Any]):
        def __getattr__(self, name: str) -> Any:
            if name not in answers:
                return super().__getattr__(name)

            async def call(*_: Any, **__: Any) -> Any:
                return answers[name]

            return call

    return Without
