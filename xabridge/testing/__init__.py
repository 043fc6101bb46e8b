"""Equipment for tests: of applications, `TestApp` and `TestBroker` (docs/testing.md); of resource managers, the
reference resource manager and the contract suite (docs/resource-managers.md); and a broker, a PostgreSQL and a MariaDB
in processes.

A name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xa.lazy_names import names_at_first_use

if TYPE_CHECKING:
    from xabridge.testing.app import TestApp
    from xabridge.testing.faults import Killed
    from xabridge.testing.in_process import TestBroker

__all__ = ["Killed", "TestApp", "TestBroker"]

_HOME: Final = {
    "Killed": "xabridge.testing.faults",
    "TestApp": "xabridge.testing.app",
    "TestBroker": "xabridge.testing.in_process",
}
"""Name → the module that has it."""


if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__, __dir__ = names_at_first_use(globals(), _HOME)
