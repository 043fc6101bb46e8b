"""Handler: what a consumer calls for its messages: a function of the application's, and what is done before it.

Before any work is done, a message is read: `read` makes the handler's argument of it. What `read` refuses is put away
as a dead letter, with the reason, in the same transaction, and the function is not called for it. A plain function
takes the message itself.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from tm.errors import ProtocolMisuse
from tm.resources import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable


class Refused(Exception):
    """A message is none for this handler, and never will be. The text is the reason that its dead letter has."""


class Handler:
    """A function over messages, or over lists of them. `is_async`: it is a coroutine function, or an object that is
    called like one. ConfigurationError: it is a generator function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        calls = (function, inspect.getattr_static(type(function), "__call__", None))
        if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in calls):
            raise ConfigurationError(
                f"{_name(function)} is a generator function and would not run; write it without yield"
            )
        self.is_async = any(map(inspect.iscoroutinefunction, calls))

    def read(self, message: Any) -> Any:
        """The argument that the function takes for a message. Refused: there is none."""
        return message

    def __call__(self, argument: Any, transaction: Any) -> Any:
        """Calls the function with what `read` gave, or with a list of that."""
        returned = self.function(argument, transaction)
        return returned if self.is_async else self.ran(returned)

    def ran(self, returned: Any) -> Any:
        """What a plain function has returned. ProtocolMisuse: it has not run, as behind a decorator that does not know
        coroutine functions."""
        if inspect.iscoroutine(returned):
            returned.close()
        elif not inspect.isgenerator(returned) and not inspect.isasyncgen(returned):
            return returned
        kind = type(returned).__name__.replace("_", " ")
        raise ProtocolMisuse(
            f"{_name(self.function)} has returned a {kind}, which would not run: is a decorator around it that does "
            "not know coroutine functions?"
        )


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
