"""DeclaredConsumer: a consumer as an application declares it. It has a live one while its App runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from tm import Consumer, ProtocolMisuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm import ConsumerSettings, Counts, Health, TransactionManager
    from xabridge.app.typed_handler import TypedHandler

P = ParamSpec("P")
R = TypeVar("R")


class DeclaredConsumer(Generic[P, R]):
    """A function with its queue and settings. Called, it calls the function, as it was before it was declared."""

    def __init__(self, function: Callable[P, R], handler: TypedHandler, settings: ConsumerSettings) -> None:
        self.function = function
        self.handler = handler
        self.settings = settings
        self._live: Consumer | None = None

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self.function(*arguments, **named)

    def __repr__(self) -> str:
        return f"<{self.function.__qualname__}, consumer of {self.settings.queue}>"

    @property
    def live(self) -> Consumer:
        """The consumer at work; ProtocolMisuse while the App does not run."""
        if self._live is None:
            raise ProtocolMisuse(f"{self!r} is not at work: its App does not run")
        return self._live

    @property
    def counts(self) -> Counts:
        """The counts of its messages since the App was started."""
        return self.live.counts

    def health(self) -> Health:
        """How it is, for a probe."""
        return self.live.health()

    def connect(self, manager: TransactionManager[Any]) -> Consumer:
        """For the App: a live one over `manager`."""
        options: dict[str, Any] = {
            name: getattr(self.settings, name) for name in self.settings.__slots__ if name != "queue"
        }
        self._live = Consumer(manager, self.settings.queue, self.handler, **options)
        return self._live
