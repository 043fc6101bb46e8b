"""A transactional channel: one connection with one session, a control link, and links for messages.

This is the channel of the slides on XA: it is selected for distributed transactions, and a thread of control has it to
itself from its first start until none of its associations is left. Everything here is steps
(`rm_amqp.connection.endpoint.Steps`).

Few exchanges are needed, because what may leave together does. A start does not wait with `ahead`. Messages are sent
settled and wait for nothing. Outcomes of received messages are sent with the end, and the end follows them. The
broker refuses the end, and so the prepare, of a branch in which anything that was sent settled went wrong.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final, Protocol

from dtx.protocol.capabilities import DISTRIBUTED
from dtx.protocol.commands import Discharge, End, Start
from dtx.protocol.conditions import RefusedError, refused
from rm_amqp.channel.encoded_commands import control_message, read_vote, start_message
from rm_amqp.channel.message_links import MessageLinks
from rm_amqp.channel.work import SUSPENDED, WorkEvent
from rm_amqp.connection.endpoint import Change, until
from rm_amqp.connection.links import ATTACHED, Control
from rm_amqp.errors import Cause, ConnectionLost
from xa import ROLLBACK_CODES, Code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rm_amqp.channel.work import Work
    from rm_amqp.connection.endpoint import Endpoint, Steps
    from rm_amqp.connection.links import Answer
    from rm_amqp.settings import Settings


LATE: Final = "the coordinator did not answer in time"


class Channel(Protocol):
    """The part of a channel that the pool and the sessions know, whatever its transactions are."""

    @property
    def endpoint(self) -> Endpoint:
        """Its connection's."""
        ...

    @property
    def messages(self) -> MessageLinks:
        """Its links for messages."""
        ...

    @property
    def control(self) -> Control:
        """Its control link, without which it can't be used. It is lost with the connection."""
        ...


class DistributedChannel:
    """A channel for distributed transactions. It is made inside of steps, like everything that touches the engine."""

    def __init__(self, endpoint: Endpoint, settings: Settings) -> None:
        self.endpoint = endpoint
        self._settings = settings
        self.control = Control(endpoint)
        self.messages = MessageLinks(endpoint, settings, self.control)
        self._txn_numbers = count(1)

    async def verify(self, deadline: float) -> None:
        """ConnectionLost where the broker has no distributed transactions."""
        offered = await coordinator_offers(self.endpoint, self.control, deadline)
        if DISTRIBUTED not in offered:
            offers = ", ".join(offered) or "nothing that it names"
            raise unusable(
                self.endpoint,
                f"has no amqp:distributed-transactions; it offers {offers}. With amqp:local-transactions it can take "
                'part as the one that decides: mode = "decider"',
            )

    # -- begin and end
    def begin(self, work: Work, deadline: float, *, join: bool) -> Steps[None]:
        """Begins work for a new branch, or with `join` for one that exists. RefusedError: there is no work."""
        ahead = self._settings.ahead and not join
        return self._begun(work, self._start_message(work, join=join), deadline, ahead=ahead)

    async def _begun(self, work: Work, message: bytes, deadline: float, *, ahead: bool) -> None:
        if self.control.state is not ATTACHED:
            self.messages.check()
        answer = self.control.send(message)
        if ahead:
            work.opening = answer
        else:
            while not answer.there:
                await Change(self.endpoint, deadline, LATE)
            if answer.refusal is not None or answer.lost:
                raise self._error(answer)
        work.move(WorkEvent.BEGIN)

    async def resume(self, work: Work, deadline: float) -> None:
        """Goes on with suspended work. RefusedError: it does not; with a rollback code the work has ended."""
        self.messages.check()
        try:
            await self._answered(self.control.send(self._start_message(work, resume=True)), deadline)
        except RefusedError as error:
            if error.refusal.code in ROLLBACK_CODES:
                work.move(WorkEvent.END)
            raise
        work.move(WorkEvent.BEGIN)

    def suspend(self, work: Work, deadline: float) -> Steps[None]:
        """Suspends work; otherwise as `end`."""
        return self._end(work, WorkEvent.SUSPEND, deadline, fail=False)

    def end(self, work: Work, deadline: float, *, fail: bool) -> Steps[None]:
        """Ends work: tells what became of its messages, and the end, in one write.

        RefusedError: it has ended, and why the branch can't be prepared.
        """
        return self._end(work, WorkEvent.END, deadline, fail=fail)

    async def _end(self, work: Work, event: WorkEvent, deadline: float, *, fail: bool) -> None:
        self.messages.check()
        work.failed = work.failed or fail
        if work.state is SUSPENDED:
            # it has no txn-id: it is resumed and ended in one write
            work.opening = self.control.send(self._start_message(work, resume=True))
        else:
            self._finish(work)
            await self.messages.all_sent(work, deadline)

        opening, work.opening = work.opening, None
        suspend = event is WorkEvent.SUSPEND
        command = End(work.txn_id, suspend=True) if suspend else Discharge(work.txn_id, fail=fail)
        answer = self.control.send(control_message(command))
        try:
            if opening is not None:
                await self._answered(opening, deadline)
            await self._answered(answer, deadline)
            if not fail:
                why = _swallowed(work)
                if why:
                    await self._fail(work, deadline, suspended=suspend)
                    raise refused(Code.XA_RBOTHER, why, work.xid)
        except RefusedError:
            work.move(WorkEvent.END)
            raise
        work.move(event)

    async def end_and_prepare(self, work: Work, deadline: float) -> Answer:
        """Sends the outcomes of the work's messages, its end, and prepare, in one write; `vote` has the result."""
        if self.control.state is not ATTACHED:
            self.messages.check()
        message = control_message(End(work.txn_id, prepare=True))
        self._finish(work)
        await self.messages.all_sent(work, deadline)
        return self.control.send(message)

    async def vote(self, work: Work, answer: Answer, deadline: float) -> Code:
        """The vote. RefusedError: with a rollback code the work has ended, and the branch can't be prepared; with
        another one neither is known, and the branch is not to be committed."""
        opening, work.opening = work.opening, None
        if opening is not None:
            await self._answered(opening, deadline)
        while not answer.there:
            await Change(self.endpoint, deadline, LATE)
        if answer.refusal is not None or answer.lost:
            raise self._error(answer)
        why = _swallowed(work)
        if why:
            raise refused(Code.XAER_RMERR, why, work.xid)
        return read_vote(answer.fields)

    def _finish(self, work: Work) -> None:
        """Tells what became of the work's messages. From now on it takes none."""
        work.leave()
        work.unread = self.messages.stop_acquiring() or work.unread

    async def _fail(self, work: Work, deadline: float, *, suspended: bool) -> None:
        """Makes the branch of work that has ended, or is suspended, rollback-only."""
        start = self._start_message(work, resume=suspended, join=not suspended)
        messages = start, control_message(Discharge(work.txn_id, fail=True))
        for answer in [self.control.send(message) for message in messages]:
            await self._answered(answer, deadline)

    # -- the control link
    def _start_message(self, work: Work, *, resume: bool = False, join: bool = False) -> bytes:
        """The message that begins work, or goes on with it, under another txn-id."""
        work.set_txn_id(b"t%x" % next(self._txn_numbers))
        work.senders.clear()
        timeout_s = None if join or resume else self._settings.branch_timeout_s or None
        return start_message(Start(work.xid, join, resume, work.txn_id, timeout_s))

    async def _answered(self, answer: Answer, deadline: float) -> None:
        """Waits for the outcome of a control message. RefusedError: it was refused."""
        while not answer.there:
            await Change(self.endpoint, deadline, LATE)
        if answer.refusal is not None or answer.lost:
            raise self._error(answer)

    def _error(self, answer: Answer) -> RefusedError | ConnectionLost:
        if answer.refusal is not None:
            return RefusedError(answer.refusal)
        why = self.endpoint.lost
        return why.again() if why is not None else ConnectionLost(Cause.LOST, "the broker closed the control link")


async def open_distributed(endpoint: Endpoint, settings: Settings, deadline: float) -> DistributedChannel:
    """A channel over this connection, whose broker has distributed transactions."""
    channel = DistributedChannel(endpoint, settings)
    await channel.verify(deadline)
    return channel


async def coordinator_offers(endpoint: Endpoint, control: Control, deadline: float) -> Sequence[str]:
    """The capabilities that the coordinator announces. ConnectionLost: there is no coordinator."""
    answered = endpoint.lost is None
    try:
        answered = await until(endpoint, lambda: control.answered, deadline)
    except ConnectionLost:
        if endpoint.ended is None:
            raise
    if not answered:
        endpoint.lose("the coordinator did not answer in time", Cause.UNREACHABLE)
        endpoint.check()

    why = control.refusal or endpoint.ended
    if why is not None:
        raise unusable(
            endpoint,
            f"offers no transactions ({why.condition}: {why.description}); amqp:distributed-transactions are needed "
            "for two phases, amqp:local-transactions for a broker that decides",
        )
    return control.offered


def unusable(endpoint: Endpoint, why: str) -> ConnectionLost:
    """The broker was reached, and can't be used: the connection is given up."""
    message = f"the broker {endpoint.peer or '?'} at {endpoint.broker} {why}"
    endpoint.lose(message, Cause.UNUSABLE)
    return ConnectionLost(Cause.UNUSABLE, message)


def _swallowed(work: Work) -> str:
    """What was lost on the way, so that the branch may not be committed; the empty string for nothing.

    That is a message that was sent over a link which the broker closed (it has said so before it answers the end), or
    one that the branch took from a queue and that was not received."""
    if work.unread:
        return f"what was gathered from {work.unread} was not received"
    for sender in work.senders:
        if sender.refusal is not None:
            return f"a message for {sender.address} was not taken ({sender.refusal.description})"
    return ""
