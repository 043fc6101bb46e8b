"""Outages: what could not be reached is asked again, for as long as an outage may last. Generators, and a clock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tm.effects import Pause
from xa import Code, XaError
from xabridge.pipeline.core.errors import BatchRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from xabridge.pipeline.core.effects import Effect

T = TypeVar("T")

AWAY: Final = frozenset({Code.XAER_RMFAIL, Code.XA_RETRY})
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 5.0


def pauses(outage_s: float) -> Iterator[float]:
    """How long to wait before each further try: longer each time, `outage_s` in all."""
    pause_s, left_s = _FIRST_S, outage_s
    while left_s > 0:
        yield min(pause_s, left_s)
        left_s -= pause_s
        pause_s = min(2 * pause_s, _LONGEST_S)


def is_away(answer: object) -> bool:
    """Whether an answer says that something could not be reached."""
    if isinstance(answer, XaError):
        return answer.code in AWAY
    return isinstance(answer, BatchRefused) and answer.outage


def patiently(effect: Effect, outage_s: float) -> Generator[Effect, Any, Any]:
    """What an effect is answered that may be carried out again, once the outage is over or has lasted too long."""
    answer = yield effect
    for pause_s in pauses(outage_s):
        if not is_away(answer):
            break
        yield Pause(pause_s)
        answer = yield effect
    return answer


class Patience:
    """Bounds an outage for code that waits itself: `wait` waits a moment, and says whether the outage may go on."""

    def __init__(
        self,
        outage_s: float,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._outage_s = outage_s
        self._sleep = sleep
        self._clock = clock
        self._began: float | None = None
        self._pause_s = _FIRST_S

    def wait(self) -> bool:
        """False: it has lasted too long."""
        now = self._clock()
        if self._began is None:
            self._began = now
        if now - self._began >= self._outage_s:
            return False
        self._sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        return True
