"""Sessions: who has signed in, until when, and the connections that are theirs.

A session ends when its user signs out, when it was idle for `idle_s`, and after `session_s` in any case. Pages that
bring themselves up to date are no activity. Everything of a session is in memory: it ends with the console.
"""

from __future__ import annotations

import hmac
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from xabridge.console.brokers import BrokerLink
    from xabridge.console.change_job import Job
    from xabridge.console.settings import ConsoleSettings

STREAMS: Final = 8
"""Pages of one session that are kept up to date at a time."""
PER_USER: Final = 10


class Session:
    """One session. `token` is the one that its forms carry."""

    def __init__(self, user: str, links: dict[str, BrokerLink], now: float) -> None:
        self.user = user
        self.links = links
        self.began = self.used = now
        self.token = secrets.token_urlsafe(32)
        self.flashes: list[tuple[str, str]] = []
        """What the next page says first: good or bad, and the text."""
        self.jobs: dict[str, Job] = {}
        self.streams = 0
        self.over = False

    @property
    def shown(self) -> str:
        """The user, for people."""
        return self.user or "an anonymous user"

    def is_token(self, given: str) -> bool:
        """Whether a form carries this session's token."""
        return hmac.compare_digest(self.token.encode(), given.encode())

    def end(self) -> list[asyncio.Task[Any]]:
        """Closes its connections; each as soon as no request uses it."""
        self.over = True
        return [link.close() for link in self.links.values()]


class Sessions:
    """All of them, by the secret in their cookies."""

    def __init__(self, settings: ConsoleSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._by_key: dict[str, Session] = {}

    def begin(self, user: str, links: dict[str, BrokerLink]) -> tuple[str, Session]:
        """A new session, and its key. If there are too many, the one that was idle longest ends."""
        self.sweep()
        own = [key for key, one in self._by_key.items() if one.user == user]
        if len(own) >= PER_USER:
            self.end(min(own, key=lambda key: self._by_key[key].used))
        if len(self._by_key) >= self._settings.sessions:
            self.end(min(self._by_key, key=lambda key: self._by_key[key].used))
        session = Session(user, links, self._clock())
        key = secrets.token_urlsafe(32)
        self._by_key[key] = session
        return key, session

    def find(self, key: str | None, *, active: bool = True) -> Session | None:
        """The session of a cookie. `active`: somebody uses it now."""
        session = self._by_key.get(key or "")
        if session is None:
            return None
        if self._is_over(session):
            self.end(key or "")
            return None
        if active:
            session.used = self._clock()
        return session

    def end(self, key: str) -> list[asyncio.Task[Any]]:
        """Ends a session."""
        session = self._by_key.pop(key, None)
        return session.end() if session is not None else []

    def sweep(self) -> None:
        """Ends those whose time is over."""
        for key in [key for key, one in self._by_key.items() if self._is_over(one)]:
            self.end(key)

    def end_all(self) -> list[asyncio.Task[Any]]:
        """The console ends."""
        return [closing for key in list(self._by_key) for closing in self.end(key)]

    def links_to(self, broker: str) -> Iterator[BrokerLink]:
        """The connections that sessions have to a broker, the latest first."""
        for session in reversed(self._by_key.values()):
            if broker in session.links:
                yield session.links[broker]

    def _is_over(self, session: Session) -> bool:
        now = self._clock()
        return (
            session.over or now - session.used > self._settings.idle_s or now - session.began > self._settings.session_s
        )
