"""The audit logs of the brokers: who has changed what, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xabridge.console.pages.asking import chosen, of_each
from xabridge.console.view import View

if TYPE_CHECKING:
    from starlette.requests import Request

    from xabridge.console.console import Console
    from xabridge.console.sessions import Session

PAGE: Final = 50


async def audit(_console: Console, request: Request, session: Session) -> View:
    """A page of each broker's, the newest first."""
    after = request.query_params.get("after", "")
    answers = await of_each(chosen(request, session), lambda link: link.ask("audit", after=after, count=PAGE))
    return View("audit.html", {"title": "Audit", "answers": answers, "size": PAGE})
