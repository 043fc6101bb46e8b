"""Job: messages that are moved, copied, retried or purged, some at a time, with its progress.

1. Everything of a queue goes in requests of CHUNK messages, as long as each moves all of its own.
2. So does a group of dead letters: the broker finds those that are in it.
3. To copy, and after a request that has not moved all of its own, the queue is looked through page by page, and those
   of a page that are meant are named by their ids.

Of a queue and of a group only what the preview has counted is meant: what came later, which is behind the position
`until`, is not touched.

Each request is one change for the broker, with its own line in the broker's audit log. If the job ends early, what is
done is done, and it says how much that is.

While the broker is away, or takes long for an answer, the job waits for up to WAIT_S and asks again: for what changes
nothing, and for a change that was not sent. A change whose answer is lost is not repeated; the job ends there, because
it is unknown whether it was made.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from xabridge.console.brokers import PAGE, BrokerProblem, BrokerUnreachable, RequestRefused, ResultUnknown
from xabridge.operations.broker_changes import HELD

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from xabridge.console.brokers import BrokerLink

CHUNK: Final = 2000
PASSING: Final = frozenset({HELD, "not in the queue"})
"""Why the broker leaves a message that say nothing about the next one: somebody else works with these."""
WAIT_S: Final = 300.0
"""How long a job waits for a broker that is away."""
AGAIN_S: Final = 1.0


T = TypeVar("T")


class Progress(Enum):
    """How far a job is."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which messages: these ids, or those of a group of dead letters, or all, that came no later than the one at the
    position `until`."""

    queue: str
    ids: tuple[str, ...] = ()
    group: str = ""
    until: str = ""

    @property
    def all(self) -> bool:
        """Whether every message of the queue is meant."""
        return not self.ids and not self.group


async def count(link: BrokerLink, selection: Selection) -> tuple[Counter[str], str]:
    """How many are available and how many are held, of those with these ids, or of all; of all also the position of
    the last one."""
    if selection.all:
        queue = await link.queue(selection.queue)
        return Counter(available=queue["depth"] - queue["held"], held=queue["held"]), queue["until"]
    found = await link.ask("messages", queue=selection.queue, ids=",".join(selection.ids))
    return Counter(one["state"] for one in found), ""


async def group_of(link: BrokerLink, selection: Selection) -> dict[str, Any]:
    """The group of dead letters as it is now. RequestRefused: there is none."""
    after = ""
    while True:
        page = await link.ask("dead-letters", queue=selection.queue, after=after, count=PAGE)
        for one in page:
            if one["id"] == selection.group:
                return dict(one)
        if len(page) < PAGE:
            raise RequestRefused(f"nothing was done: {selection.queue} has no letters of this group any more")
        after = page[-1]["position"]


async def _page(link: BrokerLink, queue: str, after: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await link.ask("messages", queue=queue, after=after, count=PAGE)
    return found


async def _pages(page_after: Callable[[str], Awaitable[list[dict[str, Any]]]]) -> AsyncIterator[list[dict[str, Any]]]:
    after = ""
    while True:
        page = await page_after(after)
        if page:
            yield page
        if len(page) < PAGE:
            return
        after = page[-1]["position"]


@dataclass
class Job:
    """One job. `total` is what the preview counted."""

    number: str
    link: BrokerLink
    operation: str
    selection: Selection
    arguments: dict[str, str]
    sentence: str
    total: int
    done: int = 0
    left: Counter[str] = field(default_factory=Counter)
    progress: Progress = Progress.RUNNING
    said: str = ""
    stopping: bool = False
    waiting: str = ""
    """Why it waits for the broker."""
    clock: Callable[[], float] = time.monotonic
    same: bool = False
    """It has ended before the end of the queue, because what is left would stay for the same reason."""

    @property
    def rest(self) -> int:
        """How many of those that were counted are neither done nor left for a reason that the broker has given."""
        return max(self.total - self.done - sum(self.left.values()), 0)

    async def run(self) -> None:
        """Does it."""
        try:
            await self._carry_out()
            if self.progress is Progress.RUNNING:
                self.progress = Progress.STOPPED if self.stopping else Progress.DONE
        except ResultUnknown as why:
            self.progress, self.said = Progress.UNKNOWN, str(why)
        except BrokerProblem as why:
            self.progress, self.said = (Progress.STOPPED if self.stopping else Progress.FAILED), str(why)
        finally:
            self.waiting = ""

    async def _carry_out(self) -> None:
        if self.selection.ids:
            await self._request(self.selection.ids)
            return

        selection = self.selection
        if self.operation != "copy":  # copies leave nothing out the next time
            group = {"group": selection.group} if selection.group else {}
            while self.done < self.total and not self.stopping:
                wanted = min(CHUNK, self.total - self.done)
                self.left.clear()
                done = await self._request((), most=wanted, until=selection.until, **group)
                if done < wanted:
                    break
            if self.done >= self.total or self.stopping or group:
                return
            self.left.clear()
            self.same = False
        await self._through_the_pages()

    async def _through_the_pages(self) -> None:
        queue, last = self.selection.queue, int(self.selection.until, 16)
        async for page in _pages(lambda after: self._patiently(lambda: _page(self.link, queue, after))):
            shown = [one for one in page if int(one["position"], 16) <= last]
            if self.stopping or not shown or self.done >= self.total:
                return
            if self.selection.group:
                shown = [one for one in shown if one["dead-letter-group"] == self.selection.group]
            free = [one["id"] for one in shown if self.operation == "copy" or one["state"] != "held"]
            held = len(shown) - len(free)
            if held:
                self.left[HELD] += held
            free = free[: self.total - self.done]
            if free and not await self._request(free) and self.same:
                return

    async def _request(self, ids: Sequence[str], **more: Any) -> int:
        request = {**self.arguments, **({"ids": ",".join(ids)} if ids else {}), **more}
        answer = await self._patiently(lambda: self.link.change(self.operation, queue=self.selection.queue, **request))
        done = int(answer["done"])
        self.done += done
        left = {str(why): int(number) for why, number in answer["left"].items()}
        self.left.update(left)
        self.same = not done and not PASSING.issuperset(left)
        return done

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to what does nothing as long as the broker is away. BrokerUnreachable: it is so for too long, or
        the job is to end."""
        until = self.clock() + WAIT_S
        while True:
            try:
                answer = await ask()
            except BrokerUnreachable as why:
                self.waiting = str(why)
                if self.stopping or self.link.closed or self.clock() >= until:
                    raise BrokerUnreachable(f"the broker is away: {why}") from None
                await asyncio.sleep(AGAIN_S)
            else:
                self.waiting = ""
                return answer
