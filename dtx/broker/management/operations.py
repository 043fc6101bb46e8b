"""The operations of the management node: what each may be asked for, by whom, and how it is answered.

A request has everything in its application properties: `operation`, and the arguments of that operation. The response
is a map, or a list of maps; a refusal is told as on the command channel. Lists come in pages: `count` entries (at most
MAX_PAGE) behind the one that `after` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dtx.amqp.composites import WireError
from dtx.amqp.conditions import Condition
from dtx.broker.access.permissions import Management
from dtx.broker.management import views
from dtx.broker.management.question import Question
from dtx.protocol.conditions import refused
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from dtx.amqp.messages import Request
    from dtx.amqp.sasl.mechanisms import Identity
    from dtx.amqp.values import Value
    from dtx.broker.container import Container


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `carry_out` returns the answer."""

    needs: Management
    carry_out: Callable[[Question], Value]


OPERATIONS: Final[dict[str, Operation]] = {
    "status": Operation(Management.VIEW, views.status),
    "queues": Operation(Management.VIEW, views.queues),
    "branches": Operation(Management.VIEW, views.branches),
    "connections": Operation(Management.VIEW, views.connections),
    "links": Operation(Management.VIEW, views.links),
}


def answer(container: Container, identity: Identity, request: Request) -> Value:
    """The response's value. RefusedError, WireError: the request is refused, and nothing was done."""
    arguments = request.application_properties
    name = arguments.get("operation")
    found = OPERATIONS.get(name) if isinstance(name, str) else None
    permissions = container.permissions
    if found is None:
        if not permissions.may_manage(identity, Management.VIEW):
            raise _unauthorized(identity, Management.VIEW)
        raise WireError(Condition.NOT_IMPLEMENTED, f"operation is one of {', '.join(sorted(OPERATIONS))}")
    if not permissions.may_manage(identity, found.needs):
        raise _unauthorized(identity, found.needs)
    return found.carry_out(Question(container, identity, arguments))


def _unauthorized(identity: Identity, needs: Management) -> Exception:
    told = f"{identity} may not {needs.told} this broker"
    return refused(Code.XAER_RMERR, told, condition=Condition.UNAUTHORIZED)
