"""Console: what all requests of a console share."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from anyio.to_thread import run_sync
from starlette.responses import HTMLResponse

from xabridge.console.brokers import BrokerLink, BrokerProblem
from xabridge.console.browser import BROWSER
from xabridge.console.history import History
from xabridge.console.nodes import NodeLink
from xabridge.console.pipeline_watch import PipelineWatch
from xabridge.console.sessions import Sessions
from xabridge.console.site_watch import SiteWatch
from xabridge.console.view import templates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from tm.config import Configuration
    from xabridge.console.sessions import Session
    from xabridge.console.settings import ConsoleSettings
    from xabridge.console.view import PageView

LOG: Final = logging.getLogger("xabridge.console")
AUDIT: Final = logging.getLogger("xabridge.console.audit")
SAMPLE_S: Final = 5.0
SIGNING_IN: Final = 4
"""Sign-ins that are tried at a time; each costs the broker a proof."""
WAITING: Final = 5
"""Sign-ins of one address that wait for their turn."""
CLOSE_S: Final = 3.0
FORGOTTEN_S: Final = 60.0
"""A transaction that was in doubt, and was not seen for so long, is another time in doubt when it is seen again."""


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
        self._in_doubt: dict[str, tuple[float, float]] = {}
        """When each transaction in doubt was seen first, and last."""
        self.clock = clock
        self._secret = secrets.token_bytes(32)
        self._watchers = {
            broker.name: BrokerLink(broker, broker.watch, clock) for broker in settings.brokers if broker.watch
        }
        self._templates = templates()

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

    def in_doubt_for(self, keys: Sequence[str]) -> dict[str, float]:
        """For how long this console has seen each of these in doubt, because some resources don't tell. What it has
        not seen for a while is forgotten."""
        now = self.clock()
        recent = {key: seen for key, seen in self._in_doubt.items() if now - seen[1] < FORGOTTEN_S}
        self._in_doubt = recent | {key: (recent.get(key, (now, now))[0], now) for key in keys}
        return {key: now - self._in_doubt[key][0] for key in keys}

    def audit(self, session: Session | None, what: str, /, **about: Any) -> None:
        """A line about something that was done, with the address of the browser."""
        line = {
            "who": "an unknown user" if session is None else session.shown,
            "what": what,
            "browser": BROWSER.get(),
            **about,
        }
        AUDIT.info("%s", json.dumps(line, ensure_ascii=True))

    # -- answers
    def render(self, request: Request, session: Session | None, view: PageView) -> Response:
        """The whole page."""
        context = self._context(request, session, view)
        html = self._templates.get_template(view.template).render(context)
        if session is not None:
            session.flashes.clear()
        return HTMLResponse(html, view.status)

    def part(self, request: Request, session: Session, view: PageView) -> str:
        """The part of the page that moves."""
        template = self._templates.get_template(view.template)
        context = template.new_context(self._context(request, session, view))
        return "".join(template.blocks["live"](context))

    def _context(self, request: Request, session: Session | None, view: PageView) -> dict[str, Any]:
        theme = request.cookies.get("theme", "")
        return {
            "session": session,
            "path": request.url.path.removeprefix("/live"),
            "query": request.url.query,
            "theme": theme if theme in {"light", "dark"} else "",
            "brokers": [broker.name for broker in self.settings.brokers],
            "flashes": list(session.flashes) if session is not None else [],
            "broker": request.path_params.get("broker", ""),
            "now": time.time(),
            "live": False,
            **view.context,
        }

    # -- what goes on beside the requests
    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watches the brokers while the block lasts, and closes everything at its end."""
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
        """Notes the state of a broker's queues, from the first link that gets it."""
        watcher = self._watchers.get(name)
        for link in [watcher] if watcher is not None else list(self.sessions.links_to(name)):
            try:
                self.histories[name].note(await link.queues())
            except BrokerProblem as trouble:
                if link is watcher and self._silent.get(name) != str(trouble):
                    self._silent[name] = str(trouble)
                    LOG.warning("%s can't be watched: %s", name, trouble)
                continue
            self._silent.pop(name, None)
            return
