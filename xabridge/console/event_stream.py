"""Server-sent events: the part of a page that moves, made anew every two seconds and sent if it differs.

Being kept up to date is no activity: when the session is over, the stream says so and ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.responses import Response, StreamingResponse

from xabridge.console.sessions import STREAMS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from xabridge.console.console import Console

LOOK_S: Final = 2.0
OVER: Final = "event: over\ndata: over\n\n"
"""The session is over. Without data no browser hears it."""
AT_ONCE: Final = {"x-accel-buffering": "no"}
"""For a proxy that would otherwise collect an answer before it passes it on."""
STILL_THERE: Final = 8
"""After so many looks without a change, a comment shows that the console is there."""


def events(console: Console, request: Request, key: str | None, part: Callable[[], Awaitable[str]]) -> Response:
    """The stream of a page for the session with this key. `part` makes the part anew."""
    session = console.sessions.find(key, active=False)
    if session is None:  # it ended between the page and this
        return Response(OVER, media_type="text/event-stream")
    if session.streams >= STREAMS:
        return Response(status_code=204)  # which tells an EventSource not to come again
    session.streams += 1

    async def stream() -> AsyncIterator[str]:
        last, silent = "", 0
        try:
            while not console.stopping.is_set():
                if console.sessions.find(key, active=False) is None:
                    yield OVER
                    return
                text = await part()
                silent += 1
                if text != last:
                    last, silent = text, 0
                    yield "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
                elif silent >= STILL_THERE:
                    silent = 0
                    yield ": still there\n\n"

                if await request.is_disconnected():
                    return
                await _pause(console.stopping)
        finally:
            session.streams -= 1

    return StreamingResponse(stream(), media_type="text/event-stream", headers=AT_ONCE)


async def _pause(stopping: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), LOOK_S)
    except TimeoutError:
        return
