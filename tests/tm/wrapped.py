"""These resource managers misbehave: each wraps a reference resource and changes one thing."""

from __future__ import annotations

import threading
from typing import Any

from bench.crash.points import DECIDER_VERBS, VERBS, Wrapped, hooked
from xabridge.testing.reference import ReferenceResource, ReferenceStore

__all__ = ["DECIDER_VERBS", "VERBS", "Gate", "Interrupter", "Wrapped", "hooked"]


class Interrupter:
    """Raises KeyboardInterrupt at the point number `at`, once; counts the points while it is armed."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.points = 0
        self.armed = False
        self.where: list[str] = []

    def hit(self, when: str, what: str) -> None:
        if not self.armed:
            return
        self.points += 1
        self.where.append(f"{when} {what}")
        if self.points == self.at:
            raise KeyboardInterrupt(f"{when} {what}")


class Gate:
    """Holds whoever is about to carry out a verb of what `wrap` has wrapped, until it is opened."""

    def __init__(self, verb: str) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.wrap = hooked(self._hold, (verb,))

    def _hold(self, when: str, _: str) -> None:
        if when == "before":
            self.reached.set()
            assert self.opened.wait(30)

    def over(self, store: ReferenceStore) -> Any:
        """A factory for `TwoResources`."""
        return lambda registrar: self.wrap(ReferenceResource(store, registrar, 0))
