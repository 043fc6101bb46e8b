"""PasswordChecks: what it takes to check passwords, one at a time, in a thread that does nothing else.

A peer that is not known yet can order such a computation, of some milliseconds, with a few octets. So:

- There is one thread for them, and each peer has at most one in the queue. `drop` takes it out when its peer is gone.
- Addresses take turns (`dtx.broker.fair_queue`). A computation that found a wrong password costs its address
  COSTS_MORE times what it took, so an address that tries passwords waits for all others.
- After a wrong password the thread rests for as long as the computation took, and for RESTS times as long before it
  works for an address with failures. So strangers can't order more than half of a processor, and those of a few
  addresses no more than a quarter; a right password is never slowed down by what was tried for its user elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dtx.broker.fair_queue import FairQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    Done = Callable[[object], None]

COSTS_MORE: Final = 4
RESTS: Final = 3


class Computation:
    """One that was asked for."""

    __slots__ = ("done", "host", "work")

    def __init__(self, host: str, work: Callable[[], object], done: Done) -> None:
        self.host = host
        self.work = work
        self.done: Done | None = done


class PasswordChecks:
    """The queue. `failures` says how often an address has failed lately; `compute` carries work out in the thread and
    calls what it is given with the result; `later` calls after so many seconds."""

    def __init__(
        self,
        clock: Callable[[], float],
        failures: Callable[[str], int],
        compute: Callable[[Callable[[], object], Done], None],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._clock = clock
        self._failures = failures
        self._compute = compute
        self._later = later
        self._waiting: FairQueue[Computation] = FairQueue()
        self._is_at_work = False
        self._rests_until_s = 0.0
        self._rests_longer_until_s = 0.0
        self._called_at_s = 0.0
        """When it is called to look again; over, where it is not."""

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def ask(self, host: str, work: Callable[[], object], done: Done) -> Computation:
        """Has `work` done for a peer from `host`, and `done` called with its result, which is False for a wrong
        password."""
        asked = Computation(host, work, done)
        self._waiting.add(asked, host)
        self._go_on()
        return asked

    def drop(self, computation: Computation) -> None:
        """The peer is gone: no one waits for the result."""
        computation.done = None
        self._waiting.remove(computation)

    def _go_on(self) -> None:
        """Begins the next one, if it is time."""
        if self._is_at_work or not self._waiting:
            return
        now = self._clock()
        begins_s = self._rests_longer_until_s if self._failures(self._waiting.next_payer) else self._rests_until_s
        if begins_s <= now:
            self._begin(self._waiting.take(), now)
        elif self._called_at_s <= now or begins_s < self._called_at_s:
            self._called_at_s = begins_s
            self._later(begins_s - now, self._go_on)

    def _begin(self, computation: Computation, began_s: float) -> None:
        self._is_at_work = True
        self._compute(computation.work, lambda result: self._ended(computation, began_s, result))

    def _ended(self, computation: Computation, began_s: float, result: object) -> None:
        now = self._clock()
        took_s = now - began_s
        self._is_at_work = False
        if result is False:
            self._rests_until_s, self._rests_longer_until_s = now + took_s, now + RESTS * took_s
        self._waiting.spent(computation.host, took_s * (COSTS_MORE if result is False else 1))
        if computation.done is not None:
            computation.done(result)
        self._go_on()
