"""QuestionThread: somewhere that is asked in a thread of its own, and may hang: a decision log, a resource manager.

While an answer is outstanding nothing else is asked there, so a place that hangs costs one thread, however long it
does. The thread is a daemon, because a place that hangs must not keep the console from ending.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from xabridge.console.brokers import BrokerUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class QuestionThread:
    """One place. `ask` is called on the event loop."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._asked: Future[Any] | None = None

    async def ask(self, question: Callable[[], T], most_s: float) -> T:
        """The answer. BrokerUnreachable: there is none within this time, or it still owes an earlier one. What
        `question` raises is raised here."""
        if self._asked is not None and not self._asked.done():
            raise BrokerUnreachable("it has not answered yet")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"xabridge-console-{self.name}", daemon=True)
            self._thread.start()
        asked: Future[T] = Future()
        self._asked = asked
        self._work.put((question, asked))
        answer = asyncio.wrap_future(asked)
        done, _ = await asyncio.wait({answer}, timeout=most_s)
        if not done:
            answer.add_done_callback(_retrieve)
            raise BrokerUnreachable(f"it has not answered within {most_s:g} s")
        return answer.result()

    def close(self, last: Callable[[], object]) -> None:
        """Does this at the end, unless the place hangs."""
        if self._thread is not None:
            self._work.put((last, Future()))
            self._work.put(None)

    def join(self, most_s: float) -> None:
        """Waits for its end."""
        if self._thread is not None:
            self._thread.join(most_s)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            question, asked = work
            if not asked.set_running_or_notify_cancel():
                continue
            try:
                answer = question()
            except BaseException as error:  # noqa: BLE001 — the waiting caller gets it
                asked.set_exception(error)
            else:
                asked.set_result(answer)


def _retrieve(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()  # no caller waits for it any more
