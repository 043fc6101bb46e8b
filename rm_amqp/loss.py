"""What ends a connection, or a call: the exceptions that the protocol's steps raise, before they are XA's.

A refusal of the broker is a `RefusedError`, from the protocol. What else can go wrong is that there is no answer.
"""

from __future__ import annotations

from enum import Enum


class Cause(Enum):
    """Why there is no connection."""

    UNREACHABLE = "can't be reached"
    UNUSABLE = "can't be used"
    LOST = "was lost"
    CLOSED = "was closed"


class ConnectionLost(Exception):
    """There is no connection, or not any more. What was asked over it was carried out, or it was not.

    UNUSABLE: the broker was reached, and credentials or settings have to be mended before a connection can be made.
    """

    def __init__(self, cause: Cause, message: str) -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message

    def again(self) -> ConnectionLost:
        """The same, to be raised once more."""
        return ConnectionLost(self.cause, self.message)


def unreachable(broker: object, why: str) -> ConnectionLost:
    """There is no connection to this broker."""
    return ConnectionLost(Cause.UNREACHABLE, f"the broker at {broker} {Cause.UNREACHABLE.value}: {why}")


class TimedOut(Exception):
    """The answer did not come in time. What was asked was carried out, or it was not, or will be."""


class AllInUse(TimedOut):
    """Every channel of the pool has been at work all the time. The broker was not asked."""
