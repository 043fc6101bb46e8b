"""Endpoint: a small HTTP server for probes and scrapes: GET of a few pages, and POST where a page has a token for it.

    endpoint = Endpoint({"/live": live, "/ready": ready, "/metrics": metrics})
    await endpoint.start("127.0.0.1", 9464)           # in an event loop that runs already
    with EndpointThread(pages, "127.0.0.1", 9464):    # in a thread with a loop of its own

A client is a stranger, so all that it can take is bounded: OPEN connections at a time, of which the one that has waited
longest for its own request goes when another one comes; REQUEST_OCTETS of a request, which has to be there within
READ_S; one new connection in PACE_S; one request on each. A page that is asked for while it is being made is made once
for all who wait. A private page is answered only to a request that has its token (`Authorization: Bearer …`).

What can be posted to has a token of its own. The body is JSON (`Content-Type: application/json`) with at most
BODY_OCTETS; a stranger's is read and thrown away. A page of somebody else's in a browser can send neither the token nor
that type to another address without asking first, and that question gets no answer here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import socket
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType
    from typing import Self, TypeAlias

    Page: TypeAlias = Callable[[], Awaitable["Answer"]]
    Act: TypeAlias = Callable[[bytes], Awaitable["Answer"]]

LOG: Final = logging.getLogger("xabridge.http")

OPEN: Final = 16
REQUEST_OCTETS: Final = 4096
BODY_OCTETS: Final = 64 << 10
"""Of what is posted."""
READ_S: Final = 5.0
WRITE_S: Final = 10.0
PACE_S: Final = 0.02
TOKEN_OCTETS: Final = 16
"""The least of a token that opens private pages."""
STARTING_S: Final = 10.0
PLAIN: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}

_CHALLENGE: Final = "WWW-Authenticate: Bearer\r\n"


class Answer(NamedTuple):
    """What is said to a request."""

    status: int
    body: bytes
    content_type: str = PLAIN

    def octets(self, *, with_body: bool = True) -> bytes:
        """The whole response."""
        head = (
            f"HTTP/1.1 {self.status} {_REASONS[self.status]}\r\nContent-Type: {self.content_type}\r\n"
            f"{_CHALLENGE if self.status == 401 else ''}Content-Length: {len(self.body)}\r\n"
            "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode("ascii") + (self.body if with_body else b"")


def text_answer(status: int, text: str) -> Answer:
    """An answer of one line."""
    return Answer(status, text.encode() + b"\n")


class PostActions(NamedTuple):
    """What can be posted to with the token: path → what makes of a body an answer."""

    token: str
    by_path: Mapping[str, Act]

    def __repr__(self) -> str:
        return f"PostActions(by_path={self.by_path})"


class PrivatePages(NamedTuple):
    """Pages that need the token, and what can be posted to with the token of `acts`."""

    token: str
    pages: Mapping[str, Page]
    acts: PostActions | None = None

    def __repr__(self) -> str:
        return f"PrivatePages(pages={self.pages}, acts={self.acts})"


class Request(NamedTuple):
    """The head of a request, and what of the body has come with it."""

    method: str
    path: str
    fields: Mapping[str, str]
    body: bytes = b""

    def __repr__(self) -> str:
        return f"Request(method={self.method!r}, path={self.path!r})"

    def has(self, token: str) -> bool:
        """Whether its field Authorization has the token. It takes as long, whatever it has."""
        kind, _, sent = self.fields.get("authorization", "").partition(" ")
        return hmac.compare_digest(sent.strip().encode(), token.encode()) and kind.lower() == "bearer"


class AddressTaken(OSError):
    """The address can't be listened at. The message says which, and why."""


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens; AddressTaken where that can't be."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise AddressTaken(f"http {host}:{port}: {error.strerror or error}") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(OPEN)
        made.setblocking(False)
    except OSError as error:
        made.close()
        raise AddressTaken(f"http {host}:{port}: {error.strerror or error}") from error
    return made


class Endpoint:
    """Answers for `pages` (path → what makes its answer) on the running event loop."""

    def __init__(self, pages: Mapping[str, Page], private: PrivatePages | None = None) -> None:
        self._pages = pages
        self._private = private
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._asking: dict[asyncio.Task[None], None] = {}
        """Connections whose request is not there yet, the oldest first."""
        self._answering: set[asyncio.Task[None]] = set()
        self._made: dict[str, asyncio.Task[Answer]] = {}

    async def start(self, host: str, port: int) -> int:
        """Listens; the port. Port 0 is any that is free. AddressTaken: it is not."""
        return self.start_on(listening(host, port))

    def start_on(self, listener: socket.socket) -> int:
        """Serves at a socket that listens; its port."""
        self._listener = listener
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))
        return int(listener.getsockname()[1])

    async def close(self) -> None:
        """Stops answering."""
        tasks = [*self._asking, *self._answering, *self._made.values()]
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    # -- connections
    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                peer, _ = await loop.sock_accept(listener)
            except OSError as error:  # no file descriptor is free, say
                LOG.warning("no probe can be answered now: %s", error)
                await asyncio.sleep(1.0)
                continue
            peer.setblocking(False)
            if len(self._asking) + len(self._answering) >= OPEN:
                if not self._asking:
                    peer.close()
                    continue
                next(iter(self._asking)).cancel()

            task = loop.create_task(self._serve(peer))
            self._asking[task] = None
            task.add_done_callback(self._gone)
            await asyncio.sleep(PACE_S)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._asking.pop(task, None)
        self._answering.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("an answer to a probe failed", exc_info=error)

    async def _serve(self, peer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with peer, contextlib.suppress(OSError):
            try:
                async with asyncio.timeout(READ_S):
                    request = await self._asked(loop, peer)
            except TimeoutError:
                request = text_answer(408, "the request did not come in time")
            if request is None:
                return
            task = asyncio.current_task()
            if task is not None:
                self._asking.pop(task, None)
                self._answering.add(task)

            octets = request.octets() if isinstance(request, Answer) else await self._answered(request)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_S):
                    await loop.sock_sendall(peer, octets)
                    peer.shutdown(socket.SHUT_WR)

    @property
    def _acts(self) -> Mapping[str, Act]:
        private = self._private
        return private.acts.by_path if private is not None and private.acts is not None else {}

    async def _asked(self, loop: asyncio.AbstractEventLoop, peer: socket.socket) -> Request | Answer | None:
        """A request, with its body where there may be one. Nothing is answered before that is there, because the answer
        could be lost with the connection."""
        request = await _request(loop, peer)
        if not isinstance(request, Request) or request.method != "POST" or request.path not in self._acts:
            return request
        length = request.fields.get("content-length", "")
        if not (length.isascii() and length.isdecimal() and len(length) < 10):
            return text_answer(411, "say how long it is: Content-Length")
        if int(length) > BODY_OCTETS:
            return text_answer(413, f"what is posted here has at most {BODY_OCTETS} octets")
        body = await _body(loop, peer, request.body, int(length))
        return request._replace(body=body) if len(body) == int(length) else None

    async def _answered(self, request: Request) -> bytes:
        method, path = request.method, request.path
        page = self._pages.get(path)
        private = self._private
        if private is not None and private.acts is not None and path in private.acts.by_path:
            return (await self._acted(request, private.acts)).octets(with_body=method != "HEAD")
        if page is None and private is not None and path in private.pages:
            if not request.has(private.token):
                answer = text_answer(401, "this page needs the token of http_token_env")
                return answer.octets(with_body=method != "HEAD")
            page = private.pages[path]

        if page is None:
            known = " ".join(self._pages)
            return text_answer(404, f"there is {known}").octets(with_body=method != "HEAD")
        if method not in {"GET", "HEAD"}:
            return text_answer(405, "GET only").octets()
        return (await self._one(path, page)).octets(with_body=method != "HEAD")

    async def _acted(self, request: Request, acts: PostActions) -> Answer:
        """Has it carried out, if it has the token."""
        if not request.has(acts.token):
            return text_answer(401, "this needs the token of http_act_token_env")
        if request.method != "POST":
            return text_answer(405, "POST only")
        if request.fields.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            return text_answer(415, f"what is posted here is {JSON}")
        try:
            return await acts.by_path[request.path](request.body)
        except Exception:
            LOG.exception("%s could not be answered", request.path)
            return text_answer(500, "the log says why")

    async def _one(self, path: str, page: Page) -> Answer:
        """The page, made once for all who ask at the same time."""
        making = self._made.get(path)
        if making is None:
            making = self._made[path] = asyncio.get_running_loop().create_task(self._make(path, page))
        return await asyncio.shield(making)

    async def _make(self, path: str, page: Page) -> Answer:
        try:
            return await page()
        except Exception:
            LOG.exception("%s could not be answered", path)
            return text_answer(500, "the log says why")
        finally:
            del self._made[path]


async def _body(loop: asyncio.AbstractEventLoop, peer: socket.socket, begun: bytes, length: int) -> bytes:
    """`length` octets, or less if no more come."""
    octets = begun
    while len(octets) < length:
        more = await loop.sock_recv(peer, length - len(octets))
        if not more:
            break
        octets += more
    return octets


async def _request(loop: asyncio.AbstractEventLoop, peer: socket.socket) -> Request | Answer | None:
    """The head of a request; an answer to one that is none; None where the peer has gone."""
    octets = b""
    while b"\r\n\r\n" not in octets:
        if len(octets) > REQUEST_OCTETS:
            return text_answer(431, f"a request has at most {REQUEST_OCTETS} octets")
        more = await loop.sock_recv(peer, REQUEST_OCTETS)
        if not more:
            return None
        octets += more

    head, _, body = octets.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    parts = line.split(b" ")
    if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
        return text_answer(400, "this is HTTP/1.1")
    method, target, _ = (part.decode("latin-1") for part in parts)
    sent: dict[str, str] = {}
    for name, _, value in (field.decode("latin-1").partition(":") for field in fields):
        sent.setdefault(name.lower(), value.strip())
    return Request(method, target.partition("?")[0], sent, body)


class EndpointThread:
    """The same in a thread of its own, while it is entered."""

    def __init__(self, pages: Mapping[str, Page], host: str, port: int, private: PrivatePages | None = None) -> None:
        self._listener = listening(host, port)
        self.port: int = self._listener.getsockname()[1]
        self._pages = pages
        self._private = private
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="xabridge-http", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()
        self._started.wait(STARTING_S)

    def close(self) -> None:
        """Stops answering."""
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(stopping.set)
            self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        endpoint = Endpoint(self._pages, self._private)
        endpoint.start_on(self._listener)
        self._started.set()
        await self._stopping.wait()
        await endpoint.close()
