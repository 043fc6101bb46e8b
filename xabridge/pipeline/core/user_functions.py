"""The user's functions that an option names as `module:function`. They are imported where they are called."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from xabridge.pipeline.core.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable


@lru_cache(maxsize=64)
def function_named(name: str) -> Callable[..., Any] | None:
    """The function; None for the empty name. PipelineError: there is none of this name."""
    if not name:
        return None
    module, colon, attribute = name.partition(":")
    if not module or not colon or not attribute:
        raise PipelineError(f"{name!r} is not the name of a function: write module:function")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PipelineError(f"the function {name} can't be imported: {error}") from error
    if not callable(found):
        raise PipelineError(f"{name} is not a function")
    function: Callable[..., Any] = found
    return function
