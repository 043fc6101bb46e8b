"""Ports that a mutant bends."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

PortsT = TypeVar("PortsT")


class Bent(Generic[PortsT]):
    """Ports that change nothing; each mutant overrides what it bends."""

    def __init__(self, ports: PortsT) -> None:
        self.ports = ports

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ports, name)
