"""Users and permissions by management: they hold from the moment at which they are durable, without a restart."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dtx.amqp.conditions import Condition
from dtx.amqp.sasl.scram import ScramError, Verifier
from dtx.broker.access.accounts import RULE, USER
from dtx.broker.access.credentials import CredentialsError, user_name
from dtx.broker.access.permissions import Management, Permissions, PermissionsError, rule_of_json, section_of
from dtx.broker.management.changes import change
from dtx.protocol.conditions import Refusal, refused
from dtx.store.contract import Batch
from xa import Code

if TYPE_CHECKING:
    from dtx.amqp.values import Map, Value
    from dtx.broker.access.credentials import Credentials
    from dtx.broker.access.permissions import Rule
    from dtx.broker.management.request import Answer, ManagementRequest


def users(request: ManagementRequest) -> list[Value]:
    """A page of names that have a password, a rule or both, by name."""
    accounts = request.container.accounts
    known = accounts.credentials.users if accounts.credentials is not None else []
    rules = accounts.permissions.rules
    after = request.after

    def shown(name: str) -> Map:
        rule = rules.get(name)
        return {
            "name": name,
            "password": name in known,
            "password-from": accounts.origin(USER, name) if name in known else None,
            "rule": None if rule is None else json.dumps(section_of(rule), ensure_ascii=False),
            "rule-from": None if rule is None else accounts.origin(RULE, name),
        }

    return request.page(sorted(name for name in {*known, *rules} if name > after), shown)


def rights(request: ManagementRequest) -> Map:
    """What the one who asks may do by management, and with the branches of others."""
    identity, permissions = request.identity, request.container.permissions
    return {
        "user": str(identity),
        "manage": permissions.may_manage(identity, Management.MANAGE),
        "read-payload": permissions.may_manage(identity, Management.READ_PAYLOAD),
        "coordinate-all": permissions.may_coordinate_all(identity),
    }


def set_user(request: ManagementRequest, answer: Answer) -> None:
    """A new user, or another password. It comes as a SCRAM verifier: the password is not sent."""
    credentials, name = _credentials(request), _name(request)
    try:
        verifier = Verifier.parse(request.text("verifier"))
    except ScramError as error:
        raise refused(Code.XAER_INVAL, f"verifier: {error}") from None
    batch = Batch()
    undo = request.container.accounts.write_user(batch, name, verifier)
    change(request, answer, batch, {"user": name}, lambda: credentials.set(name, verifier), undo)


def remove_user(request: ManagementRequest, answer: Answer) -> None:
    """A user goes, with the user's rule; the user's connections are closed."""
    credentials, name = _credentials(request), _name(request)
    container = request.container
    accounts = container.accounts
    if name not in credentials.users:
        raise refused(Code.XAER_NOTA, f"there is no user {name!r}")
    if name == request.identity.name:
        raise refused(Code.XAER_PROTO, "a user can't remove itself: no other might be able to undo it")
    batch = Batch()
    undos = [accounts.write_user(batch, name, None)]
    if name in accounts.permissions.rules:
        undos.append(accounts.write_rule(batch, name, None))

    def done() -> None:
        credentials.set(name, None)
        accounts.permissions.set(name, None)
        gone = Refusal(Condition.UNAUTHORIZED, f"the user {name} was removed", Code.XAER_RMERR)
        for connection in tuple(container.connections.values()):
            if connection.identity.name == name:
                connection.close(gone)

    def undone() -> None:
        for undo in undos:
            undo()

    change(request, answer, batch, {"user": name}, done, undone)


def _credentials(request: ManagementRequest) -> Credentials:
    credentials = request.container.accounts.credentials
    if credentials is None:
        message = "this broker has no file of users, so no user has a password: start it with --users"
        raise refused(Code.XAER_PROTO, message)
    return credentials


def _name(request: ManagementRequest) -> str:
    try:
        return user_name(request.text("user"))
    except CredentialsError as error:
        raise refused(Code.XAER_INVAL, str(error)) from None


def set_permissions(request: ManagementRequest, answer: Answer) -> None:
    """Another rule for a name, in place of the one that it has. It holds for what is asked and attached from now on."""
    name = request.text("user")
    if not name:
        raise refused(Code.XAER_INVAL, 'user: expected a name, "*" or "anonymous"')
    try:
        rule = rule_of_json(name, request.text("rule"))
    except PermissionsError as error:
        raise refused(Code.XAER_INVAL, f"rule: {error}") from None
    _change_rule(request, answer, name, rule)


def remove_permissions(request: ManagementRequest, answer: Answer) -> None:
    """The rule of a name goes."""
    name = request.text("user")
    if name not in request.container.permissions.rules:
        raise refused(Code.XAER_NOTA, f"there are no permissions of {name!r}")
    _change_rule(request, answer, name, None)


def _change_rule(request: ManagementRequest, answer: Answer, name: str, rule: Rule | None) -> None:
    accounts = request.container.accounts
    permissions = accounts.permissions
    then = Permissions(permissions.rules)
    then.set(name, rule)
    if not then.may_manage(request.identity, Management.MANAGE):
        raise refused(Code.XAER_PROTO, f"{request.identity} could not manage this broker any more, nor undo it")
    batch = Batch()
    undo = accounts.write_rule(batch, name, rule)
    details = {"user": name, "rule": "none" if rule is None else json.dumps(section_of(rule), ensure_ascii=False)}
    change(request, answer, batch, details, lambda: permissions.set(name, rule), undo)
