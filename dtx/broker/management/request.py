"""ManagementRequest: a management request, with its arguments read by type."""

from __future__ import annotations

from ipaddress import ip_address
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.amqp.values import Timestamp
from dtx.broker.access.audit import Actor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dtx.amqp.sasl.mechanisms import Identity
    from dtx.amqp.values import Map, Value
    from dtx.broker.container import Container
    from dtx.protocol.conditions import Refusal

T = TypeVar("T")
Answer: TypeAlias = "Callable[[Value | Refusal], None]"
"""To be called with the response, once."""

MAX_PAGE: Final = 1000


class ManagementRequest:
    """Who asks what. `is_awaited`: whether there is still somebody for the response. WireError for an argument that is
    missing, or of another type."""

    def __init__(
        self, container: Container, identity: Identity, arguments: Map, address: str, is_awaited: Callable[[], bool]
    ) -> None:
        self.container = container
        self.identity = identity
        self.is_awaited = is_awaited
        self._arguments = arguments
        self.actor = Actor(str(identity), address, self._browser())

    def _browser(self) -> str:
        """The address of the browser for which a console asks, as the console says it."""
        said = self.text("browser", "")
        try:
            return str(ip_address(said)) if said else ""
        except ValueError:
            raise _wrong("browser is an address") from None

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._arguments.get(name, default)
        if type(value) is not str:
            raise _wrong(f"{name} is a string")
        return value

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number that is not negative."""
        value = self._arguments.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _wrong(f"{name} is a number")
        return int(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """true or false."""
        value = self._arguments.get(name, default)
        if not isinstance(value, bool):
            raise _wrong(f"{name} is true or false")
        return value

    @property
    def after(self) -> str:
        """The entry behind which the page begins."""
        return self.text("after", "")

    @property
    def count(self) -> int:
        """How many entries the page has at most."""
        count = self.number("count", MAX_PAGE)
        if not 1 <= count <= MAX_PAGE:
            raise _wrong(f"count is between 1 and {MAX_PAGE}")
        return count

    def page(self, items: Iterable[T], shown: Callable[[T], Map]) -> list[Value]:
        """The first of these items, as far as the page goes."""
        return [shown(item) for item in islice(items, self.count)]


def _wrong(message: str) -> WireError:
    return WireError(Condition.INVALID_FIELD, message)


def time_of(ms: int) -> Timestamp | None:
    """Milliseconds since the epoch, as a response has them; None for 0."""
    return Timestamp(ms) if ms else None
