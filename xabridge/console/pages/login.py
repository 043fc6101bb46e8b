"""Signing in with the name and password of a broker's user, and out.

The password is kept in memory for as long as the session, because a broker that was restarted asks for it again.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from typing import TYPE_CHECKING, Final

from starlette.responses import RedirectResponse

from xabridge.console.brokers import BrokerLink, BrokerProblem, RequestRefused
from xabridge.console.browser import BROWSER
from xabridge.console.console import WAITING
from xabridge.console.security import form_of
from xabridge.console.view import PageView

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from xabridge.console.console import Console

MOST: Final = 500
"""Characters of a name or a password."""
PATIENCE_S: Final = 15.0
BUSY: Final = "Too many people sign in at this moment. Try again."
STALE: Final = "This form was too old. Try again."
WRONG: Final = "The brokers do not take this name with this password."


async def asked(console: Console, request: Request) -> Response:
    """The form."""
    return _form(console, request, 200, back=request.query_params.get("next", ""))


def _form(console: Console, request: Request, status: int, *, back: str, why: str = "", user: str = "") -> Response:
    before = secrets.token_urlsafe(24)
    context = {"why": why, "next": _inside(back), "user": user, "before": console.sign(before)}
    response = console.render(request, None, PageView("login.html", context, status))
    response.set_cookie(
        f"{console.cookie}-before", before, httponly=True, samesite="strict", secure=console.settings.secure
    )
    return response


async def signed_in(console: Console, request: Request) -> Response:
    """Tries the name and the password at every broker; one that takes them is enough."""
    fields = await form_of(request)
    user, password, back = fields.get("user", ""), fields.get("password", ""), fields.get("next", "")
    before = request.cookies.get(f"{console.cookie}-before", "")
    if not before or not hmac.compare_digest(console.sign(before), fields.get("before", "")):
        return _form(console, request, 403, back=back, why=STALE, user=user[:MOST])
    if len(user) > MOST or len(password) > MOST:
        return _form(console, request, 401, back=back, why=WRONG)
    where = BROWSER.get()
    if console.waiting[where] >= WAITING or console.waiting.total() >= 4 * WAITING:
        return _form(console, request, 429, back=back, why=BUSY, user=user)
    console.waiting[where] += 1

    try:
        async with console.signing_in:
            links, away = await _tried(console, user, password)
    finally:
        console.waiting[where] -= 1
        if not console.waiting[where]:
            del console.waiting[where]

    if links is None:
        console.audit(None, "sign-in", outcome="failed" if away else "refused")
        status = 503 if away else 401
        return _form(console, request, status, back=back, why=away or WRONG, user=user)
    former = console.key_of(request)
    if former is not None:
        console.sessions.end(former)
    key, session = console.sessions.begin(user, links)
    console.audit(session, "sign-in")
    response = RedirectResponse(_inside(back) or "/", 303)
    response.set_cookie(console.cookie, key, httponly=True, samesite="strict", secure=console.settings.secure, path="/")
    response.delete_cookie(f"{console.cookie}-before", secure=console.settings.secure, httponly=True, samesite="strict")
    return response


async def _tried(console: Console, user: str, password: str) -> tuple[dict[str, BrokerLink] | None, str]:
    """The links, if a broker takes the user; otherwise None, and if none has refused, which are away."""
    links = {
        broker.name: BrokerLink(broker, broker.as_user(user, password), console.clock)
        for broker in console.settings.brokers
    }
    results = await asyncio.gather(*map(_opened, links.values()))
    if any(result is None for result in results):
        return links, ""
    for link in links.values():
        link.close()
    if any(isinstance(result, RequestRefused) for result in results):
        return None, ""
    return None, "; ".join(f"{name} is away: {why}" for name, why in zip(links, results, strict=True))


async def _opened(link: BrokerLink) -> BrokerProblem | None:
    try:
        await asyncio.wait_for(link.open(), PATIENCE_S)
    except BrokerProblem as why:
        return why
    except TimeoutError:
        return BrokerProblem("it has not answered yet")
    return None


async def signed_out(console: Console, request: Request) -> Response:
    """Ends the session."""
    key = console.key_of(request)
    session = console.sessions.find(key)
    fields = await form_of(request)
    if key is not None and session is not None and session.is_token(fields.get("token", "")):
        console.audit(session, "sign-out")
        console.sessions.end(key)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(console.cookie, path="/", secure=console.settings.secure, httponly=True, samesite="strict")
    return response


def _inside(back: str) -> str:
    """An address of this console's, or nothing: signing in never leads elsewhere."""
    good = back.startswith("/") and not back.startswith(("//", "/\\")) and back.isprintable() and len(back) < 2000
    return back if good and not back.startswith(("/login", "/live", "/logout")) else ""
