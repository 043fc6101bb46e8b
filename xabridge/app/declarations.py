"""Declarations: the consumers, schedules and middlewares that an App or a Router has; Router, the part of an App.

    # orders.py
    router = Router("orders")

    @router.consumer("orders")
    def handle(order: Order, tx: Shop) -> None: ...

    # shop.py
    app = App("xabridge.toml")
    app.include(router)

What a Router declares is as if the App had declared it, but that a middleware of a Router is around its own handlers
only, inside of those of the App.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, Unpack

from tm import ConfigurationError, Consumer, ConsumerSettings, ProtocolMisuse, TransactionManager
from tm.consumer.settings import OPTIONS as CONSUMER
from tm.consumer.settings import QUEUE, ConsumerOptions
from tm.options import Flag, Text, check
from xabridge.app.schedule import DeclaredSchedule, ScheduleSettings
from xabridge.app.typed_handler import HandlerEnvironment, Results, TypedHandler

if TYPE_CHECKING:
    from collections.abc import Callable

    from tm import Health, MessageCounts, Transaction
    from tm.options import Option
    from xabridge.app.codec import Codecs
    from xabridge.app.schedule import ScheduleOptions

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound="Callable[..., Any]")

BATCH: Final = 50
"""How many messages of a consumer share a transaction, unless it says otherwise."""


class HandlerOptions(ConsumerOptions, total=False):
    """The keyword arguments of `App.consumer`."""

    name: str | None
    reply: bool
    publish: str | None


OPTIONS: Final[dict[str, Option]] = {
    "name": Text("the name of a consumer", optional=True),
    "reply": Flag(),
    "publish": Text("the name of a queue", optional=True),
}


class DeclaredConsumer(Generic[P, R]):
    """A function with its queue and settings. Called, it calls the function, as it was before it was declared."""

    def __init__(
        self, function: Callable[P, R], handler: TypedHandler, settings: ConsumerSettings, name: str | None = None
    ) -> None:
        self.function = function
        self.handler = handler
        self.settings = settings
        self.name = name or settings.queue
        """What its App calls it: its queue, unless it was given another name."""
        self._live: Consumer | None = None

    def __call__(self, *arguments: P.args, **named: P.kwargs) -> R:
        return self.function(*arguments, **named)

    def __repr__(self) -> str:
        name = "" if self.name == self.settings.queue else f"{self.name}, "
        return f"<{self.function.__qualname__}, {name}consumer of {self.settings.queue}>"

    @property
    def live(self) -> Consumer:
        """The consumer at work; ProtocolMisuse while the App does not run."""
        if self._live is None:
            raise ProtocolMisuse(f"{self!r} is not at work: its App does not run")
        return self._live

    @property
    def counts(self) -> MessageCounts:
        """The counts of its messages since the App was started."""
        return self.live.counts

    def health(self) -> Health:
        """How it is, for a probe."""
        return self.live.health()

    def connect(self, manager: TransactionManager[Any]) -> Consumer:
        """A live consumer over `manager`, for the App."""
        options: dict[str, Any] = {
            name: getattr(self.settings, name) for name in self.settings.__slots__ if name != "queue"
        }
        self._live = Consumer(manager, self.settings.queue, self.handler, **options)
        return self._live


class Declarations:
    """What an App and a Router have alike: what they declare."""

    def __init__(self, codecs: Codecs | None) -> None:
        self.consumers: list[DeclaredConsumer[..., Any]] = []
        """What `consumer` has declared."""
        self.schedules: list[DeclaredSchedule[..., Any]] = []
        """What `schedule` has declared."""
        self.environment = HandlerEnvironment(codecs)
        """What handlers of messages have around them."""
        self.schedule_environment = HandlerEnvironment(codecs)
        """What schedules have: no middlewares."""
        self.schedule_environment.overrides = self.environment.overrides
        self.transaction_classes: dict[type[Transaction], None] = {}
        """The classes of transactions that handlers and their dependencies declare, in order."""

    def consumer(
        self, queue: str, **settings: Unpack[HandlerOptions]
    ) -> Callable[[Callable[P, R]], DeclaredConsumer[P, R]]:
        """Declares a handler for the messages of a queue. `settings` are those of `ConsumerSettings`, but that up to 50
        messages share a transaction (`batch`). What the function gets is what its parameters declare: see
        `xabridge.app.typed_handler`. What it returns is sent with `reply=True` to the address that its message says
        (`reply_to`), and with `publish="queue"` to this queue. `name` parts consumers of one queue; otherwise the queue
        is the name."""
        given: dict[str, Any] = {"batch": BATCH, **settings}
        if QUEUE.fits(queue):
            check(f"consumer of {queue}", CONSUMER | OPTIONS, given)
        name, reply, publish = (given.pop(option, None) for option in OPTIONS)
        checked = ConsumerSettings.of(queue, **given)
        local = _locals_of_caller()

        def declare(function: Callable[P, R]) -> DeclaredConsumer[P, R]:
            check_function(f"consumer of {queue}", function)
            self._check_open(function)
            results = Results(checked, reply=bool(reply), publish=publish)
            handler = TypedHandler(function, checked.takes, self.environment, local, results)
            declared = DeclaredConsumer(function, handler, checked, name)
            self.add_consumers([declared])
            self._add_types(handler)
            return declared

        return declare

    def schedule(
        self, expression: str, **settings: Unpack[ScheduleOptions]
    ) -> Callable[[Callable[P, R]], DeclaredSchedule[P, R]]:
        """Declares a function that runs at the times of a cron expression, in a transaction, once over all processes of
        the application. Its parameters are those of a dependency, and a datetime: when it is due. `timezone` is that of
        the expression, UTC unless it is given; `resource` is the database that keeps the times, where there is more
        than one. It needs the extra `schedule`."""
        checked = ScheduleSettings.of(expression, **settings)
        local = _locals_of_caller()

        def declare(function: Callable[P, R]) -> DeclaredSchedule[P, R]:
            check_function("schedule", function)
            self._check_open(function)
            handler = TypedHandler(function, "message", self.schedule_environment, local)
            declared = DeclaredSchedule(function, handler, checked)
            self._add_types(handler)
            self.schedules.append(declared)
            return declared

        return declare

    def middleware(self, function: F) -> F:
        """Declares a generator function that yields once: what stands before the `yield` runs before each handler, and
        what stands behind it when the handler has returned or raised, before the commit. The first that is declared is
        the outermost. Its parameters are declared as those of a dependency are. An asynchronous one needs handlers that
        are coroutine functions, all of them."""
        if not (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
            raise ConfigurationError(
                f"{function.__qualname__}: a middleware is a generator function, which yields once"
            )
        self.environment.middlewares.append(function)
        return function

    def add_consumers(self, more: list[DeclaredConsumer[..., Any]]) -> None:
        """ConfigurationError: two have one name; then none is added."""
        names = {declared.name: declared for declared in self.consumers}
        for declared in more:
            other = names.setdefault(declared.name, declared)
            if other is not declared:
                raise ConfigurationError(
                    f"{declared.function.__qualname__} and {other.function.__qualname__} are both the consumer "
                    f"{declared.name!r}: give one of them a name of its own, as in "
                    f'consumer({declared.settings.queue!r}, name="…")'
                )
        self.consumers += more

    def _check_open(self, function: Callable[..., Any]) -> None:
        """ConfigurationError: it is too late to declare a function here."""

    def _add_types(self, handler: TypedHandler) -> None:
        for kind in handler.transactions:
            self.transaction_classes[kind] = None


class Router(Declarations):
    """Consumers, schedules and middlewares of a part of an application, which an App includes: `app.include(router)`.
    `name` is what errors call it."""

    def __init__(self, name: str) -> None:
        check("Router", {"name": Text("the name of a part of an application")}, {"name": name})
        super().__init__(None)
        self.name = name
        self._is_included = False

    def __repr__(self) -> str:
        queues = ", ".join(declared.settings.queue for declared in self.consumers) or "no queue"
        return f"<Router {self.name}, {queues}{'' if self._is_included else ', in no App'}>"

    def join(self, app: Declarations) -> None:
        """Makes what was declared here the App's. ConfigurationError: it can't be."""
        if self._is_included:
            raise ConfigurationError(f"Router {self.name}: an App has it already; a Router is a part of one App")
        for declared in self.consumers:
            declared.handler.check_readable(app.environment.codecs)
        app.add_consumers(self.consumers)
        app.schedules += self.schedules
        app.transaction_classes |= self.transaction_classes

        self.environment.join(app.environment)
        self.schedule_environment.join(app.schedule_environment)
        self._is_included = True

    def _check_open(self, function: Callable[..., Any]) -> None:
        if self._is_included:
            raise ConfigurationError(
                f"Router {self.name}: {function.__qualname__} is declared after the App has included it: call "
                "app.include behind what the Router declares"
            )


def check_function(whose: str, function: Any) -> None:
    """ConfigurationError: what is decorated can't be called."""
    if not callable(function):
        raise ConfigurationError(f"{whose}: {function!r} is no function: write the decorator above one")


def _locals_of_caller() -> dict[str, Any]:
    """The local names of the function that has called a method of an App: annotations may be text that names them."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame.f_back if frame is not None else None
    return dict(frame.f_locals) if frame is not None else {}
