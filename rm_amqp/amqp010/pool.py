"""The channels of one resource manager instance: those that threads of control have at work, and those for commands.

A thread of control has a channel to itself from its first association until none is left. Commands (prepare, commit,
rollback, recover) take a channel of their own for as long as they last, so that no thread waits for the one that it has
at work itself.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rm_amqp.amqp010.channel import Refused
from rm_amqp.errors import AllInUse, ConnectionLost, TimedOut
from xa import XaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rm_amqp.amqp010.channel import Channel

COMMAND_CHANNELS: Final = 8


class Pool:
    """Channels, at most `most`. Idle ones are kept; the one that was used last is taken first."""

    def __init__(self, most: int, connect: Callable[[float], Channel], clock: Callable[[], float]) -> None:
        self._most = most
        self._connect = connect
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[Channel] = []
        self._taken: set[Channel] = set()
        self._being_made = 0
        self._closed = False

    def take(self, deadline: float, *, wait: bool = True) -> Channel:
        """A channel with a session. AllInUse: none is free. ConnectionLost, TimedOut: none can be made."""
        while True:
            with self._changed:
                while len(self._taken) + self._being_made >= self._most:
                    left_s = deadline - self._clock()
                    if left_s <= 0 or not wait:
                        raise AllInUse(f"all {self._most} channels are in use")
                    self._changed.wait(left_s)
                channel = self._idle.pop() if self._idle else None
                self._being_made += 1
            try:
                if channel is None:
                    channel = self._connect(deadline)
                elif channel.is_stale:
                    continue
            finally:
                with self._changed:
                    self._being_made -= 1
                    if channel is not None and not channel.broken:
                        self._taken.add(channel)
                    self._changed.notify_all()
            return channel

    def give(self, channel: Channel) -> None:
        """Nobody uses the channel any more."""
        with self._changed:
            self._taken.discard(channel)
            if self._closed:
                channel.drop()
            elif not channel.broken:
                self._idle.append(channel)
            self._changed.notify_all()

    def discard(self, channel: Channel) -> None:
        """The channel can't be used any more, or what was done on it shall be undone."""
        channel.drop()
        self.give(channel)

    @contextmanager
    def borrowed(self, deadline: float) -> Iterator[Channel]:
        """A channel, for the length of a block."""
        channel = self.take(deadline)
        try:
            with channel.lock:
                channel.renew(deadline)
                yield channel
        except (Refused, ConnectionLost, TimedOut, XaError):
            raise
        except BaseException:  # an interruption: it is unknown what has reached the broker
            channel.drop()
            raise
        finally:
            self.give(channel)

    def close(self, deadline: float) -> None:
        """Closes every channel."""
        for channel in self._all():
            channel.close(deadline)

    def drop(self) -> None:
        """Closes every channel at once, without a word."""
        for channel in self._all():
            channel.drop()

    def break_off(self) -> None:
        """Breaks the connections that are in use, while other threads wait for them."""
        with self._changed:
            taken = list(self._taken)
        for channel in taken:
            channel.break_off()

    def _all(self) -> list[Channel]:
        with self._changed:
            self._closed = True
            channels = [*self._idle, *self._taken]
            self._idle.clear()
            self._taken.clear()
            self._changed.notify_all()
        return channels
