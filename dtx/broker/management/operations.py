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
from dtx.broker.access.permissions import Management
from dtx.broker.management import changes, messages, users, views
from dtx.broker.management.request import ManagementRequest
from dtx.protocol.conditions import refused
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.messages import Request
    from dtx.amqp.sasl.mechanisms import Identity
    from dtx.amqp.values import Value
    from dtx.broker.container import Container
    from dtx.broker.management.request import Answer


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


def carry_out(container: Container, identity: Identity, request: Request, answer: Answer) -> None:
    """Carries a request out; `answer` is called with the response. RefusedError, WireError: the request is refused, and
    nothing was done."""
    permissions = container.permissions
    if not any(permissions.may_manage(identity, each) for each in Management):  # nothing of the request is decoded
        raise _unauthorized(identity, Management.VIEW)
    arguments = request.application_properties()
    name = arguments.get("operation")
    found = OPERATIONS.get(name) if isinstance(name, str) else None
    if found is None:
        if not permissions.may_manage(identity, Management.VIEW):
            raise _unauthorized(identity, Management.VIEW)
        raise WireError(Condition.NOT_IMPLEMENTED, f"operation is one of {', '.join(sorted(OPERATIONS))}")
    if not permissions.may_manage(identity, found.needs):
        raise _unauthorized(identity, found.needs)
    found.carry_out(ManagementRequest(container, identity, arguments), answer)


def _unauthorized(identity: Identity, needs: Management) -> Exception:
    message = f"{identity} may not {needs.phrase} this broker"
    return refused(Code.XAER_RMERR, message, condition=Condition.UNAUTHORIZED)
