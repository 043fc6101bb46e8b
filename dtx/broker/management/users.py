"""Users and permissions by management: they hold from the moment at which they are durable, without a restart."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from dtx.amqp.conditions import Condition
from dtx.amqp.sasl.scram import ScramError, Verifier
from dtx.amqp.values import Ulong
from dtx.broker.access.accounts import RULE, USER
from dtx.broker.access.credentials import MOST_KEPT_MS, CredentialsError, OldPassword, user_name
from dtx.broker.access.permissions import Management, Permissions, PermissionsError, rule_of_json, section_of
from dtx.broker.management.changes import change
from dtx.protocol.conditions import Refusal, refused
from dtx.store.contract import Batch
from xa import Code

if TYPE_CHECKING:
    from collections.abc import Callable

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
    others = Counter(one.identity.name for one in request.container.connections_by_other_passwords())

    def shown(name: str) -> Map:
        rule = rules.get(name)
        old = None if accounts.credentials is None else accounts.credentials.old(name)
        return {
            "name": name,
            "password": name in known,
            "password-from": accounts.origin(USER, name) if name in known else None,
            "old-password-left-ms": None if old is None else Ulong(old.left_ms),
            "old-password-connections": Ulong(others[name]),
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


def user_salt(request: ManagementRequest) -> Map:
    """The salt and the iterations of a user's password, for the verifier of another one that is to be valid beside it.
    They are no secret: SCRAM names both to everybody who begins to sign in with that name."""
    credentials, name = _credentials(request), _name(request)
    verifier = _present(credentials, name)
    return {"salt": verifier.salt, "iterations": Ulong(verifier.iterations)}


def set_user(request: ManagementRequest, answer: Answer) -> None:
    """A new user, or another password. It comes as a SCRAM verifier: the password is not sent. With `keep-old-ms` the
    former password is valid for so long beside it."""
    credentials, name = _credentials(request), _name(request)
    try:
        verifier = Verifier.parse(request.text("verifier"))
    except ScramError as error:
        raise refused(Code.XAER_INVAL, f"verifier: {error}") from None
    kept_ms = request.number("keep-old-ms", 0)
    old = _kept(request, credentials, name, verifier, kept_ms) if kept_ms else None
    details = {"user": name, **({"keep-old-ms": kept_ms} if kept_ms else {})}
    _change_user(request, answer, name, verifier, old, details)


def _kept(
    request: ManagementRequest, credentials: Credentials, name: str, verifier: Verifier, kept_ms: int
) -> OldPassword:
    """The present password, which becomes the old one beside `verifier`."""
    present = _present(credentials, name)
    if kept_ms > MOST_KEPT_MS:
        raise refused(Code.XAER_INVAL, f"keep-old-ms: an old password is kept for {MOST_KEPT_MS} ms (30 days) at most")
    if credentials.old(name) is not None:
        message = f"{name} has two passwords already: end the old one first (set-password --revoke-now)"
        raise refused(Code.XAER_PROTO, message)
    if (verifier.salt, verifier.iterations) != (present.salt, present.iterations):
        message = "verifier: beside an old password it has the salt and iterations of that one (operation user-salt)"
        raise refused(Code.XAER_INVAL, message)
    if verifier == present:
        raise refused(Code.XAER_INVAL, f"it is the password that {name} has: there is no old one to keep")

    clock = request.container.resource.clock
    return OldPassword.ending(present, kept_ms, clock.wall_ms() + kept_ms, clock)


def revoke_old_password(request: ManagementRequest, answer: Answer) -> None:
    """The old password of a user ends now, and so do the connections that have signed in with another password than the
    present one."""
    credentials, name = _credentials(request), _name(request)
    verifier = _present(credentials, name)
    container = request.container
    found = [one for one in container.connections_by_other_passwords() if one.identity.name == name]
    if credentials.old(name) is None and not found:
        raise refused(Code.XAER_PROTO, f"{name} has one password, and no connection has signed in with another one")

    def done() -> None:
        gone = Refusal(Condition.UNAUTHORIZED, f"an old password of {name} was revoked", Code.XAER_RMERR)
        for connection in container.connections_by_other_passwords():
            if connection.identity.name == name:
                connection.close(gone)

    _change_user(request, answer, name, verifier, None, {"user": name, "connections": len(found)}, done)


def _change_user(
    request: ManagementRequest,
    answer: Answer,
    name: str,
    verifier: Verifier,
    old: OldPassword | None,
    details: dict[str, Any],
    then: Callable[[], None] = lambda: None,
) -> None:
    _check_is_settled(request, name)
    batch = Batch()
    written = request.container.accounts.write_user(batch, name, verifier, old)

    def done() -> None:
        written.done()
        then()

    change(request, answer, batch, details, done, written.undone)


def _present(credentials: Credentials, name: str) -> Verifier:
    found = credentials.verifier(name)
    if found is None:
        raise refused(Code.XAER_NOTA, f"there is no user {name!r} with a password")
    return found


def _check_is_settled(request: ManagementRequest, name: str) -> None:
    if request.container.accounts.is_changing(name):
        raise refused(Code.XAER_PROTO, f"another change of {name} is being written: look at it, and try again")


def remove_user(request: ManagementRequest, answer: Answer) -> None:
    """A user goes, with the user's rule; the user's connections are closed."""
    credentials, name = _credentials(request), _name(request)
    container = request.container
    accounts = container.accounts
    if name not in credentials.users:
        raise refused(Code.XAER_NOTA, f"there is no user {name!r}")
    if name == request.identity.name:
        raise refused(Code.XAER_PROTO, "a user can't remove itself: no other might be able to undo it")
    _check_is_settled(request, name)
    batch = Batch()
    changes = [accounts.write_user(batch, name, None)]
    if name in accounts.permissions.rules:
        changes.append(accounts.write_rule(batch, name, None))

    def done() -> None:
        for one in changes:
            one.done()
        gone = Refusal(Condition.UNAUTHORIZED, f"the user {name} was removed", Code.XAER_RMERR)
        for connection in tuple(container.connections.values()):
            if connection.identity.name == name:
                connection.close(gone)

    def undone() -> None:
        for one in changes:
            one.undone()

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
    written = accounts.write_rule(batch, name, rule)
    details = {"user": name, "rule": "none" if rule is None else json.dumps(section_of(rule), ensure_ascii=False)}
    change(request, answer, batch, details, written.done, written.undone)
