"""The resource manager of Delta Lake tables: rows are appended to tables in one folder, in two phases.

A name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from xa.extras import install_command
from xa.lazy_names import names_at_first_use

if TYPE_CHECKING:
    from rm_delta.resource_manager import DeltaResource
    from rm_delta.session import DeltaSession

__all__ = ["NAME", "DeltaResource", "DeltaSession"]

NAME: Final = "xabridge Delta Lake"
"""The kind of resource manager, as each instance says it. It is known without loading what reads tables."""

_HOME: Final = {
    "DeltaResource": "rm_delta.resource_manager",
    "DeltaSession": "rm_delta.session",
}
"""Name → the module that has it."""


if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    _find, __dir__ = names_at_first_use(globals(), _HOME)

    def __getattr__(name: str) -> Any:
        try:
            return _find(name)
        except ImportError as error:
            hint = install_command("delta")
            raise ImportError(f"Delta tables need the extra delta: {hint} ({error})") from error
