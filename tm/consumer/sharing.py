"""Sharing: how many messages the next transaction of one worker takes, and when its share ends.

Messages that share a transaction cost a tenth of those that have their own. No worker waits for them: it takes those
that are there, up to `batch`, calls the handler for one after the other, and commits.

1. The usual length of the handler says how many fit into `share_s`, and so many are received. A worker whose handler is
   always slow takes one message at a time, and keeps none that another worker could handle.
2. No further message is begun when `share_s` is over since the first one was begun, or when less time is left until the
   transaction's timeout than two handlers of the usual length take.
3. After a conflict, and after a share that has failed, so many messages are handled in transactions of their own before
   the next share: PAUSED, twice as many after each further time, until a share was committed. A handler that can't
   share its transaction, because it sets the isolation level for instance, costs little this way.
4. The first share after that, and the first one of a worker, has two messages, the next four, and so on.

A handler that takes the list of a batch (`takes="batch"`) always gets what there is. Times are on the clock that is
given; no other thread uses the object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tm.faults import Fault

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.consumer.settings import ConsumerSettings

PAUSED: Final = 20
"""How many messages are handled alone after a share that has failed."""
MOST_PAUSED: Final = 1_000
_QUICKER: Final = 0.5
_SLOWER: Final = 0.05
"""How much of a handler's length goes into the usual one, where it is shorter, and where it is longer: a handler that
was held up once, by the machine or by another thread, says little."""


class Sharing:
    """The share of one worker. `usual_s`: the handler's usual length, where that is known before the first one."""

    def __init__(
        self, settings: ConsumerSettings, timeout_s: float, clock: Callable[[], float], usual_s: float | None = None
    ) -> None:
        self._most_batch = settings.batch
        self._share_s = settings.share_s
        self._takes_batch = settings.takes == "batch"
        self._timeout_s = timeout_s
        self._clock = clock
        self._usual_s = usual_s
        self._last_s = 0.0
        """How long the last handler took."""
        self._most = 1 if usual_s is None else settings.batch
        """The most messages of the next share."""
        self._alone = 0
        """How many messages are to be handled alone before it."""
        self._paused = PAUSED

        self._transaction_began = self._share_began = self._handled_at = clock()

    @property
    def count(self) -> int:
        """How many messages the next transaction takes."""
        if self._takes_batch:
            return self._most_batch
        usual_s = self._usual_s
        if self._alone or usual_s is None:
            return 1
        fits = self._most if usual_s <= 0 else int(self._share_s / usual_s)
        return max(1, min(self._most, fits))

    def transaction_begins(self) -> None:
        """From now on the transaction's timeout counts."""
        self._transaction_began = self._clock()

    def begins(self) -> None:
        """The first message is begun now."""
        self._share_began = self._handled_at = self._clock()

    def handled(self) -> None:
        """The handler has returned; the next message of the share is begun at once, if there is one."""
        now, usual_s = self._clock(), self._usual_s
        took_s, self._handled_at = now - self._handled_at, now
        if usual_s is None:
            self._usual_s = took_s
        else:
            self._usual_s = usual_s + (took_s - usual_s) * (_QUICKER if took_s < usual_s else _SLOWER)
        self._last_s = took_s

    @property
    def goes_on(self) -> bool:
        """Whether there is time for another message."""
        now = self._handled_at
        longest_s = max(self._usual_s or 0.0, self._last_s)
        left_s = self._timeout_s - (now - self._transaction_began)
        return now - self._share_began < self._share_s and left_s >= 2 * longest_s

    def committed(self, messages: int) -> None:
        """So many messages were handled in a transaction that is committed."""
        if messages > 1:
            self._paused = PAUSED
        if self._alone:
            self._alone = max(self._alone - messages, 0)
        elif messages >= self._most:
            self._most = min(2 * self._most, self._most_batch)

    def failed(self, messages: int, fault: Fault) -> None:
        """So many were begun in a transaction that was rolled back."""
        if messages > 1 or fault is Fault.CONFLICT:
            self._alone, self._most = self._paused, 1
            self._paused = min(2 * self._paused, MOST_PAUSED)
