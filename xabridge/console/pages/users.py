"""Users and permissions: who may connect, and do what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import RedirectResponse, Response

from dtx.broker.access.credentials import CredentialsError, user_name, verifier_beside, verifier_of
from xabridge.console.brokers import RequestRefused
from xabridge.console.pages.requests import checked_form, chosen, link_of, of_each
from xabridge.console.view import PageView, address
from xabridge.operations.broker_changes import old_password
from xabridge.text import age, duration

if TYPE_CHECKING:
    from starlette.requests import Request

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.console import Console
    from xabridge.console.sessions import Session

PATTERNS: Final = ("consume", "produce", "create")
FLAGS: Final = ("view", "manage", "read_payload")


async def users(_console: Console, request: Request, session: Session) -> PageView:
    """All names that have a password or permissions."""
    answers = await of_each(chosen(request, session), _all)
    return PageView("users.html", {"title": "Users", "answers": answers})


async def _all(link: BrokerLink) -> dict[str, Any]:
    found = [_read(one) for one in await link.pages("users", key="name")]
    return {"users": found, "rights": await link.rights()}


def _read(user: dict[str, Any]) -> dict[str, Any]:
    rule = None if user["rule"] is None else json.loads(user["rule"])
    words = [
        name.replace("_", "-") if value is True else f"{name} {value if isinstance(value, str) else ', '.join(value)}"
        for name, value in (rule or {}).items()
    ]
    return {**user, "rule": rule, "words": words, "old": old_password(user)}


async def user(_console: Console, request: Request, session: Session) -> PageView:
    """One name; a new one if it is not known."""
    link = link_of(request, session)
    name = request.query_params.get("name", "")
    found = next((one for one in (await _all(link))["users"] if one["name"] == name), None)
    context = {"title": name or "New user", "name": name, "user": found, "rights": await link.rights()}
    return PageView("user.html", context)


async def set_password(console: Console, request: Request, session: Session) -> Response:
    """Adds a user, or changes the password. The broker gets a verifier, and never the password."""
    link = link_of(request, session)
    fields = await checked_form(request, session)
    password = fields.get("password", "")
    if password != fields.get("again", ""):
        raise RequestRefused("nothing was done: the two passwords differ")
    try:
        name = user_name(fields.get("user", ""))
        kept_s = duration(fields["keep"]) if fields.get("keep") else None
        verifier, more = verifier_of(name, password), {}
        if kept_s is not None:
            like = await link.ask("user-salt", user=name)
            verifier = verifier_beside(name, password, like["salt"], like["iterations"])
            more = {"keep_old_ms": round(kept_s * 1000)}
    except (CredentialsError, ValueError) as error:
        raise RequestRefused(f"nothing was done: {error}") from None

    await link.change("set-user", user=name, verifier=str(verifier), **more)
    console.audit(session, "set-user", broker=link.name, user=name, **more)
    kept = f" The old one is valid for another {age(kept_s)}." if kept_s is not None else ""
    session.flashes.append(("good", f"The password of {name} is set.{kept}"))
    return RedirectResponse(address(f"/b/{link.name}/user", name=name), 303)


async def set_permissions(console: Console, request: Request, session: Session) -> Response:
    """Says what a user may do, in place of all that the user may do now."""
    link = link_of(request, session)
    fields = await checked_form(request, session)
    name = fields.get("user", "")
    rule: dict[str, Any] = {what: fields.get(what, "").split() for what in PATTERNS}
    rule |= {flag: fields.get(flag) == "yes" for flag in FLAGS}
    rule["coordinate"] = fields.get("coordinate", "none")
    text = json.dumps({key: value for key, value in rule.items() if value and value != "none"}, ensure_ascii=False)
    await link.change("set-permissions", user=name, rule=text)
    console.audit(session, "set-permissions", broker=link.name, user=name, rule=text)
    session.flashes.append(("good", f"The permissions of {name} hold from now on."))
    return RedirectResponse(address(f"/b/{link.name}/user", name=name), 303)
