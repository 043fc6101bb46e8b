"""Dead letters: why each of them is one, which is kept beside it as it arrives, and the groups of those of one queue
that are alike. So people see what has failed without opening a message, and a start reads no payload.

The broker makes a dead letter itself, and knows from which queue and for which reason; a consumer that has rejected it,
or has failed with it before, may have said with what error. Or a client sends it: a consumer of xabridge notes what it
has failed with in message annotations (`x-opt-dead-…`), others in application properties. That is the sender's word,
and is shown; nothing depends on it. It is shown cut, and with escapes for what would move a cursor.

Letters are alike if they come from one queue for one reason, and with an error of one kind from one place. Two errors
are of one kind if they differ only in words with digits, and in what stands in quotes. A queue has at most MOST_GROUPS
groups. A letter that would need one more is counted in `others`, as long as it is in the queue.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from dtx.amqp.messages import read_notes
from xa.printable import escaped, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    `position` its position."""

    __slots__ = ("count", "id", "latest", "origin", "position")

    def __init__(self, group_id: str, origin: Origin) -> None:
        self.id = group_id
        self.origin = origin
        self.count = 0
        self.latest = 0
        self.position = 0


class DeadLetters:
    """The dead letters of one queue, in groups."""

    def __init__(self) -> None:
        self._groups: dict[Origin, DeadLetterGroup] = {}
        """By what letters have in common."""
        self._others = DeadLetterGroup(OTHERS, NOTHING_NOTED)
        self._in_others: set[int] = set()
        """The numbers of letters that are in no group."""
        self.count = 0

    def add(self, entry: Letter) -> None:
        """A letter is in the queue."""
        origin = entry.origin or NOTHING_NOTED
        kind = kind_of(origin)
        group = self._groups.get(kind)
        if group is None and len(self._groups) < MOST_GROUPS:
            group = self._groups[kind] = DeadLetterGroup(_id_of(kind), origin)
        elif group is None:
            group = self._others
            self._in_others.add(entry.number)

        entry.origin = group.origin if group.origin == origin else origin  # most letters share one in memory
        group.count += 1
        self.count += 1
        if entry.position > group.position:
            group.latest, group.position = entry.number, entry.position

    def remove(self, entry: Letter) -> None:
        """A letter has left the queue."""
        self.count -= 1
        if entry.number in self._in_others:
            self._in_others.discard(entry.number)
            self._others.count -= 1
            return
        kind = kind_of(entry.origin or NOTHING_NOTED)
        group = self._groups[kind]
        group.count -= 1
        if not group.count:
            del self._groups[kind]

    def group_of(self, entry: Letter) -> str:
        """The id of a letter's group."""
        if entry.number in self._in_others:
            return OTHERS
        group = self._groups.get(kind_of(entry.origin or NOTHING_NOTED))
        return OTHERS if group is None else group.id

    def groups(self) -> Iterable[DeadLetterGroup]:
        """The groups, by their ids; then the others, if there are any."""
        found = sorted(self._groups.values(), key=lambda group: group.id)
        return [*found, self._others] if self._others.count else found

    def clear(self) -> None:
        """There are none any more."""
        self._groups.clear()
        self._in_others.clear()
        self._others.count = self.count = 0


@lru_cache(maxsize=1024)
def kind_of(origin: Origin) -> Origin:
    """What letters that are alike have in common."""
    error = origin.error
    if not error:
        return origin
    words = _QUOTED.sub("…", error).split(" ")
    return origin._replace(error=" ".join(["…" if _DIGIT.search(word) else word for word in words]))


def _id_of(kind: Origin) -> str:
    return blake2b(kind.encode().encode(errors="replace"), digest_size=6).hexdigest()
