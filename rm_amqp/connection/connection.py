"""A connection as those who use it have it: an endpoint and its socket, driven by the thread that waits for something.

There is no thread between caller and socket. `Connection.run` runs steps (`rm_amqp.connection.endpoint.Steps`) in the
thread of its caller: it writes what the endpoint has to say, waits for the socket, and reads, until the steps are done.

Several threads may run steps on one connection. One of those that wait then reads for all. It does not hold the lock
while it waits for the socket, so that the others can write, and an idle connection can be kept alive. After it has
read, it wakes each thread whose answer has come. It wakes all of them only where they don't say what they wait for:
with many threads, waking everybody for everything would cost more than all else. When no thread reads any more, one of
those that wait is woken to do so.

Tasks of an event loop wait in another way (`rm_amqp.connection.event_loop`). They are woken whenever something has
come; where no thread waits, one of them watches the socket.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from rm_amqp.connection.endpoint import close
from rm_amqp.errors import Cause, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from rm_amqp.connection.endpoint import Endpoint, Steps

    Ready = Callable[[], object]

T = TypeVar("T")
READ: Final = 65_536
MAX_COPIED: Final = 262_144
"""Octets that are copied together for one write; more than this goes in several, because the copy costs more."""
BUSY_S: Final = 0.05
"""How soon maintenance is tried again on a connection that somebody is using."""


class RunningSteps(Generic[T]):
    """A run of steps for which no thread blocks: until when they wait, and for what; or their result. `wake` tells
    the waiting caller, from any thread, that something happened."""

    __slots__ = ("deadline", "done", "later", "reads", "result", "steps", "wake", "writes")

    def __init__(self, steps: Steps[T], wake: Callable[[], None], *, later: bool) -> None:
        self.steps = steps
        self.wake = wake
        self.later = later
        self.deadline = 0.0
        self.done = False
        self.reads = False
        """Whether it is the one that watches the socket, and reads for all; the others are woken."""
        self.writes = False
        """Whether it is the one that watches until the socket takes more."""
        self.result: T


class Waiter:
    """A thread that waits while another one reads."""

    __slots__ = ("ready", "turn")

    def __init__(self, ready: Ready | None) -> None:
        self.ready = ready
        self.turn = threading.Lock()
        """Held until the thread is woken."""
        self.turn.acquire()


class Connection(Protocol):
    """A connection on which any thread may run steps, several at a time."""

    endpoint: Endpoint

    @property
    def round_trips(self) -> int:
        """How often a caller had to wait for the broker after something was sent."""
        ...

    def run(self, steps: Steps[T], *, later: bool = False, ready: Ready | None = None) -> T:
        """Runs steps to their end, and returns or raises what comes of them.

        With `later`, what they leave to be written, since they last waited, may wait for the next steps, or for
        maintenance. `ready` says whether what the steps wait for is there; the thread that reads calls it, with the
        lock."""
        ...

    def step(self, call: Callable[[], T], *, later: bool = False) -> T:
        """Calls what waits for nothing. With `later`, what it leaves to be written waits as in `run`."""
        ...

    def begin(self, steps: Steps[T], wake: Callable[[], None], *, later: bool = False) -> RunningSteps[T]:
        """Runs steps until they wait. The caller then waits in its own way: until `wake` is called, or the deadline of
        the run has come, or, where the run reads, `fileno` is readable. Then it calls `resume`, or `cancel`."""
        ...

    def resume(self, run: RunningSteps[T]) -> None:
        """Goes on with steps."""
        ...

    def cancel(self, run: RunningSteps[T]) -> None:
        """Gives up these steps, for which no one waits any more."""
        ...

    def fileno(self) -> int:
        """The descriptor to wait on; negative when it is closed."""
        ...

    def refresh(self) -> None:
        """Takes what has come, without waiting, so that a connection that was closed meanwhile is known to be."""
        ...

    def close(self, deadline: float) -> None:
        """Sends a close, waits until `deadline` at most for the broker's, and closes the socket; of a connection that
        is broken it just closes the socket."""
        ...

    def drop(self) -> None:
        """Closes the socket at once, without a word."""
        ...

    def break_off(self) -> None:
        """Breaks the connection while other threads wait for it, as a network does that fails. It never waits."""
        ...


class Poll(Protocol):
    """The object that waits for sockets, as `select.poll` makes it."""

    def register(self, descriptor: socket.socket, mask: int, /) -> object:
        """It waits for this socket too."""
        ...

    def poll(self, timeout_ms: float, /) -> list[tuple[int, int]]:
        """The descriptors that are ready, at the latest after that time."""
        ...


class SocketConnection:
    """A connection over a socket that is connected. `make_poll` makes what waits for it."""

    def __init__(
        self, connected: socket.socket, endpoint: Endpoint, make_poll: Callable[[], Poll] = select.poll
    ) -> None:
        connected.setblocking(False)
        self.endpoint = endpoint
        self.round_trips = 0
        self._socket = connected
        self._lock = threading.Lock()
        self._readable = make_poll()
        self._readable.register(connected, select.POLLIN)
        self._both = make_poll()
        self._both.register(connected, select.POLLIN | select.POLLOUT)

        self._reading = False
        """Whether a thread waits for the socket, and reads for all."""
        self._waiters: list[Waiter] = []
        """The other threads, which wait for what it reads."""
        self._runs: set[RunningSteps[Any]] = set()
        """Steps for which no thread blocks."""
        self._unsent: deque[bytes | memoryview] = deque()
        self._asked = False
        """Whether something was written since a caller last waited."""
        self._in_step = False
        """Whether a thread is changing the engine, or what is unsent; while it is not, both are whole."""
        self._dropped = False

    # -- steps that block
    def run(self, steps: Steps[T], *, later: bool = False, ready: Ready | None = None) -> T:
        with self._lock:
            if self._in_step:
                self._give_up()
            self._in_step = True

            try:
                deadline = steps.send(None)
                asked_before = not self._flush()
                while True:
                    octets = self._wait(deadline, ready, asked_before=asked_before)
                    if octets is not None:
                        self.endpoint.received(octets)
                    if self._waiters or self._runs:
                        self._notify(reads=True)
                    deadline = steps.send(None)
                    self._flush()
                    asked_before = False
            except StopIteration as end:
                if not later:
                    self._flush()
                self._in_step = False
                result: T = end.value
                return result
            except Exception:
                self._in_step = False
                raise
            except BaseException:
                self._give_up()
                raise
            finally:
                if self._in_step:
                    self._give_up()
                if self._waiters or self._runs:
                    self._notify()

    def step(self, call: Callable[[], T], *, later: bool = False) -> T:
        with self._lock:
            if self._in_step:
                self._give_up()
            self._in_step = True

            try:
                result = call()
                if not later:
                    self._flush()
            except Exception:
                self._in_step = False
                raise
            else:
                self._in_step = False
                return result
            finally:
                if self._in_step:
                    self._give_up()

    def _give_up(self) -> None:
        """Loses a connection in whose step a thread was interrupted.

        Ctrl-C may come at any instruction of the main thread, twice even. Half a frame, or half a message, may be on
        its way then, and the next user of the connection would go on in the middle of it. So a thread that begins a
        step while the one before has not ended gives the connection up, and its branches are rolled back with it."""
        self.endpoint.lose("a thread was interrupted while it used the connection")
        self._unsent.clear()
        self._in_step = self._reading = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _wait(self, deadline: float, ready: Ready | None, *, asked_before: bool) -> bytes | None:
        """Waits until something happened or the time has come; what was read. The lock is held before and after. With
        `asked_before` the answer may be there already, and it is read without asking whether it is."""
        timeout_s = deadline - self.endpoint.clock()
        if timeout_s <= 0 or self.endpoint.lost is not None:
            return self._receive()
        if self._asked:
            self._asked = False
            self.round_trips += 1

        if self._reading and not self._unsent:
            self._wait_turn(Waiter(ready), timeout_s)
            return None
        if asked_before and not self._reading and (octets := self._receive()) is not None:
            return octets
        reads = not self._reading
        poll = self._both if self._unsent else self._readable
        try:  # where Ctrl-C nearly always interrupts an application that receives: between two steps
            self._reading = True
            self._in_step = False
            self._lock.release()
            events = poll.poll(timeout_s * 1000 + 1)
        finally:
            self._lock.acquire()
            if self._in_step:
                self._give_up()
            self._in_step = True
            if reads:
                self._reading = False
        return self._receive() if events else None

    def _wait_turn(self, waiter: Waiter, timeout_s: float) -> None:
        """Waits until another thread wakes this one. The lock is held before and after."""
        self._waiters.append(waiter)
        try:
            self._in_step = False
            self._lock.release()
            waiter.turn.acquire(timeout=timeout_s)
        finally:
            self._lock.acquire()
            if self._in_step:
                self._give_up()
            self._in_step = True
            with contextlib.suppress(ValueError):  # the thread that woke it has taken it out
                self._waiters.remove(waiter)

    # -- steps for which no thread blocks
    def begin(self, steps: Steps[T], wake: Callable[[], None], *, later: bool = False) -> RunningSteps[T]:
        run = RunningSteps(steps, wake, later=later)

        def first() -> None:
            self._runs.add(run)
            self._advance(run)

        self.step(first, later=True)
        return run

    def resume(self, run: RunningSteps[T]) -> None:
        def following() -> None:
            # a thread that waits for the socket would not notice what is read here
            if not self._reading and self._read():
                self._notify(run)
            self._advance(run)

        self.step(following, later=True)

    def cancel(self, run: RunningSteps[T]) -> None:
        def last() -> None:
            run.steps.close()
            self._end(run)

        self.step(last, later=True)

    def fileno(self) -> int:
        return self._socket.fileno()

    def _advance(self, run: RunningSteps[T]) -> None:
        run.reads = run.writes = False
        try:
            run.deadline = run.steps.send(None)
            self._flush()
        except StopIteration as end:
            run.result = end.value
            run.done = True
            if not run.later:
                self._flush()
            self._end(run)
        except BaseException:
            self._end(run)
            raise
        else:
            if self._asked:
                self._asked = False
                self.round_trips += 1

            run.writes = bool(self._unsent) and not any(other.writes for other in self._runs)
            run.reads = not self._reading and not any(other.reads for other in self._runs)

    def _end(self, run: RunningSteps[Any]) -> None:
        """No thread waits for these steps any more: another thread reads."""
        self._runs.discard(run)
        self._notify()

    # -- waking the others
    def _notify(self, notifier: RunningSteps[Any] | None = None, *, reads: bool = False) -> None:
        """Something happened that the others may wait for; `reads` as in `_wake_waiters`."""
        if self._waiters:
            self._wake_waiters(reads=reads)
        for run in self._runs:
            if run is not notifier:
                run.wake()

    def _wake_waiters(self, *, reads: bool = False) -> None:
        """Wakes the threads whose wait is over, and one to read where none does. `reads`: the caller will go on
        reading, or call this again."""
        lost, left = self.endpoint.lost is not None, []
        for waiter in self._waiters:
            if lost or waiter.ready is None or waiter.ready():
                waiter.turn.release()
            else:
                left.append(waiter)
        if left and not reads and not self._reading:
            left.pop(0).turn.release()
        self._waiters = left

    # -- octets; with the lock
    def _flush(self) -> bool:
        """Writes what there is to write, as far as the socket takes it; whether there was something new."""
        unsent, endpoint = self._unsent, self.endpoint
        endpoint.stage()
        staged = endpoint.staged
        is_new = bool(staged)
        if is_new:
            self._asked = True
            if len(staged) > 1 and sum(map(len, staged)) <= MAX_COPIED:
                unsent.append(b"".join(staged))
            else:
                unsent.extend(staged)
            staged.clear()

        while unsent and not self._dropped:
            try:
                count = self._socket.send(unsent[0])
            except (BlockingIOError, InterruptedError):
                break
            except OSError as error:
                unsent.clear()
                self.endpoint.lose(error.strerror or str(error))
                break
            if count == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = memoryview(unsent[0])[count:]
        return is_new

    def _receive(self) -> bytes | None:
        """What has come: nothing at the end, None where there is none now."""
        if self._dropped:
            return None
        try:
            return self._socket.recv(READ)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            self.endpoint.lose(error.strerror or str(error))
            return b""

    def _read(self) -> bool:
        """Reads what has come; whether there was something."""
        octets = self._receive()
        if octets is None:
            return False
        self.endpoint.received(octets)
        return True

    # -- idle
    def refresh(self) -> None:
        with self._lock:
            if self._in_step:
                self._give_up()
            self._in_step = True

            try:
                # a thread that waits for the socket reads for all
                while not self._reading and self.endpoint.lost is None and (octets := self._receive()) is not None:
                    self.endpoint.received(octets)
                    self._notify()
            except Exception:
                self._in_step = False
                raise
            else:
                self._in_step = False
            finally:
                if self._in_step:
                    self._give_up()

    def maintain(self) -> float | None:
        """Keeps an idle connection alive (`xa.keep_alive`)."""
        if self._dropped or self.endpoint.lost is not None:
            return None
        if self._lock.locked():  # somebody is using it
            return self.endpoint.clock() + BUSY_S
        return self.step(self._keep_alive, later=True)

    def _keep_alive(self) -> float:
        while not self._reading and self.endpoint.lost is None and self._read():
            self._notify()
        due_s = self.endpoint.tick()
        self._flush()
        if self.endpoint.lost is not None:  # somebody waits for the socket of a connection that is given up
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._notify()
        return due_s

    # -- the end
    def close(self, deadline: float) -> None:
        with contextlib.suppress(ConnectionLost):
            self.run(close(self.endpoint, deadline))
        self.drop()

    def break_off(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        with self._lock:
            if not self._dropped:
                self._dropped = True
                self.endpoint.lose("it was closed", Cause.CLOSED)
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
                self._socket.close()
                self._notify()
