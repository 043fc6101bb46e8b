"""PipelineWatch: the pipelines of this console's configuration, as `xabridge pipeline status` shows them: the same
functions and words.

The decision log and the resource managers are asked with the users of the configuration. So the console has to say who
may see it: users who may look at the broker that is named first. Each place is asked in a thread of its own, with a
time limit (`xabridge.console.places`), so one that is away costs the others nothing. However many pages show it, all
are asked once in KEPT_S, and a page waits for them for PATIENCE_S at most.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from xabridge.console.brokers import BrokerProblem, BrokerUnreachable
from xabridge.console.question_thread import QuestionThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from xabridge.console.pipeline_questions import PipelineQuestions
    from xabridge.console.settings import WatchedPipelines
    from xabridge.pipeline.core.ledger.status import PipelineStatus, Scanned

LOG: Final = logging.getLogger("xabridge.console")
KEPT_S: Final = 2.5
PATIENCE_S: Final = 2.0
LOG_S: Final = 5.0
"""How long the log may take for an answer."""
RESOURCE_S: Final = 3.0
"""How long a resource manager may."""
LATE_S: Final = KEPT_S + PATIENCE_S + LOG_S + RESOURCE_S
"""What is older than this is not shown any more."""
CLOSE_S: Final = 1.0
SHOWN: Final = 20
"""Epochs of a pipeline that are shown."""


class PipelineWatch:
    """The pipelines; without a log in the configuration, none. `look` is called on the event loop."""

    def __init__(self, watched: WatchedPipelines | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._watched = watched
        self._clock = clock
        self._questions: PipelineQuestions | None = None
        if watched is not None and not watched.trouble:
            from xabridge.console.pipeline_questions import PipelineQuestions  # noqa: PLC0415 — loads SQLAlchemy

            self._questions = PipelineQuestions(watched, SHOWN)
        self._log = QuestionThread("pipelines")
        self._resources = (
            {name: QuestionThread(f"pipelines-{name}") for name, _ in watched.resources} if watched else {}
        )
        self._latest: tuple[float, tuple[PipelineStatus, ...] | BrokerProblem] | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def configured(self) -> bool:
        """Whether the configuration has a log of pipelines."""
        return self._watched is not None

    async def look(self) -> tuple[PipelineStatus, ...]:
        """All of them. BrokerProblem: nothing is known of them, and why."""
        if self._watched is None:
            return ()
        if self._watched.trouble:
            raise BrokerProblem(self._watched.trouble)
        latest = self._latest
        if latest is None or self._clock() - latest[0] >= KEPT_S:
            if self._asking is None:
                self._asking = asyncio.create_task(self._ask())
            if latest is None or not isinstance(latest[1], BrokerProblem):  # the last failure is shown at once
                await asyncio.wait({self._asking}, timeout=PATIENCE_S)

        at, found = self._latest or (0.0, None)
        if isinstance(found, BrokerProblem):
            raise found
        if found is None or self._clock() - at > LATE_S:
            raise BrokerUnreachable("the decision log of the pipelines has not answered yet")
        return found

    def close(self) -> None:
        """Closes the resource managers, as far as they answer."""
        questions = self._questions
        if questions is None:
            return
        for name, place in self._resources.items():
            place.close(partial(questions.close, name))
        self._log.close(lambda: None)
        until = time.monotonic() + CLOSE_S
        for place in (*self._resources.values(), self._log):
            place.join(max(until - time.monotonic(), 0.0))

    # -- asking
    async def _ask(self) -> None:
        found: tuple[PipelineStatus, ...] | BrokerProblem
        try:
            found = await self._asked()
        except BrokerProblem as trouble:
            found = trouble
        except Exception:
            LOG.exception("the pipelines can't be shown")
            found = BrokerProblem("the pipelines can't be shown: a defect of the console. Its log has the details")
        finally:
            self._asking = None
        self._latest = self._clock(), found

    async def _asked(self) -> tuple[PipelineStatus, ...]:
        questions = self._questions
        if questions is None:
            return ()
        try:
            known = await self._log.ask(questions.prefixes, LOG_S)
            if not known:
                return ()
            asked = (self._scanned(name, partial(questions.prepared_at, name, known)) for name in self._resources)
            scanned = dict(await asyncio.gather(*asked))
            return await self._log.ask(partial(questions.statuses, known, scanned), LOG_S)
        except BrokerUnreachable as away:
            raise BrokerUnreachable(f"the decision log of the pipelines can't be read: {away}") from None

    async def _scanned(self, name: str, question: Callable[[], Scanned]) -> tuple[str, Scanned | str]:
        try:
            return name, await self._resources[name].ask(question, RESOURCE_S)
        except BrokerProblem as trouble:
            return name, str(trouble)
