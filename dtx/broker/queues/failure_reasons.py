"""FailureReasons: what messages have failed with, as their consumers have told, for whoever gets them next.

A consumer tells it with the outcome of a transaction that it then rolls back: the outcome has no effect, and the reason
goes with the next deliveries of the message, as the delivery annotation `x-opt-retry-reason`. It is kept in memory
only, of the latest messages: a help for people, on which nothing depends.
"""

from __future__ import annotations

from typing import Final

from dtx.amqp.values import Symbol

REASON: Final = Symbol("x-opt-retry-reason")
APART: Final = Symbol("x-opt-retry-apart")
"""The delivery annotation of a message that was in a transaction that was rolled back, or with a connection that was
lost, without a fault of its own that is known: whoever gets it next handles it alone."""
MOST: Final = 1000
MOST_TEXT: Final = 2000
"""Characters of a reason that are kept."""


class FailureReasons:
    """Those of a broker's messages, by their numbers."""

    def __init__(self) -> None:
        self._of: dict[int, str] = {}

    def note(self, number: int, reason: str) -> None:
        """A message has failed with this."""
        self._of.pop(number, None)
        self._of[number] = reason
        if len(self._of) > MOST:
            del self._of[next(iter(self._of))]

    def of(self, number: int) -> str:
        """What a message has failed with the last time; "" if that is not known."""
        return self._of.get(number, "")
