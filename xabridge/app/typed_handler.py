"""TypedHandler: calls a function with what its parameters declare.

    def handle(order: Order, tx: Shop) -> None                      # the body as an Order, and the transaction
    def handle(orders: list[Order], tx: Shop) -> None               # with takes="batch"
    def handle(order: Order, message: Message, tx: Shop) -> None    # the message too, for its id and properties

What each parameter gets is decided once, when the function is declared:

    a Transaction, or a subclass such as Tx     the transaction
    Message                                     the message
    Annotated[…, Depends(…)]                    a dependency
    anything else, once                         the body, read as that type
"""

from __future__ import annotations

import inspect
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_args, get_origin, get_type_hints

from rm_amqp.message import Message
from tm import ConfigurationError, Transaction
from tm.consumer.handler import Handler, Refused
from xabridge.app.conversion import MessageUnfit, UnsupportedType, reader_of
from xabridge.app.dependencies import Call, Depends, is_async

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tm.consumer.settings import Takes
    from xabridge.app.codec import Codecs


class Received(NamedTuple):
    """A message, with its body as the handler wants it."""

    message: Message
    body: Any


_EITHER: Final = Message | list[Message]
"""For what is around handlers of both kinds: the message, or those of a batch."""


class Signature:
    """What the parameters of a function are to get. ConfigurationError: it could not be called with that."""

    def __init__(
        self,
        function: Callable[..., Any],
        takes: Takes = "message",
        local: Mapping[str, Any] | None = None,
        *,
        has_body: bool = True,
    ) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        self.transaction: tuple[str, type[Transaction]] | None = None
        self.messages: list[str] = []
        self.depends: dict[str, Depends] = {}
        self.body: tuple[str, Any] | None = None
        self._takes = takes
        self._has_body = has_body
        hints = self._hints(function, local or {})
        for parameter in inspect.signature(function).parameters.values():
            name, needed = parameter.name, parameter.default is parameter.empty
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ConfigurationError(f"{self.name}: {parameter}: only parameters with names can get something")

            if name in hints:
                self._add(name, hints[name], needed=needed)
            elif needed:
                raise ConfigurationError(
                    f"{self.name}: {name}: say its type: a model for the body, Message for all of the message, "
                    "Tx for the transaction"
                )

    def _hints(self, function: Callable[..., Any], local: Mapping[str, Any]) -> dict[str, Any]:
        """The types of its parameters. What it returns need not be importable."""
        made = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
        called = inspect.unwrap(made if hasattr(made, "__annotations__") else type(made).__call__)
        annotations = {name: one for name, one in getattr(called, "__annotations__", {}).items() if name != "return"}
        parameters = SimpleNamespace(__annotations__=annotations)
        try:
            return get_type_hints(parameters, getattr(called, "__globals__", {}), dict(local), include_extras=True)
        except NameError as error:
            raise ConfigurationError(
                f"{self.name}: {error}: what its parameters declare has to be importable when it runs, "
                "and not only for a type checker"
            ) from error

    def _add(self, name: str, hint: Any, *, needed: bool) -> None:
        marks = [one for one in get_args(hint)[1:] if isinstance(one, Depends)] if get_origin(hint) is Annotated else []
        if marks:
            self.depends[name] = marks[-1]
        elif isinstance(hint, type) and issubclass(hint, Transaction):
            if self.transaction is not None:
                raise ConfigurationError(f"{self.name}: {self.transaction[0]} and {name} are both the transaction")
            self.transaction = name, hint
        elif self._has_body or hint in (Message, list[Message], _EITHER):
            self._add_of_message(name, hint)
        elif needed:
            raise ConfigurationError(
                f"{self.name}: {name}: what makes a dependency gets the transaction, the message, and dependencies"
            )

    def _add_of_message(self, name: str, hint: Any) -> None:
        if hint == _EITHER:
            self.messages.append(name)
            return
        if self._takes == "batch":
            if get_origin(hint) is not list:
                raise ConfigurationError(f'{self.name}: {name}: with takes="batch" it is a list, as list[Order]')
            (hint,) = get_args(hint)
        if hint is Message:
            self.messages.append(name)
        elif self.body is not None:
            raise ConfigurationError(
                f"{self.name}: {self.body[0]} and {name} are both the body: one type has all of it"
            )
        else:
            self.body = name, hint

    def check_readable(self) -> None:
        """ConfigurationError: no codec of ours makes the body's type."""
        if self.body is not None:
            try:
                reader_of(self.body[1])
            except UnsupportedType as error:
                raise ConfigurationError(f"{self.name}: {self.body[0]}: {error}") from error


class HandlerEnvironment:
    """What an application has around its handlers: `middlewares` from the outermost on, and in tests, what is made
    instead of which dependency."""

    def __init__(self) -> None:
        self.middlewares: list[Callable[..., Any]] = []
        self.overrides: dict[Callable[..., Any], Callable[..., Any]] = {}


class TypedHandler(Handler):
    """A function with its signature. It is called by a consumer with what `read` gives."""

    def __init__(
        self,
        function: Callable[..., Any],
        takes: Takes,
        codecs: Codecs,
        surroundings: HandlerEnvironment,
        local: Mapping[str, Any],
    ) -> None:
        super().__init__(function)
        self.signature = Signature(function, takes, local)
        if not codecs.has_own:
            self.signature.check_readable()
        self._codecs = codecs
        self._takes: Takes = takes
        self._surroundings = surroundings
        self._signature_of = lru_cache(maxsize=None)(partial(Signature, takes=takes, local=local, has_body=False))
        for depends in self.signature.depends.values():
            self._check_made(depends.make, (function,))

    @property
    def signatures(self) -> list[Signature]:
        """Its own, and those of what makes its dependencies."""
        found, left = [], [self.signature]
        while left:
            signature = left.pop()
            found.append(signature)
            left += (self._signature_of(depends.make) for depends in signature.depends.values())
        return found

    @property
    def transactions(self) -> list[type[Transaction]]:
        """The classes of transactions that it, and what makes its dependencies, declare."""
        return [one.transaction[1] for one in self.signatures if one.transaction is not None]

    def _check_made(self, make: Callable[..., Any], path: tuple[Callable[..., Any], ...]) -> None:
        """ConfigurationError: a plain function can't have it made, or it depends on itself."""
        name = getattr(make, "__qualname__", repr(make))
        if make in path:
            raise ConfigurationError(f"{self.signature.name}: {name} depends on itself")
        if is_async(make) and not self.is_async:
            raise ConfigurationError(
                f"{self.signature.name}: {name} is awaited, and {self.signature.name} is no coroutine function: "
                "write async def"
            )
        for depends in self._signature_of(make).depends.values():
            self._check_made(depends.make, (*path, make))

    def check_middlewares(self) -> None:
        """ConfigurationError: one of the middlewares can't be around it."""
        for middleware in self._surroundings.middlewares:
            self._check_made(middleware, (self.function,))

    def read(self, message: Any) -> Received:
        body = self.signature.body
        try:
            return Received(message, None if body is None else self._codecs.read(message, body[1]))
        except MessageUnfit as error:
            wanted = getattr(body[1], "__qualname__", body[1]) if body is not None else ""
            raise Refused(f"the body does not fit {wanted}: {error}") from error

    def __call__(self, argument: Any, transaction: Any) -> Any:
        surroundings, signature = self._surroundings, self.signature
        if not surroundings.middlewares and not signature.depends:
            returned = self.function(**self._arguments(argument, transaction, signature))
            return returned if self.is_async else self.ran(returned)
        call = Call(self._signature_of, partial(self._arguments, argument, transaction), surroundings.overrides)
        return self._acall(call) if self.is_async else self._call(call)

    def _call(self, call: Call) -> None:
        with ExitStack() as stack:
            for middleware in self._surroundings.middlewares:
                given = call.arguments(self._signature_of(middleware), stack)
                stack.enter_context(contextmanager(middleware)(**given))
            self.ran(self.function(**call.arguments(self.signature, stack)))

    async def _acall(self, call: Call) -> None:
        async with AsyncExitStack() as stack:
            for middleware in self._surroundings.middlewares:
                given = await call.aarguments(self._signature_of(middleware), stack)
                if inspect.isasyncgenfunction(middleware):
                    await stack.enter_async_context(asynccontextmanager(middleware)(**given))
                else:
                    stack.enter_context(contextmanager(middleware)(**given))
            await self.function(**await call.aarguments(self.signature, stack))

    def _arguments(self, argument: Any, transaction: Any, signature: Signature) -> dict[str, Any]:
        """The arguments that come with the message, by name."""
        batch = self._takes == "batch"
        given: dict[str, Any] = {}
        if signature.transaction is not None:
            given[signature.transaction[0]] = transaction
        for name in signature.messages:
            given[name] = _messages(argument) if batch else argument.message
        if signature.body is not None:
            given[signature.body[0]] = [received.body for received in argument] if batch else argument.body
        return given


def _messages(batch: Sequence[Received]) -> list[Message]:
    return [received.message for received in batch]
