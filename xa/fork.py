"""What an object of a process becomes in a child that is forked from it: the parent's.

A child has a copy of its parent's memory, but none of its threads. It shares the parent's connections and files. So an
object with a connection, a lease, a lock or a thread gets a call of `forked` in the child, once. That has to leave
everything to the parent: it neither uses nor closes what is open. It must not wait for a lock of the parent either,
because the thread that holds the lock does not exist in the child.
"""

from __future__ import annotations

import os
from typing import Final, Protocol
from weakref import WeakSet


class ProcessBound(Protocol):
    """An object that belongs to the process that made it."""

    def forked(self) -> None:
        """This process is a child of that one, and the object is the parent's."""
        ...


_OWNED: Final[WeakSet[ProcessBound]] = WeakSet()


def belongs_to_this_process(owned: ProcessBound) -> None:
    """Has `owned.forked` called in every child from here on."""
    _OWNED.add(owned)


def _tell() -> None:
    for owned in list(_OWNED):
        owned.forked()


os.register_at_fork(after_in_child=_tell)
