"""The resource manager of the brokers that speak OpenWire: ActiveMQ Classic, ActiveMQ Artemis, Amazon MQ.

A name is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rm_openwire.resource import OpenWireResource
    from rm_openwire.session import AsyncSession, Session
    from rm_openwire.settings import Settings

__all__ = ["AsyncSession", "OpenWireResource", "Session", "Settings"]

_HOME: Final = {
    "AsyncSession": "rm_openwire.session",
    "OpenWireResource": "rm_openwire.resource",
    "Session": "rm_openwire.session",
    "Settings": "rm_openwire.settings",
}
"""Name → the module that has it."""


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(home), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
