"""SecurityMiddleware: what every request has to pass, and what every response says to the browser.

- The Host is one of the console's own names. Otherwise a page of somebody else's, whose name leads here, could read
  what this one shows (DNS rebinding).
- A request that changes something comes from a page of the console: Origin and Sec-Fetch-Site say so where the browser
  sends them, and the form carries the session's token.
- Nothing but the console's own files is loaded or run by a page: no script or style stands in the page itself.
- The body of a form is at most 64 kB.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse

from xabridge.console.browser import BROWSER, browser_of

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from xabridge.console.settings import ConsoleSettings

MAX_BODY: Final = 64 << 10
BODY_S: Final = 20.0
"""How long a form may take to come."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "same-origin",  # with "no-referrer" a form would be sent with the origin "null"
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_CHANGING: Final = frozenset({"POST"})
_METHODS: Final = frozenset({"GET", "HEAD", "POST"})


class SecurityMiddleware:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, settings: ConsoleSettings) -> None:
        self._app = app
        self._names = settings.names
        self._secure = settings.secure
        self._proxies = settings.trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        BROWSER.set(browser_of(scope, self._proxies))

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if self._secure:
                    headers["strict-transport-security"] = "max-age=31536000"
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-store"
            await send(message)

        why = self._refusal(scope)
        if why is not None:
            await PlainTextResponse(why, status_code=400 if why.startswith("Host") else 403)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> str | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if _hostname(host) not in self._names:
            return "Host: this console is not called so. Its names are the setting `hosts` of [console]."
        if scope["method"] not in _METHODS:
            return "This console takes GET and POST only."
        if scope["method"] in _CHANGING:
            origin = headers.get("origin")
            if origin is not None and not self._is_ours(origin, host):
                return "Refused: this request does not come from a page of the console."
            if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
                return "Refused: this request does not come from a page of the console."
        return None

    def _is_ours(self, origin: str, host: str) -> bool:
        """Whether a page of this origin came from here. Behind HTTPS, one without it may be somebody else's."""
        parts = urlsplit(origin)
        return parts.netloc == host and (parts.scheme == "https" or not self._secure)


def _hostname(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form; of a field that comes several times, its values with a comma between them."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY:
                    raise HTTPException(413, "The form is too large.")
    except TimeoutError:
        raise HTTPException(408, "The form did not come in time.") from None
    try:
        fields = parse_qs(body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=2000)
    except (UnicodeDecodeError, ValueError):
        raise HTTPException(400, "The form can't be read.") from None
    return {name: ",".join(values) for name, values in fields.items()}
