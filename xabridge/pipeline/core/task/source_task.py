"""The executor's side of a source: `read` takes the messages of one partition and prepares them. No decision log is
needed here, and none is loaded. Resource managers stay open in the process, for the tasks that come after.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final, TypeVar

from dtx.amqp.composites import WireError
from dtx.amqp.decoding import DecodeError
from rm_amqp import Message
from rm_amqp.message import encoded
from tm.log import Branch
from tm.two_phase.return_codes import Verb
from xa import TMFAIL, TMSUCCESS, Code, XaError
from xa.coroutines import drive
from xabridge.pipeline.core.errors import BatchRefused, PipelineError
from xabridge.pipeline.core.protocol import partition_read
from xabridge.pipeline.core.resources import PROCESS, ask_branches, broker, call_resource
from xabridge.pipeline.core.task.blameless_failure import excuse
from xabridge.pipeline.core.task.message_decoder import MessageFilter, decode_messages
from xabridge.pipeline.core.user_functions import function_named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from tm.resources import Resource
    from xa import Xid
    from xabridge.pipeline.core.messages import Messages
    from xabridge.pipeline.core.protocol.partition_read import TakenMessages
    from xabridge.pipeline.core.resources import Resources
    from xabridge.pipeline.core.values import SourcePartition

    BodyReader = Callable[[bytes | str | None], Any]

T = TypeVar("T")

logger: Final = logging.getLogger("xabridge.pipeline")

CHUNK: Final = 10_000
REASON: Final = "bad_reason"
"""The application property of a bad message that has the reason."""
LONGEST: Final = 1000
"""Characters of a reason."""


def read(
    partition: SourcePartition,
    *,
    chunk: int = CHUNK,
    resources: Resources = PROCESS,
    sleep: Callable[[float], None] = time.sleep,
    body: BodyReader | None = None,
) -> Iterator[Messages]:
    """The messages of the partition, at most `chunk` at a time: the same ones in the same order in every attempt. They
    are prepared, durably, before the first one is yielded. BatchRefused: the epoch was aborted in the meantime. `body`
    reads the bodies; ValueError: the message is bad."""
    try:
        resource = resources.get(partition.resource, partition.url)
        taker = BlockingPartition(resource, partition, sleep, chunk, body)
        rows: Iterable[Messages] = taker.rows if taker.run() else _read_again(resource, partition, chunk, body)
        yield from rows
    except PipelineError:
        excuse(((partition.resource, partition.url),), partition.xid.gtrid, resources)
        raise


def _with_queues(taken: TakenMessages) -> Iterator[tuple[str | None, bytes]]:
    for queue, messages in taken:
        for octets in messages:
            yield queue, octets


def _read_again(
    resource: Resource, partition: SourcePartition, chunk: int, body: BodyReader | None
) -> Iterator[Messages]:
    """Reads the prepared branch again. A branch of an attempt that came only as far as its end holds the bad messages
    too, and is refused; but one that has sent them to an address holds them always."""
    sorting = _sorting(partition, body)
    sorting.aside = 0
    for messages in decode_messages(_held_messages(resource, partition), chunk, sorting):
        if sorting.bad and not partition.bad_address:
            break
        yield messages
    if sorting.bad and not partition.bad_address:
        raise BatchRefused(f"{partition.xid} holds messages that are bad now: {next(iter(sorting.bad.values()))}")


def _sorting(partition: SourcePartition, body: BodyReader | None) -> MessageFilter:
    return MessageFilter(
        partition.aside, partition.text, function_named(partition.bad_records), body, partition.keep_bad
    )


def _held_messages(resource: Resource, partition: SourcePartition) -> Iterator[tuple[str | None, bytes]]:
    """The messages that the prepared branch holds."""
    try:
        for page in broker(resource).retired(partition.xid, resource.rmid):
            for octets in page:
                yield None, octets
    except XaError as error:
        resource.failed(error)
        raise BatchRefused(f"the messages that {partition.xid} holds can't be read: {error}") from error


class BlockingPartition:
    """A `PartitionPort` that blocks, for one attempt. `rows` are the messages that it has taken and yields."""

    def __init__(
        self,
        resource: Resource,
        partition: SourcePartition,
        sleep: Callable[[float], None],
        chunk: int = CHUNK,
        body: BodyReader | None = None,
    ) -> None:
        self._resource = resource
        self._partition = partition
        self._rm = broker(resource)
        self._sleep = sleep
        self._chunk = chunk
        self._body = body
        self.rows: list[Messages] = []
        self._bad: list[bytes] = []

    def run(self) -> bool:
        """Makes the attempt; False: the branch was prepared before, and is to be read. An attempt that is interrupted
        leaves no branch at work."""
        partition = self._partition
        waits = round(partition.outage_s / partition_read.PAUSE_S) + 1
        try:
            limit = min(partition.octets or partition_read.OCTETS, partition_read.OCTETS)
            taking = partition_read.take(self, partition.xid, partition.queues, partition.share, waits, limit)
            return drive(taking) is not None
        except BaseException:
            self._leave(partition)
            raise

    def _leave(self, partition: SourcePartition) -> None:
        """Ends the association in failure: what the attempt took goes back at once, and nothing of it can be prepared
        any more. The branch is not rolled back, because it may be another attempt's by now."""
        branch = Branch(partition.resource, partition.xid)
        ask_branches({partition.resource: self._resource}, Verb.END, [branch], TMFAIL)

    async def start(self, xid: Xid) -> Code | XaError:
        def ask() -> Code:
            self._rm.start(xid, self._resource.rmid)
            return Code.XA_OK

        return self._ask("start", ask)

    async def take(self, queue: str, count: int) -> list[bytes] | XaError:
        return self._ask("take", lambda: self._rm.session(self._resource.rmid).gather(queue, count))

    async def judge(self, taken: TakenMessages) -> partition_read.WithheldMessages:
        sorting = _sorting(self._partition, self._body)
        self.rows = list(decode_messages(_with_queues(taken), self._chunk, sorting))
        address = self._partition.bad_address
        becomes = f"is sent to {address}" if address else "goes back to its queue"
        for place, why in sorting.bad.items():
            logger.warning("%s: message %d is bad and %s: %s", self._partition.xid, place, becomes, why)
        count = sum(len(messages) for _, messages in taken)
        self._bad = []
        if address and sorting.bad:
            octets = [one for _, messages in taken for one in messages]
            self._bad = [bad_message(octets[place], why) for place, why in sorting.bad.items()]
            sorting.bad = {}

        judged = partition_read.judge(self._partition.aside, sorting.bad, count, sum(map(len, self.rows)))
        if self._partition.aside:
            others = "the batch reads the others without them" if self.rows else "there are no others"
            logger.warning("%s: the first of %d messages failed alone: %s", self._partition.xid, count, others)
        return judged

    async def prepare(self, xid: Xid, judged: partition_read.WithheldMessages) -> Code | XaError:
        def ask() -> Code:
            if self._bad:  # before the end, so that a branch that has ended has sent them
                self._rm.session(self._resource.rmid).post(self._partition.bad_address, self._bad)
            self._rm.end(xid, self._resource.rmid, TMSUCCESS)
            return self._rm.prepare_kept(xid, self._resource.rmid, judged.failed, judged.released)

        return self._ask("prepare", ask)

    async def hold(self, xid: Xid) -> Code | XaError:
        def ask() -> Code:
            next(self._rm.retired(xid, self._resource.rmid, 1), None)
            return Code.XA_OK

        return self._ask("hold", ask)

    async def adopt(self, xid: Xid) -> Code | XaError:
        return self._ask("adopt", lambda: self._rm.prepare_kept(xid, self._resource.rmid))

    async def pause(self, seconds: float) -> None:
        self._sleep(seconds)

    def _ask(self, routine: str, ask: Callable[[], T]) -> T | XaError:
        try:
            return call_resource(self._resource, routine, ask)
        except XaError as error:
            return error


def bad_message(octets: bytes, reason: str) -> bytes:
    """The octets of a bad message, as it is sent on: as it came, with the reason among its application properties. If
    nothing of it can be read, its octets are the body."""
    try:
        message = Message.from_octets(octets)
    except (DecodeError, WireError, ValueError, IndexError, KeyError):
        message = Message(octets, inferred=True)
    message.properties = {**(message.properties or {}), REASON: reason[:LONGEST]}
    message.instructions = None  # they were for this receiver
    message.delivery_count = 0
    return encoded(message)
