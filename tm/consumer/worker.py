"""Worker: receives messages and has them handled, in a thread or in a task of an event loop.

Both run the same code. What differs, that a thread blocks and a task awaits, is in `ThreadCalls` and `TaskCalls`.

What a session for messages has to offer: `receive_batch(address, count, timeout_s)`, `reject(message)`,
`release(message)` and `dead_letter(message, address, annotations)`, all of which take effect when the branch is
committed; and `aio`, the same for asyncio, where `receive_batch` and `dead_letter` are coroutines. `dead_letter` sends
the message with these annotations to the address and takes it from its queue.

It may offer two operations that take effect when the branch is rolled back. `explain(message, reason, place)` tells
other processes what a message has failed with, and where in the code. `excuse(messages, reason="", place="")` tells the
broker that the rollback counts for none of these; it returns whether the broker does so. And it may offer
`put_back(messages, stay=True)`, by which those that are not begun in this transaction are as if they had not been
received.

A session of any resource may offer `renew()`, and say with `holds_back` whether that may have to wait. It is called
between two messages that share the transaction. Nothing of the message before is in the session any more then; and it
raises what keeps the transaction from being committed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar, cast

from tm.concurrency.uninterrupted import finish_in_thread
from tm.consumer.failures import place_of, reason_from
from tm.consumer.job import COUNTED, Attempt
from tm.consumer.receive_loop import receive_loop
from tm.consumer.sharing import Sharing
from tm.consumer.statistics import DEAD_LETTERED, HANDLED, RETURNED
from tm.errors import ProtocolMisuse, TransactionError
from tm.faults import Fault, fault_of
from tm.global_transaction import HandlerState
from tm.outcome import Reason, Verdict
from tm.transaction import live_of
from tm.two_phase.states import GlobalState
from xa import Code, XaError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from tm.consumer.history import History
    from tm.consumer.job import DeadLetter, Job, Postponement
    from tm.transaction import Transaction


logger = logging.getLogger("xabridge.tm.consumer")

_UNTOLD: Final = object()
"""The answer of a session that can't be given something."""
_CANCELLED: Final = "the handler, or what it has awaited, was cancelled, and not by the consumer"

T = TypeVar("T")


class HandlerCancelled(Exception):
    """A handler was cancelled, or has raised CancelledError, and its worker was not cancelled: its messages have
    failed."""


class WorkerCalls(Protocol):
    """The steps that a worker does by blocking or by awaiting, according to where it runs."""

    def is_stopping(self) -> bool:
        """Whether the consumer is to stop."""
        ...

    async def pause(self, seconds: float) -> None:
        """Waits, until the consumer is to stop at the longest."""
        ...

    async def enlist(self, transaction: Transaction, name: str) -> Any:
        """The session of the resource `name` in the transaction."""
        ...

    async def receive(self, session: Any, address: str, count: int, timeout_s: float) -> Sequence[Any]:
        """A batch of messages."""
        ...

    async def renew(self, session: Any) -> None:
        """Parts what follows in a session from what was before."""
        ...

    async def dead_letter(self, session: Any, message: Any, letter: DeadLetter) -> None:
        """Sends the message away as a dead letter."""
        ...

    async def put_off(self, session: Any, message: Any, later: Postponement) -> None:
        """Sends the message again for later, and takes it."""
        ...

    async def handle(self, handler: Callable[..., Any], message: Any, transaction: Transaction) -> None:
        """Calls the handler."""
        ...

    async def within(self, transaction: Transaction, work: Coroutine[Any, Any, None]) -> None:
        """Does `work` in the block of the transaction."""
        ...

    async def commit(self, transaction: Transaction) -> None:
        """Commits."""
        ...

    async def rollback(self, transaction: Transaction) -> None:
        """Rolls back."""
        ...


class ThreadCalls:
    """`WorkerCalls` that block the worker's thread; a coroutine over them is never suspended. `leaves` names the
    resource whose answers to a commit the worker does not wait for before it goes on."""

    def __init__(self, stopping: threading.Event, leaves: str = "") -> None:
        self._stopping = stopping
        self._leaves = leaves

    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    async def pause(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    async def enlist(self, transaction: Transaction, name: str) -> Any:
        return transaction.enlist(name)

    async def receive(self, session: Any, address: str, count: int, timeout_s: float) -> Sequence[Any]:
        messages: Sequence[Any] = session.receive_batch(address, count, timeout_s)
        return messages

    async def renew(self, session: Any) -> None:
        session.renew()

    async def dead_letter(self, session: Any, message: Any, letter: DeadLetter) -> None:
        session.dead_letter(message, *letter)

    async def put_off(self, session: Any, message: Any, later: Postponement) -> None:
        session.put_off(message, *later)

    async def handle(self, handler: Callable[..., Any], message: Any, transaction: Transaction) -> None:
        try:
            handler(message, transaction)
        except asyncio.CancelledError as error:  # of an event loop of its own
            raise HandlerCancelled(_CANCELLED) from error

    async def within(self, transaction: Transaction, work: Coroutine[Any, Any, None]) -> None:
        with transaction:
            await work
            live_of(transaction).leaves = self._leaves

    async def commit(self, transaction: Transaction) -> None:
        transaction.commit()

    async def rollback(self, transaction: Transaction) -> None:
        transaction.rollback()


class TaskCalls:
    """`WorkerCalls` that await the event loop. A worker that is cancelled rolls back what it has in hand.

    They are made in the task that is cancelled for that, and `apart` runs the worker in another one. A handler can
    cancel that other one only, which is its current task. So it is known who has cancelled, and a message costs no task
    of its own.
    """

    def __init__(self, stopping: asyncio.Event) -> None:
        self._stopping = stopping
        self._owner = asyncio.current_task()
        self._process = os.getpid()

    async def apart(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Does the work of the worker, in a task of its own, which is cancelled with the one that awaits this."""
        result, error = await asyncio.create_task(_carried_out(work))
        if error is not None:
            raise error
        return cast("T", result)

    @property
    def is_cancelled(self) -> bool:
        """Whether the worker itself is, and not only what a handler runs in."""
        return self._owner is not None and self._owner.cancelling() > 0

    def is_stopping(self) -> bool:
        return self._stopping.is_set() or self.is_cancelled

    async def pause(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def enlist(self, transaction: Transaction, name: str) -> Any:
        return await transaction.aenlist(name)

    async def receive(self, session: Any, address: str, count: int, timeout_s: float) -> Sequence[Any]:
        messages: Sequence[Any] = await session.aio.receive_batch(address, count, timeout_s)
        return messages

    async def renew(self, session: Any) -> None:
        if session.holds_back:
            await finish_in_thread(session.renew)
        else:
            session.renew()

    async def dead_letter(self, session: Any, message: Any, letter: DeadLetter) -> None:
        await session.aio.dead_letter(message, *letter)

    async def put_off(self, session: Any, message: Any, later: Postponement) -> None:
        await session.aio.put_off(message, *later)

    async def handle(self, handler: Callable[..., Any], message: Any, transaction: Transaction) -> None:
        try:
            await handler(message, transaction)
        except asyncio.CancelledError as error:
            await self._take_back_cancellation()
            raise HandlerCancelled(_CANCELLED) from error
        except (Exception, SystemExit, KeyboardInterrupt):
            await self._take_back_cancellation()
            raise
        if await self._take_back_cancellation():
            raise HandlerCancelled(_CANCELLED)

    async def _take_back_cancellation(self) -> bool:
        """Takes back what a handler has cancelled its task with, so that the worker can await again. Returns whether it
        had asked for that and awaited nothing afterwards. CancelledError: the worker itself is cancelled."""
        if os.getpid() != self._process:  # a child that the handler has forked has no event loop, and ends
            return False
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            return False
        is_raised_late = False
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            is_raised_late = True

        if self.is_cancelled:
            raise asyncio.CancelledError
        while task.uncancel():
            pass
        return is_raised_late

    async def within(self, transaction: Transaction, work: Coroutine[Any, Any, None]) -> None:
        async with transaction:
            await work

    async def commit(self, transaction: Transaction) -> None:
        await transaction.acommit()

    async def rollback(self, transaction: Transaction) -> None:
        await transaction.arollback()


async def _carried_out(work: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T | None, BaseException | None]:
    """The result of `work`, or what would end the event loop where a task raised it."""
    try:
        return await work(), None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


class UnansweredCommit(NamedTuple):
    """A transaction that is decided, and whose commit has left answers, with what it was for."""

    transaction: Transaction
    wanted: str
    messages: Sequence[Any]
    unfit: Sequence[Any]
    took_s: float


class Worker:
    """One worker, the ports of its receive loop. `job` is what it shares with the others of its consumer.

    A worker in a thread goes on with the next messages as soon as every branch of the last transaction was asked to
    commit, and all resources but the one of the queue have answered. It waits for that answer before it commits the
    next transaction, or has nothing to do: so there is one such transaction at most, they are committed in the order of
    their messages, and the result of each is counted and logged as ever.
    """

    def __init__(self, number: int, job: Job, calls: WorkerCalls, sharing: Sharing | None = None) -> None:
        self._number = number
        self._job = job
        self._calls = calls
        self._sharing = sharing or Sharing(job.settings, job.timeout_s, job.statistics.clock)
        self._transaction: Transaction
        self._session: Any = None
        """That of the queue's resource, in this transaction; also when that can only be rolled back."""
        self._unfit: list[Any] = []
        """The messages of this transaction that the handler can't be called with."""
        self._attempt = COUNTED
        """What is known of this attempt, should it fail."""
        self._unanswered: UnansweredCommit | None = None
        self._misfits: set[str] = set()
        """Operations of the session that can't be called as this module says, and of which the log says so."""

    async def run(self) -> None:
        """Works until the consumer is to stop."""
        try:
            await receive_loop(self, self._job.settings, self._job.timeout_s, self._calls.is_stopping)
        finally:
            self._finish()

    async def pause(self, seconds: float) -> None:
        self._finish()
        await self._calls.pause(seconds)

    async def receive(self, count: int, *, check: bool) -> Sequence[Any] | Exception:
        job, calls, settings = self._job, self._calls, self._job.settings
        outages = job.outages
        count = min(count, self._sharing.count)
        self._sharing.transaction_begins()
        try:
            transaction = job.manager.begin(settings.timeout_s, waits=True)
            is_receiving = False
            try:
                if check or job.is_doubted:
                    await self._check_resources(transaction, outages)
                self._session = await calls.enlist(transaction, settings.resource)
                is_receiving = True
                messages = await calls.receive(self._session, settings.queue, count, settings.idle_s)
                is_receiving = False
                if messages and job.is_doubted:  # another worker has met an outage while this one waited
                    await self._check_before(messages, transaction)
            except BaseException as error:
                if is_receiving and _is_unreadable(error, count):
                    await calls.commit(transaction)
                else:
                    await calls.rollback(transaction)
                raise
            if not messages:
                await calls.rollback(transaction)
                job.received(self._number, None)
                self._finish()
                return ()
        except Exception as error:  # noqa: BLE001 — a resource manager of anybody's
            self._finish()
            job.failed_to_receive(self._number, error)
            return error

        self._transaction = transaction
        job.received(self._number, transaction, messages)
        return messages

    async def _check_before(self, messages: Sequence[Any], transaction: Transaction) -> None:
        """`_check_resources` before these messages are begun: what keeps a resource from work counts for none."""
        broker_excuses = self._excuse(messages)
        try:
            await self._check_resources(transaction, self._job.outages)
        except Exception:
            for message in messages if not broker_excuses else ():
                self._job.failures.excuse(message)
            raise

    async def _check_resources(self, transaction: Transaction, outages: int) -> None:
        """Raises what keeps one of the resources that handlers use from work."""
        for name in self._job.statistics.used:
            await self._calls.enlist(transaction, name)
        self._job.reached(outages)

    async def handle(self, messages: Sequence[Any]) -> Exception | None:
        begun: list[Any] = []
        error = await self._complete(HANDLED, begun, self._call_handler(messages, begun))
        if error is None:
            self._sharing.committed(len(begun))
            return None
        self._sharing.failed(len(begun), fault_of(error))
        if not self._attempt.broker_excuses and not hasattr(self._session, "put_back"):
            for message in messages[len(begun) :]:
                self._job.failures.excuse(message)
        return error

    async def refuse(self, messages: Sequence[Any]) -> Exception | None:
        return await self._complete(DEAD_LETTERED, messages, self._put_away(messages))

    async def give_back(self, messages: Sequence[Any]) -> Exception | None:
        return await self._complete(RETURNED, messages, self._release(messages))

    async def _complete(
        self, wanted: str, messages: Sequence[Any], work: Coroutine[Any, Any, None]
    ) -> Exception | None:
        """Does `work` in the transaction in which the messages were received, and commits it."""
        began = self._job.statistics.clock()
        error: Exception | None = None
        transaction = self._transaction
        self._unfit = []
        self._attempt = COUNTED
        if wanted != HANDLED:  # no attempt: no handler is called
            self._excuse(messages)

        try:
            await self._calls.within(transaction, self._in_order(work))
            if live_of(transaction).is_left:
                took_s = self._job.statistics.clock() - began
                self._unanswered = UnansweredCommit(transaction, wanted, messages, self._unfit, took_s)
                self._job.statistics.ended(self._number)
                return None
            error = _not_committed(transaction)
        except Exception as raised:  # noqa: BLE001 — a handler of anybody's
            error = raised
        except asyncio.CancelledError:
            self._job.statistics.ended(self._number)
            if _not_committed(transaction) is None:  # what had begun was finished first
                took_s = self._job.statistics.clock() - began
                self._job.done(wanted, messages, self._unfit, transaction, None, took_s)
            raise
        self._job.statistics.ended(self._number)
        took_s = self._job.statistics.clock() - began
        self._job.done(wanted, messages, self._unfit, transaction, error, took_s, self._attempt)
        return error

    async def _in_order(self, work: Coroutine[Any, Any, None]) -> None:
        """Does `work`; the transaction before it is finished when it is done."""
        try:
            await work
        finally:
            self._finish()

    def _finish(self) -> None:
        """Waits for the answers that the last commit has left, and reports the result."""
        unanswered, self._unanswered = self._unanswered, None
        if unanswered is None:
            return
        transaction, wanted, messages, unfit, took_s = unanswered
        error: Exception | None = None
        try:
            live_of(transaction).finish()
        except Exception as raised:  # noqa: BLE001 — it may be anything that a resource manager of anybody's raises
            error = raised
        self._job.done(wanted, messages, unfit, transaction, error, took_s)

    async def put_off(self, messages: Sequence[Any], wait_s: float) -> Exception | None:
        return await self._complete(RETURNED, messages, self._send_later(messages, wait_s))

    def history(self, message: Any) -> History:
        return self._job.history(message)

    async def _call_handler(self, messages: Sequence[Any], begun: list[Any]) -> None:
        """Has the messages handled, as long as their share goes on: those that are `begun`. Tells the broker which
        deliveries count, should the transaction be rolled back:

        1. none of several messages, because another one of them may be at fault;
        2. one that is alone, while its handler is at work, because what kills the process, or hangs, must end;
        3. and if its handler raises, unless a resource was down or another transaction in the way;
        4. not if the commit is refused, because mostly that is no fault of the message, unless it was so before.

        Messages that are not begun count for nothing.
        """
        job = self._job
        broker_excuses = len(messages) > 1 and self._excuse(messages)
        self._attempt = Attempt(broker_excuses)

        try:
            await self._lend(messages, begun)
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if len(begun) < len(messages):
                self._tell("put_back", messages[len(begun) :], stay=False)
            self._report(begun, error)
            raise

        if len(begun) < len(messages):
            self._leave(messages[len(begun) :])
        alone = len(begun) == 1
        if alone and not job.is_charged(begun[0]) and self._transaction.status is not GlobalState.MARKED:
            broker_excuses = self._excuse(begun)
        self._attempt = Attempt(broker_excuses, has_returned=True)

    async def _lend(self, messages: Sequence[Any], begun: list[Any]) -> None:
        """Calls the handler, for one message after the other, or for all of them. The transaction is the handler's to
        work in, and not to complete, because the consumption of every message is part of it. ProtocolMisuse: the
        handler has tried to, or has left it for another one."""
        transaction, sharing = self._transaction, self._sharing
        live = live_of(transaction)
        live.lent = HandlerState.TO_HANDLER
        process = os.getpid()
        sharing.begins()

        try:
            for turn in [messages] if self._job.settings.takes == "batch" else [[message] for message in messages]:
                if begun and not (await self._goes_on(transaction)):
                    break
                begun += turn
                self._attempt = self._attempt._replace(guilty=turn[0] if len(turn) == 1 else None)
                arguments, unfit = self._job.calls(turn)
                if unfit:
                    self._unfit += unfit
                    await self._put_away(unfit)

                for argument in arguments:
                    await self._calls.handle(self._job.handler, argument, transaction)
                    _end_in_fork(process)
                    self._check_lent(transaction)
                sharing.handled()
        except BaseException as error:
            _end_in_fork(process, error)
            live.lent = HandlerState.FAILED  # what the handler has left running can't commit it now
            await self._restore(transaction)
            raise
        live.lent = None

    async def _goes_on(self, transaction: Transaction) -> bool:
        """Whether the next message is begun in the same transaction. It finds nothing of the one before in its
        sessions. Where something keeps the transaction from being committed, raises what the commit would: then the
        message before has failed, whose handler has hidden it."""
        if not self._sharing.goes_on or self._calls.is_stopping():
            return False
        live = live_of(transaction)
        if transaction.status is GlobalState.MARKED:
            raise live.refused()
        live.check_active("handle the next message of its share")
        for session in live.enlisted.sessions:
            if hasattr(session, "renew"):
                try:
                    await self._calls.renew(session)
                except XaError as error:
                    raise live.refused(Reason(live.enlisted.branch_of(session), error)) from error
        return True

    def _leave(self, messages: Sequence[Any], *, stay: bool | None = None) -> None:
        """These messages are not begun in this transaction. They `stay` with the worker, if the next transaction will
        take all of them."""
        if self._transaction.is_over:  # it took too long: its commit says so
            return
        if self._calls.is_stopping() or not hasattr(self._session, "put_back"):
            for message in messages:
                self._session.release(message)
        else:
            fit = len(messages) <= self._sharing.count
            self._session.put_back(messages, stay=fit if stay is None else stay)

    def _check_lent(self, transaction: Transaction) -> None:
        if live_of(transaction).lent is not HandlerState.TO_HANDLER:
            raise ProtocolMisuse(
                f"the handler has tried to complete {transaction}, which is the consumer's; raise instead"
            )
        if transaction.suspended:
            raise ProtocolMisuse(
                f"the handler has left transaction {transaction} suspended: resume it before you return"
            )
        if self._job.manager.current_or_none() is not transaction and not transaction.is_over:
            raise ProtocolMisuse(f"the handler has left another transaction current than its own, {transaction}")

    async def _restore(self, transaction: Transaction) -> None:
        """Ends the transactions that the handler has begun, and left current."""
        manager = self._job.manager
        while (stray := manager.current_or_none()) is not None and stray is not transaction:
            with suppress(TransactionError):  # the log has it
                await self._calls.rollback(stray)
            manager.detach(live_of(stray))

    # --- what a rollback counts -----------------------------------------------------------------------------------

    def _report(self, begun: Sequence[Any], error: BaseException) -> None:
        """The handler, or what parts its calls, has raised this."""
        if isinstance(error, asyncio.CancelledError):  # the worker is to end
            self._excuse(begun)
        elif isinstance(error, SystemExit):  # the consumer is to end, for this message
            if len(begun) == 1:
                self._tell("explain", begun[0], reason_from(error), place_of(error))
        elif isinstance(error, Exception):
            self._attempt = self._attempt._replace(is_late=self._transaction.expired)
            self._blame(begun, error)

    def _blame(self, messages: Sequence[Any], error: Exception) -> None:
        """Tells the broker which of the messages has failed, and with what; the transaction is rolled back now."""
        fault, guilty = self._attempt.fault_of(error), self._attempt.guilty
        if fault.is_excused:
            self._attempt = Attempt(self._excuse(messages))
        elif fault is Fault.MESSAGE and len(messages) == 1:
            is_explained = self._tell("explain", messages[0], reason_from(error), place_of(error)) is not _UNTOLD
            self._attempt = self._attempt._replace(is_explained=is_explained)
        elif fault is Fault.MESSAGE and guilty is not None:
            self._tell("excuse", (guilty,), reason_from(error), place_of(error))

    def _excuse(self, messages: Sequence[Any]) -> bool:
        """Tells the broker that a rollback counts for none of the messages; whether it does so."""
        broker_excuses = self._tell("excuse", messages) is True
        self._job.broker_excuses = self._job.broker_excuses or broker_excuses
        return broker_excuses

    def _tell(self, what: str, *arguments: Any, **named: Any) -> Any:
        method = getattr(self._session, what, None)
        if method is None:
            return _UNTOLD

        try:
            return method(*arguments, **named)
        except TypeError:
            if what not in self._misfits and not _takes(method, arguments, named):
                self._misfits.add(what)
                of = type(self._session).__qualname__
                logger.exception("consumer of %s: %s of %s can't be called", self._job.settings.queue, what, of)
        except Exception:  # noqa: BLE001, S110 — the session may be what has failed; the error of the attempt counts
            pass
        return _UNTOLD

    async def _put_away(self, messages: Sequence[Any]) -> None:
        if not messages:
            return
        session = self._job.session(self._transaction)
        for message in messages:
            letter = self._job.dead_letter(message)
            if letter.address:
                await self._calls.dead_letter(session, message, letter)
            else:
                session.reject(message)

    async def _send_later(self, messages: Sequence[Any], wait_s: float) -> None:
        session = self._job.session(self._transaction)
        if not hasattr(session, "put_off"):
            raise ProtocolMisuse(
                f'consumer of {self._job.settings.queue}: retry_waits="broker": {self._job.settings.resource} has no '
                "messages for later; leave the wait to the worker"
            )
        for message in messages:
            await self._calls.put_off(session, message, self._job.later(message, wait_s))

    async def _release(self, messages: Sequence[Any]) -> None:
        self._leave(messages, stay=False)


def _takes(method: Callable[..., Any], arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether a method takes these arguments, as far as it says what it takes."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*arguments, **named)
    except TypeError:
        return False
    return True


def _end_in_fork(process: int, error: BaseException | None = None) -> None:
    """Ends a child that the handler has forked off, and in which it has come to its end, too: transaction, connections
    and messages are those of its parent."""
    if os.getpid() == process:
        return
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    else:
        logger.error("a fork of process %d has left the handler, and is ended", process, exc_info=error)
    os._exit(status & 0xFF)


def _is_unreadable(error: BaseException, count: int) -> bool:
    """Whether the one message of `count` that was received may be one that can't be read: what a session refuses when
    the branch is committed. Where it is something else nothing was received, and nothing is committed."""
    return count == 1 and isinstance(error, XaError) and error.code is Code.XAER_RMERR


def _not_committed(transaction: Transaction) -> Exception | None:
    """The error where a handler has completed its transaction itself, and otherwise than by commit."""
    outcome = transaction.outcome
    if outcome is not None and outcome.verdict is Verdict.COMMITTED:
        return None
    return ProtocolMisuse(f"the handler has completed transaction {transaction} itself; raise instead")
