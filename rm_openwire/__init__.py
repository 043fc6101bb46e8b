"""The resource manager of the brokers that speak OpenWire: ActiveMQ Classic, ActiveMQ Artemis, Amazon MQ.

A name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xa.lazy_names import names_at_first_use

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
    __getattr__, __dir__ = names_at_first_use(globals(), _HOME)
