"""These resource managers misbehave: each wraps a reference resource and changes one thing."""

from __future__ import annotations

from bench.crash.points import DECIDER_VERBS, VERBS, Wrapped, hooked

__all__ = ["DECIDER_VERBS", "VERBS", "Interrupter", "Wrapped", "hooked"]


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
