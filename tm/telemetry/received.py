"""Received: the messages for which a consumer's transaction is, as its spans tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Received(NamedTuple):
    """The messages that a consumer has received in a transaction, from a broker of this kind."""

    system: str
    queue: str
    messages: Sequence[Any]
