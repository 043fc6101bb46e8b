"""Connected: what the verbs of the resource manager stand on: open state, threads of control, the command channel,
and what becomes of errors.

A thread of control that hears XAER_RMFAIL has lost its associations: its channel is dropped, so that the broker knows
it too, and the thread has to call open.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
import weakref
from typing import TYPE_CHECKING, Final, TypeVar

from dtx.protocol.conditions import RefusedError
from dtx.protocol.replies import Result as Told
from rm_amqp.bulk import selected
from rm_amqp.command import commanding
from rm_amqp.connecting import connect
from rm_amqp.core import Core
from rm_amqp.keeper import KEEPER
from rm_amqp.loss import Cause, ConnectionLost, TimedOut
from rm_amqp.pool import Dialler, Pool
from rm_amqp.standing import Asked, Standing
from xa import EXCEPTIONS, Code, check_flags, thread_of_control, xa_error
from xa.machine import advance
from xa.tables import RESOURCE, ResourceState, ResourceVerb

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.protocol.commands import Coordination
    from dtx.protocol.conditions import Refusal
    from dtx.protocol.replies import Reply
    from rm_amqp.bulk import BulkChannel
    from rm_amqp.command import Command
    from rm_amqp.core import Steps
    from rm_amqp.keeper import Kept
    from rm_amqp.line import Line
    from rm_amqp.settings import Broker, Settings
    from xa import ThreadOfControl, XaError, Xid

    Connect = Callable[[Settings, float, Callable[[Broker], Core]], Line]

T = TypeVar("T")
GOODBYE_S: Final = 2.0
"""How long the broker may take to answer the goodbyes of all connections."""
R0, R1 = ResourceState.R0, ResourceState.R1
_OPENS: Final = frozenset({"open", "start"})
"""Verbs at which a broker that can be reached and not used is XAER_RMERR. At the others that code would say something
of the branch: at commit and rollback, that its work was rolled back."""
_UNDECIDED: Final = frozenset({"commit", "rollback"})
"""Verbs for which a refusal means that nothing was done: what became of a branch is told as a result."""
_LEFT: Final = {
    **dict.fromkeys(("start", "work", "end"), "; the branch was not prepared and is rolled back"),
    **dict.fromkeys(("prepare", "commit", "rollback"), "; its outcome is unknown here, and recovery finishes it"),
}
"""What a lost connection leaves behind, by the verb."""


def failure(verb: str, why: ConnectionLost | TimedOut, xid: Xid | None = None) -> XaError:
    """XAER_RMFAIL, or XAER_RMERR where a connection to be opened is to a broker that can be reached and not used."""
    unusable = isinstance(why, ConnectionLost) and why.cause is Cause.UNUSABLE
    code = Code.XAER_RMERR if unusable and verb in _OPENS else Code.XAER_RMFAIL
    told = _LEFT.get(verb, "") if code is Code.XAER_RMFAIL else ""
    return xa_error(code, f"{verb}: {why}{told}", xid)


def refusal_error(verb: str, refusal: Refusal, xid: Xid | None = None) -> XaError:
    """What the broker refused, as XA has it."""
    code = refusal.code if refusal.code in EXCEPTIONS else Code.XAER_RMERR
    if code is Code.XAER_RMERR and verb in _UNDECIDED:
        code = Code.XA_RETRY
    return xa_error(code, f"{verb}: {refusal.description or refusal.condition}", xid or refusal.xid)


class Connected:
    """The connections of one resource manager instance, and its threads of control."""

    flags = 0

    def __init__(
        self,
        connect: Connect = connect,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        nonce: Callable[[int], bytes] = os.urandom,
        keep: Callable[[Kept], None] = KEEPER.keep,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._sleep = sleep
        self._nonce = nonce
        self._keep = keep
        self._state = R0
        self._rmid = 0
        self._settings: Settings | None = None
        self._pool: Pool | None = None
        self._dial: Dialler | None = None
        self._lock = threading.RLock()
        self._command_lock = threading.Lock()
        self._command: tuple[Command, Line] | None = None
        self._spent = 0
        self._standings: weakref.WeakKeyDictionary[ThreadOfControl, Standing] = weakref.WeakKeyDictionary()
        self._containers = itertools.count(1)
        self.container = f"xabridge-{uuid.UUID(bytes=nonce(16), version=4)}"
        """What every connection of this instance tells the broker as its name, with a number behind it."""

    @staticmethod
    def _select(core: Core, settings: Settings, deadline: float) -> Steps[BulkChannel]:
        """Makes a connection a transactional channel."""
        return selected(core, settings, deadline)

    # -- settings and connections
    @property
    def settings(self) -> Settings:
        """What the open string says; the instance is open."""
        if self._settings is None:
            raise xa_error(Code.XAER_PROTO, "the resource manager is not open")
        return self._settings

    @property
    def pool(self) -> Pool:
        """The transactional channels; the instance is open."""
        if self._pool is None:
            raise xa_error(Code.XAER_PROTO, "the resource manager is not open")
        return self._pool

    def deadline(self) -> float:
        """Until when a call that begins now may take."""
        return self._clock() + self.settings.timeout_s

    @property
    def round_trips(self) -> int:
        """How often, in all, a caller has waited for the broker after something was sent."""
        command = self._command
        pool = self._pool
        return self._spent + (pool.round_trips if pool else 0) + (command[1].round_trips if command else 0)

    def _dialler(self, settings: Settings) -> Dialler:
        tls = settings.tls_context()

        def core_for(broker: Broker) -> Core:
            container = f"{self.container}-{next(self._containers)}"
            return Core(settings, broker, container, self._clock, self._nonce, tls)

        return Dialler(lambda deadline: self._connect(settings, deadline, core_for), self._clock, self._sleep)

    def _use(self, settings: Settings) -> None:
        """From now on connections are made with these settings."""
        self._dial = self._dialler(settings)
        self._settings = settings
        self._pool = Pool(settings, self._dial, self._clock, self._select)
        self._keep(self._pool)

    def _commanding(self, deadline: float) -> tuple[Command, Line]:
        """The command channel, made anew where it is gone."""
        with self._command_lock:
            if self._command is not None:
                command, line = self._command
                line.refresh()
                if not command.broken:
                    return self._command
                self._command = None
                self._spent += line.round_trips
                line.drop()
            if self._dial is None:
                raise xa_error(Code.XAER_PROTO, "the resource manager is not open")
            line = self._dial(deadline)
            try:
                command = line.run(commanding(line.core, deadline))
            except BaseException:
                line.drop()
                raise
            self._command = command, line
            return self._command

    def _disconnect(self) -> None:
        """Closes every connection."""
        deadline = self._clock() + GOODBYE_S
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(deadline)
            self._spent += pool.round_trips
        with self._command_lock:
            command, self._command = self._command, None
        if command is not None:
            self._spent += command[1].round_trips
            command[1].close(deadline)

    def drop(self) -> None:
        """Closes every connection at once, without a word: as if the process had died."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.drop()
        if self._command is not None:
            self._command[1].drop()
        self._state = R0

    # -- open
    def _begin_open(self, settings: Settings, rmid: int) -> None:
        """Checks what `open` is asked, and makes ready to connect with these settings. XAER_INVAL."""
        with self._lock:
            if self._state is R1 and rmid != self._rmid:
                raise xa_error(Code.XAER_INVAL, f"open: is open under rmid {self._rmid} already, not {rmid}")
            if self._state is R1 and settings != self._settings:
                raise xa_error(Code.XAER_INVAL, "open: is open already, with another open string")
            if self._pool is None or settings != self._settings:
                self._disconnect()
                self._use(settings)

    def _end_open(self, standing: Standing, rmid: int) -> None:
        """The resource was reached: the instance is open, for this thread too where it had heard XAER_RMFAIL."""
        with self._lock:
            standing.lost = False
            self._rmid = rmid
            self._state = advance(RESOURCE, self._state, ResourceVerb.OPEN)

    # -- who calls
    def _standing(self) -> Standing:
        """What is known of the calling thread of control."""
        control = thread_of_control()
        standing = self._standings.get(control)
        if standing is not None:
            return standing
        with self._lock:  # for those who go through all of them
            standing = self._standings.get(control)
            if standing is None:
                standing = self._standings[control] = Standing()
                weakref.finalize(control, _abandoned, weakref.ref(self), standing).atexit = False
            return standing

    def abandoned(self, standing: Standing) -> None:
        """The thread of control is gone, with whatever it was associated with."""
        if standing.seat is not None and self._pool is not None:
            self._pool.abandon(standing.seat)

    def _enter(self, verb: str, rmid: int, flags: int) -> Standing:
        """The calling thread of control, if it may issue this verb."""
        check_flags(verb, flags, self.flags)
        self._check_open(verb, rmid)
        standing = self._standing()
        self._check_lost(verb, standing)
        return standing

    @staticmethod
    def _check_lost(verb: str, standing: Standing) -> None:
        if standing.lost:
            code = RESOURCE.refusal(R0, ResourceVerb.ANY) or Code.XAER_PROTO
            raise xa_error(code, f"{verb}: this thread lost its connection and has to call open again")

    def _check_open(self, verb: str, rmid: int) -> None:
        refused = RESOURCE.refusal(self._state, ResourceVerb.ANY)
        if refused is not None:
            raise xa_error(refused, f"{verb}: the resource manager is not open")
        if rmid != self._rmid:
            raise xa_error(Code.XAER_INVAL, f"{verb}: open under rmid {self._rmid}, not {rmid}")

    # -- what becomes of errors
    def _lose(self, standing: Standing) -> None:
        """The thread hears XAER_RMFAIL: it has no associations any more, and the broker is to know it."""
        standing.lost = True
        standing.scan = standing.report = None
        self._dissociate(standing)

    def _dissociate(self, standing: Standing) -> None:
        seat, standing.seat = standing.seat, None
        standing.current = standing.late = None
        standing.suspended.clear()
        if seat is not None and self._pool is not None:
            self._pool.discard(seat)
        elif seat is not None:
            seat.line.drop()

    def _failed(self, standing: Standing, verb: str, why: ConnectionLost | TimedOut, xid: Xid | None) -> XaError:
        """The error for a call that has no answer."""
        error = failure(verb, why, xid)
        if error.code is Code.XAER_RMFAIL:
            self._lose(standing)
        return error

    # -- asking
    def _ask(self, standing: Standing, verb: str, command: Coordination, xid: Xid | None, deadline: float) -> Asked:
        """Sends a command; XAER_RMFAIL where it can't be."""

        def ask() -> Asked:
            channel, line = self._commanding(deadline)
            return Asked(channel, line, line.run(channel.sent(command)))

        return self._over_command(standing, verb, xid, ask)

    def _answer(self, standing: Standing, verb: str, asked: Asked, deadline: float, xid: Xid | None) -> Reply:
        """Waits for the answer; what was refused is raised."""
        steps = asked.command.answer(asked.request, deadline)
        channel, request = asked.command, asked.request
        return self._over_command(
            standing, verb, xid, lambda: asked.line.run(steps, later=True, ready=lambda: channel.arrived(request))
        )

    def _reply(self, standing: Standing, verb: str, command: Coordination, xid: Xid | None) -> Reply:
        """Asks, and waits for the answer."""
        deadline = self.deadline()

        def reply() -> Reply:
            channel, line = self._commanding(deadline)
            request = line.run(channel.sent(command), later=True)
            return line.run(channel.answer(request, deadline), later=True, ready=lambda: channel.arrived(request))

        return self._over_command(standing, verb, xid, reply)

    def _over_command(self, standing: Standing, verb: str, xid: Xid | None, call: Callable[[], T]) -> T:
        """What a call over the command channel returns, with its errors as XA has them."""
        try:
            return call()
        except RefusedError as error:
            raised = refusal_error(verb, error.refusal, xid)
            if raised.code is Code.XAER_RMFAIL:
                self._lose(standing)
            raise raised from None
        except (ConnectionLost, TimedOut) as why:
            raise self._failed(standing, verb, why, xid) from None

    def _outcome(self, standing: Standing, verb: str, reply: Reply, xid: Xid) -> Code:
        """The code in an answer; raised where it is no answer of XA's."""
        if not isinstance(reply, Told):  # the answer to another question: nobody knows what was done
            self._lose(standing)
            raise xa_error(Code.XAER_RMFAIL, f"{verb}: the broker answered something else{_LEFT.get(verb, '')}", xid)
        if reply.code in EXCEPTIONS:
            raise xa_error(reply.code, f"{verb}: {_MEANT.get(verb, 'the broker says so')}", xid)
        return reply.code

    def _carry_out(self, standing: Standing, verb: str, command: Coordination, xid: Xid) -> Code:
        return self._outcome(standing, verb, self._reply(standing, verb, command, xid), xid)


_MEANT: Final = {
    "prepare": "the branch can't be prepared",
    "commit": "the branch was not committed as asked",
    "rollback": "the branch was not rolled back as asked",
}


def _abandoned(reference: weakref.ref[Connected], standing: Standing) -> None:
    instance = reference()
    if instance is not None:
        instance.abandoned(standing)
