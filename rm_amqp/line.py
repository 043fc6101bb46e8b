"""Line: the blocking shell: a core with its socket, driven by whoever waits for something.

There is no thread between caller and socket. The caller runs steps: it writes what the core has to say, and reads,
until the steps are done. When several threads wait on one line, one of them reads for all: the lock is not held while
it waits for the socket, so that the others can write, and the keeper can keep an idle line alive. Of those who wait,
each is woken when what it waits for is there (all, where it has not said what that is), and one to read for the others
when nobody does any more: to wake everybody for everything would cost more than all else, with many threads. Tasks of
an event loop that wait on it are woken whenever something has come; where no thread waits one of them watches the
socket.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from rm_amqp.core import closed
from rm_amqp.loss import Cause, ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rm_amqp.core import Core, Steps

    Ready = Callable[[], object]

T = TypeVar("T")
READ: Final = 65_536
BUSY_S: Final = 0.05


class Running(Generic[T]):
    """Steps on their way: until when they wait, and for what, or their result. `wake` says to whoever waits, from any
    thread, that something happened."""

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
        """Held until it is woken."""
        self.turn.acquire()


class Line(Protocol):
    """A connection that steps can be run over; by any thread, several at a time."""

    core: Core

    @property
    def round_trips(self) -> int:
        """How often somebody had to wait for the broker after something was sent."""
        ...

    def run(self, steps: Steps[T], *, later: bool = False, ready: Ready | None = None) -> T:
        """Runs steps to their end, and returns or raises what comes of them. With `later`, what they leave to be
        written, since they last waited, may wait for the next ones, or for the keeper. `ready` says whether what the
        steps wait for is there; it is called with the lock, by whoever reads."""
        ...

    def begin(self, steps: Steps[T], wake: Callable[[], None], *, later: bool = False) -> Running[T]:
        """Runs steps as far as they don't wait. Whoever waits for them in another way than `run` does so until `wake`
        is called or their deadline has come, on `fileno` too where they read, and then calls `resume`, or `cancel`."""
        ...

    def resume(self, running: Running[T]) -> None:
        """Goes on with steps."""
        ...

    def cancel(self, running: Running[T]) -> None:
        """Nobody waits for these steps any more."""
        ...

    def fileno(self) -> int:
        """What to wait on; negative when it is closed."""
        ...

    def refresh(self) -> None:
        """Takes what has come, without waiting: a connection that was closed meanwhile is known to be."""
        ...

    def close(self, deadline: float) -> None:
        """Says goodbye, waits until `deadline` at most for the broker's, and closes; a line that is broken is just
        dropped."""
        ...

    def drop(self) -> None:
        """Closes at once, without a word."""
        ...


class Poll(Protocol):
    """What waits for sockets; as `select.poll` makes it."""

    def register(self, descriptor: socket.socket, mask: int, /) -> object:
        """It waits for this socket too."""
        ...

    def poll(self, timeout_ms: float, /) -> list[tuple[int, int]]:
        """What is ready, at the latest after that time."""
        ...


class SocketLine:
    """A line over a socket that is connected. `make_poll` makes what waits for it."""

    def __init__(self, connected: socket.socket, core: Core, make_poll: Callable[[], Poll] = select.poll) -> None:
        connected.setblocking(False)
        self.core = core
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
        self._running: set[Running[Any]] = set()
        """What is waited for in another way."""
        self._unsent: deque[bytes | memoryview] = deque()
        self._asked = False
        """Whether something was written since somebody last waited."""
        self._in_step = False
        """Whether a thread is between two states in which the engine and what is unsent are whole."""
        self._dropped = False

    # -- steps
    def run(self, steps: Steps[T], *, later: bool = False, ready: Ready | None = None) -> T:
        """As Line says."""
        with self._lock:
            self._enter()
            try:
                deadline = next(steps)
                while True:
                    self.flush()
                    self._wait(deadline, ready)
                    deadline = next(steps)
            except StopIteration as end:
                if not later:
                    self.flush()
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
                self._tell()

    def _enter(self) -> None:
        """Begins a step. Ctrl-C may come at any instruction of the main thread, twice even: half a frame, or half a
        message, may be on its way then, and whoever used the connection next would go on in the middle of it. So a
        connection in whose step a thread was interrupted is lost, and its branches are rolled back with it."""
        if self._in_step:
            self._give_up()
        self._in_step = True

    @contextlib.contextmanager
    def _step_of_its_own(self) -> Iterator[None]:
        """A step that waits for nothing."""
        self._enter()
        try:
            yield
        except Exception:
            self._in_step = False
            raise
        else:
            self._in_step = False
        finally:
            if self._in_step:
                self._give_up()

    def _give_up(self) -> None:
        self.core.lose("a thread was interrupted while it used the connection")
        self._unsent.clear()
        self._in_step = self._reading = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def begin(self, steps: Steps[T], wake: Callable[[], None], *, later: bool = False) -> Running[T]:
        """As Line says."""
        running = Running(steps, wake, later=later)
        with self._lock, self._step_of_its_own():
            self._running.add(running)
            self._step(running)
        return running

    def resume(self, running: Running[T]) -> None:
        """As Line says."""
        with self._lock, self._step_of_its_own():
            if not self._reading and self.read():  # a thread that waits for the socket would not hear of what is gone
                self._tell(running)
            self._step(running)

    def cancel(self, running: Running[T]) -> None:
        """As Line says."""
        with self._lock, self._step_of_its_own():
            running.steps.close()
            self._over(running)

    def fileno(self) -> int:
        """As Line says."""
        return self._socket.fileno()

    def _step(self, running: Running[T]) -> None:
        running.reads = running.writes = False
        try:
            running.deadline = next(running.steps)
            self.flush()
        except StopIteration as end:
            running.result = end.value
            running.done = True
            if not running.later:
                self.flush()
            self._over(running)
        except BaseException:
            self._over(running)
            raise
        else:
            if self._asked:
                self._asked = False
                self.round_trips += 1
            running.writes = bool(self._unsent) and not any(other.writes for other in self._running)
            running.reads = not self._reading and not any(other.reads for other in self._running)

    def _over(self, running: Running[Any]) -> None:
        """Nobody waits for it any more: another one reads."""
        self._running.discard(running)
        self._tell()

    def _tell(self, teller: Running[Any] | None = None, *, reads: bool = False) -> None:
        """Something happened that the others may wait for; `reads` as in `_rouse`."""
        if self._waiters:
            self._rouse(reads=reads)
        for running in self._running:
            if running is not teller:
                running.wake()

    def _wait(self, deadline: float, ready: Ready | None) -> None:
        """Waits until something happened or the time has come. The lock is held before and after."""
        timeout_s = deadline - self.core.clock()
        if timeout_s <= 0 or self.core.lost is not None:
            self.read()
            return
        if self._asked:
            self._asked = False
            self.round_trips += 1
        if self._reading and not self._unsent:
            self._wait_turn(Waiter(ready), timeout_s)
            return
        reads = not self._reading
        poll = self._both if self._unsent else self._readable
        try:  # Ctrl-C interrupts an application that receives: nearly always here
            self._reading = True
            self._in_step = False
            self._lock.release()
            events = poll.poll(timeout_s * 1000 + 1)
        finally:
            self._lock.acquire()
            self._enter()
            if reads:
                self._reading = False
        if events:
            self.read()
        self._tell(reads=reads)

    def _wait_turn(self, waiter: Waiter, timeout_s: float) -> None:
        """Waits until somebody wakes this one. The lock is held before and after."""
        self._waiters.append(waiter)
        try:
            self._in_step = False
            self._lock.release()
            waiter.turn.acquire(timeout=timeout_s)
        finally:
            self._lock.acquire()
            self._enter()
            with contextlib.suppress(ValueError):  # whoever woke it has taken it out
                self._waiters.remove(waiter)

    def _rouse(self, *, reads: bool = False) -> None:
        """Wakes those whose wait is over, and somebody to read where nobody does: `reads` says that the caller will go
        on to, or call this again."""
        lost, left = self.core.lost is not None, []
        for waiter in self._waiters:
            if lost or waiter.ready is None or waiter.ready():
                waiter.turn.release()
            else:
                left.append(waiter)
        if left and not reads and not self._reading:
            left.pop(0).turn.release()
        self._waiters = left

    # -- octets; with the lock
    def flush(self) -> None:
        """Writes what there is to write, as far as the socket takes it."""
        unsent = self._unsent
        for octets in self.core.output():
            if octets:
                unsent.append(octets)
                self._asked = True
        while unsent and not self._dropped:
            try:
                count = self._socket.send(unsent[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                unsent.clear()
                self.core.lose(error.strerror or str(error))
                return
            if count == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = memoryview(unsent[0])[count:]

    def read(self) -> bool:
        """Reads what has come; whether there was something."""
        if self._dropped:
            return False
        try:
            octets = self._socket.recv(READ)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.core.lose(error.strerror or str(error))
            return True
        if octets:
            self.core.received(octets)
        else:
            self.core.end_of_file()
        return True

    # -- idle
    def refresh(self) -> None:
        """As Line says."""
        with self._lock, self._step_of_its_own():
            self._take()

    def _take(self) -> None:
        if self._reading:  # somebody else does
            return
        while self.core.lost is None and self.read():
            self._tell()

    def keep(self) -> float | None:
        """As Kept says."""
        if self._dropped or self.core.lost is not None:
            return None
        if not self._lock.acquire(blocking=False):  # somebody is at it
            return self.core.clock() + BUSY_S
        try:
            with self._step_of_its_own():
                self._take()
                due = self.core.tick()
                self.flush()
                self._wake_where_lost()
                self._tell()
            return due
        finally:
            self._lock.release()

    def _wake_where_lost(self) -> None:
        """A connection that was given up has somebody waiting for its socket."""
        if self.core.lost is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    # -- the end
    def close(self, deadline: float) -> None:
        """As Line says."""
        with contextlib.suppress(ConnectionLost):
            self.run(closed(self.core, deadline))
        self.drop()

    def drop(self) -> None:
        """As Line says."""
        with self._lock:
            if not self._dropped:
                self._dropped = True
                self.core.lose("it was closed", Cause.CLOSED)
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for it
                self._socket.close()
                self._tell()
