"""Operations: what an operator sees and finishes by hand in a manager that runs, for whoever has its tokens.

The manager knows nothing of it. What is installed beside it registers itself as the entry point `node` of the group
`xabridge.operations`: a function of the manager that answers with Operations.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tm.manager import Manager
    from xa.telemetry.endpoint import Act, Page

GROUP: Final = "xabridge.operations"


class Operations(Protocol):
    """The operations of one manager."""

    @property
    def pages(self) -> Mapping[str, Page]:
        """What can be looked at, by path."""
        ...

    @property
    def acts(self) -> Mapping[str, Act]:
        """What can be posted to, by path."""
        ...

    def close(self) -> None:
        """Takes no more, and waits for what is under way."""
        ...


def operations_of(manager: Manager, *, acting: bool) -> Operations | None:
    """The operations that are installed; `acting`: something may be finished by hand. None: nothing is installed."""
    for entry in entry_points(group=GROUP, name="node"):
        make = cast("Callable[..., Operations]", entry.load())
        return make(manager, acting=acting)
    return None
