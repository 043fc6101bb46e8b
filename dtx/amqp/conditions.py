"""Errors of AMQP 1.0: the conditions that we send or look at, by the names that the specification gives them, and what
a peer that breaks the protocol ends."""

from __future__ import annotations

from enum import Enum, StrEnum


class Condition(StrEnum):
    """A symbol that names an error."""

    ROLLBACK = "amqp:transaction:rollback"
    TIMEOUT = "amqp:transaction:timeout"
    UNKNOWN_ID = "amqp:transaction:unknown-id"
    NOT_FOUND = "amqp:not-found"
    ILLEGAL_STATE = "amqp:illegal-state"
    NOT_ALLOWED = "amqp:not-allowed"
    INVALID_FIELD = "amqp:invalid-field"
    DECODE_ERROR = "amqp:decode-error"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    UNAUTHORIZED = "amqp:unauthorized-access"
    RESOURCE_LIMIT = "amqp:resource-limit-exceeded"
    INTERNAL_ERROR = "amqp:internal-error"
    PRECONDITION_FAILED = "amqp:precondition-failed"
    RESOURCE_DELETED = "amqp:resource-deleted"
    RESOURCE_LOCKED = "amqp:resource-locked"
    FRAME_SIZE = "amqp:frame-size-too-small"
    CONNECTION_FORCED = "amqp:connection:forced"
    FRAMING_ERROR = "amqp:connection:framing-error"
    TRANSFER_LIMIT = "amqp:link:transfer-limit-exceeded"
    MESSAGE_SIZE = "amqp:link:message-size-exceeded"
    STOLEN = "amqp:link:stolen"
    DETACH_FORCED = "amqp:link:detach-forced"
    UNATTACHED_HANDLE = "amqp:session:unattached-handle"
    HANDLE_IN_USE = "amqp:session:handle-in-use"
    ERRANT_LINK = "amqp:session:errant-link"
    WINDOW_VIOLATION = "amqp:session:window-violation"


class Scope(Enum):
    """What an error ends: the specification says so for each condition."""

    CONNECTION = "connection"
    SESSION = "session"
    LINK = "link"


class ProtocolError(Exception):
    """The peer broke the protocol. `condition` and the message are sent to it."""

    def __init__(self, scope: Scope, condition: str, description: str) -> None:
        super().__init__(description)
        self.scope = scope
        self.condition = condition
        self.description = description
