"""Retries during an outage: what could not be reached is asked again, for as long as an outage may last."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from xa import Code, XaError
from xabridge.pipeline.core.errors import BatchRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from xabridge.pipeline.core.protocol.ports import Ports

T = TypeVar("T")

OUTAGE_CODES: Final = frozenset({Code.XAER_RMFAIL, Code.XA_RETRY})
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 5.0


def pauses(outage_s: float) -> Iterator[float]:
    """How long to wait before each further try: longer each time, `outage_s` in all."""
    pause_s, left_s = _FIRST_S, outage_s
    while left_s > 0:
        yield min(pause_s, left_s)
        left_s -= pause_s
        pause_s = min(2 * pause_s, _LONGEST_S)


def is_outage(answer: object) -> bool:
    """Whether an answer means that something could not be reached."""
    if isinstance(answer, XaError):
        return answer.code in OUTAGE_CODES
    return isinstance(answer, BatchRefused) and answer.outage


async def retried(ports: Ports, ask: Callable[[], Awaitable[T]], outage_s: float) -> T:
    """The answer of a port to a question that may be asked again: asked again until the outage is over, or has lasted
    too long."""
    answer = await ask()
    for pause_s in pauses(outage_s):
        if not is_outage(answer):
            break
        await ports.pause(pause_s)
        answer = await ask()
    return answer


class Backoff:
    """Pauses between the tries of blocking code: `wait` waits a moment, longer each time. It returns whether to try
    again, which is False once the outage has lasted too long."""

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
        """Waits; False, without waiting: the outage has lasted too long."""
        now = self._clock()
        if self._began is None:
            self._began = now
        if now - self._began >= self._outage_s:
            return False
        self._sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_S)
        return True
