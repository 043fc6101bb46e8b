"""The command channel: branches are completed by request and response, over a connection of its own.

Any number of requests may be outstanding, and responses come in any order. A `CommandChannel` is one connection's, as
steps. `Commands` is what a resource manager instance has: it makes the channel anew when it is lost.

    channel = commands.channel(deadline)
    request = channel.connection.step(partial(channel.send, coordination(command)))
    reply = channel.connection.run(channel.answer(request, deadline))
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.protocol.addresses import COORDINATION as ADDRESS
from dtx.protocol.conditions import Refusal, RefusedError
from rm_amqp.channel.encoded_commands import Requests, read_reply, read_response
from rm_amqp.connection.endpoint import Change, until
from rm_amqp.connection.links import ATTACHED, Receiver, Sender
from rm_amqp.errors import Cause, ConnectionLost, TimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.protocol.replies import Reply
    from rm_amqp.connection.connection import Connection

RESPONSES: Final = 1000
"""Responses that may be on their way."""


@dataclass(slots=True, eq=False)
class Request:
    """One request that was sent over `channel`. `reply` is there once it was answered."""

    channel: CommandChannel
    number: int
    reply: Reply | None = None


class CommandChannel:
    """The command channel over one connection. It is made inside of steps, like everything that touches the engine."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        endpoint = self.endpoint = connection.endpoint
        self._replies = Receiver(endpoint, None, settled=True, name="reply")
        self._replies.flow(RESPONSES)
        self._requests = Sender(endpoint, ADDRESS)
        self._numbers = count(1)
        self._waiting: dict[int, Request] = {}
        self._read_since_flow = 0
        self._writer: Requests | None = None
        self._stale = False
        """Whether the broker left a request unanswered for too long. The next caller makes another channel."""

    @property
    def broken(self) -> bool:
        """Whether it can't be used any more."""
        return self._stale or self._replies.state is not ATTACHED or self._requests.state is not ATTACHED

    async def open(self, deadline: float) -> None:
        """Waits until requests can be sent."""
        for link in (self._replies, self._requests):
            if not (await until(self.endpoint, lambda link=link: link.answered, deadline)):  # type: ignore[misc]
                self.endpoint.lose("the broker did not answer in time", Cause.UNREACHABLE)
            self.endpoint.check()
            if link.refusal is not None:
                reason = f"{link.refusal.condition}: {link.refusal.description}"
                self.endpoint.lose(f"the broker has no command channel ({reason})", Cause.UNUSABLE)
                self.endpoint.check()

    def send(self, body: bytes) -> Request:
        """Sends a request with this body: a command, encoded."""
        if self.broken:
            self._check()
        request = Request(self, next(self._numbers))
        if self._writer is None:
            self._writer = Requests(self._replies.address)
        self._requests.send_settled(self._writer.write(request.number, body))
        self._waiting[request.number] = request
        return request

    async def answer(self, request: Request, deadline: float) -> Reply:
        """Waits for the answer. RefusedError: it is a refusal. TimedOut, ConnectionLost: it is unknown."""
        while not self.answered(request):
            if self.broken:
                self._check()
            if self.endpoint.clock() >= deadline:
                self._waiting.pop(request.number, None)
                self._stale = True
                raise TimedOut(f"the broker at {self.endpoint.broker} did not answer in time")
            await Change(self.endpoint, deadline)
        if isinstance(request.reply, Refusal):
            raise RefusedError(request.reply)
        assert request.reply is not None  # noqa: S101 — it is answered
        return request.reply

    def answered(self, request: Request) -> bool:
        """Whether the answer is there."""
        replies = self._replies
        if replies.arrived:
            while replies.arrived:
                self._read(replies.arrived.popleft().octets)
                self._read_since_flow += 1
            if 2 * self._read_since_flow > RESPONSES and replies.alive:
                replies.flow(self._read_since_flow)
                self._read_since_flow = 0
        return request.reply is not None

    def _read(self, octets: bytes) -> None:
        try:
            number, body = read_response(octets)
        except WireError:
            self.endpoint.lose("the broker sent a response that is none")
            return
        request = self._waiting.pop(number, None) if number is not None else None
        if request is None:  # no caller waits for it any more
            return
        try:
            request.reply = read_reply(body)
        except WireError as error:
            self._waiting[request.number] = request
            self.endpoint.lose(f"the broker answered what can't be understood: {error}")

    def _check(self) -> None:
        self.endpoint.check()
        for link in (self._requests, self._replies):
            if link.refusal is not None:
                reason = f"{link.refusal.condition}: {link.refusal.description}"
                raise ConnectionLost(
                    Cause.LOST, f"the broker at {self.endpoint.broker} closed the command channel ({reason})"
                )


async def open_command_channel(connection: Connection, deadline: float) -> CommandChannel:
    """A command channel over this connection, which takes requests."""
    channel = CommandChannel(connection)
    await channel.open(deadline)
    return channel


class Commands:
    """The command channel of one resource manager instance, made at its first use and whenever it was lost."""

    def __init__(self, connect: Callable[[float], Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._channel: CommandChannel | None = None
        self._spent = 0
        """Round trips on connections that were closed."""

    @property
    def round_trips(self) -> int:
        """How often a caller waited for the broker on a command channel."""
        channel = self._channel
        return self._spent + (channel.connection.round_trips if channel else 0)

    def channel(self, deadline: float) -> CommandChannel:
        """A channel that works, as far as anybody knows. ConnectionLost: none can be made."""
        with self._lock:
            channel = self._channel
            if channel is not None:
                channel.connection.refresh()
                if not channel.broken:
                    return channel
                self._channel = None
                self._spent += channel.connection.round_trips
                channel.connection.drop()

            connection = self._connect(deadline)
            try:
                self._channel = connection.run(open_command_channel(connection, deadline))
            except BaseException:
                connection.drop()
                raise
            return self._channel

    def close(self, deadline: float) -> None:
        """Closes the connection; waits for the broker until `deadline`."""
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            self._spent += channel.connection.round_trips
            channel.connection.close(deadline)

    def break_off(self) -> None:
        """Breaks the connection while other threads wait for it."""
        channel = self._channel
        if channel is not None:
            channel.connection.break_off()

    def drop(self) -> None:
        """Closes the connection at once, without a word."""
        if self._channel is not None:
            self._channel.connection.drop()
