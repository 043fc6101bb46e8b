"""`Harness`: a resource manager's tests provide one, so that the contract suite can be run over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from xa import Code, DecidingResource, Registrar, ResourceManager, Xid


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The abilities of a resource manager. Switch flags (TMUSEASYNC, TMREGISTER, TMNOMIGRATE) are not repeated here."""

    branches_shared: bool = True
    """A branch belongs to the resource from its start on: another client (another process) can join and prepare it,
    finds its xid taken, and it outlives the client that ended it. Without this, only a prepared branch is known to
    other clients, and what is not prepared is rolled back when its client dies."""

    joins: bool = True
    """Another thread of control of the same client can join an ended or suspended branch."""

    joins_active: bool = True
    """... and also one that a thread of control is at work in."""

    interleaves: bool = True
    """A thread of control can start another branch while its association with the first is suspended."""

    format_ids: bool = True
    """Xids that differ in nothing but their format ids are different branches; otherwise the second one is refused."""

    heuristics: bool = True
    """`Harness.complete_heuristically` works."""

    votes_read_only: bool = True
    """A branch whose work changed nothing votes XA_RDONLY; otherwise it votes XA_OK."""

    expires: bool = True
    """`Harness.expire` works."""

    unreachable: bool = True
    """`Harness.go_down` and `come_back` work."""

    max_prepared: int = 1000
    """How many branches can be prepared at a time."""


def _missing(method: str, *_: object) -> NoReturn:
    raise NotImplementedError(
        f"the capabilities ask for `{method}` of the harness: implement it, or say that it can't be"
    )


class Harness(Protocol):
    """One resource, made for one test, and what can be done to it from outside.

    Subclass it, or write a class that looks alike. What only some resource managers can do has a default that says so.
    """

    capabilities: Capabilities
    """The abilities of its resource manager."""

    open_string: str
    """The open string."""

    wrong_open_string: str
    """One that is refused as XAER_INVAL without being tried."""

    def new(self, registrar: Registrar) -> ResourceManager:
        """A new client, as another process would make one; not yet opened. All of them serve the same resource."""
        ...

    def write(self, rm: ResourceManager, rmid: int, key: str) -> None:
        """Does work through `rm.session(rmid)`: `committed` shows `key` when, and only when, it has been committed.
        A key is written by one branch at a time, and may be written again after that branch was rolled back."""
        ...

    def read(self, rm: ResourceManager, rmid: int) -> None:
        """Does work through `rm.session(rmid)` that changes nothing, and is not blocked by others' writes."""
        ...

    def committed(self) -> AbstractSet[str]:
        """The keys of all committed work, as somebody sees who has nothing to do with any branch."""
        ...

    def crash(self, rm: ResourceManager) -> None:
        """The client's process dies: it can't say another word. Returns when the resource has noticed; `rm` is not
        used afterwards."""
        ...

    def disconnect(self, rm: ResourceManager) -> None:
        """Every connection that `rm` has is cut; it can connect again at once. Returns when the resource has noticed.
        The client may notice only when it uses a connection."""
        ...

    def complete_heuristically(self, xid: Xid, *, commit: bool) -> None:
        """An operator completes a prepared branch. Only with the capability `heuristics`."""
        _missing("complete_heuristically", xid, commit)

    def expire(self, xid: Xid) -> None:
        """The time of a branch passes, if it has a timeout that can touch it: returns when that has happened, or
        can't any more. Only with the capability `expires`."""
        _missing("expire", xid)

    def go_down(self) -> None:
        """From now on the resource can't be reached; what is prepared stays. Only with `unreachable`."""
        _missing("go_down")

    def come_back(self) -> None:
        """The resource can be reached again. Only with `unreachable`."""
        _missing("come_back")

    def narrow(self) -> None:
        """Clients that are opened from now on have as little room as can be configured: few connections, channels and
        outstanding operations, and a short wait for a free one. The default is for those that need no room."""
        return

    def leaks(self) -> list[str]:
        """The branches, locks, associations and handles that are left, a line each. A test ends with none."""
        ...


class DeciderHarness(Harness, Protocol):
    """The same for a deciding resource manager."""

    def new(self, registrar: Registrar) -> DecidingResource:
        """A new client, as `Harness.new` says."""
        ...

    def lose_decide(self, rm: DecidingResource, xid: Xid, rmid: int, record: bytes, *, before: bool) -> Code:
        """Calls `rm.decide` so that the connection is lost before, or right after, the decision became durable."""
        ...
