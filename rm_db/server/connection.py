"""ServerConnection: one connection to a server, as the pool and a branch's transaction use it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from rm_db.server.steps import ConnectionLost, drive

if TYPE_CHECKING:
    from rm_db.server.steps import Steps

CHECK_AFTER_S: Final = 30.0
"""A connection that was idle for longer is tested before it is used."""


class ServerConnection(ABC):
    """One connection: an `xa.pool.PooledConnection`. `lock` is held by the one thread that talks on it; `reusable` is
    cleared when the session can't be brought back to where it began, `is_cut` is set when another thread has to close
    it. A verb waits at most `reply_s` for a reply."""

    __slots__ = ("is_cut", "lock", "owed", "reply_s", "reusable")

    def __init__(self, reply_s: float) -> None:
        self.lock = threading.Lock()
        self.reply_s = reply_s
        self.reusable = True
        self.is_cut = False
        self.owed = 0
        """How many replies are still to be collected."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """False once the connection is known to be broken."""

    @abstractmethod
    def is_settled(self) -> Steps[bool]:
        """Collects the replies that are owed; whether they are successes."""

    @abstractmethod
    def test(self) -> Steps[object]:
        """Asks the server for a sign of life."""

    @abstractmethod
    def went_away(self) -> bool:
        """Whether the other side has closed an idle connection, as far as is known without asking."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connection, whatever happens on it."""

    @abstractmethod
    def break_off(self) -> None:
        """Shuts the connection down, as a network does that fails. Any thread may call this at any moment."""

    def cut(self) -> None:
        """Shuts the connection down while another thread waits on it: that thread gets an error, and closes it."""
        self.is_cut = True
        self.break_off()

    # --- for the pool ---------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def is_reusable(self) -> bool:
        """Whether nothing was found wrong with it, and it is in no transaction, or will be in none once the replies
        that it owes are there."""

    def is_ready(self, idle_s: float) -> bool:
        return idle_s <= CHECK_AFTER_S and not self.owed and not self.went_away()

    def is_usable(self, idle_s: float) -> bool:
        try:
            if self.owed and not drive(self.is_settled(), self.reply_s):
                return False
            if self.went_away():
                return False
            if idle_s > CHECK_AFTER_S:
                drive(self.test(), self.reply_s)
        except ConnectionLost:
            return False
        return self.is_reusable

    def discard(self) -> None:
        if not self.is_cut:  # one that was cut is closed by the thread that still waits on it
            self.close()
