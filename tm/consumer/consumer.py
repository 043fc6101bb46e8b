"""Consumer: runs a handler over a queue with several workers, each message under a global transaction.

    @tm.consumer("orders", workers=8, batch=50, max_deliveries=5)
    def handle(message, tx):
        tx["shop"].execute(...)
        tx["broker"].send("invoices", ...)

    handle.run()        # until SIGTERM or SIGINT; or: with handle: …, async with handle: …, start() and stop()

What the handler does in its transaction is committed with the message's consumption. When it raises, everything is
rolled back and the message comes again, after a wait; see `tm.consumer.receive_loop` for what then happens to it.
Handlers that are coroutine functions run in tasks of one event loop, others in threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any, Unpack

from tm.consumer.handler import Handler
from tm.consumer.job import Job
from tm.consumer.pools import TaskPool, TaskPoolInThread, ThreadPool
from tm.consumer.settings import ConsumerSettings
from tm.consumer.signals import StopSignals
from tm.consumer.states import CONSUMER, ConsumerState, ConsumerVerb
from tm.consumer.statistics import Health, MessageCounts, Statistics
from tm.errors import ProtocolMisuse
from xa.machine import IllegalTransition, advance
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from tm.consumer.pools import WorkerPool
    from tm.consumer.settings import ConsumerOptions
    from tm.manager import Manager

logger = logging.getLogger("xabridge.tm.consumer")


class Consumer:
    """A handler with its workers. `settings` are those of `ConsumerSettings`. Called, it calls the handler."""

    def __init__(
        self,
        manager: Manager,
        queue: str,
        handler: Callable[..., Any] | Handler,
        /,
        **settings: Unpack[ConsumerOptions],
    ) -> None:
        self.settings = ConsumerSettings.of(queue, **settings)
        handler = handler if isinstance(handler, Handler) else Handler(handler)
        self._handler = handler.function
        self.is_async = handler.is_async
        """Whether its handler is a coroutine function."""
        system = manager.resource(self.settings.resource).system
        self._statistics = Statistics(queue, manager.recorder, system=system)
        self.job = Job(manager, self.settings, handler, self._statistics)
        """What its workers share."""

        self._lock = threading.Lock()
        self._state = ConsumerState.NEW
        self._pool: WorkerPool | None = None
        self._stopper: StopSignals | None = None
        self.failure: BaseException | None = None
        """The exception that ended a worker, if it was not asked to stop."""
        self.when_failed: Callable[[], object] = lambda: None
        """Called when a worker has failed, in any thread."""
        manager.has_consumer(self)

    def __call__(self, message: Any, transaction: Any) -> Any:
        """The handler itself, as it was before it was decorated."""
        return self._handler(message, transaction)

    def __repr__(self) -> str:
        return f"<Consumer of {self.settings.queue} {self._state.value}>"

    @property
    def state(self) -> ConsumerState:
        """Its state."""
        return self._state

    @property
    def manager(self) -> Manager:
        """The manager whose transactions its messages are handled in."""
        return self.job.manager

    @property
    def hanging(self) -> int:
        """How many handlers are at work for longer than their transaction may take."""
        return len(self._statistics.hanging)

    @property
    def counts(self) -> MessageCounts:
        """The counts of its messages, by outcome."""
        return self._statistics.counts

    def health(self) -> Health:
        """How it is, for a probe."""
        pool, statistics = self._pool, self._statistics
        workers = 0 if pool is None else pool.alive
        trouble = (*statistics.trouble, *statistics.hanging)
        ended = self.settings.workers - workers
        if pool is not None and ended and self._state is ConsumerState.RUNNING:
            trouble = (*trouble, f"workers that have ended: {ended} of {self.settings.workers}")
        return Health(self._state, workers, len(statistics.busy), statistics.counts, trouble)

    # --- in threads -----------------------------------------------------------------------------------------

    def run(self) -> MessageCounts:
        """Works until SIGTERM or SIGINT (in the main thread), `stop` in another, or a failure of a worker, which is
        raised. Then what runs is finished, `shutdown_s` at most."""
        with StopSignals() as stopper:
            self._stopper = stopper
            try:
                self.start()
                stopper.wait()
            finally:
                self.stop()
                self._stopper = None
        if self.failure is not None:
            raise self.failure
        return self.counts

    def start(self) -> None:
        """Starts the workers, in the background."""
        self.job.manager.check_unforked()
        self._advance(ConsumerVerb.START)
        self._pool = (TaskPoolInThread if self.is_async else ThreadPool)(self.job, self._failed)
        if self.failure is not None:  # of a worker that failed before we knew it
            self._pool.ask()

    def ask_to_stop(self) -> None:
        """Its workers begin nothing more, and it does not wait for them: `stop` does."""
        if self._state is ConsumerState.RUNNING:
            self._ask_to_stop()
        if self._pool is not None:
            self._pool.ask()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Finishes what runs and begins nothing, for `timeout_s` at most (`shutdown_s` where it is None); whether
        everything was finished. What was not is rolled back."""
        if self._state is ConsumerState.STOPPED:
            return True
        self._ask_to_stop()
        pool = self._pool
        left = pool.stop(self.settings.shutdown_s if timeout_s is None else timeout_s) if pool is not None else 0
        self._ended(left)
        return not left

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # --- in the caller's event loop --------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if not self.is_async:
            self.start()
            return self
        self.job.manager.check_unforked()
        self._advance(ConsumerVerb.START)
        self._pool = TaskPool(self.job, self._failed)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pool = self._pool
        if not isinstance(pool, TaskPool):
            await asyncio.to_thread(self.stop)
            return
        self._ask_to_stop()
        self._ended(await pool.astop(self.settings.shutdown_s))

    # --- states ---------------------------------------------------------------------------------------------

    def _advance(self, verb: ConsumerVerb) -> None:
        with self._lock:
            try:
                self._state = advance(CONSUMER, self._state, verb)
            except IllegalTransition as error:
                raise ProtocolMisuse(
                    f"the consumer of {self.settings.queue} is {self._state.value}: no {verb.value}; make another"
                ) from error

    def _ask_to_stop(self) -> None:
        self._advance(ConsumerVerb.STOP)
        stopper = self._stopper
        if stopper is not None:
            stopper.wake()

    def _failed(self, error: BaseException) -> None:
        """A worker has ended with this."""
        queue = self.settings.queue
        logger.error("%s: a worker failed, the consumer stops", queue, exc_info=error, extra=about(queue=queue))
        self.failure = self.failure or error
        pool = self._pool
        if pool is not None:
            pool.ask()
        self._ask_to_stop()
        self.when_failed()

    def _ended(self, left: int) -> None:
        self._advance(ConsumerVerb.END)
        if left:
            logger.error(
                "%s: %d workers did not finish in time; their transactions are rolled back", self.settings.queue, left,
                extra=about(queue=self.settings.queue),
            )  # fmt: skip
