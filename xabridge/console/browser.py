"""BROWSER: the address of the browser that the console serves now, for the audit logs of console and broker.

It is the address from which the connection comes. A proxy in front of the console puts the browser's into the header
X-Forwarded-For, and so may anybody else: it is believed only of the proxies that the configuration names.
"""

from __future__ import annotations

from contextvars import ContextVar
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import Scope

BROWSER: Final[ContextVar[str]] = ContextVar("browser", default="")
"""Of the request that is under way, or that has begun the job; "" where it is not known."""


def address_of(text: str) -> str:
    """An IP address in its one form; "" for anything else."""
    try:
        found = ip_address(text.strip())
    except ValueError:
        return ""
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return str(mapped or found)


def browser_of(scope: Scope, proxies: Collection[str]) -> str:
    """Where a request comes from: the last address on its way that is not one of the proxies."""
    client = scope.get("client")
    found = address_of(client[0]) if client else ""
    passed = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    for hop in reversed(",".join(passed).split(",")):
        if found not in proxies:
            break
        before = address_of(hop)
        if not before:  # what the proxy has passed on is no address
            break
        found = before
    return found
