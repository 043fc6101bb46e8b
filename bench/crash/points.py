"""The named points: where the campaign can stop a process, exactly before or after a verb or a force.

The product is not changed for it: resource managers, the decision log and the handler are wrapped, and each wrapper
passes a `Gate`. A gate that is armed for a point reports on stdout that it was reached, and holds the thread until the
command to go on arrives. Meanwhile the campaign does what it wants, mostly a SIGKILL.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.log import Decision, DecisionLog

VERBS: Final = ("start", "end", "prepare", "commit", "rollback", "forget", "complete")
DECIDER_VERBS: Final = ("decide", "settle", "decisions", "end_decisions")

_SAYING: Final = threading.Lock()


def tell(event: str, **facts: Any) -> None:
    """One line on stdout for the campaign."""
    with _SAYING:
        print(json.dumps({"event": event, **facts}), flush=True)


class Gate:
    """Stops the thread that passes the armed point for the count-th time since `begin`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._point = ""
        self._count = 0
        self._begun = False
        self._passed: Counter[str] = Counter()
        self._go = threading.Event()

    def arm(self, point: str, count: int = 1, *, begun: bool = False) -> None:
        """The next stop. It counts from the next `begin`, or (`begun`) from now."""
        with self._lock:
            self._point, self._count, self._begun = point, count, begun
            self._passed.clear()
            self._go.clear()

    def begin(self) -> None:
        """A handler begins: whatever is passed from here on belongs to its transaction."""
        with self._lock:
            self._begun = True

    def go(self) -> None:
        """Lets on who stands at the gate."""
        self._go.set()

    def hit(self, when: str, what: str) -> None:
        """A point is passed."""
        if not self._point:
            return
        point = f"{when} {what}"
        with self._lock:
            if not self._begun or point != self._point:
                return
            self._passed[point] += 1
            if self._passed[point] != self._count:
                return
            self._point = ""
        tell("at", point=point)
        self._go.wait()


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
            verb = "end" if name == "end_late" else name
            return around(method, verb) if verb in verbs else method

    return Hooked


class GatedLog(Wrapped):
    """A decision log with the points "force" and "note the end"."""

    def __init__(self, log: DecisionLog, hit: Callable[[str, str], None]) -> None:
        super().__init__(log)
        self._hit = hit

    def decide(self, decision: Decision) -> None:
        self._hit("before", "force")
        self.rm.decide(decision)
        self._hit("after", "force")

    def end(self, gtrid: bytes) -> None:
        self._hit("before", "note the end")
        self.rm.end(gtrid)
        self._hit("after", "note the end")
