"""Routing: which of a sink's tables, or of its addresses, a row goes to.

A sink has one target, or several of which a column of each row names one. A target is named as the option has it
(`shop:orders`), or without the resource (`orders`) where that names only one of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Routing(Generic[T]):
    """The targets of rows. Without a `column` there is one target at most. `places` has each value of the column with
    the place of the target that it names; `default` is the place for every other value and for null. None: such a row
    is refused."""

    targets: tuple[T, ...] = ()
    column: str = ""
    places: tuple[tuple[str, int], ...] = ()
    default: int | None = None

    def __bool__(self) -> bool:
        return bool(self.targets)

    def with_targets(self, targets: Sequence[U]) -> Routing[U]:
        """The same with other targets, in the same order."""
        return Routing(tuple(targets), self.column, self.places, self.default)


def places_of(names: Sequence[tuple[str, str]]) -> Mapping[str, int]:
    """The place of each target by its names. `names` has the targets' resources, and their names there."""
    alone = Counter(name for _, name in names)
    return {
        **{name: place for place, (_, name) in enumerate(names) if alone[name] == 1},
        **{f"{resource}:{name}": place for place, (resource, name) in enumerate(names)},
    }
