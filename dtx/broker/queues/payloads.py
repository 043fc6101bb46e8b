"""Payloads on their way from the store to links: what a turn wants is asked for at once, and a little ahead.

A consumer that takes message by message would wait for the store at each of them. So where a message of a queue is
read, the ones behind it are read as well, up to AHEAD of them and ROOM octets over all queues. When there is no room,
the oldest payload goes for the next one: it can be read again, and not much more is read than is sent.

A payload is the octets of a message as they came. Only a message whose message-format is not 0, of which nothing is
known here, has FOREIGN and that format, in four octets, before it: if and only if a payload begins with FOREIGN it is
one, because a message of format 0 begins with a described value (00).
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from dtx.broker.queues.entry import State
from dtx.store.contract import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dtx.broker.queues.entry import Entry
    from dtx.store.contract import MessageStore, StoreError

    Done: TypeAlias = Callable[[bytes | None], None]

AT_ONCE: Final = 500
AHEAD: Final = 64
ROOM: Final = 4 << 20
FOREIGN: Final = b"\x01"


def with_format(octets: bytes, message_format: int) -> bytes:
    """The payload of a message of this format, which is not 0."""
    return FOREIGN + message_format.to_bytes(4, "big") + octets


def split_format(payload: bytes) -> tuple[int, bytes]:
    """The message-format of a payload, or of its first piece, and the octets of its message."""
    if payload[:1] != FOREIGN:
        return 0, payload
    return int.from_bytes(payload[1:5], "big"), payload[5:]


class Payloads:
    """Reads payloads of stored messages. `failed` is called when the store can't any more, `lacks` with a message that
    waits in its queue and whose payload the store does not have as it should; `settle` ends the turn in which payloads
    came."""

    def __init__(
        self,
        store: MessageStore,
        failed: Callable[[StoreError], None],
        lacks: Callable[[Entry], None],
        settle: Callable[[], None],
    ) -> None:
        self._store = store
        self._failed = failed
        self._lacks = lacks
        self._settle = settle
        self._wanted: list[Entry] = []
        self._coming: dict[int, list[Done]] = {}
        """The waiters for each payload, by its number in the store; none, where they are read ahead."""
        self._ahead: OrderedDict[int, bytes] = OrderedDict()
        self.octets = 0
        """Of what was read ahead, or is being read."""

    def get(self, entry: Entry) -> bytes | None:
        """A message's payload, if it is in memory. Not for messages larger than a piece of the store."""
        if entry.payload is not None:
            return entry.payload
        payload = self._ahead.pop(entry.source, None)
        if payload is None:
            return self._store.cached(entry.source)
        self.octets -= len(payload)
        return payload

    def fetch(self, entry: Entry, done: Done) -> None:
        """Reads the payload of a stored message of at most one piece; None when it is not there any more."""
        waiting = self._coming.get(entry.source)
        if waiting is None:
            self._coming[entry.source] = [done]
            self._wanted.append(entry)
        else:
            waiting.append(done)

    def send(self) -> None:
        """Asks the store for what is wanted."""
        if not self._wanted:
            return
        wanted, self._wanted = self._wanted, []
        entries = {entry.source: entry for entry in wanted}
        for queue in {entry.queue for entry in wanted}:
            if self.octets > ROOM - CHUNK and self._ahead:
                self._drop_oldest()
            for entry in queue.upcoming(AHEAD):
                if self.octets + entry.size > ROOM:
                    break
                if self._is_to_come(entry):
                    self._coming[entry.source] = []
                    self.octets += entry.size
                    entries[entry.source] = entry

        asked = list(entries.values())
        ahead = frozenset(entries).difference(entry.source for entry in wanted)
        for start in range(0, len(asked), AT_ONCE):
            some = asked[start : start + AT_ONCE]
            self._store.fetch([entry.source for entry in some], partial(self._fetched, some, ahead))

    def _is_to_come(self, entry: Entry) -> bool:
        number = entry.source
        return (
            entry.size <= CHUNK
            and entry.payload is None
            and number not in self._coming
            and number not in self._ahead
            and self._store.cached(number) is None
        )

    def _drop_oldest(self) -> None:
        self.octets -= len(self._ahead.popitem(last=False)[1])

    def _fetched(
        self, asked: list[Entry], ahead: frozenset[int], found: Mapping[int, bytes], error: StoreError | None
    ) -> None:
        if error is not None:
            self._failed(error)
            return
        for entry in asked:
            number = entry.source
            waiting, payload = self._coming.pop(number), found.get(number)
            if number in ahead:
                self.octets -= entry.size
            if payload is not None and len(payload) != entry.size:
                payload = None
            if payload is None and entry.state is State.AVAILABLE:  # no one has taken it: it is not gone meanwhile
                self._lacks(entry)

            for done in waiting:
                done(payload)
            if not waiting and payload is not None and entry.state is State.AVAILABLE:
                self._ahead[number] = payload
                self.octets += len(payload)
        self._settle()
