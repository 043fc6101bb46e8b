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
import logging
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from types import NoneType, SimpleNamespace
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    NamedTuple,
    Never,
    NoReturn,
    get_args,
    get_origin,
    get_type_hints,
)

from rm_amqp.errors import UnknownAddress
from rm_amqp.message import Message
from tm import ConfigurationError, Transaction
from tm.consumer.handler import Handler, Refused
from xabridge.app.codec import Codecs
from xabridge.app.conversion import MessageUnfit, UnsupportedType, reader_of
from xabridge.app.dependencies import Call, Depends, is_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from tm.consumer.settings import ConsumerSettings, Takes
    from xabridge.app.codec import MessageFields
    from xabridge.app.tx import Tx

logger = logging.getLogger("xabridge.app")


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
        self.returned: Any = Any
        """What it declares to return; Any where it does not say."""
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
        annotations = dict(getattr(called, "__annotations__", {}))
        self.returned = annotations.pop("return", Any)
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


_NOTHING: Final = (None, NoneType, Never, NoReturn, "None", "NoReturn", "Never")
"""What a function declares that returns nothing. The names of others need not be importable."""


class Results:
    """What becomes of what the handler of a consumer returns: with `reply` it is sent to the address that its message
    says (`reply_to`), if it says one; with `publish` to that queue. Both happen in the message's transaction. None is
    not sent."""

    def __init__(self, settings: ConsumerSettings, *, reply: bool, publish: str | None) -> None:
        self._settings = settings
        self._reply = reply
        self._publish = publish
        self._is_sent = reply or publish is not None
        self._is_reported = False
        if reply and settings.takes == "batch":
            raise ConfigurationError(
                f'consumer of {settings.queue}: reply=True is for takes="message": what a batch returns has no one '
                "message that it answers"
            )

    def check(self, signature: Signature) -> None:
        """ConfigurationError: the function declares to return what is not sent, or nothing where something is."""
        returned = signature.returned
        if returned is Any or returned == "Any":
            return
        if self._is_sent and returned in _NOTHING:
            what = "reply=True" if self._reply else f"publish={self._publish!r}"
            raise ConfigurationError(f"{signature.name}: it returns nothing that {what} could send")
        if not self._is_sent and returned not in _NOTHING:
            shown = returned if isinstance(returned, str) else getattr(returned, "__qualname__", returned)
            raise ConfigurationError(f"{signature.name}: it returns {shown}, which is sent nowhere: {_SENDING}")

    def send(self, transaction: Tx, returned: Any, argument: Any) -> None:
        """Sends what the handler has returned for `argument`."""
        if returned is None:
            return
        if not self._is_sent:
            self._report(returned)
        if self._publish is not None:
            transaction.send(self._publish, returned, resource=self._settings.resource)
        if self._reply and argument.message.reply_to:
            with self._answer(argument.message, returned) as (address, value, fields):
                transaction.send(address, value, resource=self._settings.resource, **fields)

    async def asend(self, transaction: Tx, returned: Any, argument: Any) -> None:
        """`send` for coroutine functions."""
        if returned is None:
            return
        if not self._is_sent:
            self._report(returned)
        if self._publish is not None:
            await transaction.asend(self._publish, returned, resource=self._settings.resource)
        if self._reply and argument.message.reply_to:
            with self._answer(argument.message, returned) as (address, value, fields):
                await transaction.asend(address, value, resource=self._settings.resource, **fields)

    @contextmanager
    def _answer(self, asked: Message, returned: Any) -> Iterator[tuple[str, Any, MessageFields]]:
        """The address of a reply, its value, and its fields. The address may be gone, with the client that has asked:
        then there is no reply, and the transaction goes on."""
        correlation_id = asked.id if asked.correlation_id is None else asked.correlation_id
        fields: MessageFields = {"correlation_id": correlation_id}
        if isinstance(returned, Message):
            fields = {}
            if returned.correlation_id is None:
                returned = replace(returned, correlation_id=correlation_id)

        address = str(asked.reply_to)
        try:
            yield address, returned, fields
        except UnknownAddress as error:
            logger.warning("a message of %s has no reply: %s", self._settings.queue, error)

    def _report(self, returned: Any) -> None:
        """Logs once that something is returned, and sent nowhere."""
        if not self._is_reported:
            self._is_reported = True
            logger.warning(
                "the handler of %s has returned a value (%s), which is sent nowhere: %s",
                self._settings.queue, type(returned).__qualname__, _SENDING,
            )  # fmt: skip


_SENDING: Final = 'declare reply=True (to the reply_to of its message) or publish="queue", or return nothing'


class HandlerEnvironment:
    """What an application has around its handlers: codecs, middlewares, and in tests, what is made instead of which
    dependency. That of a Router has no codecs before it joins that of an App."""

    def __init__(self, codecs: Codecs | None) -> None:
        self.codecs = codecs
        self.middlewares: list[Callable[..., Any]] = []
        """Its own, from the outermost on."""
        self.overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._outer: HandlerEnvironment | None = None

    def join(self, outer: HandlerEnvironment) -> None:
        """Takes everything but its own middlewares from `outer`, whose middlewares are around its own."""
        self.codecs, self.overrides, self._outer = outer.codecs, outer.overrides, outer

    @property
    def all_middlewares(self) -> list[Callable[..., Any]]:
        """Those that are around a handler, from the outermost on."""
        return self.middlewares if self._outer is None else [*self._outer.all_middlewares, *self.middlewares]


_CODECS: Final = Codecs()
"""Those of a handler whose Router is in no App."""


class TypedHandler(Handler):
    """A function with its signature. It is called by a consumer with what `read` gives."""

    def __init__(
        self,
        function: Callable[..., Any],
        takes: Takes,
        environment: HandlerEnvironment,
        local: Mapping[str, Any],
        results: Results | None = None,
    ) -> None:
        super().__init__(function)
        self.signature = Signature(function, takes, local)
        self._takes: Takes = takes
        self._environment = environment
        self._results = results
        if results is not None:
            results.check(self.signature)
        self.check_readable(environment.codecs)
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

    def check_readable(self, codecs: Codecs | None) -> None:
        """ConfigurationError: none of `codecs` makes its body. Those of an application's own may make anything."""
        if codecs is not None and not codecs.has_own:
            self.signature.check_readable()

    def check_middlewares(self) -> None:
        """ConfigurationError: one of the middlewares can't be around it."""
        for middleware in self._environment.all_middlewares:
            self._check_made(middleware, (self.function,))

    def read(self, message: Any) -> Received:
        body, codecs = self.signature.body, self._environment.codecs or _CODECS
        try:
            return Received(message, None if body is None else codecs.read(message, body[1]))
        except MessageUnfit as error:
            wanted = getattr(body[1], "__qualname__", body[1]) if body is not None else ""
            raise Refused(f"the body does not fit {wanted}: {error}") from error

    def __call__(self, argument: Any, transaction: Any) -> Any:
        signature, middlewares = self.signature, self._environment.all_middlewares
        if not middlewares and not signature.depends:
            returned = self.function(**self._arguments(argument, transaction, signature))
            if self.is_async:
                return self._asent(returned, argument, transaction)
            if returned is not None:
                self._sent(self.ran(returned), argument, transaction)
            return None

        given = partial(self._arguments, argument, transaction)
        call = Call(self._signature_of, given, self._environment.overrides)
        if self.is_async:
            return self._acall(call, middlewares, argument, transaction)
        return self._call(call, middlewares, argument, transaction)

    def _call(self, call: Call, middlewares: list[Callable[..., Any]], argument: Any, transaction: Any) -> None:
        with ExitStack() as stack:
            for middleware in middlewares:
                given = call.arguments(self._signature_of(middleware), stack)
                stack.enter_context(contextmanager(middleware)(**given))
            self._sent(self.ran(self.function(**call.arguments(self.signature, stack))), argument, transaction)

    async def _acall(self, call: Call, middlewares: list[Callable[..., Any]], argument: Any, transaction: Any) -> None:
        async with AsyncExitStack() as stack:
            for middleware in middlewares:
                given = await call.aarguments(self._signature_of(middleware), stack)
                if inspect.isasyncgenfunction(middleware):
                    await stack.enter_async_context(asynccontextmanager(middleware)(**given))
                else:
                    stack.enter_context(contextmanager(middleware)(**given))
            returned = self.function(**await call.aarguments(self.signature, stack))
            await self._asent(returned, argument, transaction)

    def _sent(self, returned: Any, argument: Any, transaction: Tx) -> None:
        """Sends what the function has returned."""
        if self._results is not None:
            self._results.send(transaction, returned, argument)

    async def _asent(self, returned: Awaitable[Any], argument: Any, transaction: Tx) -> None:
        """`_sent` for coroutine functions."""
        value = await returned
        if self._results is not None:
            await self._results.asend(transaction, value, argument)

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
