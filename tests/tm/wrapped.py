"""Resource managers that misbehave: each wraps a reference resource, and has everything else from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

VERBS = ("start", "end", "prepare", "commit", "rollback", "forget", "complete")
DECIDER_VERBS = ("decide", "settle", "decisions", "end_decisions")


class Wrapped:
    """Everything is the wrapped one's."""

    def __init__(self, rm: Any) -> None:
        self.rm = rm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rm, name)


def hooked(hook: Callable[[str, str], None], verbs: tuple[str, ...] = VERBS) -> Any:
    """A wrapper that calls `hook("before" | "after", verb)` around each of `verbs`."""

    def around(method: Any, verb: str) -> Any:
        def call(*arguments: Any) -> Any:
            hook("before", verb)
            answer = method(*arguments)
            hook("after", verb)
            return answer

        return call

    class Hooked(Wrapped):
        def __getattr__(self, name: str) -> Any:
            method = getattr(self.rm, name)
            return around(method, name) if name in verbs else method

    return Hooked


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
