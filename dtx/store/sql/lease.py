"""Lease: one process at a time has a store that several machines can reach, and none speaks for it after its time.

Two things keep a process out that was paused, or cut off, while another one took the store:

    epoch   the number of the opening, `openings` in dtx_meta. Every transaction that writes compares it, and holds a
            lock on its row until it ends. The process that takes the store raises it first. So what a former holder
            began before that is over by then, and nothing that it writes later has an effect, however late it comes.
    lease   the row of dtx_lease: until when, by the server's clock, no one else takes the store. The holder renews it,
            and tells its peers nothing while it may have run out. That is judged by this machine's own clock, which
            counts from before the renewal was sent, and less than the server was asked for (`SHARE`).

A lease that ran out and was not taken can still be renewed: what is in memory is what is in the store, because the
epoch is the same. So a holder that was paused for long says nothing until the server has answered, and goes on, or
stops.

The algorithm (`Lease.renew`), which a thread carries out again and again:

1. Note the time, and renew, on the condition that the epoch is still this one.
2. Renewed: the lease lasts from the noted time. Where it has run out again by now, begin anew at once.
3. Not renewed: another process has the store. Stop.
4. No answer but an error: try again, while the lease lasts. Then stop.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from dtx.store.contract import StoreStopped
from xa.lease import since_boot

if TYPE_CHECKING:
    from collections.abc import Callable

LOG: Final = logging.getLogger("xabridge.broker")

LEASE_S: Final = 10.0
SHARE: Final = 0.8
"""This part of the lease counts here. The rest is for clocks that run apart, or are set, by less than that."""
RENEWALS: Final = 4
"""A lease is renewed so often while it lasts."""
AGAIN_S: Final = 0.2
"""The pause after a renewal that failed."""


class LeaseLost(Exception):
    """The epoch is another one: this process does not have the store any more."""


class Lease:
    """A lease that was taken for `lease_s` by a statement that was sent at `sent`, by `clock`.

    `renew` renews it, and answers whether the epoch is still this one; it raises one of `failures` where that can't be
    found out. `lost` is called once, in the lease's thread, when this process has to stop; `break_off` breaks the
    store's connections, so that no one waits for a server that does not answer."""

    def __init__(
        self,
        renew: Callable[[], bool],
        failures: tuple[type[Exception], ...],
        lost: Callable[[StoreStopped], None],
        break_off: Callable[[], None],
        *,
        lease_s: float,
        sent: float,
        clock: Callable[[], float] = since_boot,
    ) -> None:
        self._ask = renew
        self._failures = failures
        self._lost = lost
        self._break_off = break_off
        self._lease_s = lease_s
        self._clock = clock
        self._until = sent + SHARE * lease_s
        self._seen_out_at: float | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="store-lease", daemon=True)

    def start(self) -> None:
        """Renews it from now on."""
        self._thread.start()

    @property
    def lasts(self) -> bool:
        """Whether no one else can have the store now, so that what is known here may be sent."""
        return self._clock() < self._until

    def watch(self) -> None:
        """To be called now and then, by another thread than the lease's. Breaks the connections where the lease ran out
        some time ago, and the server still does not say whether it can be renewed."""
        now = self._clock()
        if now < self._until:
            self._seen_out_at = None
        elif self._seen_out_at is None:  # also when this process was paused: the answer may have come meanwhile
            self._seen_out_at = now
        elif now - self._seen_out_at > self._lease_s / 2:
            self._break_off()

    def close(self) -> bool:
        """Renews it no more; whether the thread has ended, so that its connection can be used."""
        self._closing.set()
        if not self._thread.ident:
            return True
        self._thread.join(self._lease_s)
        if self._thread.is_alive():
            self._break_off()
            self._thread.join()
            return False
        return True

    def renew(self) -> float | None:
        """Steps 1 to 4, once; the pause before the next time, None: there is none. The thread calls it."""
        sent = self._clock()  # step 1
        try:
            renewed = self._ask()
        except self._failures as error:  # step 4
            if self.lasts:
                LOG.warning("the lease on the store could not be renewed, will try again: %s", error)
                return AGAIN_S
            self._stop(f"the lease on the store ran out, and could not be renewed: {error}")
            return None
        if not renewed:  # step 3
            self._stop("another process has taken the store")
            return None
        self._until = sent + SHARE * self._lease_s  # step 2
        return self._lease_s / RENEWALS if self.lasts else 0.0

    def _keep(self) -> None:
        pause_s: float | None = self._lease_s / RENEWALS
        while pause_s is not None and not self._closing.wait(pause_s):
            pause_s = self.renew()

    def _stop(self, reason: str) -> None:
        self._until = float("-inf")
        self._break_off()  # a caller that waits for the server gets no reply from it
        self._lost(StoreStopped(reason))
