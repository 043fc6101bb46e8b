"""Coordinating: what whoever coordinates a global transaction from several processes asks beyond XA.

A branch that holds nothing and is prepared all the same, a fence around a global transaction, the prepared branches
whose gtrid begins alike, and the messages that a prepared branch holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from dtx.protocol.addresses import DEPTH, branch_address
from dtx.protocol.commands import MAX_PAGE, Fence, Found, Prepare, Recover
from dtx.protocol.conditions import RefusedError
from dtx.protocol.decoding import decode_from
from dtx.protocol.replies import Recovered
from rm_amqp.bulk import READ
from rm_amqp.connected import refusal_error
from rm_amqp.ending import EndingLate
from rm_amqp.loss import AllInUse, ConnectionLost, TimedOut
from xa import FORMAT_ID, NULL_XID, Code, XaError, xa_error

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Iterator

    from rm_amqp.core import Steps
    from rm_amqp.links import Taker
    from rm_amqp.pool import Seat
    from rm_amqp.standing import Standing
    from xa import Xid

T = TypeVar("T")
LOOKED: Final = 1
"""Messages that tell whether there are any."""


class Coordinating(EndingLate):
    """One resource manager instance, as `rm_amqp.resource` completes it."""

    def prepare_kept(self, xid: Xid, rmid: int, failed: Collection[int] = (), released: Collection[int] = ()) -> Code:
        """As `prepare`, and a branch that holds nothing is prepared durably as well: XA_OK instead of XA_RDONLY. Its
        xid stays taken until it is committed or rolled back. Of what it gathered, by the places from 0, `failed`
        messages are available again when it commits, with their delivery-count raised, and `released` ones without."""
        standing = self._enter("prepare", rmid, 0)
        prepare = Prepare(xid, keep=True, failed=tuple(sorted(failed)), released=tuple(sorted(released)))
        try:
            code = self._carry_out(standing, "prepare", prepare, xid)
        except XaError as error:
            self._decided("prepare", xid, error.code)
            raise
        self._decided("prepare", xid, code)
        return code

    def fence(self, gtrid: bytes, rmid: int, format_id: int = FORMAT_ID) -> None:
        """From now on no branch of the global transaction can be started or prepared; those that are not prepared
        become rollback-only. Durable when it returns; a fence that stands already is fine."""
        standing = self._asking("fence", rmid)
        self._reply(standing, "fence", Fence(format_id, gtrid), None)

    def lift_fence(self, gtrid: bytes, rmid: int, format_id: int = FORMAT_ID) -> None:
        """The fence goes; one that is gone already is fine. (The broker drops old ones itself.)"""
        standing = self._asking("fence", rmid)
        try:
            self._reply(standing, "fence", Fence(format_id, gtrid, lift=True), None)
        except XaError as error:
            if error.code is not Code.XAER_NOTA:
                raise

    def prepared(self, rmid: int, prefix: bytes = b"") -> list[Xid]:
        """Every prepared branch whose gtrid begins with `prefix`, in the order of their xids. (None that was completed
        heuristically.)"""
        standing = self._enter("recover", rmid, 0)
        found: list[Xid] = []
        after = NULL_XID
        while True:
            command = Recover(after, MAX_PAGE, prefix, (Found.PREPARED,))
            page = self._reply(standing, "recover", command, None)
            if not isinstance(page, Recovered):
                raise xa_error(Code.XAER_RMERR, "recover: the broker answered something else")
            found += page.in_doubt
            if not page.more or not page.in_doubt:
                return found
            after = page.in_doubt[-1]

    def holds(self, gtrid: bytes, rmid: int) -> dict[Xid, int]:
        """How many messages each prepared branch of a global transaction has taken out of queues."""
        standing = self._enter("recover", rmid, 0)
        found: dict[Xid, int] = {}
        after = NULL_XID
        while True:
            command = Recover(after, MAX_PAGE, gtrid, (Found.PREPARED,), details=True)
            page = self._reply(standing, "recover", command, None)
            if not isinstance(page, Recovered):
                raise xa_error(Code.XAER_RMERR, "recover: the broker answered something else")
            found |= {one.xid: sum(held.retired for held in one.holdings) for one in page.details}
            if not page.more or not page.in_doubt:
                return {xid: count for xid, count in found.items() if xid.gtrid == gtrid}
            after = page.in_doubt[-1]

    def retired(self, xid: Xid, rmid: int, page: int = READ) -> Iterator[list[bytes]]:
        """The messages that a prepared branch takes, in their order, as octets, `page` at a time. XAER_NOTA: there is
        no such branch."""
        return self._read("browse", branch_address(xid, "retired"), rmid, page, xid)

    def has_messages(self, address: str, rmid: int) -> bool:
        """Whether a message is available at an address now."""
        reading = self._read("browse", address, rmid, LOOKED, None)
        try:
            return bool(next(reading, []))
        finally:
            reading.close()

    def count(self, address: str, rmid: int) -> int:
        """How many messages are available at an address now."""
        reading = self._read("browse", DEPTH + address, rmid, LOOKED, None)
        try:
            (octets,) = next(reading)
        finally:
            reading.close()
        _, start = decode_from(octets, 1)
        number, _ = decode_from(octets, start)
        return int(number)

    def _read(self, verb: str, address: str, rmid: int, page: int, xid: Xid | None) -> Generator[list[bytes]]:
        """Reads an address over a channel of its own, so that the thread of control may be at work meanwhile."""
        standing = self._asking(verb, rmid)
        seat = self._over_channel(standing, verb, xid, lambda: self.pool.take(self.deadline(), spare=True))
        taker: Taker | None = None
        try:
            taker = self._step(standing, seat, verb, xid, seat.channel.reader(address, self.deadline()))
            while octets := self._step(standing, seat, verb, xid, seat.channel.read(taker, page, self.deadline())):
                yield octets
                if len(octets) < page:
                    break
        finally:
            if taker is not None and taker.alive and not seat.channel.broken:
                seat.line.run(_closing(taker), later=True)
            self.pool.give(seat)

    def _asking(self, verb: str, rmid: int) -> Standing:
        """The calling thread of control, if it may ask what is no verb of XA's."""
        self._check_open(verb, rmid)
        standing = self._standing()
        self._check_lost(verb, standing)
        return standing

    def _step(self, standing: Standing, seat: Seat, verb: str, xid: Xid | None, steps: Steps[T]) -> T:
        return self._over_channel(standing, verb, xid, lambda: seat.line.run(steps))

    def _over_channel(self, standing: Standing, verb: str, xid: Xid | None, call: Callable[[], T]) -> T:
        """What `call` returns, with its errors as XA has them."""
        try:
            return call()
        except AllInUse as why:
            raise xa_error(Code.XA_RETRY, f"{verb}: {why}; allow more with channels= in the open string") from None
        except RefusedError as error:
            raise refusal_error(verb, error.refusal, xid) from None
        except (ConnectionLost, TimedOut) as why:
            raise self._failed(standing, verb, why, xid) from None


def _closing(taker: Taker) -> Steps[None]:
    yield from ()
    taker.close()
