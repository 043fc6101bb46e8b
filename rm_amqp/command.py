"""Command: the command channel: coordination by request and response, over a connection of its own.

Any number of requests may be outstanding; responses come in any order. Everything here is steps that a shell runs.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from dtx.protocol.addresses import COORDINATION as ADDRESS
from dtx.protocol.composites import WireError
from dtx.protocol.conditions import Refusal, RefusedError
from rm_amqp.core import until
from rm_amqp.links import Receiver, Sender
from rm_amqp.loss import Cause, ConnectionLost, TimedOut
from rm_amqp.wire import Requests, read_reply, read_response

if TYPE_CHECKING:
    from dtx.protocol.commands import Coordination
    from dtx.protocol.replies import Reply
    from rm_amqp.core import Core, Steps

RESPONSES: Final = 1000
"""Responses that may be on their way."""


class Request:
    """One request. `reply` is there once it was answered."""

    __slots__ = ("number", "reply")

    def __init__(self, number: int) -> None:
        self.number = number
        self.reply: Reply | None = None


def commanding(core: Core, deadline: float) -> Steps[Command]:
    """A command channel over this connection, which takes requests."""
    command = Command(core)
    yield from command.open(deadline)
    return command


class Command:
    """The command channel over one connection. It is made inside of steps, as everything is done that touches the
    engine."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._replies = Receiver(core, None, settled=True, name="reply")
        self._replies.flow(RESPONSES)
        self._requests = Sender(core, ADDRESS)
        self._numbers = count(1)
        self._waiting: dict[int, Request] = {}
        self._writer: Requests | None = None
        self.stale = False
        """Whether the broker left a request unanswered for too long. The next caller makes another channel."""

    @property
    def broken(self) -> bool:
        """Whether it can't be used any more."""
        return self.stale or not self._replies.alive or not self._requests.alive

    def open(self, deadline: float) -> Steps[None]:
        """Waits until requests can be sent."""
        for link in (self._replies, self._requests):
            if not (yield from until(self.core, lambda link=link: link.answered, deadline)):  # type: ignore[misc]
                self.core.lose("the broker did not answer in time", Cause.UNREACHABLE)
            self.core.check()
            if link.refusal is not None:
                told = f"{link.refusal.condition}: {link.refusal.description}"
                self.core.lose(f"the broker has no command channel ({told})", Cause.UNUSABLE)
                self.core.check()

    def ask(self, command: Coordination) -> Request:
        """Sends a request."""
        self._check()
        request = Request(next(self._numbers))
        if self._writer is None:
            self._writer = Requests(self._replies.address)
        self._requests.send(self._writer.write(request.number, command), settled=True)
        self._waiting[request.number] = request
        return request

    def answer(self, request: Request, deadline: float) -> Steps[Reply]:
        """Waits for the answer. RefusedError: it is a refusal. TimedOut, ConnectionLost: nobody knows."""
        while not self.arrived(request):
            self._check()
            if self.core.clock() >= deadline:
                self._waiting.pop(request.number, None)
                self.stale = True
                raise TimedOut(f"the broker at {self.core.broker} did not answer in time")
            yield deadline
        if isinstance(request.reply, Refusal):
            raise RefusedError(request.reply)
        assert request.reply is not None  # noqa: S101 — it arrived
        return request.reply

    def arrived(self, request: Request) -> bool:
        """Whether the answer is there."""
        while self._replies.arrived:
            self._read(self._replies.arrived.popleft().octets)
        if self._replies.alive and 2 * self._replies.credit < RESPONSES:
            self._replies.flow(RESPONSES - self._replies.credit)
        return request.reply is not None

    def exchange(self, command: Coordination, deadline: float) -> Steps[Reply]:
        """`ask` and `answer`."""
        return (yield from self.answer(self.ask(command), deadline))

    def sent(self, command: Coordination) -> Steps[Request]:
        """`ask`, as steps."""
        yield from ()
        return self.ask(command)

    def look(self, request: Request) -> Steps[bool]:
        """`arrived`, as steps."""
        yield from ()
        return self.arrived(request)

    def _read(self, octets: bytes) -> None:
        try:
            number, body = read_response(octets)
        except WireError:
            self.core.lose("the broker sent a response that is none")
            return
        request = self._waiting.pop(number, None) if number is not None else None
        if request is None:  # nobody waits for it any more
            return
        try:
            request.reply = read_reply(body)
        except WireError as error:
            self._waiting[request.number] = request
            self.core.lose(f"the broker answered what can't be understood: {error}")

    def _check(self) -> None:
        self.core.check()
        for link in (self._requests, self._replies):
            if link.refusal is not None:
                told = f"{link.refusal.condition}: {link.refusal.description}"
                raise ConnectionLost(
                    Cause.LOST, f"the broker at {self.core.broker} closed the command channel ({told})"
                )
