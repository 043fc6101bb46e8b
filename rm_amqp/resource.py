"""The resource manager of an AMQP 1.0 broker with distributed transactions.

The XA verbs are those of `xa.switch`, over an `AmqpDriver`. This module adds methods beyond XA, for operators and for
programs that coordinate one global transaction from several processes. Such a program needs a prepared branch that
holds nothing, a fence around a global transaction, the prepared branches whose gtrids begin alike, and the messages
that a prepared branch holds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeVar

from dtx.amqp.decoding import DecodeError, decode_from
from dtx.protocol.addresses import DEPTH, branch_address
from dtx.protocol.commands import MAX_PAGE, Fence, Prepare, Recover, RecoveredState
from dtx.protocol.conditions import RefusedError
from rm_amqp.channel.message_links import READ
from rm_amqp.connections import ConnectedSwitch, Environment
from rm_amqp.diagnosis import REPORT_PAGE, condition_checks, diagnose, in_doubt_branch
from rm_amqp.driver import AmqpDriver, BranchWork
from rm_amqp.errors import AllInUse, ConnectionLost, TimedOut, lost_error, refusal_error
from rm_amqp.settings import parse
from xa import FORMAT_ID, NULL_XID, TMREGISTER, TMUSEASYNC, Code, XaError, xa_error
from xa.diagnosis import Diagnosis, Health
from xa.switch import EndingWithPrepareSwitch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator, Sequence

    from rm_amqp.channel.channel import DistributedChannel
    from rm_amqp.channel.pool import PooledChannel
    from rm_amqp.connection.endpoint import Steps
    from rm_amqp.connection.links import BulkReceiver
    from xa import Registrar, Xid
    from xa.holdings import InDoubtBranch

T = TypeVar("T")
LOOKED: Final = 1
"""Messages that tell whether there are any."""


class AmqpResource(ConnectedSwitch[BranchWork], EndingWithPrepareSwitch[BranchWork]):
    """One instance. `flags` are the switch's: TMUSEASYNC, and TMREGISTER for one that registers dynamically.

    An association can be resumed only in the thread of control that suspended it, whose channel it is on: end with
    TMMIGRATE answers XA_NOMIGRATE. open, close, start and end with TMASYNC are carried out before they return.
    """

    driver: AmqpDriver
    sends_messages: Final = True

    def __init__(
        self, registrar: Registrar | None = None, flags: int = TMUSEASYNC, environment: Environment | None = None
    ) -> None:
        super().__init__(AmqpDriver(flags, environment or Environment()), registrar)

    # --- for operators ----------------------------------------------------------------------------------------
    def in_doubt(self, rmid: int, flags: int = 0, count: int = 1000) -> Sequence[InDoubtBranch]:
        def scan(page: int) -> Iterator[InDoubtBranch]:
            for details in self.driver.details(min(page, REPORT_PAGE)):
                yield in_doubt_branch(details, time.time())

        return self.page("in_doubt", scan, rmid, flags, count)

    def diagnose(self, open_string: str) -> Diagnosis:
        """Opens an instance of its own, and closes it again."""

        def try_it() -> None:
            other = AmqpResource()
            try:
                other.open(open_string, 1)
            finally:
                other.drop()

        found = diagnose(lambda: parse(open_string), try_it)
        if any(check.health is Health.FAIL for check in found.checks):
            return found
        return Diagnosis((*found.checks, *condition_checks(open_string)))

    # --- for coordinators of several processes ----------------------------------------------------------------
    def prepare_kept(self, xid: Xid, rmid: int, failed: Collection[int] = (), released: Collection[int] = ()) -> Code:
        """Prepares a branch durably also if it holds nothing: XA_OK instead of XA_RDONLY. Its xid stays taken until it
        is committed or rolled back. Of what it gathered, by the places from 0, `failed` messages are available again
        when it commits, with their delivery-count raised, and `released` ones without."""
        prepare = Prepare(xid, keep=True, failed=tuple(sorted(failed)), released=tuple(sorted(released)))
        return self.call("prepare", rmid, lambda: self.driver.complete("prepare", prepare, xid, later=False).result())

    def fence(self, gtrid: bytes, rmid: int, format_id: int = FORMAT_ID) -> None:
        """Bars the global transaction: no branch of it can be started or prepared from now on; those that are not
        prepared become rollback-only. Durable when it returns; a fence that exists already is fine."""
        self.call("fence", rmid, lambda: self.driver.exchange("fence", Fence(format_id, gtrid), None))

    def lift_fence(self, gtrid: bytes, rmid: int, format_id: int = FORMAT_ID) -> None:
        """Lifts the fence; a fence that does not exist is fine. (The broker drops old ones itself.)"""
        fence = Fence(format_id, gtrid, lift=True)
        try:
            self.call("fence", rmid, lambda: self.driver.exchange("fence", fence, None))
        except XaError as error:
            if error.code is not Code.XAER_NOTA:
                raise

    def prepared(self, rmid: int, prefix: bytes = b"") -> list[Xid]:
        """Every prepared branch whose gtrid begins with `prefix`, in the order of their xids. (None that was completed
        heuristically.)"""
        first = Recover(NULL_XID, MAX_PAGE, prefix, (RecoveredState.PREPARED,))
        pages = self.call("recover", rmid, lambda: list(self.driver.pages(first)))
        return [xid for page in pages for xid in page.in_doubt]

    def holds(self, gtrid: bytes, rmid: int) -> dict[Xid, int]:
        """How many messages each prepared branch of a global transaction has taken out of queues."""
        first = Recover(NULL_XID, MAX_PAGE, gtrid, (RecoveredState.PREPARED,), details=True)
        pages = self.call("recover", rmid, lambda: list(self.driver.pages(first)))
        found = {one.xid: sum(held.retired for held in one.holdings) for page in pages for one in page.details}
        return {xid: count for xid, count in found.items() if xid.gtrid == gtrid}

    # --- reading beside the work of the thread ----------------------------------------------------------------
    def retired(self, xid: Xid, rmid: int, page: int = READ) -> Iterator[list[bytes]]:
        """The messages that a prepared branch takes, in their order, as octets, `page` at a time. XAER_NOTA: there is
        no such branch."""
        return self._read(branch_address(xid, "retired"), rmid, page, xid)

    def first(self, address: str, rmid: int) -> bytes | None:
        """The first message that is available at an address now, as octets. None: there is none."""
        reading = self._read(address, rmid, LOOKED, None)
        try:
            return next(iter(next(reading, [])), None)
        finally:
            reading.close()

    def waiting(self, address: str, rmid: int, count: int) -> list[bytes]:
        """The first messages that are available at an address now, at most `count`, as octets. They are not taken."""
        found: list[bytes] = []
        reading = self._read(address, rmid, min(count, READ), None)
        try:
            for octets in reading:
                found += octets
                if len(found) >= count:
                    break
        finally:
            reading.close()
        return found[:count]

    def count(self, address: str, rmid: int) -> int:
        """How many messages are available at an address now."""
        reading = self._read(DEPTH + address, rmid, LOOKED, None)
        try:
            (octets,) = next(reading)
        finally:
            reading.close()
        _, start = decode_from(octets, 1)
        number, _ = decode_from(octets, start)
        if not isinstance(number, int):
            raise DecodeError(f"the depth of {address} is no number")
        return int(number)

    def _read(self, address: str, rmid: int, page: int, xid: Xid | None) -> Generator[list[bytes]]:
        """Reads an address over a channel of its own, so that the thread of control may be at work meanwhile."""
        connections = self.driver.connections
        pooled = self._browse(rmid, xid, lambda: connections.pool.acquire(work=False, deadline=connections.deadline()))
        messages = pooled.channel.messages
        receiver: BulkReceiver | None = None
        try:
            receiver = self._run(rmid, xid, pooled, messages.reader(address, connections.deadline()))
            while octets := self._run(rmid, xid, pooled, messages.read(receiver, page, connections.deadline())):
                yield octets
                if len(octets) < page:
                    break
        finally:
            if receiver is not None and receiver.alive and pooled.is_reusable:
                pooled.connection.step(receiver.close, later=True)
            connections.pool.release(pooled)

    def _run(self, rmid: int, xid: Xid | None, pooled: PooledChannel[DistributedChannel], steps: Steps[T]) -> T:
        return self._browse(rmid, xid, lambda: pooled.connection.run(steps))

    def _browse(self, rmid: int, xid: Xid | None, call: Callable[[], T]) -> T:
        """Makes the call, and raises its errors as XA errors."""

        def browsed() -> T:
            try:
                return call()
            except AllInUse as why:
                raise xa_error(Code.XA_RETRY, f"browse: {why}") from None
            except RefusedError as error:
                raise refusal_error("browse", error.refusal, xid) from None
            except (ConnectionLost, TimedOut) as why:
                raise lost_error("browse", why, xid) from None

        return self.call("browse", rmid, browsed)


def static(registrar: Registrar) -> AmqpResource:
    """The factory for `amqp://` and `amqps://`: the transaction manager starts and ends its work."""
    return AmqpResource(registrar)


def dynamic(registrar: Registrar) -> AmqpResource:
    """The factory for `dynamic+amqp://` and `dynamic+amqps://`, which registers itself at the first work
    (TMREGISTER)."""
    return AmqpResource(registrar, TMREGISTER | TMUSEASYNC)
