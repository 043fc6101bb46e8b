"""Dependencies: what a handler needs beside its message, made for each call, and cleaned up behind it.

    def make_client() -> Iterator[Client]:
        with Client() as client:
            yield client

    @app.consumer("orders")
    def handle(order: Order, client: Annotated[Client, Depends(make_client)]) -> None: ...

What makes a dependency is a function, a generator function that yields once, or, for handlers that are coroutine
functions, a coroutine function or an asynchronous generator function. Its parameters are declared as those of a handler
are, but for the body: it may need the transaction, the message, and other dependencies. Within one call each is made
once. What stands behind a `yield` runs when the handler has returned, before the commit; an exception of the handler is
raised at the `yield`.
"""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AsyncExitStack, ExitStack

    from xabridge.app.typed_handler import Signature


class Depends:
    """The mark of a parameter, in `Annotated[Client, Depends(make_client)]`."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make

    def __repr__(self) -> str:
        return f"Depends({getattr(self.make, '__qualname__', self.make)})"


def is_async(make: Callable[..., Any]) -> bool:
    """Whether only a coroutine can have it made."""
    return inspect.iscoroutinefunction(make) or inspect.isasyncgenfunction(make)


class Call:
    """One call of a handler: what was made for it so far. `arguments` gives those that its message has; `overrides`
    says what is made instead of what, in tests."""

    def __init__(
        self,
        signature_of: Callable[[Callable[..., Any]], Signature],
        arguments: Callable[[Signature], dict[str, Any]],
        overrides: Mapping[Callable[..., Any], Callable[..., Any]],
    ) -> None:
        self._signature_of = signature_of
        self._arguments = arguments
        self._overrides = overrides
        self._made: dict[Callable[..., Any], Any] = {}

    def arguments(self, signature: Signature, stack: ExitStack) -> dict[str, Any]:
        """All arguments of a function with this signature."""
        given = self._arguments(signature)
        for name, depends in signature.depends.items():
            given[name] = self.make(depends.make, stack)
        return given

    def make(self, make: Callable[..., Any], stack: ExitStack) -> Any:
        """What `make` makes."""
        make = self._overrides.get(make, make)
        if make not in self._made:
            given = self.arguments(self._signature_of(make), stack)
            if inspect.isgeneratorfunction(make):
                self._made[make] = stack.enter_context(contextmanager(make)(**given))
            else:
                self._made[make] = make(**given)
        return self._made[make]

    async def aarguments(self, signature: Signature, stack: AsyncExitStack) -> dict[str, Any]:
        """`arguments` for coroutine functions."""
        given = self._arguments(signature)
        for name, depends in signature.depends.items():
            given[name] = await self.amake(depends.make, stack)
        return given

    async def amake(self, make: Callable[..., Any], stack: AsyncExitStack) -> Any:
        """`make` for coroutine functions."""
        make = self._overrides.get(make, make)
        if make not in self._made:
            given = await self.aarguments(self._signature_of(make), stack)
            if inspect.isasyncgenfunction(make):
                made = await stack.enter_async_context(asynccontextmanager(make)(**given))
            elif inspect.isgeneratorfunction(make):
                made = stack.enter_context(contextmanager(make)(**given))
            else:
                made = make(**given)
                if inspect.isawaitable(made):
                    made = await made
            self._made[make] = made
        return self._made[make]
