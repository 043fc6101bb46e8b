"""Dead letters: why each of them is one, which is kept beside it as it arrives, and the groups of those of one queue
that are alike. So people see what has failed without opening a message, and a start reads no payload.

The broker makes a dead letter itself, and knows from which queue and for which reason; a consumer that has rejected it,
or has failed with it before, may have said with what error. Or a client sends it: a consumer of xabridge notes what it
has failed with in message annotations (`x-opt-dead-…`), others in application properties. That is the sender's word,
and is shown; nothing depends on it. It is shown cut, and with escapes for what would move a cursor.

Letters are alike if they come from one queue for one reason, and with an error of one kind from one place. Two errors
are of one kind if they differ only in words with digits, and in what stands in quotes. All kinds of a queue are
counted: a letter of a kind of its own costs some 250 octets more. At most MOST_GROUPS kinds are groups; the letters of
the others are counted as one group, `others`. None of these kinds has more letters than a group: as soon as one would,
it becomes a group, in place of the smallest.

What is shown of a group is its id, its count, and the position `until`. An action on it takes the letters that were in
it then, or fewer. `others` could take more than was shown if a kind came into it that was a group before. So a kind
keeps the position at which it came there, and only what was shown with `until` at or behind that position includes it.
A start forms the groups anew, perhaps others; so what was shown of `others` before it includes nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from dtx.amqp.messages import read_notes
from xa.printable import escaped, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ORIGIN: Final = "origin"
"""The kind of the records with origins, which have the numbers of their messages."""
MOST_ERROR: Final = 200
MOST_PLACE: Final = 200
MOST_QUEUE: Final = 255
"""Characters that are kept."""
MOST_GROUPS: Final = 200
OTHERS: Final = "others"
"""The id of the letters that are in no group."""

_REASON: Final = b"x-opt-dead-reason"
_PLACE: Final = b"x-opt-dead-place"
_QUEUE: Final = b"x-opt-dead-queue"
_BUS_REASON: Final = b"DeadLetterReason"
_BUS_DESCRIPTION: Final = b"DeadLetterErrorDescription"
_NOTES: Final = frozenset({_REASON, _PLACE, _QUEUE, _BUS_REASON, _BUS_DESCRIPTION})
"""What consumers of ours note, also over OpenWire; and what clients of Azure Service Bus do."""
_QUOTED: Final = re.compile("'[^']*'|\"[^\"]*\"")
_DIGIT: Final = re.compile(r"\d")


class Origin(NamedTuple):
    """Where a dead letter comes from, and why it is one. `reason` is the broker's, "" for a letter that was sent;
    `error` is what its consumer has failed with, and `place` where in its code."""

    queue: str = ""
    reason: str = ""
    error: str = ""
    place: str = ""

    def encode(self) -> str:
        """The text that the store keeps: four lines, of which earlier versions wrote two."""
        return f"{self.reason}\n{self.queue}\n{self.place}\n{self.error}"

    @classmethod
    def decode(cls, text: str) -> Origin:
        """What `encode` made."""
        reason, queue, place, error = (*text.split("\n", 3), "", "", "")[:4]
        return cls(queue, reason, error, place)


NOTHING_NOTED: Final = Origin()


class Letter(Protocol):
    """What is asked of an entry of the queue."""

    origin: Origin | None
    number: int
    position: int


def origin_of(queue: str, reason: str, error: str, place: str) -> Origin:
    """The origin of a letter that the broker makes one. `error` and `place` are a consumer's words."""
    return Origin(queue, reason, printable(error, MOST_ERROR), _end_of(place))


def noted_origin(octets: bytes, at: int) -> Origin:
    """What the sender of a dead letter has noted in it, behind its header, which ends at `at`."""
    texts = {name: str(note) for name, note in read_notes(octets, at, _NOTES).items() if isinstance(note, str)}
    if not texts:
        return NOTHING_NOTED
    described = (texts.get(_BUS_REASON, ""), texts.get(_BUS_DESCRIPTION, ""))
    error = texts.get(_REASON, "") or ": ".join([one[:MOST_ERROR] for one in described if one])
    queue = printable(texts.get(_QUEUE, ""), MOST_QUEUE)
    return Origin(queue, "", printable(error, MOST_ERROR), _end_of(texts.get(_PLACE, "")))


def _end_of(place: str) -> str:
    """A place, cut in front: line and function stand at its end."""
    shown = escaped(place[-MOST_PLACE:])
    return shown if len(shown) < MOST_PLACE else f"…{shown[1 - MOST_PLACE :]}"


class DeadLetterGroup:
    """Letters that are alike. `origin` is that of the first one, `latest` the number of the last that came, and
    `position` its position. `until` is the position up to which it is shown now."""

    __slots__ = ("among_others", "count", "kind", "latest", "origin", "others_since", "position", "until")

    def __init__(self, kind: bytes, origin: Origin) -> None:
        self.kind = kind
        self.origin = origin
        self.count = 0
        self.latest = 0
        self.position = 0
        self.until = 0
        self.among_others = False
        self.others_since = 0
        """The position at which it came among the others after it had been a group; 0: it has not."""

    @property
    def id(self) -> str:
        """What people and requests call it."""
        return self.kind[:6].hex() or OTHERS

    def came(self, entry: Letter) -> None:
        """Notes the last one that came."""
        if entry.position > self.position:
            self.latest, self.position = entry.number, entry.position
            self.until = max(self.until, self.position)


class _KindsByCount:
    """Kinds of letters, of which the largest is found at once."""

    def __init__(self) -> None:
        self._by_count: dict[int, dict[bytes, DeadLetterGroup]] = {}
        self._counts: list[int] = []
        """The counts that occur, in their order. n letters have less than √2n different ones."""

    def add(self, group: DeadLetterGroup) -> None:
        """It has its count until it is discarded."""
        alike = self._by_count.get(group.count)
        if alike is None:
            alike = self._by_count[group.count] = {}
            self._counts.insert(bisect_left(self._counts, group.count), group.count)
        alike[group.kind] = group

    def discard(self, group: DeadLetterGroup) -> None:
        """It is no more among them, or its count is about to change."""
        alike = self._by_count[group.count]
        del alike[group.kind]
        if not alike:
            del self._by_count[group.count]
            del self._counts[bisect_left(self._counts, group.count)]

    def largest(self) -> DeadLetterGroup | None:
        """One of which no other has more letters."""
        if not self._counts:
            return None
        alike = self._by_count[self._counts[-1]]
        kind, group = alike.popitem()  # forgets what was deleted at the end, which an iterator would pass each time
        alike[kind] = group
        return group


class DeadLetters:
    """The dead letters of one queue, in groups."""

    def __init__(self, new_position: Callable[[], int]) -> None:
        self._new_position = new_position
        self.clear()

    def clear(self) -> None:
        """There are none any more."""
        self.count = 0
        self._kinds: dict[bytes, DeadLetterGroup] = {}
        """All kinds of letters, each of them as a group."""
        self._groups: dict[bytes, DeadLetterGroup] = {}
        """Those that are shown as groups."""
        self._least = 0
        """No group has fewer letters."""
        self._others = DeadLetterGroup(b"", NOTHING_NOTED)
        self._among_others = _KindsByCount()
        self._started_at = 0

    def restored(self) -> None:
        """All letters of the store are there; the groups may be others than before."""
        self._started_at = self._others.until = self._new_position()

    def add(self, entry: Letter) -> None:
        """A letter is in the queue."""
        origin = entry.origin or NOTHING_NOTED
        kind = kind_of(origin)
        group = self._kinds.get(kind)
        if group is None:
            group = self._kinds[kind] = DeadLetterGroup(kind, origin)
            if len(self._groups) < MOST_GROUPS:
                self._groups[kind] = group
                self._least = 0
            else:
                group.among_others = True
        elif group.among_others:
            self._among_others.discard(group)

        entry.origin = group.origin if group.origin == origin else origin  # most letters share one in memory
        group.count += 1
        self.count += 1
        group.came(entry)
        if not group.among_others:
            return
        self._among_others.add(group)
        self._others.count += 1
        self._others.came(entry)
        if group.count > self._least:
            smallest = min(self._groups.values(), key=lambda one: one.count)
            self._least = smallest.count
            if group.count > smallest.count:
                self._exchange(group, smallest)

    def _exchange(self, larger: DeadLetterGroup, smallest: DeadLetterGroup) -> None:
        """A kind among the others, which has more letters than the smallest group, takes its place."""
        self._make_group(larger)
        del self._groups[smallest.kind]
        others = self._others
        smallest.among_others = True
        smallest.others_since = others.until = self._new_position()
        self._among_others.add(smallest)

        others.count += smallest.count
        if smallest.position > others.position:
            others.latest, others.position = smallest.latest, smallest.position

    def _make_group(self, group: DeadLetterGroup) -> None:
        self._among_others.discard(group)
        self._others.count -= group.count
        group.among_others = False
        self._groups[group.kind] = group
        self._least = min(self._least, group.count)

    def remove(self, entry: Letter) -> None:
        """A letter has left the queue."""
        self.count -= 1
        group = self._kinds[kind_of(entry.origin or NOTHING_NOTED)]
        if group.among_others:
            self._among_others.discard(group)
            self._others.count -= 1
        group.count -= 1
        if not group.count:
            del self._kinds[group.kind]
        if group.among_others:
            if group.count:
                self._among_others.add(group)
            return

        self._least = min(self._least, group.count)
        larger = self._among_others.largest()
        if not group.count:
            del self._groups[group.kind]
            if larger is not None:
                self._make_group(larger)
        elif larger is not None and larger.count > group.count:
            self._exchange(larger, group)

    def group_of(self, entry: Letter) -> str:
        """The id of a letter's group."""
        group = self._kinds.get(kind_of(entry.origin or NOTHING_NOTED))
        return OTHERS if group is None or group.among_others else group.id

    def was_shown(self, entry: Letter, group_id: str, until: int) -> bool:
        """Whether a letter was in a group when that was shown with `until`."""
        group = self._kinds.get(kind_of(entry.origin or NOTHING_NOTED))
        if group is None or entry.position > until:
            return False
        if group_id != OTHERS:
            return group.id == group_id
        return group.among_others and max(group.others_since, self._started_at) <= until

    def groups(self) -> Iterable[DeadLetterGroup]:
        """The groups, by their ids; then the others, if there are any."""
        found = sorted(self._groups.values(), key=lambda group: group.id)
        return [*found, self._others] if self._others.count else found


@lru_cache(maxsize=1024)
def kind_of(origin: Origin) -> bytes:
    """A digest of what letters that are alike have in common."""
    error = origin.error
    if error:
        words = _QUOTED.sub("…", error).split(" ")
        origin = origin._replace(error=" ".join(["…" if _DIGIT.search(word) else word for word in words]))
    return blake2b(origin.encode().encode(errors="replace"), digest_size=16).digest()
