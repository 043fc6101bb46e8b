"""Readers: browsers, and consumers with a selector, which read a queue in its order instead of taking what is first.

Each message concerns every one of them, and one user may have thousands. So they are kept by user, and where a user has
more than a few, they get their turns later, at that user's cost. What they read is one line of all messages: no reader
has a copy of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from dtx.broker.queues.entry import Browser, Entry

AT_ONCE: Final = 8
"""Readers of one user that look at what is new at once; more of them do so in later turns, so many in each."""
MOST: Final = 1000
"""Readers of one queue that a user may have."""
PAGE: Final = 100
"""Messages that a reader takes from the line at a time."""
FEW: Final = 1000


class OrderedMessages:
    """The messages of a queue in their order, with some that have left it. A message may get another position when it
    leaves, and is no longer what the line has then."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = list(entries)
        self._positions = [entry.position for entry in self._entries]

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        """A message came, which stands behind all others nearly always."""
        position = entry.position
        at = len(self._positions)
        if at and position < self._positions[-1]:
            at = bisect_right(self._positions, position)
        self._entries.insert(at, entry)
        self._positions.insert(at, position)

    def behind(self, position: int) -> tuple[int, list[Entry]]:
        """Some messages behind a position, in their order; and the position up to which they go."""
        start = bisect_right(self._positions, position)
        end = min(start + PAGE, len(self._entries))
        if start == end:
            return position, []
        places = zip(self._entries[start:end], self._positions[start:end], strict=True)
        return self._positions[end - 1], [entry for entry, place in places if entry.position == place]


class ReadersOfUser:
    """The readers of one user, in the order in which they have their turns."""

    def __init__(self) -> None:
        self.browsers: OrderedDict[Browser, None] = OrderedDict()
        self._left = 0
        """How many of them have not looked at what is new."""

    def look(self) -> None:
        """There is something new."""
        waits, self._left = self._left > 0, len(self.browsers)
        if self._left <= AT_ONCE:
            self.go_on()
        elif not waits:
            self._first.continue_later(self)

    @property
    def _first(self) -> Browser:
        return next(iter(self.browsers))

    def go_on(self) -> None:
        """Some of them look."""
        self._left = min(self._left, len(self.browsers))
        for _ in range(min(self._left, AT_ONCE)):
            self._left -= 1
            browser = self._first
            self.browsers.move_to_end(browser)
            browser.advance()
            if not self.browsers:
                return
        if self._left:
            self._first.continue_later(self)


class Readers:
    """All readers of one queue, which has these messages in their order."""

    def __init__(self, entries: Mapping[int, Entry]) -> None:
        self._entries = entries
        self._users: dict[str, ReadersOfUser] = {}
        self._again: dict[Browser, None] = {}
        """Those that may go on, though nothing is new."""
        self._line: OrderedMessages | None = None
        """What they read, once there was one."""

    def __bool__(self) -> bool:
        return bool(self._users)

    def __iter__(self) -> Iterator[Browser]:
        return iter([browser for readers in self._users.values() for browser in readers.browsers])

    def add(self, browser: Browser) -> bool:
        """There is one more; False where its user has as many as one may have."""
        readers = self._users.get(browser.user)
        if readers is None:
            readers = self._users[browser.user] = ReadersOfUser()
        elif len(readers.browsers) >= MOST:
            return False
        readers.browsers[browser] = None
        return True

    def remove(self, browser: Browser) -> None:
        """One is gone."""
        readers = self._users.get(browser.user)
        if readers is not None:
            readers.browsers.pop(browser, None)
            if not readers.browsers:
                del self._users[browser.user]

    def look_again(self, browser: Browser) -> bool:
        """One of them may go on; whether it is the first one of those."""
        first = not self._again
        self._again[browser] = None
        return first

    def look(self, *, news: bool) -> None:
        """They go on: those that asked for it, and all of them where there may be something new."""
        again, self._again = self._again, {}
        for browser in again:
            browser.advance()
        if news:
            for readers in list(self._users.values()):
                readers.look()

    def came(self, entry: Entry) -> None:
        """A message is in the queue now."""
        if self._line is None:
            return
        if len(self._line) <= 2 * len(self._entries) + FEW:
            self._line.add(entry)
        else:
            self._line = OrderedMessages(self._entries.values()) if self._users else None

    def behind(self, position: int) -> tuple[int, list[Entry]]:
        """Some messages behind a position, in their order; and the position up to which they go."""
        if self._line is None:
            self._line = OrderedMessages(self._entries.values())
        return self._line.behind(position)

    def clear(self) -> None:
        """The queue is empty."""
        self._line = None
