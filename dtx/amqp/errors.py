"""What a peer can do wrong, and what ends because of it."""

from __future__ import annotations

from enum import Enum


class Scope(Enum):
    """What an error ends: the specification says so for each condition."""

    CONNECTION = "connection"
    SESSION = "session"
    LINK = "link"


class ProtocolError(Exception):
    """The peer broke the protocol. `condition` and the message are what it is told."""

    def __init__(self, scope: Scope, condition: str, description: str) -> None:
        super().__init__(description)
        self.scope = scope
        self.condition = condition
        self.description = description
