"""One attempt at a source partition: it takes the messages and prepares them, or finds that it was done before.

 1. Start the branch, which is the same in every attempt. Take messages up to the share, end the branch and prepare it,
    also where it took nothing: it is durable before the first message is yielded. Messages that can't be decoded, or
    that are set aside, are given back with the branch and not yielded.
 2. Where the branch is known already, it is prepared, and what it holds is read again; or another attempt works on it,
    and this one waits; or that attempt is gone. Then the branch is asked to prepare: if that attempt had ended it, it
    is complete, and otherwise the answer is that it was rolled back. (This attempt never asks for a rollback, because
    the branch may have been prepared in the meantime.)

The attempt that took the messages yields them from memory; the broker keeps the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from xa import ROLLBACK_CODES, Code, XaError
from xabridge.pipeline.core.errors import BatchRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from xa import Xid

AT_ONCE: Final = 10_000
"""Messages that are taken at a time, once it is known how long they are."""
FIRST: Final = 16
"""Messages that are taken first, to know how long they are."""
OCTETS: Final = 256 << 20
"""The most octets of messages that one partition takes, however many its share allows."""
PAUSE_S: Final = 0.2
WAITS: Final = 600
"""How often another attempt, or a broker that is away, is waited for."""

TakenMessages: TypeAlias = list[tuple[str, list[bytes]]]
"""Messages as octets, with the queue that they were taken from."""


@dataclass(frozen=True, slots=True)
class WithheldMessages:
    """Which messages are not yielded, by their places in the order in which they were taken: those that count as
    delivered in vain, and those that are given back as they are."""

    failed: frozenset[int] = frozenset()
    released: frozenset[int] = frozenset()


class PartitionPort(Protocol):
    """The broker of a source partition, as one attempt sees it. XaError as an answer: the verb failed."""

    async def start(self, xid: Xid) -> Code | XaError:
        """Starts the branch."""
        ...

    async def take(self, queue: str, count: int) -> list[bytes] | XaError:
        """Takes messages under the branch that was started."""
        ...

    async def judge(self, taken: TakenMessages) -> WithheldMessages:
        """Reads the messages, and says which of them are not yielded."""
        ...

    async def prepare(self, xid: Xid, judged: WithheldMessages) -> Code | XaError:
        """Ends the branch and prepares it durably, with what was judged."""
        ...

    async def hold(self, xid: Xid) -> Code | XaError:
        """XA_OK: the branch is prepared, so that it can be read."""
        ...

    async def adopt(self, xid: Xid) -> Code | XaError:
        """Prepares a branch that another attempt began, once no caller is associated with it any more. XA_RB*: it was
        rolled back. XAER_PROTO: a caller is associated with it, or it is prepared."""
        ...

    async def pause(self, seconds: float) -> None:
        """Waits."""
        ...


def judge(aside: int, bad: Collection[int], taken: int, yielded: int) -> WithheldMessages:
    """What becomes of `taken` messages of which so many are yielded. Bad ones were delivered in vain; so were those
    that are set aside, where others are yielded in the same batch."""
    set_aside = frozenset(range(min(aside, taken)))
    return WithheldMessages(set_aside | frozenset(bad)) if yielded else WithheldMessages(frozenset(bad), set_aside)


async def take(
    port: PartitionPort, xid: Xid, queues: Sequence[str], share: int, waits: int = WAITS, limit: int = OCTETS
) -> TakenMessages | None:
    """The messages that the branch took and yields, once it is prepared; None: it was prepared before, and is to be
    read. It takes no more once it has `limit` octets. BatchRefused: the epoch was aborted."""
    last: XaError | None = None
    for _ in range(waits):
        if share:
            started = await port.start(xid)
            if not isinstance(started, XaError):
                taken = await _fill(port, xid, queues, share, limit)
                if not isinstance(taken, XaError):
                    return taken
                last = taken  # prepared or not: the next start tells
                await port.pause(PAUSE_S)
                continue
            _check_given_up(started)
            last = started
            if started.code is not Code.XAER_DUPID:
                await port.pause(PAUSE_S)
                continue

        held = await port.hold(xid)
        if not isinstance(held, XaError):
            return None
        last = held
        if held.code is Code.XAER_NOTA and not share:
            raise BatchRefused(f"the messages of {xid} can't be read again, because the branch was finished meanwhile")

        if held.code is Code.XAER_PROTO and share:
            answer = await port.adopt(xid)
            if not isinstance(answer, XaError):
                continue
            _check_given_up(answer)
            if answer.code in ROLLBACK_CODES:
                continue
            last = answer
        await port.pause(PAUSE_S)
    raise BatchRefused(f"{xid} can't be taken: {last}")


async def _fill(
    port: PartitionPort, xid: Xid, queues: Sequence[str], share: int, limit: int
) -> TakenMessages | XaError:
    taken: TakenMessages = []
    left = share
    octets = 0
    for queue in queues:
        while left and octets < limit:
            count = min(left, _fitting(share - left, octets, limit))
            some = await port.take(queue, count)
            if isinstance(some, XaError):
                _check_given_up(some)
                return some
            taken.append((queue, some))
            left -= len(some)
            octets += sum(map(len, some))
            if len(some) < count:
                break

    judged = await port.judge(taken)
    answer = await port.prepare(xid, judged)
    if isinstance(answer, XaError):
        _check_given_up(answer)
        return answer
    return _yielded(taken, judged.failed | judged.released)


def _yielded(taken: TakenMessages, given_back: frozenset[int]) -> TakenMessages:
    if not given_back:
        return taken
    yielded: TakenMessages = []
    first = 0
    for queue, messages in taken:
        kept = [octets for place, octets in enumerate(messages, first) if place not in given_back]
        yielded.append((queue, kept))
        first += len(messages)
    return yielded


def _fitting(taken: int, octets: int, limit: int) -> int:
    """How many more messages may be taken at a time: as many as fit into what is left of `limit`, if they are as long
    as those that were taken, and one at least; not many times more than those, because the next ones may be longer."""
    if not taken:
        return 1 if limit < OCTETS else FIRST
    return min(AT_ONCE, FIRST * (taken + 1), max(1, (limit - octets) * taken // max(octets, 1)))


def _check_given_up(error: XaError) -> None:
    if error.code is Code.XA_RBOTHER:
        raise BatchRefused(f"the epoch was aborted, or decided without this attempt: {error}") from error
