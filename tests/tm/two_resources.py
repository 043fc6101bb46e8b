"""This module makes a manager over two reference resource managers, "one" and "two", and a decision log whose force can
fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from tests.simulation.log import Disk, SimulatedLog
from tests.tm.shop import Clock
from tm import ResourceConfig, TransactionManager
from xa import TMUSEASYNC, ResourceFactory
from xabridge.testing.reference import ReferenceFactory, ReferenceStore

__all__ = ["Clock", "TwoResources"]

LOG_ID = b"two-res."


class TwoResources:
    """No threads, no waiting: what a test does not ask for does not happen. `fault`: the fault of the log at the next
    force behind `write`."""

    fault: str | None = None

    def __init__(
        self,
        flags: int = TMUSEASYNC,
        factory: Callable[[ReferenceStore], ResourceFactory] | None = None,
        **settings: Any,
    ) -> None:
        self.one = ReferenceStore("one")
        self.two = ReferenceStore("two")
        self.clock = Clock()
        self.log = SimulatedLog(Disk(LOG_ID), "node-1")
        make = factory or (lambda store: ReferenceFactory(store, flags))
        self.manager = TransactionManager(
            "node-1",
            self.log,
            {store.name: ResourceConfig(store.url, factory=make(store)) for store in (self.one, self.two)},
            clock=self.clock,
            sleep=lambda _: None,
            background=False,
            **settings,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.manager.close(timeout_s=0)

    def write(self, key: str = "key", value: str = "value") -> None:
        """Work at both resource managers, in the calling thread's transaction."""
        self.log.fault, self.fault = self.fault, None
        self.manager["one"].write(key, value)
        self.manager["two"].write(key, value)
