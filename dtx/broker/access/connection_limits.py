"""ConnectionLimits: how many connections there may be, in all, of one user and before a user is known; and how long a
peer waits after a wrong password.

A stranger is a peer that has not opened its connection yet: it may be in the TLS handshake, in SASL, or silent.
Strangers are counted apart, so that they take no room from authenticated connections. When there are too many, the
oldest one is closed of the address that has most of them; so silent peers of one address can't keep others out. Some
connections are reserved for users who may manage the broker.
"""

from __future__ import annotations

import ipaddress
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

from dtx.broker.access.permissions import Management

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.sasl.mechanisms import Identity
    from dtx.broker.access.permissions import Permissions
    from dtx.broker.settings import Limits

ADDRESSES: Final = 1000
FORGOTTEN_S: Final = 60.0
LONGEST_S: Final = 5.0
NETWORK_BITS: Final = 64
"""Of an address of IPv6: the owner of one has all that begin like it."""


class Peer(Protocol):
    """A connected peer."""

    @property
    def host(self) -> str:
        """Where it comes from, as `network_of` says it."""
        ...


def network_of(host: str) -> str:
    """Where a peer comes from, as far as it can't choose that: its address, or in IPv6 the network of that."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, NETWORK_BITS), strict=False))


class ConnectionLimits:
    """The peers that are connected. `first_delay_s`: how long a peer waits after its first wrong password."""

    def __init__(
        self, limits: Limits, permissions: Permissions, clock: Callable[[], float], first_delay_s: float
    ) -> None:
        self._limits = limits
        self._permissions = permissions
        self._clock = clock
        self._first_delay_s = first_delay_s
        self._strangers: dict[Peer, None] = {}
        self._in: dict[Peer, str] = {}
        self._of_user: Counter[str] = Counter()
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    @property
    def strangers(self) -> int:
        """How many have not opened their connection."""
        return len(self._strangers)

    @property
    def full(self) -> bool:
        """Whether no peer at all can come in."""
        return len(self._in) >= self._limits.connections

    def comes(self, peer: Peer) -> Peer | None:
        """A peer has connected: who has to go for it, if anybody."""
        goes = None
        if len(self._strangers) >= self._limits.strangers:
            hosts = Counter(one.host for one in self._strangers)
            most = max(hosts.values())
            goes = next(one for one in self._strangers if hosts[one.host] == most)
            self._strangers.pop(goes)
        self._strangers[peer] = None
        return goes

    def refusal(self, peer: Peer, identity: Identity) -> str | None:
        """The peer has opened its connection: it is in, unless this says why not."""
        limits, name = self._limits, identity.name
        room = limits.connections
        if not self._permissions.may_manage(identity, Management.VIEW):
            room = max(room - limits.operator_connections, min(room, 1))
        if len(self._in) >= room:
            return f"there are {len(self._in)} connections"
        if self._of_user[name] >= limits.connections_per_user:
            return f"{identity} has {self._of_user[name]} connections, as many as a user may have"
        self._strangers.pop(peer, None)
        self._in[peer] = name
        self._of_user[name] += 1
        return None

    def leaves(self, peer: Peer) -> None:
        """The peer's socket is closed."""
        self._strangers.pop(peer, None)
        name = self._in.pop(peer, None)
        if name is not None:
            self._of_user[name] -= 1
            if not self._of_user[name]:
                del self._of_user[name]

    # -- passwords
    def failures(self, host: str) -> int:
        """How often somebody from `host` did not show who he is, lately."""
        count, last = self._failures.get(host, (0, 0.0))
        return count if self._clock() - last <= FORGOTTEN_S else 0

    def failed(self, host: str) -> float:
        """Somebody from `host` did not show who he is: how long he waits to hear so."""
        now = self._clock()
        count, last = self._failures.pop(host, (0, now))
        count = 1 if now - last > FORGOTTEN_S else count + 1
        self._failures[host] = count, now
        if len(self._failures) > ADDRESSES:
            self._failures.popitem(last=False)
        return float(min(self._first_delay_s * 2.0 ** min(count - 1, 16), LONGEST_S))
