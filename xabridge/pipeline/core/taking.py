"""Taking: one attempt at a source partition, as a generator without I/O.

 1. Start the branch, which is the same in every attempt, take messages up to the share, end, and prepare it, also where
    it took nothing: durable before the first message is told. What nobody can read, and what is set aside, is given
    back with the branch and not told.
 2. Where the branch is known: it is prepared, and what it holds is read; or another attempt is at it, which is waited
    for; or that attempt is gone. Then the branch is asked to prepare: if that attempt had ended it, it is complete, and
    else the answer is that it is rolled back. (It is never told to roll back: it may have been prepared since.)

What the branch took is told from memory by the attempt that took it; the broker keeps the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tm.effects import Pause
from xa import ROLLBACK_CODES, Code, XaError
from xabridge.pipeline.core.errors import BatchRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Sequence

    from xa import Xid

AT_ONCE: Final = 10_000
"""Messages that are taken at a time, once it is known how long they are."""
FIRST: Final = 16
"""Messages that are taken first, to know how long they are."""
OCTETS: Final = 256 << 20
"""What one partition takes at most, however many messages its share allows."""
PAUSE_S: Final = 0.2
WAITS: Final = 600
"""How often another attempt, or a broker that is away, is waited for."""


@dataclass(frozen=True, slots=True)
class Start:
    """Answer: XA_OK, or the XaError."""

    xid: Xid


@dataclass(frozen=True, slots=True)
class Take:
    """Take messages under the branch that was started. Answer: list[bytes], or the XaError."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class Judge:
    """Which messages are not told. Answer: Judged."""

    taken: Taken


@dataclass(frozen=True, slots=True)
class Judged:
    """Messages by their places, in the order in which they were taken: those that were delivered in vain, and those
    that are given back as they are."""

    failed: frozenset[int] = frozenset()
    released: frozenset[int] = frozenset()


def judge(aside: int, bad: Collection[int], taken: int, told: int) -> Judged:
    """What becomes of `taken` messages of which so many are told. Bad ones were delivered in vain; so were those that
    are set aside, where others are told in the same batch."""
    set_aside = frozenset(range(min(aside, taken)))
    return Judged(set_aside | frozenset(bad)) if told else Judged(frozenset(bad), set_aside)


@dataclass(frozen=True, slots=True)
class Prepare:
    """End the branch and prepare it durably, with what was judged. Answer: XA_OK, or the XaError."""

    xid: Xid
    judged: Judged


@dataclass(frozen=True, slots=True)
class Hold:
    """Whether the branch is prepared, so that it can be read. Answer: XA_OK, or the XaError."""

    xid: Xid


@dataclass(frozen=True, slots=True)
class Adopt:
    """Prepare a branch that another attempt began, and that nobody is associated with any more. Answer: XA_OK, or the
    XaError: XA_RB* when it was rolled back, XAER_PROTO when somebody is, or it is prepared."""

    xid: Xid


Effect: TypeAlias = Start | Take | Judge | Prepare | Hold | Adopt | Pause
Taken: TypeAlias = list[tuple[str, list[bytes]]]
"""Messages as octets, with the queue that they were taken from."""
Steps: TypeAlias = "Generator[Effect, Any, Taken | None]"


def take(xid: Xid, queues: Sequence[str], share: int, waits: int = WAITS) -> Steps:
    """What the branch took and tells, once it is prepared; None: it was prepared before, and is to be read.
    BatchRefused: the epoch was given up."""
    last: XaError | None = None
    for _ in range(waits):
        if share:
            started: Code | XaError = yield Start(xid)
            if not isinstance(started, XaError):
                taken = yield from _fill(xid, queues, share)
                if not isinstance(taken, XaError):
                    return taken
                last = taken  # prepared or not: the next start tells
                yield Pause(PAUSE_S)
                continue
            _check_given_up(started)
            last = started
            if started.code is not Code.XAER_DUPID:
                yield Pause(PAUSE_S)
                continue
        held: Code | XaError = yield Hold(xid)
        if not isinstance(held, XaError):
            return None
        last = held
        if held.code is Code.XAER_NOTA and not share:
            raise BatchRefused(f"what {xid} held can't be read again: it was finished meanwhile")
        if held.code is Code.XAER_PROTO and share:
            answer: Code | XaError = yield Adopt(xid)
            if not isinstance(answer, XaError):
                continue
            _check_given_up(answer)
            if answer.code in ROLLBACK_CODES:
                continue
            last = answer
        yield Pause(PAUSE_S)
    raise BatchRefused(f"{xid} can't be taken: {last}")


def _fill(xid: Xid, queues: Sequence[str], share: int) -> Generator[Effect, Any, Taken | XaError]:
    taken: Taken = []
    left = share
    octets = 0
    for queue in queues:
        while left and octets < OCTETS:
            count = min(left, _fitting(share - left, octets))
            some: list[bytes] | XaError = yield Take(queue, count)
            if isinstance(some, XaError):
                _check_given_up(some)
                return some
            taken.append((queue, some))
            left -= len(some)
            octets += sum(map(len, some))
            if len(some) < count:
                break
    judged: Judged = yield Judge(taken)
    answer: Code | XaError = yield Prepare(xid, judged)
    if isinstance(answer, XaError):
        _check_given_up(answer)
        return answer
    return _told(taken, judged.failed | judged.released)


def _told(taken: Taken, given_back: frozenset[int]) -> Taken:
    if not given_back:
        return taken
    told: Taken = []
    first = 0
    for queue, messages in taken:
        kept = [octets for place, octets in enumerate(messages, first) if place not in given_back]
        told.append((queue, kept))
        first += len(messages)
    return told


def _fitting(taken: int, octets: int) -> int:
    """How many more messages may be taken at a time: as many as fit into what is left of OCTETS, if they are as long as
    those that were taken; not many times more than those, as the next ones may be longer."""
    return min(AT_ONCE, FIRST * (taken + 1), 1 + (OCTETS - octets) * (taken + 1) // (octets + 1))


def _check_given_up(error: XaError) -> None:
    if error.code is Code.XA_RBOTHER:
        raise BatchRefused(f"the epoch was given up, or decided without this attempt: {error}") from error
