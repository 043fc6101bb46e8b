"""The console as a web application: its addresses, and how a request is answered."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from xabridge.console.brokers import BrokerProblem, BrokerUnreachable, RequestRefused, ResultUnknown
from xabridge.console.event_stream import events
from xabridge.console.pages import LIVE, OPEN, PAGES
from xabridge.console.security import SecurityMiddleware
from xabridge.console.view import STATIC, PageView

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from xabridge.console.console import Console
    from xabridge.console.pages import Page
    from xabridge.console.sessions import Session


def application(console: Console) -> Starlette:
    """The application that answers the requests of this console."""
    routes = _Routes(console)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with console.running():
            yield

    return Starlette(
        routes=routes.all(),
        middleware=[Middleware(SecurityMiddleware, settings=console.settings)],
        lifespan=lifespan,
        exception_handlers={HTTPException: routes.failed, Exception: routes.broken},  # type: ignore[dict-item]
    )


class _Routes:
    def __init__(self, console: Console) -> None:
        self._console = console

    def all(self) -> list[Route | Mount]:
        routes: list[Route | Mount] = [
            Mount("/static", _Assets(directory=STATIC), name="static"),
            *(Route(path, partial(page, self._console), methods=methods) for path, methods, page in OPEN),
        ]
        for path, methods, page in PAGES:
            routes.append(Route(path, self._page(page), methods=methods))
            if page in LIVE:
                routes.append(Route(f"/live{path}", self._live(page), methods=["GET"]))
        return routes

    def _page(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            session = self._console.sessions.find(self._console.key_of(request))
            if session is None:
                if request.method == "POST":
                    text = "Your session is over, so nothing was done. Sign in and do it again."
                    return self._console.render(request, None, PageView("over.html", {"why": text}, 401))
                back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"/login?next={quote(back, safe='')}" if back != "/" else "/login", 303)
            made = await self._view(page, request, session)
            return made if isinstance(made, Response) else self._console.render(request, session, made)

        return answer

    async def _view(self, page: Page, request: Request, session: Session) -> PageView | Response:
        try:
            return await page(self._console, request, session)
        except BrokerProblem as trouble:
            status = 503 if isinstance(trouble, BrokerUnreachable) else 409
            if isinstance(trouble, RequestRefused) and trouble.right:
                status = 403
            where = request.path_params.get("broker", "")
            title = {403: "Not permitted", 503: "Away"}.get(status, "Not done")
            if isinstance(trouble, ResultUnknown):
                title = "Not known"
            return PageView(
                "trouble.html", {"title": title, "trouble": trouble, "where": where, "kind": status}, status
            )

    def _live(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            key = self._console.key_of(request)

            async def part() -> str:
                session = self._console.sessions.find(key, active=False)
                if session is None:
                    return ""
                try:
                    view = await self._view(page, request, session)
                except HTTPException:  # what it shows is gone
                    return ""
                return self._console.part(request, session, view) if isinstance(view, PageView) else ""

            return events(self._console, request, key, part)

        return answer

    async def failed(self, request: Request, error: HTTPException) -> Response:
        text = error.detail if error.detail != "Not Found" else "There is no such page."
        session = self._console.sessions.find(self._console.key_of(request))
        return self._console.render(request, session, PageView("over.html", {"why": text}, error.status_code))

    async def broken(self, request: Request, _error: Exception) -> Response:
        text = "This page can't be made: a defect of the console. Its log has the details."
        return self._console.render(request, None, PageView("over.html", {"why": text}, 500))


class _Assets(StaticFiles):
    """Files whose address changes with their content."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "public, max-age=86400"
        return response
