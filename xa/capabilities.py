"""Optional capabilities of a resource manager. Each is a method, some of them, or an attribute: an instance offers the
capability if and only if it has them. A caller that never uses one is right, too.

`xa.diagnosis`, `xa.holdings`, `xa.outcome_notes` and `xa.deciding_resource` have others, with what they tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from xa.resource_manager import ResourceManager

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from xa.codes import Code
    from xa.pool import Connections
    from xa.resource_manager import Handle
    from xa.xid import Xid


class BreakingConnections(ResourceManager, Protocol):
    """Its connections can be broken while a thread waits for them."""

    def break_off(self) -> None:
        """Breaks every connection at once, as a network does that fails: whatever is being asked over one of them comes
        to XAER_RMFAIL, and the next `open` connects anew. Called by any thread, at any moment, while others are inside
        of a verb; it waits for none of them."""
        ...


class EndingWithPrepare(ResourceManager, Protocol):
    """A resource manager that can end an association and prepare its branch in one exchange instead of two.
    docs/decisions/0008 says why this is a verb of its own. Codes that any verb may raise are those of
    `ResourceManager`."""

    def end_late(self, xid: Xid, rmid: int, flags: int) -> Code | Handle:
        """Ends the calling thread's association, as `end` does, for a caller that will call `prepare` or `rollback` of
        the branch at once, from the same thread of control. The server may get the end together with that verb.

        Flags: TMSUCCESS.
        XA_OK: the thread is not associated any more. Until the next verb no other caller may rely on the end, because
        for others the branch may still be active. The next verb returns what `end` would have returned: `prepare`
        answers XA_RB* if the branch has ended, or XAER_RMERR if it is as it was and has to be rolled back.
        Otherwise as `end`.
        """
        ...


class StartingAtOnce(ResourceManager, Protocol):
    """A resource manager that knows whether `start` would have to wait, so that a task of an event loop need not ask a
    worker thread to call it."""

    def starts_at_once(self, rmid: int) -> bool:
        """Whether `start` of a new branch with TMNOWAIT, called now by the same thread of control, would return without
        waiting for its server or for another thread, as far as is known. It never raises.

        It is a forecast: another thread may take the last free connection meanwhile. Then `start` answers XA_RETRY, or
        makes a connection."""
        ...


class ConnectionUsage(Protocol):
    """A resource manager with a pool of connections, which it describes for metrics."""

    def connections(self) -> Connections | None:
        """How its pool is now; None while it is not open. It asks no server, and never raises."""
        ...


@runtime_checkable
class CarryingOutSql(Protocol):
    """Its sessions carry out SQL, as SQLAlchemy's connections do."""

    carries_out_sql: Literal[True]


@runtime_checkable
class SendingMessages(Protocol):
    """Its sessions have `send(address, message)`, for messages that encode themselves as AMQP 1.0 has them."""

    sends_messages: Literal[True]


@runtime_checkable
class LimitingPrepared(Protocol):
    """Its server prepares no more than so many branches at a time."""

    def most_prepared(self) -> int:
        """The most, in all of its databases. Called while it is open."""
        ...


@runtime_checkable
class SharingBranches(Protocol):
    """A broker whose prepared branches several processes share: one prepares, another one reads what the branch holds,
    and a third completes it. Its sessions have `gather(address, count)` and `post(address, messages)` for messages as
    octets. Each method raises XaError."""

    def prepare_kept(self, xid: Xid, rmid: int, failed: Collection[int] = (), released: Collection[int] = ()) -> Code:
        """Prepares a branch durably also if it holds nothing: XA_OK instead of XA_RDONLY. Its xid stays taken until it
        is committed or rolled back. Of what it gathered, by the places from 0, `failed` messages are available again
        when it commits, with their delivery-count raised, and `released` ones without."""
        ...

    def fence(self, gtrid: bytes, rmid: int) -> None:
        """Bars the global transaction: no branch of it can be started or prepared from now on; those that are not
        prepared become rollback-only. Durable when it returns; a fence that exists already is fine."""
        ...

    def prepared(self, rmid: int, prefix: bytes = b"") -> list[Xid]:
        """Every prepared branch whose gtrid begins with `prefix`, but those that were completed heuristically."""
        ...

    def holds(self, gtrid: bytes, rmid: int) -> Mapping[Xid, int]:
        """How many messages each prepared branch of a global transaction has taken out of queues."""
        ...

    def retired(self, xid: Xid, rmid: int, page: int = ...) -> Iterator[list[bytes]]:
        """The messages that a prepared branch takes, in their order, as octets, `page` at a time. XAER_NOTA: there is
        no such branch."""
        ...

    def first(self, address: str, rmid: int) -> bytes | None:
        """The first message that is available at an address now, as octets. None: there is none."""
        ...

    def waiting(self, address: str, rmid: int, count: int) -> list[bytes]:
        """The first messages that are available at an address now, at most `count`, as octets. They are not taken."""
        ...

    def count(self, address: str, rmid: int) -> int:
        """How many messages are available at an address now."""
        ...
