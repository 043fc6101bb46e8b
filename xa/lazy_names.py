"""Names of a package that are imported when they are first used: who needs one of them does not load the others.

_HOME: Final = {"Session": "rm_amqp.session", …}    # name → the module that has it

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__, __dir__ = names_at_first_use(globals(), _HOME)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def names_at_first_use(
    namespace: dict[str, Any], home: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of the module with this namespace."""

    def find(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        found = namespace[name] = getattr(import_module(home[name]), name)
        return found

    return find, lambda: sorted({*namespace, *home})
