"""WorkerPool: the workers of one consumer together, as threads or as tasks of an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from tm.consumer.worker import TaskCalls, ThreadCalls, Worker
from tm.errors import TransactionError
from xa.coroutines import drive
from xa.telemetry.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm.consumer.job import Job

    Failed = Callable[[BaseException], None]

logger = logging.getLogger("xabridge.tm.consumer")

FEW: Final = 3
"""Up to so many workers in threads go on before the last answer to their commit. Of more, others are at work while one
waits, and leaving answers costs more processor time than it saves."""


class WorkerEnded(Exception):
    """A worker has ended though the consumer is not to stop."""


class WorkerPool(Protocol):
    """The interface of workers that a consumer uses."""

    @property
    def alive(self) -> int:
        """How many have not ended."""
        ...

    def ask(self) -> None:
        """Asks them to stop, once they have finished what they have in hand."""
        ...

    def stop(self, timeout_s: float) -> int:
        """Asks, and waits for their end; how many had not finished by then."""
        ...


class ThreadPool:
    """Workers in threads, started at once. `failed` is called with the exception that ended one of them."""

    def __init__(self, job: Job, failed: Failed) -> None:
        self._job = job
        self._failed = failed
        self._stopping = threading.Event()
        self._leaves = job.settings.resource if job.settings.workers <= FEW else ""
        queue = job.settings.queue
        self._threads = [
            threading.Thread(target=self._run, args=(number,), name=f"xabridge-{queue}-{number}", daemon=True)
            for number in range(job.settings.workers)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        try:
            drive(Worker(number, self._job, ThreadCalls(self._stopping, self._leaves)).run())
        except BaseException as error:  # noqa: BLE001 — the waiting caller gets it
            self._failed(error)

    @property
    def alive(self) -> int:
        return sum(thread.is_alive() for thread in self._threads)

    def ask(self) -> None:
        self._stopping.set()

    def stop(self, timeout_s: float) -> int:
        """A thread can't be ended: what it has in hand can't be committed any more."""
        self.ask()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))
        left = self.alive
        for transaction in self._job.statistics.busy if left else ():
            with suppress(TransactionError):  # it is completing at this moment, or has
                transaction.set_rollback_only("the consumer was stopped, and its handler did not finish in time")
        return left


class TaskPool:
    """Workers in tasks of the running event loop, started at once. `failed` is called with the exception that ended one
    of them."""

    def __init__(self, job: Job, failed: Failed) -> None:
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._tasks = [asyncio.create_task(self._run(number, job)) for number in range(job.settings.workers)]

    async def _run(self, number: int, job: Job) -> None:
        """Has a worker run in a task apart from this one, which is cancelled to end it. If only the other task is
        cancelled, by something that a handler has left running, another worker begins."""
        calls, queue = TaskCalls(self._stopping), job.settings.queue
        while True:
            try:
                return await calls.apart(Worker(number, job, calls).run)
            except asyncio.CancelledError as error:
                if calls.is_cancelled:
                    self._cancelled(error)
                    raise
            except BaseException as error:  # noqa: BLE001 — the waiting caller gets it
                return self._failed(error)

            logger.warning(
                "%s: a worker was cancelled by something that a handler has left running, and begins anew", queue,
                extra=about(queue=queue),
            )  # fmt: skip

    def _cancelled(self, error: asyncio.CancelledError) -> None:
        if not self._stopping.is_set():
            ended = WorkerEnded("the task of a worker was cancelled, and not by its consumer: stop the consumer")
            ended.__cause__ = error
            self._failed(ended)

    @property
    def alive(self) -> int:
        return sum(not task.done() for task in self._tasks)

    def ask(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: they have ended
            self._loop.call_soon_threadsafe(self._stopping.set)

    def stop(self, timeout_s: float) -> int:
        """Stops the workers. In their own event loop, which can't wait for them, it only asks: `astop` waits."""
        if self._loop.is_closed():  # they have ended with it
            return 0
        with suppress(RuntimeError):  # no loop runs here
            if asyncio.get_running_loop() is self._loop:
                self.ask()
                return self.alive
        return asyncio.run_coroutine_threadsafe(self.astop(timeout_s), self._loop).result()

    async def astop(self, timeout_s: float) -> int:
        """Runs in their event loop. Workers that have not finished are cancelled, and roll back."""
        self._stopping.set()
        _, left = await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in left:
            task.cancel()
        await self.end()
        return len(left)

    async def end(self) -> None:
        """Returns when all have ended."""
        await asyncio.wait(self._tasks)


class TaskPoolInThread:
    """Workers in tasks of an event loop of their own, which runs in a thread until `stop`."""

    def __init__(self, job: Job, failed: Failed) -> None:
        begun: Future[tuple[TaskPool, Callable[[], object]]] = Future()
        self._thread = threading.Thread(
            target=asyncio.run,
            args=(self._serve(job, failed, begun),),
            name=f"xabridge-{job.settings.queue}",
            daemon=True,
        )
        self._thread.start()
        self._tasks, self._release = begun.result()

    @staticmethod
    async def _serve(job: Job, failed: Failed, begun: Future[tuple[TaskPool, Callable[[], object]]]) -> None:
        loop, released = asyncio.get_running_loop(), asyncio.Event()
        tasks = TaskPool(job, failed)
        begun.set_result((tasks, lambda: loop.call_soon_threadsafe(released.set)))
        await released.wait()

    @property
    def alive(self) -> int:
        return self._tasks.alive

    def ask(self) -> None:
        self._tasks.ask()

    def stop(self, timeout_s: float) -> int:
        if not self._thread.is_alive():
            return 0
        try:
            return self._tasks.stop(timeout_s)
        finally:
            self._release()
            self._thread.join()
