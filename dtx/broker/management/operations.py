"""The operations of the management node: what each may be asked for, by whom, and how it is answered.

A request has everything in its application properties: `operation`, and the arguments of that operation. The response
is a map, or a list of maps; a refusal is answered as on the command channel. Lists come in pages: `count` entries (at
most MAX_PAGE) behind the one that `after` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.broker.access.audit import Actor, Outcome
from dtx.broker.access.permissions import Management
from dtx.broker.management import changes, messages, users, views
from dtx.broker.management.request import ManagementRequest
from dtx.protocol.conditions import Refusal, RefusedError, refused
from xa import Code
from xa.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.messages import Request
    from dtx.amqp.sasl.mechanisms import Identity
    from dtx.amqp.values import Map, Value
    from dtx.broker.container import Container, ServedConnection
    from dtx.broker.management.request import Answer

MOST_ABOUT: Final = 100
"""Characters of an argument of a refused request that the audit log keeps."""

ANYTHING: Final = "management"
"""What the audit log calls a request of one who may ask for nothing."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `carry_out` answers when what it changes is durable."""

    needs: Management
    carry_out: Callable[[ManagementRequest, Answer], None]


def _view(look: Callable[[ManagementRequest], Value]) -> Operation:
    return Operation(Management.VIEW, lambda question, answer: answer(look(question)))


def _change(carry_out: Callable[[ManagementRequest, Answer], None]) -> Operation:
    return Operation(Management.MANAGE, carry_out)


OPERATIONS: Final[dict[str, Operation]] = {
    "status": _view(views.status),
    "queues": _view(views.queues),
    "branches": _view(views.branches),
    "connections": _view(views.connections),
    "links": _view(views.links),
    "messages": _view(messages.page),
    "conditions": _view(views.conditions),
    "dead-letters": _view(messages.dead_letters),
    "configuration": _view(views.configuration),
    "audit": _view(changes.audit),
    "users": _view(users.users),
    "rights": _view(users.rights),
    "user-salt": Operation(Management.MANAGE, lambda question, answer: answer(users.user_salt(question))),
    "set-user": _change(users.set_user),
    "revoke-old-password": _change(users.revoke_old_password),
    "remove-user": _change(users.remove_user),
    "set-permissions": _change(users.set_permissions),
    "remove-permissions": _change(users.remove_permissions),
    "read": Operation(Management.READ_PAYLOAD, messages.read),
    "move": _change(messages.move),
    "copy": _change(messages.copy),
    "retry": _change(messages.retry),
    "purge": _change(messages.purge),
    "create-queue": _change(changes.create_queue),
    "configure-queue": _change(changes.configure_queue),
    "delete-queue": _change(changes.delete_queue),
    "pause-queue": _change(changes.pause_queue),
    "resume-queue": _change(changes.resume_queue),
    "close-connection": _change(changes.close_connection),
    "drop-branch": _change(changes.drop_branch),
}


def carry_out(
    container: Container,
    connection: ServedConnection,
    request: Request,
    answer: Answer,
    is_awaited: Callable[[], bool],
) -> None:
    """Carries a request of this connection out; `answer` is called with the response. What goes on in steps ends with
    the step in which `is_awaited` says that there is no one for it any more. RefusedError, WireError: the
    request is refused, and nothing was done; the audit log says so."""
    identity, permissions = connection.identity, container.permissions
    actor = Actor(str(identity), connection.peer)
    if not any(permissions.may_manage(identity, each) for each in Management):  # nothing of the request is decoded
        container.audit.asked(actor, ANYTHING, Outcome.REFUSED, "no permission", {})
        raise _unauthorized(identity, Management.VIEW)
    arguments = request.application_properties()
    name = arguments.get("operation")
    found = OPERATIONS.get(name) if isinstance(name, str) else None
    if found is None:
        if not permissions.may_manage(identity, Management.VIEW):
            raise _unauthorized(identity, Management.VIEW)
        raise WireError(Condition.NOT_IMPLEMENTED, f"operation is one of {', '.join(sorted(OPERATIONS))}")

    try:
        asked = ManagementRequest(container, identity, arguments, connection.peer, is_awaited)
        actor = asked.actor
        if not permissions.may_manage(identity, found.needs):
            raise _unauthorized(identity, found.needs)
        found.carry_out(asked, _audited(asked, answer) if found.needs is Management.READ_PAYLOAD else answer)
    except (RefusedError, WireError) as error:
        condition = error.refusal.condition if isinstance(error, RefusedError) else error.condition
        if found.needs is not Management.VIEW or condition == Condition.UNAUTHORIZED:
            why = error.refusal.description if isinstance(error, RefusedError) else str(error)
            container.audit.asked(actor, str(name), Outcome.REFUSED, why or "", _about(arguments))
        raise


def _audited(request: ManagementRequest, answer: Answer) -> Answer:
    """`answer`, for what has read the content of a message."""

    def answered(value: Value | Refusal) -> None:
        outcome, why = (Outcome.FAILED, value.description or "") if isinstance(value, Refusal) else (Outcome.DONE, "")
        about = {"queue": request.text("queue")}
        request.container.audit.asked(request.actor, request.text("operation"), outcome, why, about)
        answer(value)

    return answered


def _about(arguments: Map) -> dict[str, str]:
    """To what a refused request was: what peers may choose is cut."""
    named = {name: arguments.get(name) for name in ("queue", "user", "connection", "xid")}
    return {name: printable(value, MOST_ABOUT) for name, value in named.items() if isinstance(value, str)}


def _unauthorized(identity: Identity, needs: Management) -> Exception:
    message = f"{identity} may not {needs.phrase} this broker"
    return refused(Code.XAER_RMERR, message, condition=Condition.UNAUTHORIZED)
