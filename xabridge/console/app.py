"""Console: the application, what all of its requests share, and how a page is answered."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from anyio.to_thread import run_sync
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from xabridge.console.brokers import Away, BrokerLink, Refused, Trouble, Unknown
from xabridge.console.drawing.picture import picture
from xabridge.console.drawing.sparkline import sparkline
from xabridge.console.history import History
from xabridge.console.live import events
from xabridge.console.nodes import NodeLink
from xabridge.console.pipeline_watch import PipelineWatch
from xabridge.console.security import Guard
from xabridge.console.sessions import Session, Sessions
from xabridge.console.site_watch import SiteWatch, key_of
from xabridge.console.words import FILTERS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from tm.config import Configuration
    from xabridge.console.settings import ConsoleSettings

LOG: Final = logging.getLogger("xabridge.console")
AUDIT: Final = logging.getLogger("xabridge.console.audit")
SAMPLE_S: Final = 5.0
SIGNING_IN: Final = 4
"""Sign-ins that are tried at a time; each costs the broker a proof."""
WAITING: Final = 5
"""Sign-ins of one address that wait for their turn."""
CLOSE_S: Final = 3.0
_STATIC: Final = Path(__file__).parent / "static"


@dataclass(frozen=True, slots=True)
class View:
    """A page's template and what stands in it."""

    template: str
    context: dict[str, Any] = field(default_factory=dict)
    status: int = 200


Page: TypeAlias = "Callable[[Console, Request, Session], Awaitable[View | Response]]"


class Console:
    """One console."""

    def __init__(
        self,
        settings: ConsoleSettings,
        configuration: Configuration | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.sessions = Sessions(settings, clock)
        self.histories = {broker.name: History(clock) for broker in settings.brokers}
        self.site = SiteWatch(configuration, clock)
        self.nodes = tuple(NodeLink(node, clock) for node in settings.nodes)
        self.pipelines = PipelineWatch(settings.pipelines, clock)
        self.stopping = asyncio.Event()
        self.signing_in = asyncio.Semaphore(SIGNING_IN)
        self.waiting: Counter[str] = Counter()
        """Sign-ins that wait, by the address that they come from."""
        self.jobs: set[asyncio.Task[None]] = set()
        self._silent: dict[str, str] = {}
        self.clock = clock
        self._secret = secrets.token_bytes(32)
        self._watchers = {
            broker.name: BrokerLink(broker, broker.watch, clock) for broker in settings.brokers if broker.watch
        }
        self._templates = _templates()
        self.app = Starlette(
            routes=self._routes(),
            middleware=[Middleware(Guard, settings=settings)],
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._failed, Exception: self._broken},  # type: ignore[dict-item]
        )

    @property
    def cookie(self) -> str:
        """The name of the cookie; browsers hold the prefix to HTTPS and to this host."""
        return "__Host-xabridge" if self.settings.secure else "xabridge"

    # -- who asks
    def sign(self, text: str) -> str:
        """A proof that this console made `text`."""
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

    def key_of(self, request: Request) -> str | None:
        """The key in the request's cookie."""
        return request.cookies.get(self.cookie)

    def audit(self, session: Session, what: str, /, **about: Any) -> None:
        """A line about something that was done."""
        AUDIT.info("%s", json.dumps({"who": session.shown, "what": what, **about}, ensure_ascii=True))

    # -- answers
    def render(self, request: Request, session: Session | None, view: View) -> Response:
        """The whole page."""
        context = self._context(request, session, view)
        html = self._templates.get_template(view.template).render(context)
        if session is not None:
            session.told.clear()
        return HTMLResponse(html, view.status)

    def part(self, request: Request, session: Session, view: View) -> str:
        """The part of the page that moves."""
        template = self._templates.get_template(view.template)
        context = template.new_context(self._context(request, session, view))
        return "".join(template.blocks["live"](context))

    def _context(self, request: Request, session: Session | None, view: View) -> dict[str, Any]:
        theme = request.cookies.get("theme", "")
        return {
            "session": session,
            "path": request.url.path.removeprefix("/live"),
            "query": request.url.query,
            "theme": theme if theme in {"light", "dark"} else "",
            "brokers": [broker.name for broker in self.settings.brokers],
            "flashes": list(session.told) if session is not None else [],
            "broker": request.path_params.get("broker", ""),
            "now": time.time(),
            "live": False,
            **view.context,
        }

    # -- routes
    def _routes(self) -> list[Route | Mount]:
        from xabridge.console.pages import LIVE, OPEN, PAGES  # noqa: PLC0415 — they are made with this module

        routes: list[Route | Mount] = [
            Mount("/static", _Assets(directory=_STATIC), name="static"),
            *(Route(path, partial(page, self), methods=methods) for path, methods, page in OPEN),
        ]
        for path, methods, page in PAGES:
            routes.append(Route(path, self._page(page), methods=methods))
            if page in LIVE:
                routes.append(Route(f"/live{path}", self._live(page), methods=["GET"]))
        return routes

    def _page(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            session = self.sessions.find(self.key_of(request))
            if session is None:
                if request.method == "POST":
                    told = "Your session is over, so nothing was done. Sign in and do it again."
                    return self.render(request, None, View("over.html", {"why": told}, 401))
                back = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"/login?next={quote(back, safe='')}" if back != "/" else "/login", 303)
            made = await self._view(page, request, session)
            return made if isinstance(made, Response) else self.render(request, session, made)

        return answer

    async def _view(self, page: Page, request: Request, session: Session) -> View | Response:
        try:
            return await page(self, request, session)
        except Trouble as trouble:
            status = 503 if isinstance(trouble, Away) else 409
            if isinstance(trouble, Refused) and trouble.right:
                status = 403
            where = request.path_params.get("broker", "")
            title = {403: "Not permitted", 503: "Away"}.get(status, "Not done")
            if isinstance(trouble, Unknown):
                title = "Not known"
            return View("trouble.html", {"title": title, "trouble": trouble, "where": where, "kind": status}, status)

    def _live(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            key = self.key_of(request)

            async def part() -> str:
                session = self.sessions.find(key, active=False)
                if session is None:
                    return ""
                try:
                    view = await self._view(page, request, session)
                except HTTPException:  # what it shows is gone
                    return ""
                return self.part(request, session, view) if isinstance(view, View) else ""

            return events(self, request, key, part)

        return answer

    async def _failed(self, request: Request, error: HTTPException) -> Response:
        told = error.detail if error.detail != "Not Found" else "There is no such page."
        session = self.sessions.find(self.key_of(request))
        return self.render(request, session, View("over.html", {"why": told}, error.status_code))

    async def _broken(self, request: Request, _error: Exception) -> Response:
        told = "This page can't be made: a defect of the console. Its log has the details."
        return self.render(request, None, View("over.html", {"why": told}, 500))

    # -- what goes on beside the requests
    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        sampling = asyncio.create_task(self._sample())
        try:
            yield
        finally:
            self.stop()
            sampling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sampling
            closing = [*self.sessions.end_all(), *(watcher.close() for watcher in self._watchers.values())]
            if closing:
                await asyncio.wait(closing, timeout=CLOSE_S)
            await run_sync(self.site.close)
            await run_sync(self.pipelines.close)

    def stop(self) -> None:
        """Ends the streams, so that the server can end."""
        self.stopping.set()

    async def _sample(self) -> None:
        while True:
            self.sessions.sweep()
            await asyncio.gather(*(self.sample(name) for name in self.histories))
            await asyncio.sleep(SAMPLE_S)

    async def sample(self, name: str) -> None:
        """Takes in what a broker tells of its queues now, by the first who is told it."""
        watcher = self._watchers.get(name)
        for link in [watcher] if watcher is not None else list(self.sessions.links_to(name)):
            try:
                self.histories[name].note(await link.queues())
            except Trouble as trouble:
                if link is watcher and self._silent.get(name) != str(trouble):
                    self._silent[name] = str(trouble)
                    LOG.warning("%s can't be watched: %s", name, trouble)
                continue
            self._silent.pop(name, None)
            return


class _Assets(StaticFiles):
    """Files whose address changes with their content."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["cache-control"] = "public, max-age=86400"
        return response


@functools.cache
def _templates() -> Environment:
    """The templates, which are compiled once in a process."""
    made = Environment(
        loader=PackageLoader("xabridge.console"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    made.filters.update(FILTERS)
    made.globals.update(sparkline=sparkline, picture=picture, key_of=key_of, assets=_digest(), url=address)
    return made


def _digest() -> str:
    digest = hashlib.sha256()
    for file in sorted(_STATIC.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def address(path: str, /, **arguments: object) -> str:
    """A path with arguments, each encoded; those that are empty are left out."""
    told = "&".join(
        f"{name}={quote(str(value), safe='')}" for name, value in arguments.items() if value not in {"", None}
    )
    return f"{path}?{told}" if told else path
