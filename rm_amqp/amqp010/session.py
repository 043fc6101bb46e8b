"""A session, without I/O: commands are numbered, carried out in their order, and answered by completions and results.

A peer that refuses a command says so with an execution exception and ends the session: the commands behind the refused
one are not carried out. A session is never resumed (Broker-J keeps none whose connection was lost): the next one begins
with command 0.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from rm_amqp.amqp010.frames import Segment, write_segments
from rm_amqp.amqp010.structs import (
    DeliveryProperties,
    ExecutionException,
    ExecutionResult,
    ExecutionSync,
    MessageAccept,
    MessageFlow,
    MessageProperties,
    MessageReject,
    MessageRelease,
    MessageSetFlowMode,
    MessageStop,
    MessageTransfer,
    SessionAttach,
    SessionAttached,
    SessionCommandPoint,
    SessionCompleted,
    SessionConfirmed,
    SessionDetach,
    SessionDetached,
    SessionExpected,
    SessionFlush,
    SessionGap,
    SessionKnownCompleted,
    SessionRequestTimeout,
    SessionTimeout,
    read_command,
    read_header,
    write_command,
    write_control,
    write_struct,
)
from rm_amqp.amqp010.values import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rm_amqp.amqp010.frames import Assembly
    from rm_amqp.amqp010.structs import Command, Control, Struct
    from rm_amqp.amqp010.values import Ranges

NUMBERS: Final = 1 << 32
MAX_UNCOMPLETED: Final = 1 << 16
"""The most command numbers that a completion may name: more were never sent."""


class SessionState(Enum):
    """How far a session is."""

    ATTACHING = "attach sent"
    ATTACHED = "attached"
    DETACHING = "detach sent"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message that arrived."""

    number: int
    destination: str
    delivery: DeliveryProperties
    properties: MessageProperties
    body: bytes


@dataclass(frozen=True, slots=True)
class MessageContent:
    """A message that is to be sent."""

    delivery: DeliveryProperties
    properties: MessageProperties
    body: bytes

    def segments(self) -> list[tuple[Segment, bytes]]:
        """Its header, and its body where it has one."""
        header = (Segment.HEADER, write_struct(self.delivery) + write_struct(self.properties))
        return [header, (Segment.BODY, self.body)] if self.body else [header]


@dataclass(slots=True)
class Session:
    """One session, on one channel of a connection. `write` takes the octets that it sends."""

    name: bytes
    channel: int
    max_frame: int
    write: Callable[[bytes], None]
    state: SessionState = SessionState.ATTACHING
    exception: ExecutionException | None = None
    """Why the peer ended it."""
    detach_code: int = 0
    blocked: bool = False
    """The peer takes no messages now."""
    arrived: deque[Transfer] = field(default_factory=deque)
    results: dict[int, Struct | None] = field(default_factory=dict)
    """By the number of the command; the waiting caller takes it out."""
    rejected: dict[int, str] = field(default_factory=dict)
    """Transfers of ours that the peer did not route, and its words."""
    outstanding: set[int] = field(default_factory=set)
    """Commands of ours that are not complete."""
    next_number: int = 0
    _incoming: int | None = None
    """The number of the peer's next command."""
    _processed: list[tuple[int, int]] = field(default_factory=list)
    """The peer's commands that we have taken, and have not reported to it."""

    def attach(self) -> None:
        """Begins the session. Commands may follow at once."""
        self._control(SessionAttach(self.name))
        self._control(SessionRequestTimeout(0))
        self._control(SessionCommandPoint(0, 0))

    def detach(self) -> None:
        """Ends the session."""
        if self.state in {SessionState.ATTACHING, SessionState.ATTACHED}:
            self.state = SessionState.DETACHING
            self._control(SessionDetach(self.name))

    @property
    def ended(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.state in {SessionState.DETACHING, SessionState.ENDED} or self.exception is not None

    def send(self, command: Command, content: MessageContent | None = None, *, sync: bool = False) -> int:
        """Sends a command; its number."""
        number = self.next_number
        self.next_number = (number + 1) % NUMBERS
        self.outstanding.add(number)
        segments = [(Segment.COMMAND, write_command(command, sync=sync))]
        if content is not None:
            segments += content.segments()
        self.write(write_segments(self.channel, self.max_frame, segments))
        return number

    def sync(self) -> int:
        """Asks the peer to complete what was sent; the number to wait for."""
        return self.send(ExecutionSync(), sync=True)

    def tell_processed(self) -> None:
        """Tells the peer which of its commands are complete here."""
        if self._processed and self.state is SessionState.ATTACHED:
            self._control(SessionCompleted(tuple(self._processed)))
            self._processed.clear()

    # --- from the peer ----------------------------------------------------------------------------------------
    def control(self, control: Control) -> None:
        """Takes a control; WireError where it makes no sense."""
        match control:
            case SessionAttached(name=name):
                if self.state is not SessionState.ATTACHING or name != self.name:
                    raise WireError("an attached session without our attach")
                self.state = SessionState.ATTACHED
            case SessionDetached(code=code):
                self.state, self.detach_code = SessionState.ENDED, code or 0
            case SessionDetach(name=name):
                self.state = SessionState.ENDED
                self._control(SessionDetached(name, 0))
            case SessionCommandPoint(command_id=number):
                if control.command_offset:
                    raise WireError("a session that goes on in the middle of a command")

                self._incoming = number or 0
            case SessionCompleted(commands=commands, timely_reply=timely):
                self._complete(commands or ())
                if timely and commands:
                    self._control(SessionKnownCompleted(commands))
            case SessionFlush(completed=True):
                self.tell_processed()
            case (
                SessionKnownCompleted() | SessionConfirmed() | SessionExpected() | SessionFlush() | SessionTimeout()
                | SessionRequestTimeout() | SessionGap()
            ):  # fmt: skip
                pass
            case _:
                raise WireError(f"a peer does not send {type(control).__name__} here")

    def command(self, assembly: Assembly) -> None:
        """Takes a command; WireError where it makes no sense."""
        command, sync = read_command(assembly.method)
        if self._incoming is None:
            raise WireError("a command before its number was set")
        number = self._incoming
        self._incoming = (number + 1) % NUMBERS

        match command:
            case MessageTransfer(destination=destination):
                delivery, properties = read_header(assembly.header)
                self.arrived.append(Transfer(number, destination or "", delivery, properties, assembly.body))
            case ExecutionResult():
                self._result(command)
            case ExecutionException():
                self.exception = command
            case MessageReject(transfers=transfers, text=text):
                for rejected in _numbers(transfers or ()):
                    self.rejected[rejected] = text or "unroutable"
            case MessageStop(destination="") | MessageFlow(destination=""):
                self.blocked = isinstance(command, MessageStop)
            case MessageAccept() | MessageRelease() | MessageSetFlowMode() | MessageStop() | MessageFlow():
                pass
            case ExecutionSync():
                sync = True
            case _:
                raise WireError(f"a peer does not send {type(command).__name__}")

        self._note_processed(number)
        if sync:
            self.tell_processed()

    def _result(self, result: ExecutionResult) -> None:
        number = result.command_id
        if number is None or (self.next_number - 1 - number) % NUMBERS >= NUMBERS // 2:
            raise WireError("a result of a command that was not sent")
        self.results[number] = result.value

    def _complete(self, ranges: Ranges) -> None:
        """Commands of ours are complete. A peer may name the same ones again and again, until we say that we know."""
        for first, last in ranges:
            size = (last - first) % NUMBERS
            if size < len(self.outstanding):
                self.outstanding.difference_update((first + offset) % NUMBERS for offset in range(size + 1))
            else:
                self.outstanding = {number for number in self.outstanding if (number - first) % NUMBERS > size}

    def _note_processed(self, number: int) -> None:
        if self._processed and (self._processed[-1][1] + 1) % NUMBERS == number:
            self._processed[-1] = (self._processed[-1][0], number)
        else:
            self._processed.append((number, number))

    def _control(self, control: Control) -> None:
        self.write(write_segments(self.channel, self.max_frame, [(Segment.CONTROL, write_control(control))]))


def _numbers(ranges: Ranges) -> Iterator[int]:
    for first, last in ranges:
        count = (last - first) % NUMBERS + 1
        if count > MAX_UNCOMPLETED:
            raise WireError("a set of more commands than there were")
        for offset in range(count):
            yield (first + offset) % NUMBERS


def ranges_of(numbers: list[int]) -> Ranges:
    """These numbers as ranges, in their order."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)
